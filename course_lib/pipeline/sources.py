"""Read one unit's source and refuse what would not become two equal editions.

A source is a Jupytext percent script. Its cell headers:

* ``# %% [markdown] lang="en"``, then ``# %% [markdown] lang="zh"``: one text, twice
* ``# %% tags=["setup"]``: holds ``LANGUAGE = "en"`` alone; every notebook gets the same set-up code there
* ``# %%``: code, shared letter for letter; what stands between ``### BEGIN SOLUTION`` and
  ``### END SOLUTION`` is cleared in what students open
* in exercises: ``# %% answer="ID"`` (the student's code), ``# %% tests="ID" points=2`` (with
  ``### BEGIN HIDDEN TESTS``), ``# %% [markdown] lang="en" written="ID" points=3`` (marked by hand, in both
  languages), ``# %% readonly="ID"``
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from course_lib.errors import CourseError
from course_lib.i18n import LANGUAGES
from course_lib.pipeline.pairs import difference
from course_lib.pipeline.repository import Repository, is_exercise

#: What a cell is to nbgrader (nbgrader's manual, "Developing assignments with the toolbar").
NBGRADER_ROLES: Mapping[str, dict[str, bool]] = {
    "answer": {"grade": False, "solution": True, "locked": False},
    "tests": {"grade": True, "solution": False, "locked": True},
    "written": {"grade": True, "solution": True, "locked": False},
    "readonly": {"grade": False, "solution": False, "locked": True},
}
SETUP_BODY = 'LANGUAGE = "en"'
#: What Jupytext notes of blank lines, so that it could write the script back.
_OF_JUPYTEXT = ("lines_to_next_cell", "lines_to_end_of_cell_marker")
_REGIONS = ("SOLUTION", "HIDDEN TESTS", "MARK SCHEME")
_HEADER = re.compile(r'# %%(?: \[markdown\])?(?: (?:tags=\["[^\]]*"\]|(?!tags)[a-z]+=(?:"[^"]*"|\d+)))*')
_LIKE_A_HEADER = re.compile(r"\s*#\s*(%%|%\s*(\[|$))")


@dataclass(frozen=True)
class Cell:
    """A cell of both editions."""

    kind: Literal["markdown", "code"]
    line: int  #: of its header in the source, from 1
    text: Mapping[str, str]  #: by language; twice the same for code
    tags: tuple[str, ...] = ()
    nbgrader: Mapping[str, Any] | None = None

    @property
    def has_solution(self) -> bool:
        return "BEGIN SOLUTION" in self.text["en"]


@dataclass(frozen=True)
class Unit:
    name: str
    path: Path
    cells: tuple[Cell, ...]

    def refuse(self, line: int, what: str) -> NoReturn:
        raise CourseError(f"{self.path}:{line}: {what}")


@dataclass(frozen=True)
class _Raw:
    """A cell as Jupytext read it, with the line of its header."""

    kind: Literal["markdown", "code"]
    line: int
    keys: dict[str, Any]
    text: str


def read_unit(path: Path, shown_as: Path | None = None) -> Unit:
    """Read and check ``solutions/UNIT/UNIT.py``.

    Args:
        path: the file.
        shown_as: how messages name it (relative to the repository's top).

    Raises:
        CourseError: ``file:line: what is wrong`` for the first mistake.
    """
    unit = Unit(path.stem, shown_as or path, ())
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        unit.refuse(1, f"cannot be read as UTF-8 text: {error}")
    cells = _pair_up(unit, _raw_cells(unit, text))
    setups = [cell for cell in cells if "setup" in cell.tags]
    if len(setups) != 1:
        line = setups[1].line if setups else 1
        unit.refuse(line, f'got {len(setups)} cells with tags=["setup"], expected exactly one')
    _check_grade_ids(unit, cells)
    return Unit(unit.name, unit.path, tuple(cells))


def read_source(repository: Repository, unit: str) -> Unit:
    """Read and check a unit of the course, naming its file as seen from the repository's top."""
    path = repository.source_of(unit)
    return read_unit(path, path.relative_to(repository.top))


def _raw_cells(unit: Unit, text: str) -> list[_Raw]:
    import jupytext

    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines, 1) if _LIKE_A_HEADER.match(line)]
    for number in starts:
        if not _HEADER.fullmatch(lines[number - 1].rstrip()):
            unit.refuse(
                number,
                f"broken cell header {lines[number - 1].strip()!r}; "
                'expected # %% or # %% [markdown], then key="value" or tags=["value"], one space before each',
            )
    before = next((number for number, line in enumerate(lines[: starts[0] - 1] if starts else lines, 1) if line), None)
    if before or not starts:
        unit.refuse(before or 1, "expected a source to begin with a cell header such as # %% [markdown] lang=\"en\"")
    cells = jupytext.reads(text, fmt="py:percent").cells
    if len(cells) != len(starts):
        unit.refuse(starts[0], f"{len(starts)} cell headers make {len(cells)} cells; is one in a string or a fence?")
    ends = [*starts[1:], len(lines) + 1]
    for cell, start, end in zip(cells, starts, ends, strict=True):
        _check_lines(unit, cell, start, lines[start : end - 1])
    return [
        _Raw(cell.cell_type, start, {k: v for k, v in cell.metadata.items() if k not in _OF_JUPYTEXT}, cell.source)
        for cell, start in zip(cells, starts, strict=True)
    ]


