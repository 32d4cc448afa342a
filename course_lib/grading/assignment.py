"""An exercise as its grader needs it: what was released, its tests in two parts, its points, its solution."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nbformat import NotebookNode

from course_lib.errors import CourseError
from course_lib.i18n import LANGUAGES
from course_lib.pipeline.editions import solved, student
from course_lib.pipeline.repository import Repository, is_exercise
from course_lib.pipeline.sources import read_source

_HIDDEN = re.compile(r"^### BEGIN HIDDEN TESTS$\n(.*?)^### END HIDDEN TESTS$\n?", re.M | re.S)


@dataclass(frozen=True)
class Question:
    """A graded cell that earns points."""

    grade_id: str
    points: float
    visible: str = ""  #: code that students see
    hidden: str = ""  #: code that they do not
    by_hand: bool = False
    stub: Mapping[str, str] = field(default_factory=dict)  #: of a written answer, by language


@dataclass(frozen=True)
class Assignment:
    """One exercise. ``released`` and ``solved`` are its notebooks by language."""

    name: str
    released: Mapping[str, NotebookNode]
    solved: Mapping[str, NotebookNode]
    extra_hidden: Mapping[str, str] = field(default_factory=dict)  #: an instructor's own, by grade id
    own_points: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, repository: Repository, name: str, **own: Any) -> "Assignment":
        """
        Raises:
            CourseError: there is no such exercise.
        """
        if not is_exercise(name):
            raise CourseError(f"{name} is no exercise; expected one such as ex1_precision")
        [name] = repository.units([name])
        unit = read_source(repository, name)
        return cls(name, {language: student(unit, language, repository) for language in LANGUAGES},
                   {language: solved(unit, language, repository) for language in LANGUAGES}, **own)  # fmt: skip

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """In the notebook's order."""
        stubs = {language: _by_grade_id(notebook) for language, notebook in self.released.items()}
        found = []
        for grade_id, cell in _by_grade_id(self.solved["en"]).items():
            about = cell.metadata.nbgrader
            if not about.grade:
                continue
            points = float(self.own_points.get(grade_id, about.points))
            if about.solution:
                stub = {language: cells[grade_id].source for language, cells in stubs.items()}
                found.append(Question(grade_id, points, by_hand=True, stub=stub))
                continue
            hidden = "".join(_HIDDEN.findall(cell.source)) + self.extra_hidden.get(grade_id, "")
            found.append(Question(grade_id, points, _HIDDEN.sub("", cell.source).strip(), hidden))
        return tuple(found)

    @property
    def max_score(self) -> float:
        return sum(each.points for each in self.questions)

    @cached_property
    def reference(self) -> dict[str, Any]:
        """The names that the solved notebook's answers define; executed here, since they are the course's own."""
        names: dict[str, Any] = {"__name__": "__main__"}
        for cell in self.solved["en"].cells:
            if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("solution"):
                exec(compile(cell.source, "<solution>", "exec"), names)
        return names

    def answered_by_reference(self) -> dict[str, Any]:
        """What students open with the reference's answers in it, as a submission."""
        notebook = self.released["en"].copy()
        answers = {cell.id: cell.source for cell in self.solved["en"].cells}
        notebook.cells = [
            NotebookNode({**cell, "source": answers[cell.id]}) if cell.metadata.get("nbgrader", {}).get("solution")
            else cell for cell in notebook.cells
        ]  # fmt: skip
        return notebook


def _by_grade_id(notebook: NotebookNode) -> dict[str, NotebookNode]:
    return {cell.metadata.nbgrader.grade_id: cell for cell in notebook.cells if "nbgrader" in cell.metadata}
