"""Notebooks from a unit: solved, what students open, and what nbgrader releases."""

import hashlib
import json
from typing import Any

import nbformat
from nbformat import NotebookNode, from_dict

from course_lib.errors import CourseError
from course_lib.pipeline.repository import Repository, is_exercise
from course_lib.pipeline.setup_cell import setup_code
from course_lib.pipeline.sources import Cell, Unit, syntax_problem

#: In a lesson a cleared region leaves what its author wrote around it, such as ``guess = ...``; in an exercise
#: nbgrader's own stub raises.
LESSON_STUB = ""
#: JupyterLab and nbclient go on after a cell with this tag fails: an unsolved task does not stop "run all".
GO_ON = "raises-exception"


def solved(unit: Unit, language: str, repository: Repository) -> NotebookNode:
    """The unit in one language, solutions and hidden tests included, without outputs."""
    badge = repository.badge(unit.name, language)
    cells = [_markdown_cell(f"{unit.name}-badge", badge)] if badge else []
    for position, cell in enumerate(unit.cells):
        cells.append(_cell(unit, position, cell, language, repository.source))
    return _notebook(unit, language, cells)


def student(unit: Unit, language: str, repository: Repository) -> NotebookNode:
    """The unit as students open it: cleared by nbgrader's own preprocessors, in the order of its release.

    Raises:
        CourseError: a cell is no Python once its solution is gone (``file:line: …``).
    """
    notebook = solved(unit, language, repository)
    cells = notebook.cells[-len(unit.cells) :]
    exercise = is_exercise(unit.name)
    for source, cell in zip(unit.cells, cells, strict=True):
        if source.has_solution and not exercise:
            # nbgrader clears what it takes for a solution cell.
            cell.metadata["nbgrader"] = {"solution": True, "grade": False, "grade_id": cell.id}
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), GO_ON]
    try:
        notebook = _release(notebook, exercise)
    except RuntimeError as error:  # nbgrader's word for a region that it cannot clear
        raise CourseError(f"{unit.path}:1: {error}") from error
    for source, cell in zip(unit.cells, notebook.cells[-len(unit.cells) :], strict=True):
        if not exercise:
            cell.metadata.pop("nbgrader", None)
        if cell.cell_type == "code" and syntax_problem(cell.source):
            unit.refuse(source.line, "without its solution the cell is not Python; leave a docstring or `...` outside")
    return _seal(notebook)


def _release(notebook: NotebookNode, exercise: bool) -> NotebookNode:
    from nbgrader import preprocessors as steps

    chain = [steps.ClearSolutions, steps.ClearOutput]
    if exercise:
        chain = [steps.LockCells, *chain, steps.CheckCellMetadata]
        # As in nbgrader's GenerateAssignment: the checksum that is kept is that of what students get.
        chain += [steps.ClearHiddenTests, steps.ClearMarkScheme, steps.ComputeChecksums]
    resources: dict[str, Any] = {}
    for step in chain:
        preprocessor = step()
        if step is steps.ClearSolutions and not exercise:
            preprocessor.code_stub = {"python": LESSON_STUB}
        notebook, resources = preprocessor.preprocess(notebook, resources)
    return notebook


def _cell(unit: Unit, position: int, cell: Cell, language: str, source: str) -> NotebookNode:
    cell_id = f"{unit.name}-{position:03d}"
    if cell.kind == "markdown":
        made = _markdown_cell(cell_id, cell.text[language])
    else:
        text = setup_code(language, source) if "setup" in cell.tags else cell.text[language]
        made = from_dict(
            {"cell_type": "code", "id": cell_id, "metadata": {}, "source": text, "outputs": [], "execution_count": None}
        )
    if cell.tags:
        made.metadata["tags"] = list(cell.tags)
    if cell.nbgrader:
        made.metadata["nbgrader"] = from_dict(dict(cell.nbgrader))
    return made


def _markdown_cell(cell_id: str, text: str) -> NotebookNode:
    return from_dict({"cell_type": "markdown", "id": cell_id, "metadata": {}, "source": text})


def _notebook(unit: Unit, language: str, cells: list[NotebookNode]) -> NotebookNode:
    metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "course": {"unit": unit.name, "language": language},
    }
    return _seal(from_dict({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}))


def to_bytes(notebook: NotebookNode) -> bytes:
    """The file's bytes: the same for the same source on every machine."""
    return f"{nbformat.writes(notebook)}\n".encode()


def was_edited(content: bytes) -> bool:
    """Whether a notebook holds anything that `course build` did not put there: cells changed, or outputs."""
    try:
        notebook = json.loads(content)
        return bool(notebook["metadata"]["course"]["fingerprint"] != _fingerprint(notebook))
    except (ValueError, KeyError, TypeError):
        return True  # not one of ours at all


def _seal(notebook: NotebookNode) -> NotebookNode:
    notebook.metadata.course["fingerprint"] = _fingerprint(notebook)
    return notebook


def _fingerprint(notebook: Any) -> str:
    content = [
        (cell["cell_type"], "".join(cell["source"]), bool(cell.get("outputs"))) for cell in notebook["cells"]
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
