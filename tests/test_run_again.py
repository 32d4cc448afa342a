"""As readers do: half of the cells, a restart, all cells, and all of them once more; predictions stay in between."""

import os
from pathlib import Path

import pytest
from nbclient import NotebookClient

from course_lib.pipeline.editions import solved
from course_lib.pipeline.repository import Repository
from course_lib.pipeline.sources import read_source

REPOSITORY = Repository.find(Path(__file__).parent)


@pytest.mark.slow
@pytest.mark.parametrize("name", REPOSITORY.units())
def test_a_restart_in_the_middle_and_a_second_run_of_all(name: str, tmp_path: Path) -> None:
    notebook = solved(read_source(REPOSITORY, name), "en", REPOSITORY)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY.top), "COURSE_STATE_DIR": str(tmp_path / "state")}
    cells = list(enumerate(notebook.cells))
    for walks in ([cells[: len(cells) // 2]], [cells, cells]):  # a kernel each
        client = NotebookClient(notebook, timeout=300, kernel_name="python3", extra_arguments=["--log-level=40"],
                                resources={"metadata": {"path": str(tmp_path)}})  # fmt: skip
        with client.setup_kernel(env=environment):
            for walk in walks:
                for index, cell in walk:
                    client.execute_cell(cell, index)  # raises where the cell does
                    said = [each.text for each in cell.get("outputs", ()) if each.get("name") == "stderr"]
                    assert not said, said
