"""A notebook in JupyterLab, and what a reader does with it."""

import re
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

TOKEN = "t"
_NUMBER = re.compile(r"\[\d+\]:")  #: the prompt of a cell that has run
PATIENCE_MS = 60_000  #: a kernel that imports torch on a busy machine takes a while


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab. ``top`` is the folder that it shows."""

    address: str
    top: Path

    def url(self, notebook: str) -> str:
        return f"{self.address}/lab/tree/{notebook}?token={TOKEN}&reset"


@dataclass(frozen=True)
class Notebook:
    """An open notebook, by its cells."""

    page: Page

    @classmethod
    def open(cls, page: Page, lab: Lab, path: str) -> "Notebook":
        page.goto(lab.url(path))
        notebook = cls(page)
        expect(page.locator(".jp-Notebook .jp-Cell").first).to_be_visible(timeout=PATIENCE_MS)
        notebook.wait_until_idle()
        return notebook

    def cell(self, holding: str) -> Locator:
        """The code cell whose code holds this text."""
        return self.page.locator(".jp-CodeCell", has=self.page.locator(".cm-content", has_text=holding)).first

    def run(self, cell: Locator) -> Locator:
        """Run one cell to its end; returns its outputs."""
        prompt = cell.locator(".jp-InputPrompt")
        before = prompt.inner_text()
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")
        expect(prompt).not_to_have_text(before, timeout=PATIENCE_MS)
        expect(prompt).to_have_text(_NUMBER, timeout=PATIENCE_MS)
        self.wait_until_idle()
        return cell.locator(".jp-OutputArea-output")

    def retype(self, cell: Locator, code: str) -> None:
        """Replace a cell's code, as a reader would."""
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(code)

    def restart_kernel(self) -> None:
        self.page.get_by_role("menuitem", name="Kernel", exact=True).click()
        self.page.get_by_text("Restart Kernel and Clear Outputs of All Cells…", exact=True).click()
        self.page.get_by_role("button", name="Confirm Kernel Restart").click()
        expect(self.page.locator(".jp-OutputArea-output")).to_have_count(0)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Until the status bar says so: the notebook's own indicator is idle before there is a kernel, too."""
        expect(self.page.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=PATIENCE_MS)
