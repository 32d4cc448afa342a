"""What holds for every exercise; each ``test_exN`` module calls these with its own table of answers."""

import re
from collections.abc import Sequence
from typing import Any

from harness import Answer, grade, grade_release, graded_cells, unit_of

from course_lib.exercises.cells import CELLS
from course_lib.pipeline.editions import student

_POINTS = {"en": re.compile(r"\((\d+) points?[,)]"), "zh": re.compile(r"（(\d+) 分[，）]")}
_TOTAL = {"en": re.compile(r"^\*(\d+) points ", re.M), "zh": re.compile(r"^\*(\d+) 分 ", re.M)}


def check_answer(name: str, answer: Answer) -> None:
    """It loses the points of the cells it says, all of them, and each message names what it says."""
    graded = grade(name, answer)
    assert graded.named == dict(answer.loses), "\n".join(f"{cell}: {said}" for cell, said in graded.said.items())
    full = {cell: points for cell, points in CELLS[name].items() if cell in graded.points}
    assert graded.points == {cell: 0 if cell in answer.loses else points for cell, points in full.items()}


def check_messages(name: str, answers: Sequence[Answer]) -> None:
    """Every message says what was expected, what came, and what to do or where it is explained."""
    for answer in answers:
        for said in grade(name, answer).said.values():
            assert said.startswith("✗ "), said
            assert re.search(r"expected .*, got |change at least|It looks like|The usual cause is", said), said


def check_release(name: str) -> None:
    """What students open earns nothing, and each test says that there is nothing yet."""
    for language in ("en", "zh"):
        graded = grade_release(name, language)
        assert set(graded.points.values()) == {0}, graded.points
        assert graded.said.keys() == graded.points.keys()


def check_cells(name: str) -> None:
    """The list that `prepare` uses is the notebook's."""
    cells = [cell.nbgrader for cell in unit_of(name).cells if cell.nbgrader]
    assert {cell["grade_id"]: cell.get("points", 0) for cell in cells} == CELLS[name]


def check_points_in_prose(name: str) -> None:
    """The number at each heading is what the cells below it earn; the number at the head is the sum."""
    for language in ("en", "zh"):
        promised: list[int] = []
        earned: list[int] = []
        totals: list[str] = []
        for cell in unit_of(name).cells:
            text = cell.text[language]
            if cell.kind == "markdown" and not cell.nbgrader:
                totals += _TOTAL[language].findall(text)
                for heading in re.findall(r"^## .*$", text, re.M):
                    found = _POINTS[language].search(heading)
                    promised.append(int(found[1]) if found else 0)
                    earned.append(0)
            elif cell.nbgrader:
                earned[-1] += cell.nbgrader.get("points", 0)
        assert promised == earned
        assert totals == [str(sum(CELLS[name].values()))]


def check_student_code_is_shared(name: str) -> None:
    """Test cells are letter for letter the same in both editions, so either submission is graded alike."""
    english, chinese = graded_cells(name, student, "en"), graded_cells(name, student, "zh")
    assert [(cell.source, cell.metadata.nbgrader) for cell in english] == [
        (cell.source, cell.metadata.nbgrader) for cell in chinese
    ]


def reference(name: str) -> dict[str, Any]:
    """The solved notebook's names, as an outside test gets them: every code cell executed in order."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in unit_of(name).cells:
        if cell.kind == "code":
            exec(compile(cell.text["en"], f"<line {cell.line}>", "exec"), namespace)
    return namespace


