"""The exercises' own pictures; their labels are English in both editions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from course_lib.accounts import Account
from course_lib.plots import LOOKS, timeline
from course_lib.trace import Trace
from course_lib.units import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DARK, _LIGHT = LOOKS[Account.WEIGHTS], LOOKS[Account.ACTIVATIONS]


def static_and_peak(static: Mapping[str, Mapping[str, int]], peaks: Mapping[str, int]) -> "Axes":
    """Two bars for each recipe: what is stored, and the peak of the step."""
    import matplotlib.pyplot as plt

    axes: Axes = plt.subplots(figsize=(7, 3.6), layout="constrained")[1]
    for offset, label, look, sizes in (
        (-0.2, "stored", _DARK, {recipe: sum(static[recipe].values()) for recipe in peaks}),
        (0.2, "peak of the step", _LIGHT, peaks),
    ):
        places = [place + offset for place in range(len(sizes))]
        heights = [size / MIB for size in sizes.values()]
        axes.bar(places, heights, 0.38, label=label, color=look.colour, hatch=look.hatch, edgecolor="white")
        for place, height in zip(places, heights, strict=True):
            axes.annotate(f"{height:,.0f}", (place, height), (0, 3), textcoords="offset points", ha="center")
    half = peaks["fp32"] / MIB / 2
    axes.axhline(half, color="0.3", linewidth=1, linestyle="--")
    axes.set_xlim(-0.6, len(peaks) + 0.3)  # room beside the bars
    axes.annotate("half of the\nfp32 peak", (len(peaks) + 0.3, half), (0, 3), textcoords="offset points", ha="right")
    axes.set_xticks(range(len(peaks)), list(peaks))
    axes.set_ylabel("memory in MiB")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return axes


def static_and_peak_text(static: Mapping[str, Mapping[str, int]], peaks: Mapping[str, int]) -> str:
    """The same in words, for those who cannot see it."""
    parts = (f"{recipe} stored {sum(static[recipe].values()) / MIB:,.0f} MiB, peak {peaks[recipe] / MIB:,.0f} MiB"
             for recipe in peaks)  # fmt: skip
    return "Bars: " + "; ".join(parts) + "."


def two_timelines(plain: Trace, checkpointed: Trace) -> "Figure":
    """Live memory over a step, without and with checkpointing, on one scale."""
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(10, 8), layout="constrained")
    highest = 0.0
    for axes, trace, title in ((above, plain, "plain"), (below, checkpointed, "a checkpoint around each block")):
        timeline(trace, axes)
        axes.set_title(title, loc="left", pad=22)
        highest = max(highest, axes.get_ylim()[1])
    for axes in (above, below):
        axes.set_ylim(0, highest)
    return figure
