"""The one writer of nbgrader's gradebook: scores go in, so that formgrader, marking by hand and export go on as usual.

``OUT`` is an nbgrader course: its configuration, ``source/``, ``release/`` (made by nbgrader itself), ``autograded/``
and ``gradebook.db``.
"""

import logging
import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbformat
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from traitlets.config import Config

from course_lib.errors import CourseError
from course_lib.grading.assignment import Assignment
from course_lib.grading.outbox import write
from course_lib.grading.score import Graded
from course_lib.pipeline.editions import to_bytes

COURSE = "big-models-small-gpus"
_CONFIG = '''"""nbgrader's settings for this class; run its commands, and JupyterLab for formgrader, in this folder."""

from pathlib import Path

c = get_config()  # noqa: F821 - nbgrader puts it there

c.CourseDirectory.course_id = "big-models-small-gpus"
c.CourseDirectory.root = str(Path(__file__).resolve().parent)
'''


class Book:
    """Open it with :func:`open_book`."""

    def __init__(self, folder: Path, gradebook: Gradebook) -> None:
        self.folder, self.gradebook = folder, gradebook

    def enter(
        self, student: str, assignment: Assignment, graded: Graded, handed_in: datetime | None, penalty: float
    ) -> float | None:
        """Write one submission's scores; marks that a person gave stay.

        Returns:
            The score with a person's marks in it.
        """
        gradebook, name = self.gradebook, assignment.name
        gradebook.update_or_create_student(student)
        when = {"timestamp": handed_in.replace(tzinfo=None)} if handed_in else {}
        gradebook.update_or_create_submission(name, student, **when)
        notebook = gradebook.find_submission_notebook(name, name, student)
        notebook.late_submission_penalty = penalty
        points = {each.question: each for each in graded.scores}
        total = 0.0
        for grade in notebook.grades:
            each = points.get(grade.name)
            if each is None:
                continue
            changed = grade.auto_score != each.points
            grade.auto_score = each.points
            marked = grade.manual_score is not None
            grade.needs_manual_grade = (changed and marked) or (not marked and (each.points is None or bool(each.flag)))
            total += (grade.manual_score if marked else each.points or 0.0) + (grade.extra_credit or 0.0)
        gradebook.db.commit()
        self._autograded(student, assignment, graded)
        return max(0.0, total - penalty)

    def _autograded(self, student: str, assignment: Assignment, graded: Graded) -> None:
        """The notebook that formgrader shows: what was handed in, and what its first run printed."""
        released = {cell.metadata.nbgrader.grade_id: cell.metadata for cell in assignment.released["en"].cells
                    if "nbgrader" in cell.metadata}  # fmt: skip
        cells: list[Any] = []
        for position, cell in enumerate(graded.cells):
            metadata = released.get(cell["grade_id"], {})
            text = cell["text"]
            if cell["kind"] == "code":
                made: Any = nbformat.v4.new_code_cell(text, metadata=metadata, outputs=_outputs(cell))
            else:
                made = nbformat.v4.new_markdown_cell(text, metadata=metadata)
            made["id"] = f"cell-{position:04d}"
            cells.append(made)
        if not graded.cells:
            cells.append(nbformat.v4.new_markdown_cell(f"**{graded.status}**: {graded.reason}", id="reason"))
        notebook = nbformat.v4.new_notebook(cells=cells)
        write(self.folder / "autograded" / student / assignment.name / f"{assignment.name}.ipynb", to_bytes(notebook))


def _outputs(cell: Mapping[str, Any]) -> list[Any]:
    outputs = [nbformat.from_dict(each) for each in cell.get("outputs", ())]
    if cell.get("error"):
        error = cell["error"]
        outputs.append(nbformat.v4.new_output("error", ename=error["name"], evalue=error["says"],
                                              traceback=[f"{error['name']}: {error['says']}"]))  # fmt: skip
    if cell.get("gone"):
        outputs.append(nbformat.v4.new_output("error", ename="Stopped", evalue=cell["gone"], traceback=[cell["gone"]]))
    return outputs


def release(folder: Path, assignments: Mapping[str, Assignment]) -> None:
    """Make ``folder`` nbgrader's course, with every assignment as it stands released in it; takes seconds for each.

    Raises:
        CourseError: nbgrader refuses an assignment.
    """
    write(folder / "nbgrader_config.py", _CONFIG)
    config = Config()
    config.CourseDirectory.course_id = COURSE
    config.CourseDirectory.root = str(folder.resolve())
    api = NbGraderAPI(config=config)
    api.log.setLevel(logging.ERROR)
    for assignment in assignments.values():
        source = folder / "source" / assignment.name / f"{assignment.name}.ipynb"
        content = to_bytes(_with_points(assignment))
        released = folder / "release" / assignment.name / f"{assignment.name}.ipynb"
        if not source.is_file() or source.read_bytes() != content or not released.is_file():
            write(source, content)
            with patch.dict(os.environ, PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])):
                done = api.generate_assignment(assignment.name, force=True, create=True)  # calls alembic by name
            if not done["success"]:
                raise CourseError(f"nbgrader does not release {assignment.name}: {(done.get('error') or done)!s:.300}")


@contextmanager
def open_book(folder: Path, deadlines: Mapping[str, datetime]) -> Any:
    """The gradebook of a ``folder`` in which assignments were released.

    Args:
        deadlines: by assignment.
    """
    with warnings.catch_warnings(), Gradebook(f"sqlite:///{(folder / 'gradebook.db').resolve()}", COURSE) as gradebook:
        warnings.simplefilter("ignore")  # SQLAlchemy's about nbgrader's own queries
        for name, deadline in deadlines.items():
            gradebook.update_or_create_assignment(name, duedate=deadline.isoformat())
        yield Book(folder, gradebook)


def _with_points(assignment: Assignment) -> Any:
    """The solved notebook, with the instructor's own points."""
    notebook = nbformat.from_dict(assignment.solved["en"])
    points = {each.grade_id: each.points for each in assignment.questions}
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            value = points[cell.metadata.nbgrader.grade_id]
            cell.metadata.nbgrader.points = int(value) if value == int(value) else value
    return notebook
