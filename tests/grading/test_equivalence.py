"""Honest answers get what their cells get when they are executed one by one, as nbgrader does: every right and every
wrong answer of the exercises' own tables, and the references of all three, with other seeds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import answers_ex1
import answers_ex2
import answers_ex3
import pytest
from harness import Answer
from nbgrader.api import Gradebook
from nbgrader_course import Course, solved_by

from course_lib.exercises.cells import CELLS
from course_lib.grading.execute import Budget
from course_lib.grading.score import Graded

TABLES: dict[str, Any] = {"ex1_precision": answers_ex1, "ex2_checkpointing": answers_ex2,
                          "ex3_accumulation": answers_ex3}  # fmt: skip
ANSWERS = [(unit, answer) for unit, table in TABLES.items() for answer in (*table.RIGHT, *table.WRONG)]


def notebook_of(unit: str, answer: Answer) -> dict[str, Any]:
    """The solved notebook with the answer's changes, as a student hands it in."""
    notebook = solved_by(unit, "en")
    for cell in notebook["cells"]:
        change = answer.cells.get(cell["metadata"].get("nbgrader", {}).get("grade_id", ""), ())
        if isinstance(change, str):
            cell["source"] = change
            continue
        code = "".join(cell["source"])
        for old, new in change:
            assert old in code
            code = code.replace(old, new)
        cell["source"] = code
    return notebook


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "answer"), ANSWERS, ids=[f"{unit}-{answer.name}" for unit, answer in ANSWERS])
def test_an_honest_answer_gets_what_it_deserves(grade: Callable[..., Graded], unit: str, answer: Answer) -> None:
    graded = grade(notebook_of(unit, answer), unit, budget=Budget())
    right = {cell: 0 if cell in answer.loses else points for cell, points in CELLS[unit].items() if points}
    came = {each.question: each.points for each in graded.scores if each.points is not None}
    assert came == {cell: points for cell, points in right.items() if cell != "explain"}, graded.reason
    named = {each.question: each.mistake for each in graded.scores if each.question in answer.loses}
    assert named == dict(answer.loses)


@pytest.mark.slow
@pytest.mark.parametrize("unit", TABLES)
def test_question_by_question_as_stock_nbgrader(grade: Callable[..., Graded], unit: str, tmp_path: Path) -> None:
    """Every third of the wrong answers and some of the right ones, through both, whole notebooks."""
    answers = [*TABLES[unit].RIGHT[:3], *TABLES[unit].WRONG[::3]]
    course = Course.make(tmp_path / "autograder", unit)
    course.nbgrader("generate_assignment", unit)
    for number, answer in enumerate(answers):
        course.submit(unit, f"student{number}", notebook_of(unit, answer))
    course.nbgrader("autograde", unit)
    with Gradebook(f"sqlite:///{course.root / 'gradebook.db'}", "big-models-small-gpus") as gradebook:
        for number, answer in enumerate(answers):
            stock = {each.name: each.auto_score for each in
                     gradebook.find_submission_notebook(unit, unit, f"student{number}").grades}  # fmt: skip
            ours = grade(notebook_of(unit, answer), unit, budget=Budget()).scores
            assert {each.question: each.points for each in ours if each.points is not None} == {
                name: points for name, points in stock.items() if name != "explain"
            }, answer.name


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["2", "3"])
@pytest.mark.parametrize("unit", CELLS)
def test_the_reference_is_right_for_whatever_is_drawn(grade: Callable[..., Graded], unit: str, seed: str) -> None:
    graded = grade(json.dumps(solved_by(unit, "zh")).encode(), unit, seed=seed, budget=Budget())
    assert (graded.status, graded.reason) == ("graded", "")
    assert graded.points == sum(CELLS[unit].values()) - CELLS[unit]["explain"]
