"""One sandbox for all tests of the grader; its parent imports torch, which takes seconds."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "exercises"))

from course_lib.errors import CourseError
from course_lib.grading import job as jobs
from course_lib.grading.execute import Budget
from course_lib.grading.namespaces import Limits
from course_lib.grading.sandbox import Sandbox
from course_lib.grading.score import Graded

#: Short, so that a hang costs little; no honest cell here takes a tenth of it.
BUDGET = Budget(cell_seconds=20.0, notebook_seconds=60.0, limits=Limits(memory_bytes=2 * 2**30))


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Where a machine lets none stand (no user namespaces, the environment in /tmp), there is nothing to test."""
    try:
        made = Sandbox()
        made.wait()
    except CourseError as error:
        pytest.skip(str(error))
    jobs.sandboxes["bwrap"] = made
    yield made
    jobs.sandboxes.pop("bwrap").close()


@pytest.fixture(scope="session")
def grade(sandbox: Sandbox) -> Callable[..., Graded]:
    """Grade a notebook's JSON, or its bytes, as a worker does."""

    def grade(notebook: Any, unit: str = "ex1_precision", seed: str = "1", budget: Budget = BUDGET) -> Graded:
        jobs.sandboxes["bwrap"] = sandbox  # a command that ran in this process has put, and closed, its own there
        content = notebook if isinstance(notebook, bytes) else json.dumps(notebook).encode()
        return Graded.from_dict(json.loads(jobs.grade(jobs.make_job(content, unit, seed, "bwrap", budget, {}))))

    return grade
