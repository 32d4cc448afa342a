"""Submissions of exercise 1 that are quick to run: two functions answered, the others left as released."""

import json
from typing import Any

from nbgrader_course import solved_by, untouched

UNIT = "ex1_precision"
#: 2 + 1 points for static_bytes, 2 for verdict.
QUICK_ANSWERS = ("static-bytes", "verdict")
WRONG = 'def static_bytes(n_params, recipe):\n    return {"weights": 1, "gradients": 1, "optimizer": 1}'


def quick(language: str = "en") -> dict[str, Any]:
    """static_bytes and verdict right, all else the stub: 5 points."""
    notebook, right = untouched(UNIT, language), solved_by(UNIT, language)
    for cell, answer in zip(notebook["cells"], right["cells"], strict=True):
        if grade_id(cell) in QUICK_ANSWERS:
            cell["source"] = answer["source"]
    return notebook


def grade_id(cell: dict[str, Any]) -> str:
    return cell["metadata"].get("nbgrader", {}).get("grade_id", "")


def find(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    return next(cell for cell in notebook["cells"] if grade_id(cell) == name)


def with_answer(notebook: dict[str, Any], name: str, code: str) -> dict[str, Any]:
    made = json.loads(json.dumps(notebook))
    find(made, name)["source"] = code
    return made


def with_cell(notebook: dict[str, Any], code: str, place: int = 0) -> dict[str, Any]:
    """A cell of the student's own put in."""
    made = json.loads(json.dumps(notebook))
    made["cells"].insert(place, {"cell_type": "code", "id": f"own-{place}", "metadata": {}, "source": code,
                                 "outputs": [], "execution_count": None})  # fmt: skip
    return made
