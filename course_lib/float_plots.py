"""Pictures of numbers in 16 bits: their fields, where gradients lie, and how far a loss scale may go.

Labels are English in both editions; the functions whose names end in ``_text`` say in words what a picture shows.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.floats import FLOAT_TYPES
from course_lib.i18n import _

SIGN, EXPONENT, MANTISSA = "#595959", "#0072B2", "#F0E442"
#: FP16's landmarks as powers of two: below half the smallest number all rounds to 0.
ZERO_BELOW, NORMAL_FROM, INFINITE_FROM = -25, -14, 16


def bits(value: float) -> Figure:
    """The bits of ``value`` in each type, by field, and the number that they stand for."""
    figure = Figure(figsize=(10, 2.5), layout="constrained")
    ax = figure.add_subplot()
    for row, kind in enumerate(FLOAT_TYPES):
        sign, exponent, _mantissa = kind.fields
        digits = kind.bits(value)
        for column, digit in enumerate(digits):
            field = SIGN if column < sign else EXPONENT if column < sign + exponent else MANTISSA
            ax.add_patch(Rectangle((column, -row - 0.4), 0.92, 0.8, facecolor=field, edgecolor="0.3", linewidth=0.5))
            ink = "black" if field == MANTISSA else "white"
            ax.text(column + 0.46, -row, digit, ha="center", va="center", color=ink, fontsize=9)
        ax.text(-0.4, -row, kind.name, ha="right", va="center", fontweight="bold")
        said = f"= {kind.stored(value):.9g}"
        ax.text(len(digits) + 0.5, -row, said, ha="left", va="center", bbox={"facecolor": "white", "edgecolor": "none"})
    for place, name, colour in ((0.46, "sign", SIGN), (5, "exponent", EXPONENT), (20.5, "mantissa", "0.2")):
        ax.text(place, 0.62, name, ha="center", va="bottom", color=colour, fontsize=9)
    ax.set(xlim=(-3, 41), ylim=(-2.6, 1.1))
    ax.axis("off")
    return figure


def bits_text(value: float) -> str:
    """The same in words."""
    rows = [f"{kind.name} {' '.join(_fields(kind.bits(value), kind.fields))} = {kind.stored(value):.9g}"
            for kind in FLOAT_TYPES]  # fmt: skip
    return _("The bits of {value:.9g}, sign, exponent, mantissa. {rows}.").format(value=value, rows="; ".join(rows))


def gradient_histogram(groups: Mapping[str, "np.ndarray"], scale: float) -> Axes:
    """How large gradients are, over FP16's zones; below, the same numbers times the loss scale.

    Args:
        groups: by name, absolute values; zeros are left out.
        scale: a power of two.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        2, 1, figsize=(9, 4.6), layout="constrained", sharex=True, sharey=True, height_ratios=(1, 1)
    )
    edges = np.arange(-40, 21)
    for ax, factor, title in ((axes[0], 1.0, "as they are"), (axes[1], scale, f"times {scale:,.0f}")):
        _shade_zones(ax)
        for (name, sizes), (colour, dashes) in zip(groups.items(), (("#0072B2", "-"), ("#D55E00", "--")), strict=False):
            shares = np.histogram(np.log2(sizes[sizes > 0] * factor), edges)[0] / np.count_nonzero(sizes)
            ax.stairs(100 * shares, edges, color=colour, linestyle=dashes, linewidth=1.8, label=name)
        ax.set_ylabel("% of them")
        ax.set_title(title, loc="left", fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
    top = axes[0].get_ylim()[1]
    for left, right, name in ((-40, -25, "0 in FP16"), (-25, -14, "subnormal"), (-14, 16, "normal"), (16, 20, "inf")):
        axes[0].text((left + right) / 2, 0.97 * top, name, ha="center", va="top", fontsize=9)
    axes[0].legend(frameon=False, loc="center", bbox_to_anchor=(0.6, 0.5))
    axes[1].set(xlim=(-40, 20), xlabel="size of a gradient, as a power of two")
    return axes[0]


def gradient_histogram_text(groups: Mapping[str, "np.ndarray"], scale: float) -> str:
    """The same in words: the share in each zone, before and after scaling."""
    parts = []
    for name, sizes in groups.items():
        for factor in (1.0, scale):
            zero, subnormal, normal, infinite = (f"{share:.1%}" for share in zone_shares(sizes * factor))
            parts.append(_("{name} times {factor:,.0f}: {zero} zero, {subnormal} subnormal, {normal} normal, "
                           "{infinite} infinite").format(name=name, factor=factor, zero=zero, subnormal=subnormal,
                                                         normal=normal, infinite=infinite))  # fmt: skip
    return _("Histogram of gradients over FP16's zones. {parts}.").format(parts="; ".join(parts))


def zone_shares(sizes: "np.ndarray") -> tuple[float, float, float, float]:
    """The shares of absolute values that FP16 stores as zero, subnormal, normal and infinite; zeros are left out."""
    sizes = sizes[sizes > 0]
    with np.errstate(over="ignore"):
        stored = sizes.astype(np.float16)
    zero, infinite = np.mean(stored == 0), np.mean(np.isinf(stored))
    subnormal = np.mean(stored < np.finfo(np.float16).smallest_normal) - zero
    return float(zero), float(subnormal), float(1 - zero - subnormal - infinite), float(infinite)


def scale_window(errors: Mapping[int, float], bf16_error: float) -> Axes:
    """The error of a weight gradient by loss scale; where it is infinite, a cross on the upper edge.

    Args:
        errors: relative error by exponent of the scale, inf where something overflowed.
        bf16_error: BF16's, without any scale.
    """
    import matplotlib.pyplot as plt

    ax: Axes = plt.subplots(figsize=(8, 3.6), layout="constrained")[1]
    finite = {k: error for k, error in errors.items() if np.isfinite(error)}
    broken = [k for k in errors if k not in finite]
    ax.semilogy(list(finite), list(finite.values()), "o-", color="#0072B2", label="FP16")
    ax.axhline(bf16_error, color="#D55E00", linestyle="--", label="BF16, no scale")
    top = 10 * max(finite.values())
    ax.plot(broken, [top / 2] * len(broken), "x", color="black", markersize=9, label="FP16: infinite", clip_on=False)
    ax.axvline(16, color="0.5", linewidth=0.8, linestyle=":")
    ax.annotate("GradScaler begins here", (16, top / 6), (-6, 0), textcoords="offset points", ha="right", fontsize=9)
    ax.set(ylim=(min(finite.values()) / 4, top), xlabel="loss scale, as a power of two", ylabel="relative error")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="0.85", linewidth=0.6)
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return ax