def _check_lines(unit: Unit, cell: Any, start: int, lines: list[str]) -> None:
    if not cell.source.strip():
        unit.refuse(start, "the cell is empty")
    open_region: tuple[str, int] | None = None
    for number, line in enumerate(lines, start + 1):
        if cell.cell_type == "markdown" and line.strip() and not re.match(r"#( |$)", line):
            unit.refuse(number, f"a line of a markdown cell begins with '# ', got {line[:30]!r}")
        for region in _REGIONS:
            if f"BEGIN {region}" in line:
                if open_region:
                    unit.refuse(number, f"BEGIN {region} inside BEGIN {open_region[0]} of line {open_region[1]}")
                open_region = (region, number)
            elif f"END {region}" in line:
                if not open_region or open_region[0] != region:
                    unit.refuse(number, f"END {region} without its BEGIN")
                open_region = None
    if open_region:
        unit.refuse(open_region[1], f"BEGIN {open_region[0]} without its END")
    if cell.cell_type == "code":
        problem = syntax_problem(cell.source)
        if problem:
            unit.refuse(start + problem[0], f"not Python: {problem[1]}")


def syntax_problem(code: str) -> tuple[int, str] | None:
    """The line (from 1) and message of the first syntax error in a code cell, magics allowed."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        ast.parse(TransformerManager().transform_cell(code))
    except SyntaxError as error:
        return error.lineno or 1, error.msg
    return None


def _pair_up(unit: Unit, raw: list[_Raw]) -> list[Cell]:
    cells: list[Cell] = []
    rest = iter(raw)
    for cell in rest:
        tags, nbgrader = _check_keys(unit, cell)
        if cell.kind == "code":
            if "setup" in tags and cell.text.strip() != SETUP_BODY:
                unit.refuse(cell.line, f"the setup cell holds {SETUP_BODY} alone; the build puts the shared code there")
            cells.append(Cell("code", cell.line, dict.fromkeys(LANGUAGES, cell.text), tags, nbgrader))
            continue
        if cell.keys.get("lang") != "en":
            unit.refuse(cell.line, f"got lang={cell.keys.get('lang')!r}, expected a cell with lang=\"en\" here")
        other = next(rest, None)
        if other is None or other.kind != "markdown" or other.keys.get("lang") != "zh":
            line = other.line if other else cell.line
            unit.refuse(line, f"expected the lang=\"zh\" twin of the English markdown cell of line {cell.line}")
        _check_keys(unit, other)
        if {**other.keys, "lang": "en"} != cell.keys:
            unit.refuse(other.line, f"its header differs from its English twin's (line {cell.line}) in more than lang")
        what = difference(cell.text, other.text)
        if what:
            unit.refuse(other.line, f"{what} (the English twin is at line {cell.line})")
        cells.append(Cell("markdown", cell.line, {"en": cell.text, "zh": other.text}, tags, nbgrader))
    return cells


def _check_keys(unit: Unit, cell: _Raw) -> tuple[tuple[str, ...], dict[str, Any] | None]:
    """The cell's tags, and what it is to nbgrader."""
    known = {"tags", "points", *NBGRADER_ROLES} | ({"lang"} if cell.kind == "markdown" else set())
    unknown = sorted(cell.keys.keys() - known)
    if unknown:
        unit.refuse(cell.line, f"unknown key {unknown[0]!r} in a {cell.kind} header, expected {sorted(known)}")
    roles = [role for role in NBGRADER_ROLES if role in cell.keys]
    if len(roles) > 1:
        unit.refuse(cell.line, f"a cell is one thing to nbgrader, got {' and '.join(roles)}")
    metadata = _nbgrader_metadata(unit, cell, roles[0]) if roles else None
    if not roles and "points" in cell.keys:
        unit.refuse(cell.line, 'points without tests="ID" or written="ID"')
    flags = metadata or {"solution": not is_exercise(unit.name), "grade": False}
    for region, allowed, where in (
        ("SOLUTION", flags["solution"], "an answer or written cell"),
        ("HIDDEN TESTS", flags["grade"], "a tests cell"),
        ("MARK SCHEME", flags["grade"] and flags["solution"], "a written cell"),
    ):
        if f"BEGIN {region}" in cell.text and not allowed:
            unit.refuse(cell.line, f"BEGIN {region} outside {where}")
    return tuple(cell.keys.get("tags", ())), metadata


def _nbgrader_metadata(unit: Unit, cell: _Raw, role: str) -> dict[str, Any]:
    if not is_exercise(unit.name):
        unit.refuse(cell.line, f"{role}= belongs to exercises; a lesson's tasks call course_lib.tasks.check")
    if (role == "written") != (cell.kind == "markdown"):
        unit.refuse(cell.line, f"{role}= cannot stand in a {cell.kind} cell")
    grade_id, points = cell.keys[role], cell.keys.get("points")
    if not (isinstance(grade_id, str) and re.fullmatch(r"[A-Za-z0-9_-]+", grade_id)):
        unit.refuse(cell.line, f"{role}: got {grade_id!r}, expected letters, digits, - and _")
    flags = NBGRADER_ROLES[role]
    if flags["grade"] != (type(points) is int):
        expected = "a whole number" if flags["grade"] else "none"
        unit.refuse(cell.line, f"points: got {points!r}, expected {expected} in {role}= cells")
    metadata = {**flags, "grade_id": grade_id, "schema_version": 3, "task": False}
    return {**metadata, "points": points} if flags["grade"] else metadata


def _check_grade_ids(unit: Unit, cells: list[Cell]) -> None:
    lines: dict[str, int] = {}
    for cell in cells:
        if cell.nbgrader:
            grade_id = cell.nbgrader["grade_id"]
            if grade_id in lines:
                unit.refuse(cell.line, f"grade id {grade_id!r} is taken by the cell of line {lines[grade_id]}")
            lines[grade_id] = cell.line
