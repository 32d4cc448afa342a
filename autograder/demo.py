"""A small class, graded: right, half right, unsolved, hostile and broken files. `make grade-demo` runs it.

    python autograder/demo.py [FOLDER]

Releases exercise 1, lays submissions as several platforms name them under FOLDER/submitted (autograder/demo where it is
left out), and grades them into FOLDER/graded.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from course_lib.cli import main
from course_lib.grading.assignment import Assignment
from course_lib.pipeline.repository import Repository

UNIT = "ex1_precision"
HOSTILE = """\
import ast


class NoTests(ast.NodeTransformer):  # a cheat: take the calls of tests out of every cell that comes
    def visit_Expr(self, node):
        return None if isinstance(node.value, ast.Call) else node


get_ipython().ast_transformers.append(NoTests())
"""


def lay_class(folder: Path) -> None:
    """Seven submissions."""
    assignment = Assignment.of(Repository.find(Path(__file__).parent), UNIT)
    right: dict[str, Any] = json.loads(json.dumps(assignment.answered_by_reference()))
    unsolved = json.loads(json.dumps(assignment.released["zh"]))
    half = json.loads(json.dumps(right))
    for cell in half["cells"]:
        if "def static_bytes" in cell["source"]:  # the most frequent mistake: autocast does not halve what is stored
            cell["source"] = cell["source"].replace('if recipe == "bf16"', 'if recipe != "fp32"')
    hostile = json.loads(json.dumps(unsolved))
    hostile["cells"].insert(0, {"cell_type": "code", "metadata": {}, "source": HOSTILE, "outputs": []})
    bare = json.loads(json.dumps(right))
    for cell in bare["cells"]:
        cell["metadata"] = {}
    write(folder / "ada" / f"{UNIT}.ipynb", right)
    write(folder / f"boole_12345_67890_{UNIT}-1.ipynb", half)
    write(folder / "陈晨_1234567_assignsubmission_file_" / f"Copy of {UNIT}.ipynb", unsolved)
    write(folder / "eve" / UNIT / f"{UNIT}.ipynb", hostile)
    write(folder / "grace" / "homework (2).ipynb", bare)
    (folder / "dan").mkdir()
    (folder / "dan" / f"{UNIT}.ipynb").write_text(json.dumps(right)[:3000], encoding="utf-8")
    (folder / "fay").mkdir()
    (folder / "fay" / "answers.docx").write_text("my answers", encoding="utf-8")


def write(path: Path, notebook: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "demo"
    shutil.rmtree(where, ignore_errors=True)
    lay_class(where / "submitted")
    sys.exit(main(["grade", UNIT, "--submissions", str(where / "submitted"), "--out", str(where / "graded")]))
