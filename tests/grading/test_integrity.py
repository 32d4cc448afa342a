"""Hostile submissions never score more than their honest twins, or a person is told; nobody else's row changes."""

from collections.abc import Callable
from typing import Any

import pytest
from hostile import ANSWERS, EDITS, FIRST_CELLS

from course_lib.grading.score import Graded
from notebooks import WRONG, find, grade_id, quick, with_answer, with_cell

Grade = Callable[..., Graded]
#: What `make test` tries; `make test-all` tries all.
SAMPLE = {"writes-the-gradebook", "strips-calls-from-the-syntax-tree", "forges-frames-on-the-line", "exits-at-once",
          "kills-what-it-can", "reads-the-right-values-from-frames"}  # fmt: skip


def cases(names: Any) -> list[Any]:
    return [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow) for name in names]


@pytest.fixture(scope="module")
def twin(grade: Grade) -> Graded:
    """static_bytes wrong, verdict right."""
    graded = grade(with_answer(quick(), "static-bytes", WRONG))
    assert (graded.status, graded.points) == ("graded", 2.0)
    return graded


def no_more_than(graded: Graded, twin: Graded) -> None:
    told = {each.question for each in graded.scores if each.flag}
    earned = {each.question: each.points or 0 for each in twin.scores}
    for each in graded.scores:
        assert (each.points or 0) <= earned[each.question] or each.question in told, each
    if told:
        assert graded.status == "needs-human"
    assert graded.points <= twin.points


@pytest.mark.parametrize("name", cases(FIRST_CELLS))
def test_a_cell_of_its_own_gains_nothing(grade: Grade, twin: Graded, name: str) -> None:
    no_more_than(grade(with_cell(with_answer(quick(), "static-bytes", WRONG), FIRST_CELLS[name])), twin)


@pytest.mark.parametrize("name", cases(ANSWERS))
def test_a_dishonest_answer_gains_nothing(grade: Grade, twin: Graded, name: str) -> None:
    graded = grade(with_answer(quick(), "static-bytes", ANSWERS[name]))
    if name == "the-solution-of-the-tests":  # open in the visible tests, as in the repository; it is not there later
        assert not graded.points or graded.status == "needs-human"
    no_more_than(graded, twin)


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("right", [True, False])
def test_edited_test_cells_change_nothing(grade: Grade, twin: Graded, name: str, right: bool) -> None:
    notebook = quick() if right else with_answer(quick(), "static-bytes", WRONG)
    for each in [cell for cell in notebook["cells"] if grade_id(cell).startswith("static-bytes-")]:
        EDITS[name](each)
    graded = grade(notebook)
    assert graded.points == (5.0 if right else 2.0)


def test_who_passes_only_inside_is_named(grade: Grade) -> None:
    """The test passes in the notebook, the values are wrong: a person is told which question, and why."""
    graded = grade(with_cell(with_answer(quick(), "static-bytes", WRONG), FIRST_CELLS["patches-the-judge"]))
    assert graded.status == "needs-human"
    assert graded.reason.startswith("static-bytes-stored, static-bytes-autocast, measure-peak-fp32")
    assert "its test passes in the notebook, but its values are not right when they are compared" in graded.reason


def test_an_honest_neighbour_after_a_cheat_is_untouched(grade: Grade) -> None:
    before = grade(quick())
    grade(with_cell(quick(), FIRST_CELLS["a-course-lib-of-its-own"]))
    grade(with_cell(quick(), FIRST_CELLS["patches-isinstance"]))
    assert grade(quick()).to_dict() == before.to_dict()


def test_what_was_earned_before_the_kernel_died_stays(grade: Grade) -> None:
    died = with_answer(quick(), "verdict", "import os\ndef verdict(static, peaks):\n    os._exit(1)")
    scores = {each.question: each for each in grade(died).scores}
    assert scores["static-bytes-stored"].points == 2.0
    assert scores["verdict-tests"].points == 0
    assert scores["verdict-tests"].reason == "the kernel died"


def test_chatter_on_stderr_costs_nothing(grade: Grade) -> None:
    """Stock nbgrader gives nothing for a test cell that writes to stderr."""
    right = "".join(find(quick(), "static-bytes")["source"])
    talk = "    print('a library talks', file=sys.stderr); warnings.warn('and warns')\n    if recipe"
    noisy = with_answer(quick(), "static-bytes", "import sys, warnings\n" + right.replace("    if recipe", talk))
    assert grade(noisy).points == 5.0
