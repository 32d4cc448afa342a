"""The pictures, read back from what matplotlib was told to draw and held against the data."""

import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from course_lib import plots
from course_lib.accounts import ACCOUNTS, Account, Moment
from course_lib.cards import find_card
from course_lib.errors import CourseError
from course_lib.figures import show
from course_lib.trace import Event, Trace
from course_lib.units import GIB, MIB

#: The palette as published: Okabe and Ito, "Color Universal Design", 2008.
OKABE_ITO = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}

#: moment, operator, account, change in GiB: a step whose peak, 9.5 GiB, is a temporary in optimizer_step
STEP = [
    (Moment.LOAD, "param", Account.WEIGHTS, 1.0),
    (Moment.LOAD, "param", Account.WEIGHTS, 1.0),
    (Moment.LOAD, "state", Account.OPTIMIZER, 4.0),
    (Moment.FORWARD, "mm", Account.ACTIVATIONS, 0.5),
    (Moment.FORWARD, "gelu", Account.ACTIVATIONS, 0.75),
    (Moment.FORWARD, "softmax", Account.TEMPORARY, 1.25),
    (Moment.FORWARD, "free", Account.TEMPORARY, -1.25),
    (Moment.BACKWARD, "mm", Account.GRADIENTS, 1.0),
    (Moment.BACKWARD, "free", Account.ACTIVATIONS, -0.75),
    (Moment.BACKWARD, "mm", Account.GRADIENTS, 0.5),
    (Moment.BACKWARD, "free", Account.ACTIVATIONS, -0.5),
    (Moment.OPTIMIZER_STEP, "foreach", Account.TEMPORARY, 2.0),
    (Moment.OPTIMIZER_STEP, "free", Account.TEMPORARY, -2.0),
    (Moment.OPTIMIZER_STEP, "free", Account.GRADIENTS, -1.5),
]
LOADED = 3


