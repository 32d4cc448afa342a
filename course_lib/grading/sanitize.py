"""From whatever was handed in to the cells that are run: the student's own, and the tests where they belong.

Nothing is executed here. What an editor or a platform did to a notebook is undone and said; what cannot be undone
needs a human. Outputs that came with the notebook are thrown away, and test cells are the assignment's, whatever
stands in the submission.
"""

import ast
import json
import re
import symtable
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from course_lib.errors import CourseError
from course_lib.grading.assignment import Assignment
from course_lib.grading.execute import RunCell
from course_lib.i18n import LANGUAGES

_MOST_CELLS = 2000


class NeedsHuman(CourseError):
    """This submission cannot be graded by a program; the message says why."""


@dataclass
class Given:
    """A cell as it was handed in."""

    kind: str
    text: str
    grade_id: str = ""
    tags: tuple[str, ...] = ()


@dataclass
class Sane:
    """What is run, what is marked by hand, and what had to be repaired."""

    cells: list[Given]  #: as handed in, repaired
    run: list[RunCell]
    written: dict[str, str]  #: text by grade id
    language: str
    notes: list[str] = field(default_factory=list)


def sanitize(content: bytes, assignment: Assignment) -> Sane:
    """
    Raises:
        NeedsHuman: it is no notebook, or not this one's.
    """
    cells = _read(content)
    notes: list[str] = []
    language = _language(content, cells, assignment)
    released = [_given(cell) for cell in assignment.released[language].cells]
    _drop_copies(cells, {each.grade_id for each in released if each.grade_id}, notes)
    _find_again(cells, released, notes)
    _retype(cells, released, notes)
    answers = [each for each in released if each.grade_id and not _is_tests(assignment, each.grade_id)]
    there = {each.grade_id for each in cells if each.grade_id}
    lost = [each.grade_id for each in answers if each.grade_id not in there]
    if len(lost) == len(answers):
        raise NeedsHuman(f"none of the cells of {assignment.name} is in it: another notebook, or all was rewritten")
    if lost:
        raise NeedsHuman(f"these answers are missing and nothing in the notebook looks like them: {', '.join(lost)}")
    _place_tests(cells, released, assignment, notes)
    written = {each.grade_id: next(cell.text for cell in cells if cell.grade_id == each.grade_id)
               for each in assignment.questions if each.by_hand}  # fmt: skip
    return Sane(cells, list(_to_run(cells, released, assignment)), written, language, notes)


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(content: bytes) -> list[Given]:
    if not content.strip():
        raise NeedsHuman("the file is empty")
    try:
        notebook = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise NeedsHuman(f"the file is no notebook, or was cut off: {str(error)[:100]}") from error
    if isinstance(notebook, dict) and isinstance(notebook.get("worksheets"), list):  # nbformat 3
        notebook = {"cells": [cell for sheet in notebook["worksheets"] for cell in sheet.get("cells", [])]}
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise NeedsHuman("the file is JSON, but no notebook: it has no cells")
    if len(notebook["cells"]) > _MOST_CELLS:
        raise NeedsHuman(f"the notebook has {len(notebook['cells']):,} cells; at most {_MOST_CELLS:,} are read")
    return [_given(cell) for cell in notebook["cells"] if isinstance(cell, dict)]


def _given(cell: Any) -> Given:
    source = cell.get("source", cell.get("input", ""))
    text = "".join(map(str, source)) if isinstance(source, list) else str(source)
    metadata = cell.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    grading = metadata.get("nbgrader")
    grade_id = grading.get("grade_id", "") if isinstance(grading, dict) else ""
    tags = metadata.get("tags")
    return Given(
        str(cell.get("cell_type", "raw")), text.replace("\r\n", "\n").replace("\r", "\n"),
        grade_id if isinstance(grade_id, str) else "",
        tuple(map(str, tags)) if isinstance(tags, list) else (),
    )  # fmt: skip


def _language(content: bytes, cells: list[Given], assignment: Assignment) -> str:
    """The edition: what it says, or whose texts it has."""
    said = re.search(rb'^LANGUAGE = \\?"(\w+)\\?"', content, re.M) or re.search(rb'LANGUAGE = \\"(\w+)\\"', content)
    if said and said[1].decode() in LANGUAGES:
        return said[1].decode()
    texts = {_plain(each.text) for each in cells}
    shared = {language: sum(_plain(cell.source) in texts for cell in notebook.cells)
              for language, notebook in assignment.released.items()}  # fmt: skip
    return max(shared, key=lambda language: shared[language])


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


# --- repairs ----------------------------------------------------------------------------------------------------------


def _is_tests(assignment: Assignment, grade_id: str) -> bool:
    return any(each.grade_id == grade_id and not each.by_hand for each in assignment.questions)


def _drop_copies(cells: list[Given], known: set[str], notes: list[str]) -> None:
    """The first cell of a grade id keeps it; ids that the assignment does not know go."""
    seen = set[str]()
    for cell in cells:
        if cell.grade_id and (cell.grade_id in seen or cell.grade_id not in known):
            if cell.grade_id in seen:
                notes.append(f"{cell.grade_id} was there twice: the first counts")
            cell.grade_id = ""
        seen.add(cell.grade_id)


def _find_again(cells: list[Given], released: Sequence[Given], notes: list[str]) -> None:
    """Cells that lost their metadata are known by their text, by the names they define, or by what stands around."""
    there = {each.grade_id for each in cells}
    for place, wanted in enumerate(released):
        if not wanted.grade_id or wanted.grade_id in there:
            continue
        free = [each for each in cells if not each.grade_id]
        names = _defined(wanted.text)
        match = next((each for each in free if _plain(each.text) == _plain(wanted.text)), None)
        if match is None and wanted.kind == "code" and names:
            match = next((each for each in free if names <= _defined(each.text)), None)
        if match is None and wanted.kind == "markdown":
            match = _between(cells, released, place)
        if match is not None:
            match.grade_id = wanted.grade_id
            notes.append(f"{wanted.grade_id} had lost its metadata and was found again")


