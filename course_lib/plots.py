"""Two pictures: memory over a training step (timeline), and what a total is made of (waterfall).

Colours are from Okabe and Ito's palette, which stays apart under the common forms of colour blindness
(https://jfly.uni-koeln.de/color/); along the stack they grow lighter and change their hatching, so that a
grey print can be read, too. Labels are English in both editions of the course; :func:`alt_text` says in
words and figures what a picture shows.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, takewhile
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

from course_lib.accounts import ACCOUNTS, STEP_MOMENTS, Account, Moment
from course_lib.device import Capacity
from course_lib.errors import CourseError
from course_lib.i18n import N_, _
from course_lib.report import Forecast
from course_lib.trace import Event, Trace
from course_lib.units import Unit, format_bytes, in_unit, unit_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Look(NamedTuple):
    colour: str
    hatch: str


#: From the bottom of a stack to its top: what stays longest lies lowest.
LOOKS = {
    Account.WEIGHTS: Look("#0072B2", ""),
    Account.OPTIMIZER: Look("#009E73", "//"),
    Account.GRADIENTS: Look("#CC79A7", ".."),
    Account.ACTIVATIONS: Look("#E69F00", "\\\\"),
    Account.TEMPORARY: Look("#F0E442", "xx"),
}
RISE, FALL, TOTAL = Look("#0072B2", ""), Look("#56B4E9", "//"), Look("#595959", "")
MOMENT_SHADES = {Moment.LOAD: "1.0", Moment.FORWARD: "0.96", Moment.BACKWARD: "0.90", Moment.OPTIMIZER_STEP: "0.83"}
LIMIT_COLOUR = "#D55E00"
#: More events than this are drawn by the highest of each group, which no screen can tell apart.
MOST_POINTS = 2000
#: The least part of the width that a moment is given: an optimizer step may be three events long.
LEAST_WIDTH = 0.06
#: Behind words that may lie over a line.
PAPER = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}

#: Words of alternative texts.
_WORDS = (
    N_("weights"), N_("gradients"), N_("optimizer"), N_("activations"), N_("temporary"),
    N_("forward"), N_("backward"), N_("optimizer_step"),
)  # fmt: skip

Bar = tuple[str, int]  #: what it is, and by how many bytes it raises (or lowers) the total


def timeline(trace: Trace, ax: "Axes | None" = None, card: Capacity | None = None) -> "Axes":
    """Live bytes by account after each event of a step, stacked; moments shaded, the peak marked.

    What is there before the step is drawn as it stands when the step begins, not as it was loaded.

    Args:
        trace: from a dry run or a probe.
        ax: where to draw; a new figure without it.
        card: its usable memory is drawn as a line.

    Raises:
        CourseError: the trace has no event.
    """
    if not trace.events:
        raise CourseError("timeline: got a trace without events, expected one of a training step")
    from matplotlib import rc_context

    ax, trace = ax or _new_axes(10, 4.5), _loaded_at_once(trace)
    unit = unit_for(max(trace.peak_bytes, card.usable_bytes if card else 0))
    starts, shown = _starts(trace), _shown(trace)
    edges = [*(starts[i] for i in shown), starts[-1]]  # an event's height lasts until the next one
    floor = [0.0] * len(edges)
    for account, look in LOOKS.items():
        curve = list(trace.account(account))
        heights = [in_unit(curve[i], unit) for i in [*shown, shown[-1]]]
        top = [low + height for low, height in zip(floor, heights, strict=True)]
        label = f"{account} {in_unit(trace.at_peak[account], unit):,.2f}"
        with rc_context({"hatch.linewidth": 0.5}):
            ax.fill_between(
                edges, floor, top, step="post", label=label, facecolor=look.colour, hatch=look.hatch,
                edgecolor="white", linewidth=0,
            )  # fmt: skip
        floor = top
    # A tensor that lives for one event of thousands is thinner than a pixel: the outline keeps it visible.
    ax.step(edges, floor, where="post", color="0.15", linewidth=0.8, label="_outline")
    _shade_moments(ax, trace, starts)
    _mark_peak(ax, trace, starts, unit)
    ax.set(xlim=(0, starts[-1]), xticks=[], xlabel="one training step, event by event", ylabel=f"live memory in {unit}")
    _finish(ax, in_unit(trace.peak_bytes, unit), unit, card)
    if card:
        _name_limit(ax, card, unit, (4, 4), (0, "left", "bottom"))
    handles, labels = ax.get_legend_handles_labels()
    title = f"{unit} at the peak"
    ax.legend(handles[::-1], labels[::-1], title=title, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return ax


def waterfall(
    bars: Sequence[Bar],
    ax: "Axes | None" = None,
    card: Capacity | None = None,
    total: str = "together",
    looks: Sequence[Look] | None = None,
) -> "Axes":
    """What a total is made of: each bar starts where the one before it ended; a negative one lowers the total.

    Args:
        bars: labels and bytes, in order.
        ax: where to draw; a new figure without it.
        card: its usable memory is drawn as a line.
        total: label of the last bar, which shows the sum.
        looks: a colour and hatching for each bar; without it, rising and falling bars differ.
    """
    if not bars:
        raise CourseError("waterfall: got no bar, expected at least one label with its bytes")
    from matplotlib import rc_context

    ax = ax or _new_axes(1.6 + 1.3 * (len(bars) + 1), 4.5)
    looks = looks or [RISE if size >= 0 else FALL for _, size in bars]
    levels = [0, *accumulate(size for _, size in bars)]
    highest = max(levels)
    unit = unit_for(max(highest, card.usable_bytes if card else 0))
    drawn = [(label, size, start, look) for (label, size), start, look in zip(bars, levels, looks, strict=False)]
    drawn.append((total, levels[-1], 0, TOTAL))
    for x, (_label, size, start, look) in enumerate(drawn):
        with rc_context({"hatch.linewidth": 0.5}):
            ax.bar(
                x, in_unit(size, unit), bottom=in_unit(start, unit), width=0.7, color=look.colour, hatch=look.hatch,
                edgecolor="white", linewidth=0.5,
            )  # fmt: skip
        sign = "\N{MINUS SIGN}" if size < 0 else "+" if 0 < x < len(bars) else ""
        top = in_unit(max(start, start + size), unit)
        ax.annotate(
            f"{sign}{abs(in_unit(size, unit)):,.2f}", (x, top), (0, 4), textcoords="offset points",
            ha="center", va="bottom", bbox=PAPER,
        )  # fmt: skip
    for x, level in enumerate(levels[1:]):
        ax.plot([x - 0.35, x + 1.35], [in_unit(level, unit)] * 2, color="0.4", linewidth=0.7, zorder=0)
    ax.set_xticks(range(len(drawn)), [fill(label, 14, break_on_hyphens=False) for label, *_ in drawn])
    ax.tick_params(axis="x", length=0)
    ax.set_ylabel(f"memory in {unit}")
    _finish(ax, in_unit(highest, unit), unit, card)
    if card:
        _name_limit(ax, card, unit, (4, 0), (1, "left", "center"), between="\n")
    return ax


def bill_waterfall(forecast: Forecast, ax: "Axes | None" = None, card: Capacity | None = None) -> "Axes":
    """The bill at the peak, by account; accounts that own nothing then are left out."""
    owners = [account for account in LOOKS if forecast.at_peak[account]]
    bars = [(str(account), forecast.at_peak[account]) for account in owners]
    total = f"peak, in {forecast.peak_moment}"
    return waterfall(bars, ax, card, total, [LOOKS[account] for account in owners])


def save_timeline(trace: Trace, path: str | Path, card: Capacity | None = None) -> None:
    """Draw the timeline into a PNG, SVG or PDF file, which carries its own description."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    timeline(trace, figure.add_subplot(), card)
    kind = "Subject" if Path(path).suffix.lower() == ".pdf" else "Description"
    try:
        figure.savefig(path, dpi=150, metadata={kind: alt_text(trace)})
    except OSError as error:
        raise CourseError(f"plot: cannot write {str(path)!r}: {error.strerror}; choose another file") from None


