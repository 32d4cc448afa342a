"""Which training run fits on which card, as one picture: a table of cards and recipes, filled by the ledger."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from course_lib import ledger
from course_lib.cards import Card
from course_lib.device import Verdict
from course_lib.errors import CourseError
from course_lib.i18n import _
from course_lib.recipe import Recipe
from course_lib.shape import ModelShape
from course_lib.units import in_unit


class Cell(NamedTuple):
    """What the ledger says of one run on one card."""

    verdict: Verdict
    low_gib: float  #: device use, at least
    high_gib: float  #: and at most


#: From light to dark, so that a grey print can be read; the words carry the verdict, too.
_FILLS: Mapping[Verdict, tuple[str, str]] = {
    "fits": ("#FFFFFF", "fits"),
    "tight": ("#F0E442", "tight"),
    "does-not-fit": ("#595959", "no"),
}


class Grid(NamedTuple):
    """Cards by recipes."""

    cards: tuple[Card, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]  #: a row for each card


def card_grid(cards: Sequence[Card], runs: Mapping[str, tuple[ModelShape, Recipe]]) -> Grid:
    """Ask the ledger for every pair of card and run.

    Args:
        cards: one row each, from top to bottom.
        runs: by name, a model and how it is trained; one column each.
    """
    if not cards or not runs:
        raise CourseError(f"card_grid: got {len(cards)} cards and {len(runs)} runs, expected at least one of each")
    reports = [ledger.report(shape, recipe) for shape, recipe in runs.values()]
    rows = tuple(
        tuple(
            Cell(device.verdict(card.usable_bytes), in_unit(device.low_bytes), in_unit(device.high_bytes))
            for device in (each.device for each in reports)
        )
        for card in cards
    )
    return Grid(tuple(cards), tuple(runs), rows)


def draw_grid(grid: Grid, ax: Axes | None = None) -> Axes:
    """The grid as a picture: verdict by shade and word, the range of device use in GiB over each column."""
    if ax is None:
        import matplotlib.pyplot as plt

        size = (2.2 + 1.35 * len(grid.columns), 1.1 + 0.42 * len(grid.cards))
        ax = plt.subplots(figsize=size, layout="constrained")[1]
    for row, cells in enumerate(grid.cells):
        for column, cell in enumerate(cells):
            colour, word = _FILLS[cell.verdict]
            ax.add_patch(_square(column, row, colour))
            ink = "white" if cell.verdict == "does-not-fit" else "black"
            ax.annotate(word, (column, row), ha="center", va="center", color=ink)
    heads = [
        f"{name}\n{cell.low_gib:.1f} to {cell.high_gib:.1f}"
        for name, cell in zip(grid.columns, grid.cells[0], strict=True)
    ]
    ax.set_xticks(range(len(heads)), heads)
    names = [f"{card.name}  {in_unit(card.usable_bytes):.1f}" for card in grid.cards]
    ax.set_yticks(range(len(names)), names)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.set(xlim=(-0.5, len(heads) - 0.5), ylim=(len(names) - 0.5, -0.5))
    ax.set_xlabel("GiB in use on the card (columns), GiB usable (rows)")
    ax.spines[:].set_visible(False)
    return ax


def grid_alt_text(grid: Grid) -> str:
    """What the picture shows, in the reader's language: for each run the smallest card that surely takes it."""
    lines = []
    for column, name in enumerate(grid.columns):
        fitting = [card for card, cells in zip(grid.cards, grid.cells, strict=True) if cells[column].verdict == "fits"]
        least = min(fitting, key=lambda card: card.usable_bytes, default=None)
        cell = grid.cells[0][column]
        text = _("{name}: {low:.1f} to {high:.1f} GiB, fits from {card} on") if least else _(
            "{name}: {low:.1f} to {high:.1f} GiB, fits on none of them")
        flat = name.replace("\n", " ")
        lines.append(text.format(name=flat, low=cell.low_gib, high=cell.high_gib, card=least and least.name))
    return _("Table of cards and runs. {lines}.").format(lines="; ".join(lines))


def _square(column: int, row: int, colour: str):  # type: ignore[no-untyped-def]
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.47, row - 0.45), 0.94, 0.9, facecolor=colour, edgecolor="0.6", linewidth=0.8)