def _between(cells: list[Given], released: Sequence[Given], place: int) -> Given | None:
    """The cell that stands between the neighbours of a released one, if it is no released text itself."""
    texts = [_plain(each.text) for each in cells]
    known = {_plain(each.text) for each in released}
    before = _plain(released[place - 1].text)
    if before not in texts:
        return None
    rest = cells[texts.index(before) + 1 :]
    return next((each for each in rest if not each.grade_id and each.kind != "code" and _plain(each.text) not in known),
                None)  # fmt: skip


def _defined(text: str) -> set[str]:
    """Names that a cell defines: its functions and classes, or, where there are none, its variables."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(re.findall(r"^def (\w+)\(", text, re.M))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    variables = {name.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
                 for name in ast.walk(target) if isinstance(name, ast.Name)}  # fmt: skip
    return functions or variables


def _retype(cells: list[Given], released: Sequence[Given], notes: list[str]) -> None:
    kinds = {each.grade_id: each.kind for each in released if each.grade_id}
    for cell in cells:
        if cell.grade_id and cell.kind != kinds[cell.grade_id]:
            notes.append(f"{cell.grade_id} had become a {cell.kind} cell and is {kinds[cell.grade_id]} again")
            cell.kind = kinds[cell.grade_id]


def _place_tests(cells: list[Given], released: Sequence[Given], assignment: Assignment, notes: list[str]) -> None:
    """Each test is there once, as the assignment has it, and after the answers that stand before it there."""
    texts = {each.grade_id: each.text for each in released}
    graded = [each.grade_id for each in released if each.grade_id]
    for place, grade_id in enumerate(graded):
        if not _is_tests(assignment, grade_id):
            continue
        before = [cell for cell in cells if cell.grade_id in graded[:place]]
        earliest = max((cells.index(cell) for cell in before), default=-1) + 1
        own = next((cell for cell in cells if cell.grade_id == grade_id), None)
        if own is None:
            notes.append(f"the tests of {grade_id} were missing and were put back")
            cells.insert(earliest, Given("code", texts[grade_id], grade_id))
        elif cells.index(own) < earliest:
            notes.append(f"the tests of {grade_id} stood before their answer and were moved behind it")
            cells.remove(own)
            cells.insert(earliest - 1, own)
        else:
            own.text = texts[grade_id]


# --- what is run ------------------------------------------------------------------------------------------------------


def _to_run(cells: Sequence[Given], released: Sequence[Given], assignment: Assignment) -> Sequence[RunCell]:
    """Test cells, what the student wrote, and of the course's own ungraded cells those that these need."""
    ours = {_plain(each.text): each for each in released if each.kind == "code" and not each.grade_id}
    code = [(place, cell) for place, cell in enumerate(cells) if cell.kind == "code" and cell.text.strip()]
    tests = {_plain(each.visible) for each in assignment.questions} | {
        _plain(each.text) for each in released if each.grade_id and _is_tests(assignment, each.grade_id)}  # fmt: skip
    needed: dict[int, str] = {}  #: code by place
    used: set[str] = set()
    for place, cell in reversed(code):
        course_s = ours.get(_plain(cell.text))
        if not cell.grade_id and _plain(cell.text) in tests:
            continue  # a copy of a test cell
        if course_s is not None and not cell.grade_id and "setup" not in course_s.tags:
            text = _slice(cell.text, used)
            if not text:
                continue
            needed[place] = text
        else:
            used |= _used(cell.text)
            needed[place] = cell.text
    return [RunCell("", cell.grade_id, place) if _is_tests(assignment, cell.grade_id)
            else RunCell(needed[place], "", place) for place, cell in code if place in needed]  # fmt: skip


def _slice(text: str, used: set[str]) -> str:
    """The statements of a cell of ours that make a name in ``used``; what they use is added to it. Figures go."""
    kept = []
    for statement in reversed(ast.parse(text).body):
        if isinstance(statement, ast.Expr) or not _bound(statement) & used:
            continue
        kept.append(ast.unparse(statement))
        used |= _used(kept[-1])
    return "\n".join(reversed(kept))


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement binds or changes."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(each.asname or each.name).partition(".")[0] for each in statement.names}
    changed = [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Name | ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]
    return {name.id for each in changed for name in ast.walk(each) if isinstance(name, ast.Name)}


def _used(text: str) -> set[str]:
    """Global names that a cell may look up; every word of it, where it is no plain Python or looks names up itself."""
    try:
        waiting, found = [symtable.symtable(text, "<cell>", "exec")], set[str]()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _words(text)
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        top = table.get_type() == "module"
        found |= {each.get_name() for each in table.get_symbols() if each.is_referenced() and (top or each.is_global())}
    return found | _words(text) if found & {"eval", "exec", "globals", "locals", "vars", "get_ipython"} else found


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def looks_like(content: bytes, assignments: Sequence[Assignment]) -> Assignment | None:
    """Which assignment a notebook is of, where its name does not say: most cells in common."""
    try:
        cells = {_plain(each.text) for each in _read(content)}
    except NeedsHuman:
        return None
    shared = {each.name: max(sum(_plain(cell.source) in cells for cell in notebook.cells)
                             for notebook in each.released.values()) for each in assignments}  # fmt: skip
    best = max(assignments, key=lambda each: shared[each.name])
    return best if shared[best.name] > 0 else None
