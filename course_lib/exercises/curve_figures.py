"""Loss curves of training that should be the same, beside those of training that is not."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from course_lib.accounts import Account
from course_lib.i18n import _
from course_lib.plots import LOOKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pair = tuple[Sequence[float], Sequence[float]]


def loss_curves(pairs: Mapping[str, Pair], big: str, small: str) -> "Figure":
    """Above, each pair of curves in a panel of its own; below it, their relative difference.

    Args:
        pairs: by title: losses of the big batch, losses with accumulation.
        big: what the first curve is called.
        small: what the second is called.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        2, len(pairs), figsize=(3.4 * len(pairs) + 0.6, 4.4), layout="constrained", sharex=True, sharey="row",
        height_ratios=(3, 2), squeeze=False,
    )  # fmt: skip
    for (title, (first, second)), above, below in zip(pairs.items(), *axes, strict=True):
        updates = range(1, len(first) + 1)
        above.plot(updates, first, color="0.65", linewidth=5, label=big)
        above.plot(updates, second, color=LOOKS[Account.WEIGHTS].colour, linewidth=1.5, linestyle="--", label=small)
        above.set_title(title, fontsize=10)
        below.semilogy(updates, [max(each, 1e-9) for each in relative_differences(first, second)], color="0.2")
        below.axhspan(1e-9, 1e-5, color="0.9")
        below.set_xlabel("update")
        for each in (above, below):
            each.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("loss")
    axes[0][0].legend(frameon=False, fontsize=9)
    axes[1][0].set_ylabel("relative difference")
    axes[1][0].annotate("rounding", (1, 3e-6), va="top", fontsize=9)
    return figure


def relative_differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """``|a - b| / b``, entry by entry."""
    return [abs(one - other) / abs(other) for one, other in zip(first, second, strict=True)]


def loss_curves_text(pairs: Mapping[str, Pair], big: str, small: str) -> str:
    """The same in words, for those who cannot see it."""
    part = _("{title}: {big} ends at {first:.3f}, {small} at {second:.3f}, largest relative difference {most:.0e}")
    parts = (
        part.format(title=title, big=big, first=first[-1], small=small, second=second[-1],
                    most=max(relative_differences(first, second)))
        for title, (first, second) in pairs.items()
    )  # fmt: skip
    return _("Loss curves. {parts}.").format(parts="; ".join(parts))
