"""Pictures that set bills beside each other: recipes by account, peaks of moments over a quantity, growing sizes."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.transforms import blended_transform_factory

from course_lib.accounts import STEP_MOMENTS, Moment
from course_lib.device import Capacity
from course_lib.errors import CourseError
from course_lib.i18n import _
from course_lib.plots import LIMIT_COLOUR, LOOKS
from course_lib.report import Forecast
from course_lib.units import Unit, format_bytes, in_unit, unit_for

#: How the line of a moment is drawn; colours as in :mod:`course_lib.plots`, told apart by dashes, too.
MOMENT_LINES: dict[Moment, tuple[str, str]] = {
    Moment.FORWARD: ("#0072B2", "--"),
    Moment.BACKWARD: ("#D55E00", "-."),
    Moment.OPTIMIZER_STEP: ("#009E73", "-"),
}


def side_by_side(bills: Mapping[str, Forecast], cards: Sequence[Capacity] = (), ax: Axes | None = None) -> Axes:
    """One bar for each bill, by account at its own peak, in GiB.

    Args:
        bills: forecasts by the name of what was forecast, from top to bottom.
        cards: their usable memory is drawn as lines.
        ax: where to draw; a new figure without it.
    """
    _refuse_empty("side_by_side", bills)
    ax = ax or _new_axes(10, 1.6 + 0.55 * len(bills))
    for row, forecast in enumerate(bills.values()):
        start = 0.0
        for account, look in LOOKS.items():
            size = in_unit(forecast.at_peak[account])
            with mpl.rc_context({"hatch.linewidth": 0.5}):
                ax.barh(
                    row, size, left=start, height=0.66, color=look.colour, hatch=look.hatch, edgecolor="white",
                    linewidth=0.5, label="_" * (row > 0) + account,
                )  # fmt: skip
            start += size
        said = f" {start:,.1f} in {forecast.peak_moment}"
        ax.annotate(said, (start, row), va="center", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    for card in cards:
        limit = in_unit(card.usable_bytes)
        ax.axvline(limit, color=LIMIT_COLOUR, linewidth=1.5, linestyle="--", zorder=0)
        ax.annotate(
            card.name, (limit, 1), (3, 2), xycoords=blended_transform_factory(ax.transData, ax.transAxes),
            textcoords="offset points", color=LIMIT_COLOUR, fontweight="bold", ha="center", va="bottom",
        )  # fmt: skip
    longest = max([*(in_unit(each.peak_bytes) for each in bills.values()), *(in_unit(c.usable_bytes) for c in cards)])
    ax.set(xlim=(0, 1.25 * longest), ylim=(len(bills) - 0.4, -0.6), xlabel="GiB at the peak")
    ax.set_yticks(range(len(bills)), list(bills))
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return ax


def peaks_by_moment(bills: Mapping[int, Forecast], quantity: str, ax: Axes | None = None) -> Axes:
    """How high each moment of the step reaches as one quantity grows; the highest of them is the peak.

    Args:
        bills: forecasts by the value of the quantity, such as the batch.
        quantity: its name, for the axis.
        ax: where to draw; a new figure without it.
    """
    _refuse_empty("peaks_by_moment", bills)
    ax = ax or _new_axes(8, 4)
    values = sorted(bills)
    peaks = [in_unit(bills[value].peak_bytes) for value in values]
    ax.plot(values, peaks, color="0.8", linewidth=7, solid_capstyle="round", label="the peak", zorder=1)
    for moment in STEP_MOMENTS:
        colour, dashes = MOMENT_LINES[moment]
        heights = [in_unit(bills[value].moment_peaks[moment]) for value in values]
        ax.plot(values, heights, color=colour, linestyle=dashes, linewidth=1.8, label=str(moment), zorder=2)
    ax.set(ylim=(0, 1.1 * max(peaks)), xlim=(values[0], values[-1]), xlabel=quantity, ylabel="GiB at most")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="0.85", linewidth=0.6)
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return ax


def growth(curves: Mapping[str, Mapping[int, int]], quantity: str, what: str, ax: Axes | None = None) -> Axes:
    """How sizes grow with one quantity, a line for each name.

    Args:
        curves: for each name the bytes by the value of the quantity.
        quantity: its name, for the horizontal axis.
        what: whose size it is, for the vertical axis.
        ax: where to draw; a new figure without it.
    """
    _refuse_empty("growth", curves)
    ax, unit = ax or _new_axes(8, 3.8), _unit_of_all(curves)
    for (name, curve), dashes in zip(curves.items(), cycle(("-", "--", "-.", ":"))):
        ax.plot(list(curve), [in_unit(size, unit) for size in curve.values()], dashes, linewidth=1.8, label=name)
    ax.set(ylim=(0, None), xlabel=quantity, ylabel=f"{what} in {unit}")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="0.85", linewidth=0.6)
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return ax


def comparison_alt_text(bills: Mapping[str, Forecast] | Mapping[int, Forecast]) -> str:
    """What the two pictures of bills show, in the reader's language; of a long row where its moment changes."""
    names, moments = list(bills), [each.peak_moment for each in bills.values()]
    inside = {
        names[i] for i in range(1, len(names) - 1) if len(names) > 8 and moments[i - 1] is moments[i] is moments[i + 1]
    }
    peaks = [
        _("{name}: {peak} in {moment}").format(
            name=name, peak=format_bytes(each.peak_bytes), moment=_(each.peak_moment)
        )
        for name, each in bills.items()
        if name not in inside
    ]
    return _("Peaks side by side. {peaks}.").format(peaks="; ".join(peaks))


def growth_alt_text(curves: Mapping[str, Mapping[int, int]], quantity: str) -> str:
    """What :func:`growth` shows, in the reader's language: where each line begins and ends."""
    lines, unit = [], _unit_of_all(curves)
    for name, curve in curves.items():
        (first, low), *_between, (last, high) = curve.items()
        sizes = {"low": format_bytes(low, unit), "high": format_bytes(high, unit)}
        lines.append(_("{name}: {low} at {first}, {high} at {last}").format(
            name=name, first=f"{first:,}", last=f"{last:,}", **sizes
        ))  # fmt: skip
    return _("Lines over {quantity}. {lines}.").format(quantity=quantity, lines="; ".join(lines))


def _unit_of_all(curves: Mapping[str, Mapping[int, int]]) -> Unit:
    return unit_for(max(size for curve in curves.values() for size in curve.values()))


def _refuse_empty(function: str, shown: Mapping[Any, Any]) -> None:
    if not shown:
        raise CourseError(f"{function}: got nothing to show, expected at least one entry")


def _new_axes(width_inches: float, height_inches: float) -> Axes:
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width_inches, height_inches), layout="constrained")[1]