def alt_text(shown: Forecast | Sequence[Bar]) -> str:
    """What a picture shows, in the reader's language: of a trace's timeline, a bill's or any bars' waterfall."""
    if isinstance(shown, Sequence):
        unit = unit_for(max(abs(size) for _, size in shown))
        parts = ", ".join(f"{_(label)} {format_bytes(size, unit)}" for label, size in shown)
        total = format_bytes(sum(size for _, size in shown), unit)
        return _("Waterfall: {parts}; together {total}.").format(parts=parts, total=total)
    unit = unit_for(shown.peak_bytes)
    bill = ", ".join(f"{_(account)} {format_bytes(shown.at_peak[account], unit)}" for account in ACCOUNTS)
    peak, moment = format_bytes(shown.peak_bytes, unit), _(shown.peak_moment)
    if not isinstance(shown, Trace):
        text = _("Waterfall of the bill at the peak: {bill}; together {peak} in {moment}.")
        return text.format(bill=bill, peak=peak, moment=moment)
    moments = ", ".join(f"{_(each)} {format_bytes(shown.moment_peaks[each], unit)}" for each in STEP_MOMENTS)
    return _(
        "Timeline of live memory by account over {count:,} events of a training step. "
        "The peak is {peak} in {moment}: {bill}. The most within each moment: {moments}."
    ).format(count=len(shown.events), peak=peak, moment=moment, bill=bill, moments=moments)


