"""How many submissions a minute: `course grade` beside stock `nbgrader autograde`, the same notebooks in one run.

    python benchmarks/grading.py [COPIES]

COPIES submissions (24) of each exercise, solved; two workers, sandbox and torch's import included. Writes
benchmarks/results/grading.md.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from course_lib.grading.assignment import Assignment
from course_lib.pipeline.editions import to_bytes
from course_lib.pipeline.repository import Repository

RESULT = Path(__file__).parent / "results/grading.md"
WORKERS = 2
TOP = Path(__file__).resolve().parents[1]


def main(copies: int) -> None:
    repository = Repository.find(TOP)
    names = [name for name in repository.units() if name.startswith("ex")]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            assignment = Assignment.of(repository, name)
            stock, ours = (Path(folder, kind, name) for kind in ("stock", "ours"))
            lay(stock, assignment, copies)
            seconds = {
                "stock": timed(stock, "nbgrader", "autograde", name),
                "ours": timed(stock, "course_lib", "grade", name, "--submissions", str(stock / "submitted"), "--out",
                              str(ours), "--workers", str(WORKERS)),
            }  # fmt: skip
            rows.append((name, seconds["stock"], seconds["ours"]))
            print(rows[-1], flush=True)
    write(rows, copies)


def lay(course: Path, assignment: Assignment, copies: int) -> None:
    """An nbgrader course with a release and submissions; what this makes is not timed."""
    source = course / "source" / assignment.name / f"{assignment.name}.ipynb"
    source.parent.mkdir(parents=True)
    source.write_bytes(to_bytes(assignment.solved["en"]))
    shutil.copy(TOP / "autograder" / "nbgrader_config.py", course)
    timed(course, "nbgrader", "generate_assignment", assignment.name)
    notebook = json.dumps(assignment.answered_by_reference())
    for number in range(copies):
        path = course / "submitted" / f"student{number}" / assignment.name / f"{assignment.name}.ipynb"
        path.parent.mkdir(parents=True)
        # Not one like another, or the second would be found graded.
        path.write_text(notebook.replace('"cells": [', '"cells": [' + json.dumps(
            {"cell_type": "markdown", "id": "who", "metadata": {}, "source": f"student {number}"}) + ", ", 1))


def timed(folder: Path, module: str, *arguments: str) -> float:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", module, *arguments], cwd=folder, check=True, capture_output=True,
                   env={**os.environ, "PATH": path, "PYTHONPATH": str(TOP), "OMP_NUM_THREADS": "1"})  # fmt: skip
    return time.perf_counter() - start


def write(rows: list[tuple[str, float, float]], copies: int) -> None:
    rows = [*rows, ("all", sum(row[1] for row in rows), sum(row[2] for row in rows))]
    lines = [
        "# Grading: submissions a minute",
        "",
        f"`python benchmarks/grading.py {copies}`: {copies} solved submissions of each exercise; whole commands, with",
        "torch's import, the sandbox and, in `course grade`, the check of the reference, gradebook and reports;",
        f"{WORKERS} workers on {os.cpu_count()} cores. Python {platform.python_version()}, torch {torch.__version__}.",
        "",
        "| exercise | `nbgrader autograde` | `course grade` | times as fast |",
        "|---|---|---|---|",
    ]
    for name, stock, ours in rows:
        count = copies * (len(rows) - 1 if name == "all" else 1)
        figures = f"{60 * count / stock:.1f} | {60 * count / ours:.1f} | {stock / ours:.1f}"
        lines.append(f"| {name} | {figures} |")
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 24)
