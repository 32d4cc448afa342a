"""Harmless changes cost nothing, or a person is told; broken files have a reason."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from mutations import BROKEN, FILES, MUTATIONS

from course_lib.grading.job import assignment_of
from course_lib.grading.sanitize import NeedsHuman, sanitize
from course_lib.grading.score import Graded
from notebooks import UNIT, quick

Grade = Callable[..., Graded]
SAMPLE = {"all metadata gone", "saved by Colab", "a test twice", "an answer became raw"}


def mutated(name: str) -> bytes:
    if name in MUTATIONS:
        return json.dumps(MUTATIONS[name](json.loads(json.dumps(quick())))).encode()
    return FILES[name](json.dumps(quick()).encode())


@pytest.mark.parametrize("name", [pytest.param(each, marks=() if each in SAMPLE else pytest.mark.slow)
                                  for each in (*MUTATIONS, *FILES)])  # fmt: skip
def test_a_harmless_change_costs_nothing_or_a_person_is_told(grade: Grade, name: str) -> None:
    graded = grade(mutated(name))
    if graded.status == "needs-human":
        assert graded.reason
    else:
        assert graded.points == 5.0, [(each.question, each.reason) for each in graded.scores]


@pytest.mark.parametrize("name", [*MUTATIONS, *FILES])
def test_every_change_is_understood_without_a_sandbox(name: str) -> None:
    """Full marks come from the right cells in a right order: each test once, after its answer."""
    assignment = assignment_of(UNIT)
    sane = sanitize(mutated(name), assignment)
    order = [cell.grade_id for cell in sane.run if cell.grade_id]
    assert sorted(order) == sorted(each.grade_id for each in assignment.questions if not each.by_hand)
    defined = next(place for place, cell in enumerate(sane.run) if "def static_bytes" in cell.code)
    assert defined < [cell.grade_id for cell in sane.run].index("static-bytes-stored")
    assert sane.language == ("zh" if "Chinese" in name else "en")


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_needs_a_human_and_says_why(name: str) -> None:
    content, word = BROKEN[name]
    with pytest.raises(NeedsHuman, match=word):
        sanitize(content, assignment_of(UNIT))


def test_repairs_are_said() -> None:
    notes = sanitize(mutated("a test twice"), assignment_of(UNIT)).notes
    assert notes == ["static-bytes-stored was there twice: the first counts"]
    notes = sanitize(mutated("an answer became raw"), assignment_of(UNIT)).notes
    assert notes == ["static-bytes had become a raw cell and is code again"]


def test_own_cells_bring_what_they_use_of_the_course_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of the course's own is run when the student's code uses what it makes, and only that part of it."""
    notebook: Any = quick()
    assignment = assignment_of(UNIT)
    plain = "\n".join(cell.code for cell in sanitize(json.dumps(notebook).encode(), assignment).run)
    assert "peaks_of" not in plain
    from notebooks import with_cell

    used = with_cell(notebook, "peaks_of(example, 1, 8)", len(notebook["cells"]))
    code = "\n".join(cell.code for cell in sanitize(json.dumps(used).encode(), assignment).run)
    assert "def peaks_of" in code
    assert "example = GPTConfig" in code
    assert "show(" not in code