def _new_axes(width_inches: float, height_inches: float) -> "Axes":
    import matplotlib.pyplot as plt  # here: whoever hands in axes needs no window system

    return plt.subplots(figsize=(width_inches, height_inches), layout="constrained")[1]


def _loaded_at_once(trace: Trace) -> Trace:
    """The trace with all that was loaded before the step in one event."""
    loaded = sum(1 for _ in takewhile(lambda event: event.moment is Moment.LOAD, trace.events))
    if loaded < 2 or trace.peak_index < loaded - 1:
        return trace
    return Trace((Event(Moment.LOAD, "load", trace.live[loaded - 1]), *trace.events[loaded:]), trace.static_bytes)


def _segments(trace: Trace) -> Iterator[tuple[Moment, int, int]]:
    """Stretches of one moment, with their first event and the one after their last."""
    start = 0
    for moment, events in groupby(event.moment for event in trace.events):
        end = start + sum(1 for _ in events)
        yield moment, start, end
        start = end


def _longest(trace: Trace) -> dict[Moment, tuple[int, int]]:
    """The first of the longest stretches of each moment."""
    longest: dict[Moment, tuple[int, int]] = {}
    for moment, start, end in _segments(trace):
        before = longest.get(moment, (0, 0))
        longest[moment] = (start, end) if end - start > before[1] - before[0] else before
    return longest


def _starts(trace: Trace) -> list[float]:
    """Where each event begins on the x axis, and where the last one ends; a moment of few events is given room."""
    starts, least, longest = [0.0], LEAST_WIDTH * len(trace.events), _longest(trace)
    for moment, start, end in _segments(trace):
        step = max(1.0, least / (end - start)) if longest[moment] == (start, end) else 1.0
        left = starts[-1]
        starts += [left + step * (i + 1) for i in range(end - start)]
    return starts


def _shown(trace: Trace) -> list[int]:
    """The events to draw: all, or the highest of each group and where moments begin and end."""
    count = len(trace.events)
    group = -(-count // MOST_POINTS)
    highest = {max(range(i, min(i + group, count)), key=trace.live_total.__getitem__) for i in range(0, count, group)}
    return sorted(highest | {i for _, start, end in _segments(trace) for i in (start, end - 1)})


def _shade_moments(ax: "Axes", trace: Trace, starts: list[float]) -> None:
    """A shade for each moment, its name over the longest stretch of it."""
    for moment, start, end in _segments(trace):
        ax.axvspan(starts[start], starts[end], facecolor=MOMENT_SHADES[moment], edgecolor="none", zorder=-2)
        if start:
            ax.axvline(starts[start], color="0.35", linewidth=0.6, linestyle=(0, (2, 2)))
    for moment, (start, end) in _longest(trace).items():
        name = str(moment).replace("_", " ")
        narrow = starts[end] - starts[start] < 0.0105 * len(name) * starts[-1]
        ax.annotate(
            name, ((starts[start] + starts[end]) / 2, 1), (0, 4), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="left" if narrow else "center", va="bottom", rotation=25 if narrow else 0,
            rotation_mode="anchor",
        )  # fmt: skip


def _mark_peak(ax: "Axes", trace: Trace, starts: list[float], unit: Unit) -> None:
    at = (starts[trace.peak_index] + starts[trace.peak_index + 1]) / 2
    height = in_unit(trace.peak_bytes, unit)
    right = at < 0.6 * starts[-1]
    ax.annotate(
        f"peak {height:,.2f} {unit}", (at, height), (14 if right else -14, 14), textcoords="offset points",
        ha="left" if right else "right", va="center", fontweight="bold", bbox=PAPER,
        arrowprops={"arrowstyle": "-|>", "color": "black", "shrinkA": 0, "shrinkB": 0},
    )  # fmt: skip


def _name_limit(
    ax: "Axes", card: Capacity, unit: Unit, offset: tuple[int, int], place: tuple[float, str, str], between: str = " "
) -> None:
    x, ha, va = place
    ax.annotate(
        f"{card.name}:{between}{in_unit(card.usable_bytes, unit):,.2f} {unit}{between}usable",
        (x, in_unit(card.usable_bytes, unit)), offset, xycoords=("axes fraction", "data"),
        textcoords="offset points", ha=ha, va=va, color=LIMIT_COLOUR, fontweight="bold", bbox=PAPER,
    )  # fmt: skip


def _finish(ax: "Axes", highest: float, unit: Unit, card: Capacity | None) -> None:
    """Room above the highest point, the card's line, and no ink that carries nothing."""
    limit = in_unit(card.usable_bytes, unit) if card else 0.0
    ax.set_ylim(0, 1.15 * max(highest, limit))
    if card:
        ax.axhline(limit, color=LIMIT_COLOUR, linewidth=1.5, linestyle="--", label="_card")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="0.85", linewidth=0.6)
    ax.set_axisbelow(True)
