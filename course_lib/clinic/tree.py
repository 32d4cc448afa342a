"""The decision tree as a picture: what do you see, when, and the names of the cases that are left."""

from matplotlib.axes import Axes

from course_lib.clinic.case import BRANCHES
from course_lib.clinic.diagnosis import all_cases
from course_lib.i18n import _

_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")  # Okabe and Ito's, as in course_lib.plots
_COLUMNS = (0.0, 0.12, 0.31, 0.56)


def leaves() -> dict[tuple[str, str], list[str]]:
    """Names of cases by branch, in the order of the tree; with a question mark where the sign is not proof."""
    found: dict[tuple[str, str], list[str]] = {
        (first, second): [] for first, seconds in BRANCHES.items() for second in seconds
    }
    for case in all_cases().values():
        found[case.branch].append(case.name + (" ?" if case.sure == "likely" else ""))
    return found


def draw_tree(ax: Axes | None = None) -> Axes:
    """Draw it; a name with a question mark is likely, one without is certain."""
    import matplotlib.pyplot as plt

    rows = [(branch, _lines(names)) for branch, names in leaves().items()]
    heights = [len(lines) + 0.4 for _branch, lines in rows]
    ax = ax or plt.subplots(figsize=(11, 0.30 * sum(heights) + 0.4), layout="constrained")[1]
    tops = [sum(heights[:i]) for i in range(len(rows))]
    middles = [top + (len(lines) - 1) / 2 for top, (_branch, lines) in zip(tops, rows, strict=True)]
    root, question, second, names = _COLUMNS
    families = {
        first: [middle for (branch, _lines), middle in zip(rows, middles, strict=True) if branch[0] == first]
        for first in BRANCHES
    }
    centre = sum(middles) / len(middles)
    ax.text(root, centre, "What do\nyou see?", va="center", fontweight="bold", fontsize=11)
    for colour, (first, places) in zip(_COLOURS, families.items(), strict=True):
        at = sum(places) / len(places)
        _join(ax, (root + 0.07, centre), (question - 0.005, at), colour)
        ax.text(question, at, first, va="center", color=colour, fontweight="bold", fontsize=11)
        for (branch, lines), middle, top in zip(rows, middles, tops, strict=True):
            if branch[0] != first:
                continue
            _join(ax, (question + 0.13, at), (second - 0.005, middle), colour)
            ax.text(second, middle, branch[1], va="center", color=colour, fontsize=10)
            _join(ax, (second + 0.205, middle), (names - 0.005, middle), colour)
            for place, line in enumerate(lines):
                ax.text(names, top + place, line, va="center", family="monospace", fontsize=9.5)
    ax.set(xlim=(0, 1), ylim=(sum(heights) - 0.5, -1))
    ax.axis("off")
    return ax


def tree_text() -> str:
    """The picture in words, in the reader's language."""
    parts = [
        f"{_(first)}, {_(second)}: {', '.join(names)}" for (first, second), names in leaves().items()
    ]  # fmt: skip
    return _("Decision tree. {branches}.").format(branches="; ".join(parts))


def _lines(names: list[str], width: int = 52) -> list[str]:
    lines = [""]
    for name in names:
        joined = f"{lines[-1]} · {name}" if lines[-1] else name
        if len(joined) > width:
            lines.append(name)
        else:
            lines[-1] = joined
    return lines


def _join(ax: Axes, begin: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    middle = (begin[0] + end[0]) / 2
    ax.plot([begin[0], middle, middle, end[0]], [begin[1], begin[1], end[1], end[1]], color=colour, linewidth=1)
