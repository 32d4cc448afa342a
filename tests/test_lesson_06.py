"""06_troubleshooting: the bill of its opening by hand, its blind cases, its notebook."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lesson_notebooks import core_cells, deeper_sections, printed

from course_lib import ledger
from course_lib.accounts import Moment
from course_lib.errors import CourseError
from course_lib.i18n import set_language
from course_lib.lessons.troubleshooting import blind
from course_lib.models import GPT, GPTConfig
from course_lib.pipeline.repository import Repository
from course_lib.pipeline.run import execute
from course_lib.pipeline.sources import read_source
from course_lib.recipe import Recipe
from course_lib.tasks import Unsolved, check
from course_lib.units import GIB

REPOSITORY = Repository.find(Path(__file__).parent)
UNIT = "06_troubleshooting"


# -- the opening


def test_the_bill_of_the_opening_by_hand() -> None:
    with torch.device("meta"):
        shape = GPT(GPTConfig(vocab=50257, block_size=2048, layers=24, heads=16, width=1536)).shape
    n = 24 * (12 * 1536**2 + 13 * 1536) + (50257 + 2048 + 2) * 1536
    assert shape.params == n == 760_300_032
    recipe = Recipe(precision="amp-fp16", attention="eager", batch=1, seq=256)
    plain, checkpointed, eight_bit = (
        ledger.predict(shape, replace(recipe, **change))
        for change in ({}, {"checkpoint": "block"}, {"optimizer": "adamw-8bit"})
    )
    assert plain.peak_moment is Moment.OPTIMIZER_STEP
    assert plain.peak_bytes / GIB == pytest.approx(20 * n / GIB, rel=0.003)  # 16 that stay, 4 of the foreach temporary
    assert plain.peak_bytes > 13.25 * GIB  # what the report had allocated when it was refused more
    assert checkpointed.peak_bytes == plain.peak_bytes
    assert eight_bit.peak_bytes < plain.peak_bytes - 4 * n


# -- the blind cases

RIGHT = {"a": "longest-batch", "b": "clipped-scaled", "c": "evaluation-mode", "d": "cannot-tell", "e": "no-target"}


@pytest.mark.parametrize("letter", RIGHT)
def test_right_answers_pass_and_are_told_the_evidence(letter: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(f"troubleshooting.blind_{letter}", RIGHT[letter])
    said = capsys.readouterr().out
    assert said.startswith(f"✓ troubleshooting.blind_{letter}\n  ")
    assert said.splitlines()[1].startswith("  cannot tell") is (letter == "d")


WRONG: list[tuple[str, Any, str]] = [
    ("a", "kept-outputs", "rise from step to step"),
    ("b", "fp16-underflow", "a scaler is in use"),
    ("c", "no-no-grad", "belongs to training"),
    ("d", "fragmentation", "reserved and what allocated"),
    ("e", "learning-rate", "do not grow"),
    ("e", "flu", "not the name of a case"),
    ("a", "logits", "not on the chart"),
    ("a", ..., "in place of the dots"),
]


@pytest.mark.parametrize(("letter", "answer", "message"), WRONG)
def test_wrong_answers_hear_why_and_not_the_name(letter: str, answer: Any, message: str) -> None:
    with pytest.raises(Unsolved, match=message) as raised:
        check(f"troubleshooting.blind_{letter}", answer)
    assert RIGHT[letter] not in str(raised.value)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("letter", "ABCDE")
def test_a_chart_has_evidence_and_no_name(letter: str, language: str) -> None:
    set_language(language)
    said = str(blind(letter))
    assert RIGHT[letter.lower()] not in said
    assert len(said.splitlines()) >= (3 if letter == "D" else 8)


def test_there_are_five() -> None:
    with pytest.raises(CourseError, match="A, B, C, D, E"):
        blind("F")


# -- the notebook as a whole


def test_a_search_is_the_first_thing_and_the_core_is_short() -> None:
    unit = read_source(REPOSITORY, UNIT)
    code = [cell.text["en"] for cell in unit.cells if cell.kind == "code"]
    assert "search_box(" in code[1]
    assert core_cells(unit) <= 26  # six of them show a blind case or its heading
    assert deeper_sections(unit) == {"en": 6, "zh": 6}


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_the_prose_says_is_printed_by_a_cell(language: str) -> None:
    outcome, notebook = execute(REPOSITORY, UNIT, language)
    assert outcome.failure is None
    assert outcome.complaints == []
    said = printed(notebook, "text/html", "text/plain")
    for figure in ("760,300,032", "checkpointing  peak 14.18", "CUDA out of memory. Tried to allocate",
                   "→ fp16-overflow", "→ small-operators", "→ not-divided", "→ long-attention", "→ no-no-grad",
                   "→ update", "43", "None of the inputs have requires_grad"):  # fmt: skip
        assert figure in said, figure
    pictures = re.findall(r"<img [^>]*>", said)
    assert len(pictures) == 3
    assert all(re.search(r'alt="[^"]{15,}"', picture) for picture in pictures)