def scale_window_text(errors: Mapping[int, float], bf16_error: float) -> str:
    """The same in words."""
    points = "; ".join(f"2^{exponent}: {error:.2g}" for exponent, error in errors.items())
    return _("Relative error of the weight gradient in FP16 by loss scale. {points}. BF16 without a scale: {bf16:.2g}."
             ).format(points=points, bf16=bf16_error)  # fmt: skip


def scaler_history(losses: Sequence[float], scales: Sequence[float], skipped: Sequence[int]) -> Axes:
    """A run with a scaler: the loss above, the scale below; skipped steps are marked in both."""
    import matplotlib.pyplot as plt

    _figure, (above, below) = plt.subplots(2, 1, figsize=(8, 4.4), layout="constrained", sharex=True)
    above.plot(losses, color="#0072B2", linewidth=1.8)
    above.set_ylabel("loss")
    below.step(range(len(scales)), np.log2(scales), where="post", color="#009E73", linewidth=1.8)
    below.set(xlabel="step", ylabel="loss scale, power of two")
    for ax in (above, below):
        for number, step in enumerate(skipped):
            ax.axvline(step, color="#D55E00", linestyle="--", linewidth=1.2, label="_" * bool(number) + "step skipped")
        ax.spines[["top", "right"]].set_visible(False)
    above.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return above


def scaler_history_text(losses: Sequence[float], scales: Sequence[float], skipped: Sequence[int]) -> str:
    """The same in words."""
    return _("Above the loss, from {first:.2f} to {last:.2f} in {steps} steps; below the loss scale, from 2^{low:.0f}, "
             "at most 2^{high:.0f}. Skipped steps: {skipped}.").format(
        first=losses[0], last=losses[-1], steps=len(losses), low=np.log2(scales[0]), high=np.log2(max(scales)),
        skipped=", ".join(map(str, skipped)) or "0")  # fmt: skip


def _fields(digits: str, widths: tuple[int, int, int]) -> tuple[str, str, str]:
    sign, exponent, _mantissa = widths
    return digits[:sign], digits[sign : sign + exponent], digits[sign + exponent :]


def _shade_zones(ax: Axes) -> None:
    zones = ((-40, ZERO_BELOW, "0.75"), (ZERO_BELOW, NORMAL_FROM, "0.88"), (INFINITE_FROM, 20, "0.75"))
    for left, right, shade in zones:
        ax.axvspan(left, right, facecolor=shade, edgecolor="none", zorder=-2)
