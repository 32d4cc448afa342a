"""What every test may count on: a journal of its own, English, and tensors that one thread works on."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib.i18n import set_language

# Before anybody imports torch: for tensors this small, threads wait for each other twenty times longer than they work.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Predictions and progress of the test; never those of whoever runs it."""
    folder = tmp_path / "state"
    monkeypatch.setenv("COURSE_STATE_DIR", str(folder))
    yield folder
    set_language("en")
