"""Runs one submission in the sandbox: once as its student sees it, once for the referee. Bytes in, bytes out.

A job knows no student's name: it holds cells, an assignment's name, a seed and limits. In the first run the visible
tests are executed in the student's process, and what cells print is kept for the feedback; no hidden test is in
reach. In the second run the student's functions answer the referee: on inputs that nobody knew before, and where they
are wrong there, or a question has no hidden part, on those of the visible test.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from course_lib.grading.assignment import Assignment
from course_lib.grading.namespaces import Limits
from course_lib.grading.referee import Student, Verdict, imports_of, judge_part, reseeded
from course_lib.grading.sandbox import Gone, Room, Sandbox

_RESTARTS = 3  #: after a cell that killed the kernel, so that what comes after it is not lost


@dataclass(frozen=True)
class Budget:
    """What a submission may take."""

    cell_seconds: float = 60.0
    notebook_seconds: float = 300.0  #: for each of its two runs
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class RunCell:
    """A code cell to execute; a test cell has a ``grade_id`` and no code of the student's."""

    code: str
    grade_id: str = ""
    position: int = -1  #: in the submitted notebook


@dataclass
class Ran:
    """What became of one cell of the first run."""

    position: int
    grade_id: str
    outputs: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    gone: str = ""  #: why the kernel died in it, or why it was not run


@dataclass
class Outcome:
    """Of both runs."""

    ran: list[Ran] = field(default_factory=list)
    visible: dict[str, Verdict] = field(default_factory=dict)  #: the referee's word on the visible part
    hidden: dict[str, Verdict] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Outcome":
        return cls([Ran(**each) for each in data["ran"]],
                   {name: Verdict(**each) for name, each in data["visible"].items()},
                   {name: Verdict(**each) for name, each in data["hidden"].items()})  # fmt: skip


def run_submission(
    sandbox: Sandbox, assignment: Assignment, cells: Sequence[RunCell], seed: str, budget: Budget
) -> Outcome:
    """Both runs.

    Args:
        seed: of this whole grading run; the referee's fresh inputs follow from it.
    """
    outcome = Outcome()
    questions = {each.grade_id: each for each in assignment.questions}

    def visible(room: Room, cell: RunCell, seconds: float) -> Ran:
        code = questions[cell.grade_id].visible if cell.grade_id else cell.code
        reply = room.ask({"op": "run", "code": code}, seconds)
        error = reply.get("error")
        return Ran(
            cell.position, cell.grade_id, list(reply.get("outputs", [])), error if error is None else dict(error)
        )

    first = _Walk(sandbox, budget, bare=False)
    outcome.ran = list(first.through(cells, visible))
    passed = {each.grade_id for each in outcome.ran if each.grade_id and not each.error and not each.gone}
    if not passed:
        return outcome
    students: dict[int, Student] = {}

    def referee(room: Room, cell: RunCell, seconds: float) -> Ran:
        if not cell.grade_id:
            room.ask({"op": "run", "code": cell.code}, seconds)
            return Ran(cell.position, "")
        question = questions[cell.grade_id]
        student = students.setdefault(id(room), Student(room, seconds))
        student.seconds = seconds
        verdict = None
        if question.hidden.strip():
            code = imports_of(question.visible) + reseeded(question.hidden, f"{seed}:{assignment.name}")
            verdict = outcome.hidden[cell.grade_id] = judge_part(code, student, assignment.reference)
        if verdict is None or not (verdict.passed or verdict.gone):
            verdict = outcome.visible[cell.grade_id] = judge_part(question.visible, student, assignment.reference)
        if verdict.gone:
            raise Gone(verdict.gone)
        return Ran(cell.position, cell.grade_id)

    second = _Walk(sandbox, budget, bare=True, dead=first.dead)
    last = max(place for place, cell in enumerate(cells) if cell.grade_id in passed)
    wanted = [cell for cell in cells[: last + 1] if not cell.grade_id or cell.grade_id in passed]
    for ran in second.through(wanted, referee):
        if ran.grade_id and ran.gone:
            outcome.visible.setdefault(ran.grade_id, Verdict(False, gone=ran.gone))
    return outcome


class _Walk:
    """Goes through cells in a room; where one kills it, on to the next in a new room, with what came before."""

    def __init__(self, sandbox: Sandbox, budget: Budget, bare: bool, dead: Sequence[int] = ()) -> None:
        self.sandbox, self.budget, self.bare = sandbox, budget, bare
        self.dead = list(dead)  #: positions of student's cells that killed a kernel

    def through(self, cells: Sequence[RunCell], each: Callable[[Room, RunCell, float], Ran]) -> Iterator[Ran]:
        ends_at = time.monotonic() + self.budget.notebook_seconds
        room: Room | None = self._room()
        restarts, done = 0, list[RunCell]()
        try:
            for cell in cells:
                left = min(self.budget.cell_seconds, ends_at - time.monotonic())
                if left <= 0 or room is None or (not cell.grade_id and cell.position in self.dead):
                    why = "skipped" if cell.position in self.dead else "time" if left <= 0 else "died"
                    yield Ran(cell.position, cell.grade_id, gone=why)
                    continue
                try:
                    yield each(room, cell, left)
                    if not cell.grade_id:
                        done.append(cell)
                except Gone as error:
                    yield Ran(cell.position, cell.grade_id, gone=error.why)
                    if not cell.grade_id:
                        self.dead.append(cell.position)
                    restarts += 1
                    room = self._again(done, ends_at) if restarts <= _RESTARTS else None
        finally:
            if room is not None:
                room.close()

    def _room(self) -> Room:
        return self.sandbox.room(self.budget.limits, self.bare)

    def _again(self, done: Sequence[RunCell], ends_at: float) -> Room | None:
        room = self._room()
        try:
            for cell in done:
                room.ask({"op": "run", "code": cell.code}, min(self.budget.cell_seconds, ends_at - time.monotonic()))
        except Gone:
            return None
        return room
