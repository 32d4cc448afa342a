"""The clinic as somebody uses it on a bad day: open the lesson, run two cells, paste a message."""

from lab_page import PATIENCE_MS, Lab, Notebook
from playwright.sync_api import Page, expect

MESSAGE = """Traceback (most recent call last):
  File "train.py", line 88, in <module>
RuntimeError: unscale_() has already been called on this optimizer since the last update()."""


def test_a_pasted_message_finds_its_case_in_two_cells(page: Page, lab: Lab) -> None:
    notebook = Notebook.open(page, lab, "notebooks/zh/06_troubleshooting/06_troubleshooting.ipynb")
    notebook.run(notebook.cell("LANGUAGE"))
    outputs = notebook.run(notebook.cell("search_box("))
    found = outputs.get_by_role("status").first
    expect(found).to_contain_text("fp16-overflow", timeout=PATIENCE_MS)
    field = outputs.get_by_role("textbox").first
    field.focus()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(MESSAGE)
    expect(found).to_contain_text("unscale-twice", timeout=PATIENCE_MS)
    expect(found).to_contain_text("最后一个微批之后、裁剪之前")
    page.keyboard.press("Control+A")
    page.keyboard.insert_text("验证时爆显存")
    expect(found).to_contain_text("no-no-grad", timeout=PATIENCE_MS)


def test_a_case_is_seen_ill_named_and_mended(page: Page, lab: Lab) -> None:
    notebook = Notebook.open(page, lab, "notebooks/en/06_troubleshooting/06_troubleshooting.ipynb")
    notebook.run(notebook.cell("LANGUAGE"))
    ill = notebook.run(notebook.cell("def validate("))
    expect(ill.first).to_contain_text("CUDA out of memory", timeout=PATIENCE_MS)
    cell = notebook.cell("diagnose(watch.reading)")
    expect(notebook.run(cell).first).to_contain_text("no-no-grad", timeout=PATIENCE_MS)
    expect(notebook.run(notebook.cell("as mended:")).last).to_contain_text("nothing found", timeout=PATIENCE_MS)
    blind = notebook.cell("case_a = ...")
    expect(notebook.run(blind).last).to_contain_text("write your answer in place of the dots", timeout=PATIENCE_MS)
