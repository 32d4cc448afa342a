"""JupyterLab as `make lab` serves it, over a copy of the notebooks, and a headless Chromium that reads them."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_page import Lab
from lab_server import serve
from playwright.sync_api import Browser, Page, sync_playwright

TOP = Path(__file__).resolve().parents[2]
#: Without the last three, Chromium talks to its maker at every start, which a closed network refuses many times over.
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """`course lab` with the flags of `make lab ARGS=…`; what is typed there changes no committed notebook."""
    top = tmp_path_factory.mktemp("course")
    shutil.copytree(TOP / "notebooks", top / "notebooks")
    shutil.copy(TOP / "pyproject.toml", top)
    (top / "solutions").mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(TOP),
        "COURSE_STATE_DIR": str(top / "state"),
        "JUPYTER_CONFIG_DIR": str(top / "config"),
        "JUPYTER_DATA_DIR": str(top / "data"),
    }
    with serve(["course_lib", "lab"], top, environment) as lab:
        yield lab


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or "/usr/bin/chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    page = context.new_page()
    yield page
    context.close()