def trace_of(step: list[tuple[Moment, str, Account, float]], scale: int = GIB) -> Trace:
    changes = [tuple(int(scale * gib) if each is account else 0 for each in ACCOUNTS) for _, _, account, gib in step]
    return Trace(tuple(Event(row[0], row[1], change) for row, change in zip(step, changes, strict=True)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Bill:
    """What a ledger's forecast looks like."""

    at_peak: dict[Account, int]
    peak_moment: Moment
    moment_peaks: dict[Moment, int]
    static_bytes: dict[Account, int]

    @property
    def peak_bytes(self) -> int:
        return sum(self.at_peak.values())


BILL = Bill(
    {
        Account.WEIGHTS: 2 * GIB,
        Account.GRADIENTS: GIB,
        Account.OPTIMIZER: 4 * GIB,
        Account.ACTIVATIONS: 0,
        Account.TEMPORARY: 3 * GIB // 2,
    },
    Moment.OPTIMIZER_STEP,
    {},
    {},
)
TRACE = trace_of(STEP)


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    """No warning while a picture is made or drawn, no figure left behind."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
        for number in plt.get_fignums():
            plt.figure(number).canvas.draw()
    plt.close("all")


def heights_at(ax: Axes, x: float) -> dict[str, float]:
    """How high each layer of the stack is at x: between the two level edges of its outline."""
    heights = {}
    for layer in ax.collections:
        corners = layer.get_paths()[0].vertices
        edges = [
            ya for (xa, ya), (xb, yb) in zip(corners, corners[1:], strict=False) if ya == yb and (xa - x) * (xb - x) < 0
        ]
        heights[str(layer.get_label()).split()[0]] = max(edges) - min(edges)
    return heights


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_every_height_of_the_timeline_is_the_traces() -> None:
    ax = plots.timeline(TRACE)
    (outline,) = ax.lines[:1]
    edges, totals = outline.get_xdata(), outline.get_ydata()
    assert len(edges) == len(STEP) - LOADED + 2  # what is loaded counts as one event; one edge more than events
    for i, (left, right) in enumerate(zip(edges, edges[1:], strict=False)):
        live = TRACE.live[LOADED - 1 + i]
        drawn = heights_at(ax, (left + right) / 2)
        assert drawn == pytest.approx({str(a): size / GIB for a, size in zip(ACCOUNTS, live, strict=True)})
        assert totals[i] == pytest.approx(sum(live) / GIB)


def test_the_timelines_peak_moments_and_legend() -> None:
    ax = plots.timeline(TRACE)
    peak = next(text for text in ax.texts if text.get_text().startswith("peak"))
    assert peak.get_text() == "peak 9.50 GiB"
    assert heights_at(ax, peak.xy[0])["temporary"] == 2
    assert sum(heights_at(ax, peak.xy[0]).values()) == pytest.approx(peak.xy[1]) == pytest.approx(9.5)
    assert {"load", "forward", "backward", "optimizer step"} <= set(texts(ax))
    assert len({patch.get_facecolor() for patch in ax.patches}) == 4
    legend = ax.get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == "GiB at the peak"
    assert [text.get_text() for text in legend.get_texts()] == [
        "temporary 2.00", "activations 0.00", "gradients 1.50", "optimizer 4.00", "weights 2.00",
    ]  # fmt: skip
    assert ax.get_ylabel() == "live memory in GiB"


def test_a_short_moment_has_room_and_repeated_ones_are_named_once() -> None:
    forward, backward = STEP[3:7], STEP[7:11]
    long = trace_of(STEP[:3] + (forward * 50 + backward) + (forward * 50 + backward) + STEP[11:])
    ax = plots.timeline(long)
    assert len(ax.patches) == 6
    shade = ax.patches[-1]  # the optimizer step: 3 events of more than 400
    assert shade.get_extents().width > 0.05 * ax.get_window_extent().width
    assert sorted(text for text in texts(ax) if "peak" not in text) == ["backward", "forward", "load", "optimizer step"]


def test_a_long_trace_is_thinned_but_keeps_its_peak_and_its_moments() -> None:
    burst = [(Moment.BACKWARD, "mm", Account.TEMPORARY, 0.5), (Moment.BACKWARD, "free", Account.TEMPORARY, -0.5)]
    spike = [(Moment.BACKWARD, "big", Account.TEMPORARY, 5.0), (Moment.BACKWARD, "free", Account.TEMPORARY, -5.0)]
    trace = trace_of(STEP[:7] + burst * 7_777 + spike + burst * 5_555 + STEP[7:])
    ax = plots.timeline(trace)
    totals = ax.lines[0].get_ydata()
    assert len(totals) <= plots.MOST_POINTS + 10
    assert max(totals) == pytest.approx(trace.peak_bytes / GIB) == pytest.approx(6 + 1.25 + 5)
    assert "peak 12.25 GiB" in texts(ax)
    assert heights_at(ax, ax.get_xlim()[1] - 0.5)["gradients"] == 0  # the last event


def test_small_memory_is_told_in_mib() -> None:
    ax = plots.timeline(trace_of(STEP, scale=MIB))
    assert ax.get_ylabel() == "live memory in MiB"
    assert "peak 9.50 MiB" in texts(ax)
    assert "9.50 MiB in optimizer_step" in plots.alt_text(trace_of(STEP, scale=MIB))


def test_a_cards_usable_memory_is_a_line_in_both_pictures() -> None:
    card = find_card("t4")
    for ax in (plots.timeline(TRACE, card=card), plots.bill_waterfall(BILL, card=card)):
        line = next(line for line in ax.lines if line.get_label() == "_card")
        assert line.get_ydata()[0] == pytest.approx(card.usable_bytes / GIB)
        assert line.get_ydata()[0] < ax.get_ylim()[1]
        assert any("T4" in text and "14.56 GiB" in text for text in texts(ax))


@pytest.mark.parametrize("sizes_gib", [[3.0, 2.5, 0.25], [60.0, -37.0, -8.5, -3.25], [5.0, 0.0, -5.0]])
def test_each_bar_of_a_waterfall_starts_where_the_last_ended(sizes_gib: list[float]) -> None:
    ax = plots.waterfall([(f"bar {i}", int(size * GIB)) for i, size in enumerate(sizes_gib)], total="left")
    *bars, total = ax.patches
    levels = [0.0, *accumulate(sizes_gib)]
    for bar, size, start in zip(bars, sizes_gib, levels, strict=False):
        assert bar.get_height() == pytest.approx(size)
        assert bar.get_y() == pytest.approx(start)
    assert total.get_height() == pytest.approx(sum(sizes_gib))
    assert total.get_y() == 0
    assert [label.get_text() for label in ax.get_xticklabels()] == [f"bar {i}" for i in range(len(sizes_gib))] + [
        "left"
    ]
    minus = "\N{MINUS SIGN}"
    figures = [float(text.replace(minus, "-")) for text in texts(ax)]
    assert figures == pytest.approx([*sizes_gib, sum(sizes_gib)])


def test_the_bills_waterfall_shows_who_owns_something_and_the_peak() -> None:
    ax = plots.bill_waterfall(BILL)
    assert [label.get_text().replace("\n", " ") for label in ax.get_xticklabels()] == [
        "weights", "optimizer", "gradients", "temporary", "peak, in optimizer_step",
    ]  # fmt: skip
    assert [bar.get_height() for bar in ax.patches] == [2, 4, 1, 1.5, 8.5]
    assert [to_rgb(bar.get_facecolor()) for bar in ax.patches[:2]] == [to_rgb("#0072B2"), to_rgb("#009E73")]
    assert plots.bill_waterfall(TRACE).patches[-1].get_height() == pytest.approx(TRACE.peak_bytes / GIB)


def test_accounts_differ_in_colour_lightness_and_hatching() -> None:
    looks = [plots.LOOKS[account] for account in plots.LOOKS]
    assert set(plots.LOOKS) == set(ACCOUNTS)
    assert {look.colour for look in looks} <= OKABE_ITO
    # Luma of Rec. 601, which a grey print shows.
    lumas = [sum(w * c for w, c in zip((0.299, 0.587, 0.114), to_rgb(look.colour), strict=True)) for look in looks]
    assert lumas == sorted(lumas)
    assert len({look.hatch for look in looks}) == len(looks)


def test_given_axes_are_used_and_no_figure_is_opened() -> None:
    figure, (left, right) = plt.subplots(1, 2, layout="constrained")
    assert plots.timeline(TRACE, left) is left
    assert plots.waterfall([("a", GIB)], right) is right
    assert plt.get_fignums() == [figure.number]


def test_alternative_text_says_what_is_seen() -> None:
    said = plots.alt_text(TRACE)
    assert "14 events" in said
    assert "The peak is 9.50 GiB in optimizer_step" in said
    for figure in ("weights 2.00 GiB", "gradients 1.50 GiB", "optimizer 4.00 GiB", "temporary 2.00 GiB"):
        assert figure in said
    assert "forward 8.50 GiB, backward 8.25 GiB, optimizer_step 9.50 GiB" in said
    assert plots.alt_text(BILL).startswith("Waterfall of the bill at the peak: weights 2.00 GiB")
    assert plots.alt_text(BILL).endswith("together 8.50 GiB in optimizer_step.")
    assert plots.alt_text([("full", 3 * GIB), ("LoRA", -GIB)]) == (
        "Waterfall: full 3.00 GiB, LoRA -1.00 GiB; together 2.00 GiB."
    )


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_file_carries_its_description(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"step{suffix}"
    plots.save_timeline(TRACE, path, find_card("t4"))
    assert b"The peak is 9.50 GiB" in path.read_bytes()
    assert plt.get_fignums() == []


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="without events"):
        plots.timeline(Trace(()))
    with pytest.raises(CourseError, match="got no bar"):
        plots.waterfall([])
    with pytest.raises(CourseError, match="cannot write"):
        plots.save_timeline(TRACE, tmp_path / "missing" / "step.png")


def test_a_grading_run_leaves_the_words_and_draws_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    show(lambda: pytest.fail("drawn while grading"), "two bars")
    assert "two bars" in capsys.readouterr().out


def test_what_an_exercise_imports_for_its_figures_waits_for_matplotlib_until_it_draws() -> None:
    code = "import sys; import course_lib.exercises.figures, course_lib.exercises.curve_figures, course_lib.figures; "
    subprocess.run([sys.executable, "-c", code + "sys.exit('matplotlib' in sys.modules)"], check=True)
