"""07_interview: its figures against hand formulas and published ones, the five answers, the tasks."""

import re
from pathlib import Path
from typing import Any

import pytest
from lesson_notebooks import core_cells, deeper_sections, printed

from course_lib import ledger
from course_lib.hf_config import read_model
from course_lib.journal import calibration_text, predict, settle
from course_lib.lessons.interview import RECIPES
from course_lib.pipeline.repository import Repository
from course_lib.pipeline.run import execute
from course_lib.pipeline.sources import read_source
from course_lib.recipe import Recipe
from course_lib.tasks import Unsolved, check
from course_lib.units import BLOCK_BYTES, GB

REPOSITORY = Repository.find(Path(__file__).parent)
N, N13 = 6_738_415_616, 13_015_864_320  # Llama-2-7B and 13B, as their authors' checkpoints count
RUN = Recipe(precision="amp-bf16", batch=1, seq=2048, accum=32, checkpoint="block")
EACH = {"fp32": 16, "amp-bf16": 16, "bf16": 8, "lora": 2}


def code_of(marker: str) -> str:
    """The cell of the lesson that holds ``marker``."""
    (code,) = [each.text["en"] for each in read_source(REPOSITORY, "07_interview").cells
               if each.kind == "code" and marker in each.text["en"]]  # fmt: skip
    return code


# -- the run of the opening


def test_208_gb_stay_whatever_is_done_to_activations() -> None:
    """lm-sys/FastChat#367; 16 bytes a parameter, by hand."""
    shape, bytes_that_stay = read_model("llama-13b"), 16 * N13
    assert shape.params == N13
    assert round(bytes_that_stay / GB) == 208
    peaks = set()
    for change in ({}, {"checkpoint": "none"}, {"accum": 1}, {"batch": 4, "accum": 8}):
        bill = ledger.predict(shape, Recipe(**{**RUN.to_dict(), **change}))
        assert sum(bill.static_bytes.values()) == bytes_that_stay
        peaks.add(round(bill.peak_bytes / GB, 1))
    assert len(peaks) == 1, "not by a tenth of a GB"
    lora = ledger.predict(shape, Recipe(**{**RUN.to_dict(), "precision": "bf16", "lora_rank": 16}))
    assert round(lora.peak_bytes / GB) == 28
    assert 2 * N13 < lora.peak_bytes < 2 * N13 + 3 * GB


# -- memory that grows, counted by hand


@pytest.fixture
def growth() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code_of("def growth_kib"), names)
    return names


def test_what_a_kept_tensor_holds(growth: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    grows, keep = growth["growth_kib"], growth["KEEP"]
    block, logits = BLOCK_BYTES / 1024, 8 * 32 * 64 * 4 / 1024  # [8, 32, 64] in FP32
    for backward, gradients in ((True, True), (False, False)):
        assert grows(keep["loss.item()"], backward, gradients) == 0
        assert grows(keep["loss"], backward, gradients) == block
        assert grows(keep["logits.detach()"], backward, gradients) == logits
    whole_graph = grows(keep["loss"], False)
    assert whole_graph > 10 * logits, "all activations of the step"
    assert grows(keep["loss.item()"], False) == 0


# -- the tasks


def test_the_envelope_by_hand() -> None:
    check("interview.stays_gb", lambda billions, recipe: billions * EACH[recipe])
    for recipe, each in EACH.items():
        stays = sum(ledger.predict(read_model("llama-7b"), RECIPES[recipe]).static_bytes.values())
        assert stays == pytest.approx(each * N, rel=0.05), "what one says aloud"


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (lambda billions, recipe: billions * {**EACH, "amp-bf16": 8}[recipe], "autocast keeps FP32"),
        (lambda billions, recipe: billions * {**EACH, "fp32": 12}[recipe], "one bill is missing"),
        (lambda billions, recipe: billions * {**EACH, "bf16": 2}[recipe], "that is the weights alone"),
        (lambda billions, recipe: 100.0, "another number"),
        (lambda billions, recipe: None, "nothing came yet"),
    ],
)
def test_a_wrong_envelope_has_a_name(answer: Any, cause: str) -> None:
    with pytest.raises(Unsolved, match=cause):
        check("interview.stays_gb", answer)


def test_who_owns_the_peak() -> None:
    right = {"A": "optimizer", "B": "activations", "C": "temporary", "D": "weights"}
    check("interview.owner_of_the_peak", right)
    for name, account in (("A", "activations"), ("B", "weights"), ("C", "optimizer"), ("D", "gradients")):
        with pytest.raises(Unsolved, match=f"{name}: came '{account}'"):
            check("interview.owner_of_the_peak", {**right, name: account})
    for stub in (dict.fromkeys("ABCD", ...), ..., {"A": "optimizer"}, "optimizer"):
        with pytest.raises(Unsolved):
            check("interview.owner_of_the_peak", stub)


def test_zero_by_hand() -> None:
    def by_hand(params: float, stage: int, cards: int) -> float:
        return params * (16, 4 + 12 / cards, 2 + 14 / cards, 16 / cards)[stage]

    check("interview.zero_bytes", by_hand)
    for wrong in (
        lambda params, stage, cards: params * 16 / cards,
        lambda params, stage, cards: by_hand(params, min(stage, 2), cards),
        lambda params, stage, cards: by_hand(params, stage, cards) / 2,
    ):
        with pytest.raises(Unsolved):
            check("interview.zero_bytes", wrong)


# -- the end of the course


def test_the_chart_of_all_guesses_has_a_text() -> None:
    predict("a", 95)
    settle("a", 100)
    predict("word", "x")
    settle("word", "y")
    assert calibration_text() == "Predicted ÷ measured, in the order of the guesses: a 0.95."


# -- the notebook as a whole


def test_the_core_is_short_and_an_answer_is_found_first() -> None:
    unit = read_source(REPOSITORY, "07_interview")
    assert core_cells(unit) <= 20
    assert "finder()" in next(cell for cell in unit.cells[2:] if cell.kind == "code").text["en"]
    assert deeper_sections(unit) == {"en": 5, "zh": 5}


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_figure_in_the_prose_is_printed_by_a_cell(language: str) -> None:
    outcome, notebook = execute(REPOSITORY, "07_interview", language)
    assert outcome.failure is None
    assert outcome.complaints == []
    said = printed(notebook)
    for figure in ("208.3", "28.1", "x 12.9", "28.5 GB", "15.1 GB", "6.5 times the file", "31.4", "13.5", "0.40 GB"):
        assert figure in said, figure
    assert re.search(r"(measured|实测)\s+0 of 5", said), "none of the five is right"
    row = re.search(r"^loss +([\d.]+) +([\d.]+) +([\d.]+)$", said, re.MULTILINE)
    assert row
    assert (float(row[1]), float(row[3])) == (0.5, 0.5)
    assert float(row[2]) > 1000
    assert said.count("✓ interview.") == 3
    assert len(re.findall(r'<img alt="[^"]{20,}"', said)) == 1
