"""The interactive bill of 01_ledger, moved by keyboard alone."""

from lab_page import PATIENCE_MS, Lab, Notebook
from playwright.sync_api import Page, expect


def test_the_bill_follows_its_slider_by_keyboard(page: Page, lab: Lab) -> None:
    notebook = Notebook.open(page, lab, "notebooks/en/01_ledger/01_ledger.ipynb")
    outputs = notebook.run(notebook.cell("bill_explorer("))
    picture = outputs.get_by_role("img", name="together 125.53 GiB in optimizer_step").first
    expect(picture).to_be_visible(timeout=PATIENCE_MS)
    before = picture.get_attribute("src")
    model, card, precision, code, rank, checkpointing, batch, length = outputs.get_by_role("slider").all()
    model.focus()
    for _control in range(12):  # each slider's figure can be reached, too
        page.keyboard.press("Tab")
    batch.focus()
    for _key in range(2):  # batch 1, 2, 4
        page.keyboard.press("ArrowRight")
    after = outputs.get_by_role("img", name="in backward").first
    expect(after).to_be_visible(timeout=PATIENCE_MS)
    assert after.get_attribute("src") != before
    expect(outputs.get_by_role("status").first).to_contain_text("A100 80GB: does not fit")
    precision.focus()
    page.keyboard.press("Home")  # the first choice: bf16
    expect(outputs.get_by_role("status").first).to_contain_text("at least 7.54 GiB are missing", timeout=PATIENCE_MS)
