"""What every test may count on: a journal of its own, and English."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib.i18n import set_language


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Predictions and progress of the test; never those of whoever runs it."""
    folder = tmp_path / "state"
    monkeypatch.setenv("COURSE_STATE_DIR", str(folder))
    yield folder
    set_language("en")
