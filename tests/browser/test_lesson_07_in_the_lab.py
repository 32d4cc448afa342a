"""07_interview by keyboard: five cards, a reload and a new kernel, and the drill goes on; then the search."""

import json

from lab_page import PATIENCE_MS, Lab, Notebook
from playwright.sync_api import Locator, Page, expect

from course_lib.interview.questions import questions


def press(page: Page, button: Locator) -> None:
    button.focus()
    page.keyboard.press("Space")


def test_five_cards_outlive_page_and_kernel(page: Page, lab: Lab) -> None:
    path = "notebooks/en/07_interview/07_interview.ipynb"
    notebook = Notebook.open(page, lab, path)
    notebook.run(notebook.cell("LANGUAGE"))
    outputs = notebook.run(notebook.cell("drill()"))
    status = outputs.get_by_role("status").first
    show = outputs.get_by_role("button", name="Show the answer")
    for number, grade in enumerate(("at once", "at once", "not at all", "well", "at once")):
        expect(status).to_contain_text(f"seen: {number} of {len(questions())}", timeout=PATIENCE_MS)
        press(page, show)
        expect(outputs.get_by_text("How did it go?")).to_be_visible(timeout=PATIENCE_MS)
        expect(outputs.get_by_text("Then they ask").first).to_be_visible()
        press(page, outputs.get_by_role("button", name=grade))
    expect(status).to_contain_text("seen: 5 of", timeout=PATIENCE_MS)
    waiting = outputs.locator("b").first.inner_text()

    notebook = Notebook.open(page, lab, path)
    notebook.restart_kernel()
    notebook.run(notebook.cell("LANGUAGE"))
    outputs = notebook.run(notebook.cell("drill()"))
    expect(outputs.get_by_role("status").first).to_contain_text("seen: 5 of", timeout=PATIENCE_MS)
    expect(outputs.locator("b").first).to_have_text(waiting)
    log = (lab.top / "state/interview.jsonl").read_text()
    assert [json.loads(line)["rating"] for line in log.splitlines() if line] == [4, 4, 1, 3, 4]

    outputs = notebook.run(notebook.cell("finder()"))
    outputs.get_by_role("textbox").first.focus()
    page.keyboard.insert_text("why does LoRA save")
    found = outputs.get_by_role("status").first
    expect(found).to_contain_text("exist only for what is trained", timeout=PATIENCE_MS)
    expect(found).to_contain_text("Shown in 05_recipe_24gb_7b")
