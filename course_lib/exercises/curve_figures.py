"""Loss curves of training that should be the same, beside those of training that is not."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

from course_lib.accounts import Account
from course_lib.i18n import _
from course_lib.plots import LOOKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pair = tuple[Sequence[float], Sequence[float]]


COLUMNS = 3  #: panels side by side; more would be too small to read on a laptop


def loss_curves(pairs: Mapping[str, Pair], big: str, small: str) -> "Figure":
    """Above, each pair of curves in a panel of its own; below it, their relative difference.

    More than ``COLUMNS`` pairs are wrapped, the first row being the short one.

    Args:
        pairs: by title: losses of the big batch, losses with accumulation.
        big: what the first curve is called.
        small: what the second is called.
    """
    import matplotlib.pyplot as plt

    columns, rows = min(COLUMNS, len(pairs)), ceil(len(pairs) / COLUMNS)
    figure, axes = plt.subplots(
        2 * rows, columns, figsize=(3.4 * columns + 0.6, 4.4 * rows), layout="constrained", sharex=True, sharey="row",
        height_ratios=(3, 2) * rows, squeeze=False,
    )  # fmt: skip
    empty = rows * columns - len(pairs)
    for unused in axes[:2, columns - empty :].flat:
        unused.remove()
    places = [(2 * row, column) for row in range(rows) for column in range(columns - (0 if row else empty))]
    for (title, (first, second)), (row, column) in zip(pairs.items(), places, strict=True):
        above, below = axes[row, column], axes[row + 1, column]
        updates = range(1, len(first) + 1)
        above.plot(updates, first, color="0.8", linewidth=6, label=big)
        above.plot(updates, second, color=LOOKS[Account.WEIGHTS].colour, linewidth=2, linestyle="--", label=small)
        above.set_title(title, fontsize=10)
        below.semilogy(updates, [max(each, 1e-9) for each in relative_differences(first, second)], color="0.2")
        below.axhspan(1e-9, 1e-5, color="0.9")
        if row == 2 * (rows - 1):
            below.set_xlabel("update")
        for each in (above, below):
            each.spines[["top", "right"]].set_visible(False)
    for row in range(0, 2 * rows, 2):
        axes[row, 0].set_ylabel("loss")
        axes[row + 1, 0].set_ylabel("relative difference")
    axes[0, 0].legend(frameon=False, fontsize=9)
    axes[1, 0].annotate("rounding", (1, 3e-6), va="top", fontsize=9)
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
