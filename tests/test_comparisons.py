"""Pictures of several bills, read back from what matplotlib was told to draw."""

import matplotlib as mpl
import pytest

from course_lib import ledger
from course_lib.accounts import STEP_MOMENTS
from course_lib.cards import find_card
from course_lib.comparisons import comparison_alt_text, growth, growth_alt_text, peaks_by_moment, side_by_side
from course_lib.errors import CourseError
from course_lib.hf_config import read_model
from course_lib.i18n import set_language
from course_lib.ledger import Bill
from course_lib.recipe import Recipe
from course_lib.units import GIB

mpl.use("Agg")


@pytest.fixture(autouse=True)
def close_figures() -> object:
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


def bills() -> dict[str, Bill]:
    llama = read_model("llama-7b")
    return {name: ledger.predict(llama, Recipe(precision=name, seq=2048)) for name in ("fp32", "bf16")}


def by_batch() -> dict[int, Bill]:
    return {n: ledger.predict(read_model("llama3.2-1b"), Recipe(batch=n, seq=1024)) for n in range(1, 17)}


def test_bars_add_up_to_each_peak_and_say_when_it_is() -> None:
    ax = side_by_side(bills(), [find_card("A100 80GB")])
    for row, bill in enumerate(bills().values()):
        bars = [patch for patch in ax.patches if abs(patch.get_y() + patch.get_height() / 2 - row) < 0.01]
        assert sum(bar.get_width() for bar in bars) == pytest.approx(bill.peak_bytes / GIB)
        assert max(bar.get_x() + bar.get_width() for bar in bars) == pytest.approx(bill.peak_bytes / GIB)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["fp32", "bf16"]
    texts = [text.get_text() for text in ax.texts]
    assert " 125.5 in optimizer_step" in texts
    assert "A100 80GB" in texts
    assert [line.get_xdata()[0] for line in ax.lines] == [pytest.approx(79.14, abs=0.01)]
    assert len(ax.get_legend().get_texts()) == 5, "each account is named once"


def test_lines_of_moments_and_the_peak_above_them() -> None:
    shown = by_batch()
    lines = {line.get_label(): line for line in peaks_by_moment(shown, "batch").lines}
    assert set(lines) == {"the peak", *STEP_MOMENTS}
    for i, bill in enumerate(shown.values()):
        heights = [lines[moment].get_ydata()[i] for moment in STEP_MOMENTS]
        assert lines["the peak"].get_ydata()[i] == max(heights) == pytest.approx(bill.peak_bytes / GIB)
    assert len({line.get_linestyle() for line in lines.values()} - {"None"}) == 3, "told apart without colour"


def test_the_alternative_text_of_a_long_row_names_where_its_moment_changes() -> None:
    shown = by_batch()
    moments = [bill.peak_moment for bill in shown.values()]
    assert len(set(moments)) == 2
    change = next(i for i in range(1, 16) if moments[i] is not moments[i - 1])
    parts = comparison_alt_text(shown).removeprefix("Peaks side by side. ").split("; ")
    named = [int(part.split(":")[0]) for part in parts]
    assert named == sorted({1, change, change + 1, 16})
    assert comparison_alt_text(bills()) == (
        "Peaks side by side. fp32: 125.53 GiB in optimizer_step; bf16: 62.77 GiB in optimizer_step."
    )


def test_growth_draws_its_curves_in_gib_and_says_their_ends() -> None:
    curves = {"eager": {1: GIB, 2: 4 * GIB, 4: 16 * GIB}, "flash": {1: GIB, 2: 2 * GIB, 4: 4 * GIB}}
    ax = growth(curves, "tokens", "activations")
    assert [list(line.get_ydata()) for line in ax.lines] == [[1, 4, 16], [1, 2, 4]]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("tokens", "activations in GiB")
    assert growth_alt_text(curves, "tokens") == (
        "Lines over tokens. eager: 1.00 GiB at 1, 16.00 GiB at 4; flash: 1.00 GiB at 1, 4.00 GiB at 4."
    )


def test_texts_are_chinese_in_the_chinese_edition() -> None:
    set_language("zh")
    assert comparison_alt_text(bills()).startswith("并排比较峰值。fp32：125.53 GiB，在优化器更新; bf16：")


def test_nothing_to_show_is_refused() -> None:
    for draw in (lambda: side_by_side({}), lambda: peaks_by_moment({}, "batch"), lambda: growth({}, "tokens", "size")):
        with pytest.raises(CourseError, match="nothing to show"):
            draw()
