"""The lessons as a reader meets them: JupyterLab in a browser."""

import json

import nbformat
from lab_page import PATIENCE_MS, Lab, Notebook
from playwright.sync_api import Page, expect

SLIDER = """\
import matplotlib.pyplot as plt
from ipywidgets import IntSlider, interact
from course_lib.figures import show

@interact(layers=IntSlider(2, 1, 8, description="layers"))
def draw(layers):
    figure, ax = plt.subplots(figsize=(4, 2))
    ax.bar(range(layers), [1] * layers)
    show(figure, f"{layers} bars")
"""


def test_lab_opens_on_the_notebooks_and_asks_nothing(page: Page, lab: Lab) -> None:
    page.goto(f"{lab.address}/?token=t")
    listing = page.locator(".jp-DirListing-content")
    for language in ("en", "zh"):
        expect(listing.get_by_text(language, exact=True)).to_be_visible(timeout=PATIENCE_MS)
    page.wait_for_timeout(1500)  # a question about news would come by now
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_prediction_outlives_the_kernel_and_the_edition(page: Page, lab: Lab) -> None:
    english = Notebook.open(page, lab, "notebooks/en/00_start/00_start.ipynb")
    cell = english.cell("guess_gib = ...")
    code = "\n".join(nbformat.read(lab.top / "notebooks/en/00_start/00_start.ipynb", 4).cells[3].source.splitlines())
    assert "guess_gib = ..." in code
    expect(english.run(cell)).to_contain_text("No guess yet")
    english.retype(cell, code.replace("guess_gib = ...", "guess_gib = 3.5"))
    cell = english.cell("guess_gib = 3.5")
    expect(english.run(cell)).to_contain_text("Your prediction: 3.5 GiB. It is kept.")
    english.restart_kernel()
    expect(english.run(cell)).to_contain_text("You predicted 3.5 GiB on")

    chinese = Notebook.open(page, lab, "notebooks/zh/00_start/00_start.ipynb")
    expect(chinese.run(chinese.cell("LANGUAGE"))).to_contain_text("中文版")
    expect(chinese.run(chinese.cell("guess_gib"))).to_contain_text("的预测是 3.5 GiB")
    kept = [json.loads(line) for line in (lab.top / "state/predictions.jsonl").read_text().splitlines() if line]
    assert [record["value"] for record in kept] == [3.5]


def test_a_task_explains_itself_where_the_reader_works(page: Page, lab: Lab) -> None:
    notebook = Notebook.open(page, lab, "notebooks/en/00_start/00_start.ipynb")
    cell = notebook.cell("tensor_mib = ...")
    notebook.retype(cell, 'from course_lib.tasks import check\ncheck("start.tensor_mib", 32)')
    outputs = notebook.run(notebook.cell('"start.tensor_mib", 32'))
    expect(outputs).to_contain_text("Usual cause: that is float32")
    expect(outputs).not_to_contain_text("Traceback")


def test_a_slider_moves_by_keyboard_and_the_figure_follows(page: Page, lab: Lab) -> None:
    path = lab.top / "notebooks" / "slider.ipynb"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(SLIDER)], metadata=kernel), path)
    notebook = Notebook.open(page, lab, "notebooks/slider.ipynb")
    outputs = notebook.run(notebook.cell("IntSlider"))
    picture = outputs.get_by_role("img", name="2 bars")
    expect(picture).to_be_visible()
    before = picture.get_attribute("src")
    slider = outputs.get_by_role("slider").first
    slider.focus()
    page.keyboard.press("ArrowRight")
    after = outputs.get_by_role("img", name="3 bars")
    expect(after).to_be_visible(timeout=PATIENCE_MS)
    assert after.get_attribute("src") != before
