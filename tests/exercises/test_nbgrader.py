"""Stock nbgrader, command by command, on the three exercises: the same grade for the same answers, however saved."""

import pytest
from nbgrader.api import Gradebook
from nbgrader_course import Course, as_colab_saves, solved_by, untouched, without_a_test_cell

from course_lib.exercises.cells import CELLS

UNITS = list(CELLS)
WRITTEN = "explain"


def by_hand(unit: str) -> int:
    return CELLS[unit][WRITTEN]


@pytest.fixture(scope="module", params=UNITS)
def graded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Course]:
    """Released, handed in three times, autograded.

    Ada has deleted a test cell, which costs no points as `OverwriteCells.add_missing_cells` is on.
    """
    unit = request.param
    course = Course.make(tmp_path_factory.mktemp("course") / "autograder", unit)
    course.nbgrader("generate_assignment", unit)
    course.submit(unit, "ada", without_a_test_cell(solved_by(unit, "en")))
    course.submit(unit, "colab", as_colab_saves(solved_by(unit, "zh")))
    course.submit(unit, "untouched", untouched(unit, "zh"))
    course.nbgrader("autograde", unit)
    return unit, course


def test_same_answers_same_grade(graded: tuple[str, Course]) -> None:
    unit, course = graded
    total = sum(CELLS[unit].values())
    grades = course.grades()
    scores = {who: (float(row["score"]), float(row["max_score"])) for who, row in grades.items()}
    by_code = total - by_hand(unit)
    assert scores == {
        "ada": (by_code, total), "colab": (by_code, total), "untouched": (0, total),
    }  # fmt: skip


def test_a_person_marks_what_was_written_and_nothing_else(graded: tuple[str, Course]) -> None:
    unit, course = graded
    with Gradebook(f"sqlite:///{course.root / 'gradebook.db'}", "big-models-small-gpus") as gradebook:
        for who in ("ada", "colab", "untouched"):
            notebook = gradebook.find_submission_notebook(unit, unit, who)
            waiting = [grade.name for grade in notebook.grades if grade.needs_manual_grade]
            assert waiting == ([] if who == "untouched" else [WRITTEN])
        grade = gradebook.find_grade(WRITTEN, unit, unit, "colab")
        grade.manual_score, grade.needs_manual_grade = by_hand(unit), False
        gradebook.db.commit()
    assert float(course.grades()["colab"]["score"]) == sum(CELLS[unit].values())


def test_feedback_says_what_failed(graded: tuple[str, Course]) -> None:
    unit, course = graded
    course.nbgrader("generate_feedback", unit)
    pages = {who: course.root / "feedback" / who / unit / f"{unit}.html" for who in ("ada", "untouched")}
    by_code = sum(CELLS[unit].values()) - by_hand(unit)
    assert f"(Score: {by_code}.0 / " in pages["ada"].read_text(encoding="utf-8")
    assert "还没写" in pages["untouched"].read_text(encoding="utf-8"), "in the language of the edition"


@pytest.mark.slow
def test_validate_tells_a_student_where_they_stand(graded: tuple[str, Course]) -> None:
    unit, course = graded
    course.submit(unit, "checking", solved_by(unit, "en"))
    solved = f"submitted/checking/{unit}/{unit}.ipynb"
    assert "Success! Your notebook passes all the tests." in course.nbgrader("validate", solved)
    released = f"release/{unit}/{unit}.ipynb"
    tests = sum(points > 0 for points in CELLS[unit].values()) - 1
    assert f"VALIDATION FAILED ON {tests + 1} CELL(S)" in " ".join(course.nbgrader("validate", released).split())
