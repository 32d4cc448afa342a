"""A course folder in which stock nbgrader runs as an instructor runs it, and submissions as students hand them in."""

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from harness import HERE, unit_of

from course_lib.pipeline.editions import solved, student, to_bytes


@dataclass(frozen=True)
class Course:
    """``autograder/`` somewhere else: its configuration, and the sources that `course build` puts there."""

    root: Path

    @classmethod
    def make(cls, root: Path, *units: str) -> "Course":
        root.mkdir(parents=True)
        shutil.copy(HERE.top / "autograder" / "nbgrader_config.py", root)
        for unit in units:
            folder = root / "source" / unit
            folder.mkdir(parents=True)
            (folder / f"{unit}.ipynb").write_bytes(to_bytes(solved(unit_of(unit), "en", HERE)))
        return cls(root)

    def nbgrader(self, *arguments: str, succeeds: bool = True) -> str:
        """Run one command in the course's folder; returns what it says."""
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", *arguments],
            cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=1800,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert (done.returncode == 0) == succeeds, said[-3000:]
        return said

    @property
    def environment(self) -> dict[str, str]:
        # nbgrader calls alembic by name; what the person who runs the tests has configured is none of the course's.
        return {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(HERE.top),
            "COURSE_STATE_DIR": str(self.root / "state"),
            "JUPYTER_CONFIG_DIR": str(self.root / "config"),
            "JUPYTER_DATA_DIR": str(self.root / "data"),
        }

    def submit(self, unit: str, who: str, notebook: dict[str, Any]) -> None:
        folder = self.root / "submitted" / who / unit
        folder.mkdir(parents=True)
        (folder / f"{unit}.ipynb").write_text(json.dumps(notebook), encoding="utf-8")

    def grades(self) -> dict[str, dict[str, str]]:
        """The exported grades by student."""
        self.nbgrader("export")
        with open(self.root / "grades.csv", newline="", encoding="utf-8") as file:
            return {row["student_id"]: row for row in csv.DictReader(file)}


def solved_by(unit: str, language: str) -> dict[str, Any]:
    """What students open, with the reference's answers in it."""
    answers = {cell.id: cell.source for cell in solved(unit_of(unit), language, HERE).cells}
    notebook = student(unit_of(unit), language, HERE)
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            cell.source = answers[cell.id]
    return json.loads(nbformat.writes(notebook))


def untouched(unit: str, language: str) -> dict[str, Any]:
    return json.loads(to_bytes(student(unit_of(unit), language, HERE)))


def without_a_test_cell(notebook: dict[str, Any]) -> dict[str, Any]:
    """The first of them deleted, as a student tidies up."""
    tests = [cell for cell in notebook["cells"] if cell["metadata"].get("nbgrader", {}).get("points")]
    return notebook | {"cells": [cell for cell in notebook["cells"] if cell is not tests[0]]}


def as_colab_saves(notebook: dict[str, Any]) -> dict[str, Any]:
    """Format 4.0, cell ids in the metadata, a kernelspec without a language, Colab's own metadata, old outputs."""
    saved = json.loads(json.dumps(notebook))
    saved["nbformat_minor"] = 0
    saved["metadata"] = {
        "colab": {"provenance": [], "toc_visible": True, "gpuType": "T4"},
        "accelerator": "GPU",
        "kernelspec": {"display_name": "Python 3", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(saved["cells"]):
        cell["metadata"]["id"] = cell.pop("id")
        if cell["cell_type"] == "code":
            cell["metadata"] |= {"colab": {"base_uri": "https://localhost:8080/"}, "outputId": f"o{number}"}
            cell["execution_count"] = number + 1
            cell["outputs"] = [{"output_type": "stream", "name": "stderr", "text": ["a warning of the first run\n"]}]
    return saved
