"""Grade an exercise in this process: its notebook's cells, with an answer in place of the reference.

It does what nbgrader does with a notebook, without a kernel: cells run in order in one namespace, an error does
not stop the others, a test cell that fails or writes to stderr earns nothing.
"""

import ast
import io
import linecache
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import nbformat

from course_lib.exercises.judge import Broken
from course_lib.pipeline.editions import solved, student
from course_lib.pipeline.repository import Repository
from course_lib.pipeline.sources import Unit, read_source

HERE = Repository.at(Path(__file__).resolve().parents[2])


@dataclass(frozen=True)
class Answer:
    """An answer to hand in, told as changes of the reference, and what it should lose.

    To extend a table, append a row: the name, what to replace in which answer cell, and for each test cell
    that it must fail the mistake that the message must name (None: it must not guess).
    """

    name: str
    #: grade id of an answer cell -> its whole code, or the replacements (old, new) in the reference
    cells: Mapping[str, str | tuple[tuple[str, str], ...]]
    loses: Mapping[str, str | None] = field(default_factory=dict)


@dataclass
class Graded:
    """Points by grade id of the test cells; what each failing cell said, and the mistake it named."""

    points: dict[str, int] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    named: dict[str, str | None] = field(default_factory=dict)


@cache
def unit_of(name: str) -> Unit:
    return read_source(HERE, name)


def graded_cells(name: str, made: Callable[..., Any] = solved, language: str = "en") -> list[nbformat.NotebookNode]:
    """The code cells that nbgrader knows, of the solved notebook or of what students open (``made=student``)."""
    notebook = made(unit_of(name), language, HERE)
    return [cell for cell in notebook.cells if cell.cell_type == "code" and "nbgrader" in cell.metadata]


def grade(name: str, answer: Answer) -> Graded:
    """Run the solved notebook's graded cells with the answer's changes."""
    cells = graded_cells(name)
    unknown = set(answer.cells) - {cell.metadata.nbgrader.grade_id for cell in cells}
    assert not unknown, f"{answer.name}: no answer cell {unknown}"
    return run((cell, _changed(answer, cell)) for cell in cells)


def grade_release(name: str, language: str = "en") -> Graded:
    """Run what students open, as it is."""
    return run((cell, cell.source) for cell in graded_cells(name, student, language))


def run(cells: Iterable[tuple[nbformat.NotebookNode, str]]) -> Graded:
    graded, namespace = Graded(), {"__name__": "__main__"}
    answers: list[str] = []
    for cell, code in cells:
        grade_id, points = cell.metadata.nbgrader.grade_id, cell.metadata.nbgrader.get("points", 0)
        if not cell.metadata.nbgrader.grade:
            _execute(grade_id, code, namespace)
            answers.append(code)
            continue
        # Rows differ in one answer, so most test cells see the same code again, and would say the same again.
        key = (code, *_what_it_uses(code, answers))
        if key not in _said:
            _said[key] = _execute(grade_id, code, namespace)
        error, complaints = _said[key]
        failed = error is not None or bool(complaints)
        graded.points[grade_id] = 0 if failed else points
        if failed:
            graded.said[grade_id] = str(error or complaints)
            graded.named[grade_id] = error.mistake if isinstance(error, Broken) else None
    return graded


_said: dict[tuple[str, ...], tuple[Exception | None, str]] = {}


def _execute(grade_id: str, code: str, namespace: dict[str, Any]) -> tuple[Exception | None, str]:
    """What a cell raises, and what it writes to stderr."""
    filename = f"<{grade_id}>"
    linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as complaints:
        try:
            exec(compile(code, filename, "exec"), namespace)
        except Exception as error:
            return error, complaints.getvalue()
    return None, complaints.getvalue()


def _what_it_uses(code: str, answers: list[str]) -> list[str]:
    """The answers whose names a cell uses, directly or through another answer."""
    used: list[str] = []
    names = _names(code)
    for answer in reversed(answers):
        defined = {node.name for node in ast.walk(ast.parse(answer)) if isinstance(node, ast.FunctionDef)}
        defined |= {node.id for node in ast.walk(ast.parse(answer)) if isinstance(node, ast.Name)
                    and isinstance(node.ctx, ast.Store)}  # fmt: skip
        if defined & names:
            used.append(answer)
            names |= _names(answer)
    return used


def _names(code: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}


def _changed(answer: Answer, cell: nbformat.NotebookNode) -> str:
    change = answer.cells.get(cell.metadata.nbgrader.grade_id, ())
    if isinstance(change, str):
        return change
    code = cell.source
    for old, new in change:
        assert old in code, f"{answer.name}: the reference has no {old!r}"
        code = code.replace(old, new)
    return code
