"""The interactive bill: choose a model, a recipe and a card; see who owns the peak, and whether it fits.

It is made of what ipywidgets 7.7.1 and 8 both have. Tab reaches every control, the arrow keys move it. The figure
lives in an HTML widget; a copy of it as it was at first is left as plain output, since a notebook that is
read without a kernel shows no widgets.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from html import escape
from typing import Any

from matplotlib.figure import Figure

from course_lib import ledger
from course_lib.cards import CARDS, Card, find_card
from course_lib.errors import CourseError
from course_lib.figures import as_html
from course_lib.hf_config import read_model
from course_lib.i18n import N_, _
from course_lib.plots import alt_text, bill_waterfall
from course_lib.presets import PRESETS
from course_lib.recipe import Recipe
from course_lib.report import Report
from course_lib.units import format_bytes

#: What a control offers where the recipe names no choices.
OFFERED: dict[str, tuple[Any, ...]] = {
    "batch": tuple(2**n for n in range(8)),
    "seq": tuple(2**n for n in range(7, 16)),
    "accum": tuple(2**n for n in range(7)),
    "lora_rank": (0, 8, 16, 64),
    "checkpoint": ("none", "block", "every:2", "every:4", "every:8"),
}
_LABELS = {
    "model": N_("model"),
    "card": N_("card"),
    "precision": N_("precision"),
    "optimizer": N_("optimizer"),
    "optimizer_impl": N_("optimizer code"),
    "lora_rank": N_("LoRA rank"),
    "quant": N_("quantisation"),
    "checkpoint": N_("checkpointing"),
    "attention": N_("attention"),
    "batch": N_("batch"),
    "seq": N_("length in tokens"),
    "accum": N_("accumulation"),
}
VARY = ("precision", "optimizer_impl", "lora_rank", "checkpoint", "batch", "seq")


def bill_explorer(
    model: str = "llama-7b", card: str = "RTX 3090", vary: Sequence[str] = VARY, **recipe: Any
) -> None:
    """Show the interactive bill.

    Args:
        model: the preset to begin with.
        card: the card to begin with, by name.
        vary: the fields of a recipe that get a control; all others stay as ``recipe`` says.
        recipe: values of the recipe to begin with.

    Raises:
        CourseError: no such preset, card or recipe.
    """
    begin = {"model": model, "card": find_card(card).name, **_begin(vary, recipe)}
    fixed = {name: value for name, value in recipe.items() if name not in vary}
    controls = {name: _control(name, value) for name, value in begin.items()}
    explore(controls, lambda **chosen: explain(**chosen, **fixed))


def explore(controls: Mapping[str, Any], draw: Callable[..., str], first: str = "") -> None:
    """Show controls and what ``draw`` makes of their values, again whenever one is moved.

    Args:
        controls: widgets by the name of the argument that each of them sets.
        draw: returns HTML.
        first: what the copy is called that stays as plain output; a figure without it.
    """
    import ipywidgets
    from IPython.display import HTML, display

    shown = ipywidgets.HTML()

    def show(_change: Any = None) -> None:
        shown.value = draw(**{name: each.value for name, each in controls.items()})

    for each in controls.values():
        each.observe(show, "value")
    show()
    wrap = ipywidgets.Layout(flex_flow="row wrap", max_width="960px")
    display(ipywidgets.VBox([ipywidgets.HBox(list(controls.values()), layout=wrap), shown]))
    copy = first or _("The figure as the cell drew it first")
    display(HTML(f"<details><summary>{escape(copy)}</summary>{shown.value}</details>"))


def explain(model: str, card: str, **recipe: Any) -> str:
    """The verdict in words and the bill as a waterfall, as HTML; a recipe that cannot be is answered by the reason."""
    try:
        shape, chosen, capacity = read_model(model), Recipe(**recipe), find_card(card)
        report = ledger.report(shape, chosen, capacity)
    except CourseError as error:
        return f'<p role="status">{escape(str(error))}</p>'
    bill = report.forecast
    ax = Figure(figsize=(9, 4.2), layout="constrained").add_subplot()
    picture = as_html(bill_waterfall(bill, ax, capacity), alt_text(bill))
    return f'<p role="status"><b>{escape(verdict_sentence(report, capacity))}</b></p>{picture}'


def verdict_sentence(report: Report, card: Card) -> str:
    """Whether the card takes the run, and by how much, in the reader's language."""
    device, usable = report.device, card.usable_bytes
    said = {
        "fits": _("{card}: fits, with at least {gap} to spare"),
        "tight": _("{card}: tight; it runs if the allocator wastes less than {gap}"),
        "does-not-fit": _("{card}: does not fit, at least {gap} are missing"),
    }[report.verdict or "does-not-fit"]
    gap = {
        "fits": usable - device.high_bytes,
        "tight": usable - device.low_bytes,
        "does-not-fit": device.low_bytes - usable,
    }[report.verdict or "does-not-fit"]
    return said.format(card=card.name, gap=format_bytes(gap))


def _begin(vary: Sequence[str], recipe: dict[str, Any]) -> dict[str, Any]:
    known = {each.name for each in fields(Recipe)}
    wrong = [name for name in vary if name not in known or not _choices(name)]
    if wrong:
        raise CourseError(f"vary: got {wrong[0]!r}, expected some of {', '.join(sorted(known & _LABELS.keys()))}")
    return {name: getattr(Recipe(**recipe), name) for name in vary}


def _choices(name: str) -> tuple[Any, ...]:
    if name == "model":
        return tuple(sorted(PRESETS, key=lambda preset: read_model(preset).params))
    if name == "card":
        return tuple(card.name for card in sorted(CARDS, key=lambda card: card.usable_bytes))
    field = next(each for each in fields(Recipe) if each.name == name)
    return tuple(field.metadata.get("choices") or OFFERED.get(name, ()))


def _control(name: str, value: Any) -> Any:
    """A slider, for words as well: JupyterLab keeps the arrow keys from drop-down lists, not from sliders."""
    import ipywidgets

    choices = _choices(name)
    if value not in choices:
        choices = tuple(sorted((*choices, value))) if isinstance(value, int) else (*choices, value)
    return ipywidgets.SelectionSlider(
        options=[(f"{each:,}" if isinstance(each, int) else each, each) for each in choices],
        value=value,
        description=_(_LABELS.get(name, name)),
        continuous_update=False,
        style={"description_width": "9em"},
        layout=ipywidgets.Layout(width="30em"),
    )
