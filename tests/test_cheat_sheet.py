"""The page to print: its figures by hand, in both languages, within the paper's edges, and the committed copies."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from course_lib.cheat_sheet import HEIGHT, MARGIN, WIDTH, cheat_sheet, columns, save_cheat_sheet
from course_lib.i18n import LANGUAGES, set_language

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def texts(language: str) -> list[ElementTree.Element]:
    set_language(language)
    return [each for each in ElementTree.fromstring(cheat_sheet()).iter() if each.tag.endswith("text")]


def row_of(name: str) -> list[str]:
    """The cells of a row of the English page, by its first one."""
    found = texts("en")
    y = next(each.get("y") for each in found if each.text == name)
    return [each.text or "" for each in found if each.get("y") == y]


@pytest.mark.parametrize(
    ("recipe", "weights", "gradients", "optimizer", "stays", "step"),
    [
        ("fp32", 4, 4, 8, 16, 20),  # 4 + 4 + 8; foreach adds one temporary as large as the weights
        ("amp-fp16, amp-bf16", 4, 4, 8, 16, 20),
        ("master-bf16", 2, 2, 12, 16, 24),  # gradients once more in FP32, and the temporary
        ("bf16", 2, 2, 4, 8, 10),
    ],
)
def test_bytes_a_parameter_by_hand(
    recipe: str, weights: int, gradients: int, optimizer: int, stays: int, step: int
) -> None:
    expected = [f"{size:.2f}" for size in (weights, gradients, optimizer, stays, step)]
    assert row_of(recipe)[1:] == [*expected, f"{stays * 6_738_415_616 / 1e9:.1f}"]


@pytest.mark.parametrize(("loss", "most"), [("hf", 12), ("hf-4.48", 14), ("fused-ce", 4), ("fused-linear-ce", 0)])
def test_logits_by_hand(loss: str, most: int) -> None:
    gigabytes = [most * 4 * 2048 * words / 1e9 for words in (32_000, 152_000)]
    assert row_of(loss)[3:] == [f"{size:.1f}" for size in gigabytes]


def test_the_cuts_are_those_of_lesson_05() -> None:
    names = ("FP32, 32 at once", "accumulate 8 × 4", "pure BF16", "LoRA, rank 16", "checkpointing, each block")
    peaks = [row_of(name)[1] for name in names]
    assert peaks == ["822.5", "200.5", "106.2", "73.0", "19.2"]
    assert [row_of(name)[2] for name in names[2:]] == ["6.44", "4.48", "6.15"]


def test_cards_by_type() -> None:
    assert "T4" in " ".join(row_of("from 7.0"))
    assert row_of("from 8.0")[1] == "bf16"


@pytest.mark.parametrize("language", LANGUAGES)
def test_everything_stays_on_the_paper(language: str) -> None:
    for each in texts(language):
        x, y, size = (float(each.get(name) or 0) for name in ("x", "y", "font-size"))
        width = 0.56 * size * columns(each.text or "")  # of DejaVu Sans, which is a wide face
        left, right = (x - width, x) if each.get("text-anchor") == "end" else (x, x + width)
        assert left >= MARGIN - 1, each.text
        assert right <= WIDTH, each.text
        assert y <= HEIGHT - MARGIN


def test_the_chinese_page_is_chinese() -> None:
    said = " ".join(each.text or "" for each in texts("zh"))
    assert "每个参数多少字节" in said
    assert not re.search(r"[a-z]{4,} [a-z]{4,} [a-z]{4,}", said)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_committed_page_is_the_one_that_the_code_makes(language: str, tmp_path: Path) -> None:
    set_language(language)
    save_cheat_sheet(tmp_path / "page.svg")
    kept = NOTEBOOKS / language / "cheat_sheet.svg"
    assert kept.read_text(encoding="utf-8") == (tmp_path / "page.svg").read_text(encoding="utf-8"), (
        f"write it again: from course_lib.cheat_sheet import save_cheat_sheet; save_cheat_sheet({str(kept)!r})"
    )
