"""The bits of 02_mixed_precision, changed by keyboard alone."""

from lab_page import PATIENCE_MS, Lab, Notebook
from playwright.sync_api import Page, expect


def test_bits_follow_the_field_and_the_slider_by_keyboard(page: Page, lab: Lab) -> None:
    notebook = Notebook.open(page, lab, "notebooks/en/02_mixed_precision/02_mixed_precision.ipynb")
    notebook.run(notebook.cell("LANGUAGE"))
    outputs = notebook.run(notebook.cell("bits_explorer("))
    said = outputs.get_by_role("status").first
    expect(said).to_contain_text("FP16 becomes infinite", timeout=PATIENCE_MS)
    outputs.get_by_role("slider").first.focus()
    page.keyboard.press("ArrowLeft")
    expect(said).to_contain_text("33123.195", timeout=PATIENCE_MS)
    expect(said).to_contain_text("FP16 off by")
    field = outputs.get_by_role("textbox").first
    field.focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("1e-8")
    page.keyboard.press("Enter")
    expect(said).to_contain_text("FP16 becomes 0", timeout=PATIENCE_MS)
    expect(outputs.get_by_role("img", name="The bits of 5e-09").first).to_be_visible()
