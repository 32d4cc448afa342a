"""Formgrader as an instructor uses it: autograde a submission, mark its written answer, see the grade."""

from pathlib import Path

from lab_page import PATIENCE_MS, TOKEN
from lab_server import serve
from nbgrader_course import Course, as_colab_saves, solved_by
from playwright.sync_api import Page, expect

from course_lib.exercises.cells import CELLS

UNIT, WRITTEN = "ex2_checkpointing", "explain"


def test_an_instructor_autogrades_and_marks_what_was_written(page: Page, tmp_path: Path) -> None:
    total, by_hand = sum(CELLS[UNIT].values()), CELLS[UNIT][WRITTEN]
    course = Course.make(tmp_path / "autograder", UNIT)
    course.nbgrader("generate_assignment", UNIT)
    course.submit(UNIT, "chen", as_colab_saves(solved_by(UNIT, "zh")))
    with serve(["jupyterlab"], course.root, course.environment) as lab:
        page.goto(f"{lab.address}/lab?token={TOKEN}", wait_until="domcontentloaded")  # which logs in
        page.goto(f"{lab.address}/formgrader/manage_submissions/{UNIT}")
        row = page.locator("tr", has_text="chen")
        row.locator(".autograde a").click()
        expect(page.locator(".modal-title")).to_contain_text("Success", timeout=2 * PATIENCE_MS)

        page.goto(f"{lab.address}/formgrader/gradebook/{UNIT}/{UNIT}")
        page.locator("td.name a").first.click()
        score = page.locator(f"input#{WRITTEN}")
        expect(score).to_be_visible(timeout=PATIENCE_MS)
        assert score.input_value() == "", "nobody has marked it yet"
        answer = page.locator(".nbgrader_cell", has=score)
        expect(answer).to_contain_text("√n")
        page.wait_for_load_state("networkidle", timeout=PATIENCE_MS)  # before it, the page does not listen to the field
        with page.expect_response(lambda each: "/formgrader/api/grade/" in each.url, timeout=PATIENCE_MS) as kept:
            score.fill(str(by_hand))
            score.press("Tab")
        assert kept.value.ok
    row = course.grades()["chen"]
    assert (float(row["score"]), float(row["max_score"])) == (total, total)
