"""Execute the solved notebooks, as a reader's "run all" would, and say what each took."""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from course_lib.pipeline.editions import solved
from course_lib.pipeline.repository import Repository
from course_lib.pipeline.sources import read_source

if TYPE_CHECKING:
    from nbformat import NotebookNode

#: No cell of a lesson is meant to take a tenth of this.
CELL_TIMEOUT_SECONDS = 300


@dataclass
class Outcome:
    """How the run of one unit went."""

    unit: str
    cells: int  #: code cells that ran to their end
    seconds: float
    peak_host_bytes: int  #: the kernel's largest resident memory
    failure: str | None = None  #: file, line and error of the cell that failed
    complaints: list[str] = field(default_factory=list)  #: what cells wrote to stderr


def execute(
    repository: Repository, name: str, language: str, on_cell: Callable[[], None] = lambda: None
) -> tuple[Outcome, "NotebookNode"]:
    """Run a unit's solved notebook in a fresh kernel, in an empty folder, with a journal of its own.

    Args:
        name: the unit.
        language: the edition to run; the code is the same in all.
        on_cell: called after each code cell.

    Returns:
        What came of it, and the notebook with its outputs.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    unit = read_source(repository, name)
    notebook = solved(unit, language, repository)
    outcome = Outcome(name, 0, 0.0, 0)
    lines = {f"{name}-{position:03d}": cell.line for position, cell in enumerate(unit.cells)}
    running = unit.cells[0].line

    def before(cell: Any, cell_index: int) -> None:
        nonlocal running
        running = lines.get(cell.id, running)

    def after(cell: Any, cell_index: int, execute_reply: Any) -> None:
        outcome.cells += 1
        outcome.peak_host_bytes = max(outcome.peak_host_bytes, _peak_bytes(cast(Any, client.km).provisioner.pid))
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stderr":
                outcome.complaints.append(f"{unit.path}:{running}: {output.text.strip().splitlines()[0]}")
        on_cell()

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=CELL_TIMEOUT_SECONDS,
            kernel_name="python3",
            extra_arguments=["--log-level=40"],  # the kernel's own remarks are not the unit's
            resources={"metadata": {"path": folder}},
            on_cell_start=before,
            on_cell_executed=after,
        )
        # As in a notebook of the course's own checkout: importable even where it is not installed.
        path = os.pathsep.join(filter(None, [str(repository.top), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "COURSE_STATE_DIR": str(Path(folder, "state"))}
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            outcome.failure = f"{unit.path}:{running}: {error.ename}: {error.evalue}"
        except (CellTimeoutError, DeadKernelError) as error:
            outcome.failure = f"{unit.path}:{running}: {str(error).splitlines()[0]}"
    outcome.seconds = time.perf_counter() - start
    return outcome, notebook


def _peak_bytes(pid: int) -> int:
    """The most resident memory a process has had; on systems that do not keep it, what it has now."""
    import psutil

    if sys.platform == "linux":
        with open(f"/proc/{pid}/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    memory = psutil.Process(pid).memory_info()
    return int(getattr(memory, "peak_wset", memory.rss))
