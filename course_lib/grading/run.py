"""The rooms in a row: collect, sanitize, execute, score, record, report, for a whole class."""

import csv
import hashlib
import hmac
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import nbformat

from course_lib.errors import CourseError
from course_lib.grading import job as jobs
from course_lib.grading.assignment import Assignment
from course_lib.grading.collect import Found, Roster, collect
from course_lib.grading.gradebook import open_book, release
from course_lib.grading.outbox import Outbox, key_of, write
from course_lib.grading.report import write_reports
from course_lib.grading.rows import Row
from course_lib.grading.sanitize import looks_like
from course_lib.grading.score import Graded, ungraded
from course_lib.grading.settings import Settings
from course_lib.grading.workers import Workers

_LOST = "the worker that graded it was lost; run the command again"


@dataclass(frozen=True)
class Plan:
    """What is to be graded, and how."""

    assignments: tuple[str, ...]
    submissions: Path
    out: Path
    seed: int | None = None
    sandbox: str = "bwrap"
    pattern: str = ""
    roster: Path | None = None
    settings: Settings = Settings()


def grade_class(
    plan: Plan, workers: Workers, progress: Callable[[int, int], None] = lambda done, of: None
) -> list[Row]:
    """Grade everything that has not been graded, and write every report.

    Args:
        progress: called with how many submissions are done, and of how many.

    Raises:
        CourseError: nothing can be graded this way.
    """
    settings = plan.settings
    assignments = {name: jobs.assignment_of(name, _own(settings, name)) for name in plan.assignments}
    roster = Roster.read(plan.roster) if plan.roster else None
    found = [_with_assignment(each, assignments) for each in collect(plan.submissions, plan.assignments, plan.pattern,
                                                                     roster)]  # fmt: skip
    found = [each for each in found if each.assignment is None or each.assignment in assignments]
    if not found:
        raise CourseError(f"--submissions: no notebook in {plan.submissions}; expected files such as "
                          f"STUDENT/{plan.assignments[0]}.ipynb")  # fmt: skip
    outbox = Outbox.open(plan.out, plan.seed if plan.seed is not None else settings.seed)

    def job_of(content: bytes, name: str) -> bytes:
        return jobs.make_job(content, name, outbox.seed, plan.sandbox, settings.budget, settings.own(name))

    wanted = {each: job_of(each.content, each.assignment) for each in found if each.assignment and not each.problem}
    checks = {name: job_of(nbformat.writes(each.answered_by_reference()).encode(), name)
              for name, each in assignments.items()}  # fmt: skip
    keys = {key_of(job): job for job in (*checks.values(), *wanted.values())}
    waiting = {key: job for key, job in keys.items() if outbox.result(key) is None}
    lost = set[str]()
    done = len(keys) - len(waiting)
    progress(done, len(keys))
    for key, result in workers.grade(waiting, meanwhile=partial(release, plan.out, assignments)):
        if result is None:
            lost.add(key)
        else:
            outbox.keep(key, result)
            _refuse_wrong_tests(key, result, checks)
        done += 1
        progress(done, len(keys))
    rows = [_row(each, assignments, outbox, key_of(wanted[each]) if each in wanted else "") for each in found]
    rows += _missing(rows, roster, assignments)
    return _record(plan, outbox, assignments, sorted(rows, key=lambda row: (row.student, row.assignment.name)))


def _own(settings: Settings, name: str) -> str:
    return json.dumps(settings.own(name), sort_keys=True)


def _with_assignment(found: Found, assignments: dict[str, Assignment]) -> Found:
    if found.assignment is None and not found.problem:
        match = looks_like(found.content, list(assignments.values()))
        return replace(found, assignment=match.name if match else None)
    return found


def _refuse_wrong_tests(key: str, result: bytes, checks: dict[str, bytes]) -> None:
    """The reference goes the same way as everybody; where it loses points, the tests or this machine are wrong."""
    for name, job in checks.items():
        if key == key_of(job):
            graded = Graded.from_dict(json.loads(result))
            lost = [each for each in graded.scores if each.points is not None and each.points < each.max_points]
            if lost or graded.status != "graded":
                said = f"{lost[0].question}: {lost[0].reason}" if lost else graded.reason
                raise CourseError(f"the solution of {name} itself does not get full points here ({said}); "
                                  "mend its tests, or class.toml, before anybody is graded")  # fmt: skip


def _row(found: Found, assignments: dict[str, Assignment], outbox: Outbox, key: str) -> Row:
    first = next(iter(assignments.values()))
    assignment = assignments.get(found.assignment or "", first)
    if key:
        graded = outbox.result(key) or ungraded(assignment, "failed", _LOST)
    elif found.assignment is None:
        graded = ungraded(assignment, "needs-human", found.problem or f"{found.name}: of no assignment graded here")
    else:
        graded = ungraded(assignment, "needs-human", found.problem)
    graded.reason = "; ".join(filter(None, (graded.reason, *found.notes)))
    return Row(found.student, assignment, graded, found.handed_in)


def _missing(rows: Sequence[Row], roster: Roster | None, assignments: dict[str, Assignment]) -> list[Row]:
    """Those of the roster who handed nothing in."""
    there = {(row.student, row.assignment.name) for row in rows}
    made = []
    for student in roster.students if roster else ():
        for assignment in assignments.values():
            if (student, assignment.name) not in there:
                made.append(Row(student, assignment, ungraded(assignment, "graded", "nothing was handed in")))
    return made


def _record(plan: Plan, outbox: Outbox, assignments: dict[str, Assignment], rows: list[Row]) -> list[Row]:
    settings = plan.settings
    rows = _one_each(rows)
    if settings.pseudonyms:
        names = {row.student: _pseudonym(row.student, outbox.seed) for row in rows}
        key = io.StringIO()
        csv.writer(key, lineterminator="\n").writerows([("pseudonym", "student"), *((names[each], each) for each in
                                                                                 sorted(names))])  # fmt: skip
        write(plan.out / "pseudonyms.csv", key.getvalue())
        for row in rows:
            row.student = names[row.student]
        rows.sort(key=lambda row: (row.student, row.assignment.name))
    deadlines = {name: settings.deadlines[name] for name in assignments if name in settings.deadlines}
    with open_book(plan.out, deadlines) as book:
        for row in rows:
            row.penalty, why = settings.penalty(row.assignment.name, row.handed_in, row.graded.points)
            row.graded.reason = "; ".join(filter(None, (row.graded.reason, why)))
            row.total = book.enter(row.student, row.assignment, row.graded, row.handed_in, row.penalty)
    write_reports(plan.out, rows, settings.language)
    return rows


def _one_each(rows: list[Row]) -> list[Row]:
    """A student's row for each assignment; where a stray file stands beside a notebook, the notebook's."""
    best: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = (row.student, row.assignment.name)
        other = best.get(key)
        if other is None:
            best[key] = row
            continue
        kept, left = (row, other) if row.has_score and not other.has_score else (other, row)
        kept.graded.reason = "; ".join(filter(None, (kept.graded.reason, f"also handed in: {left.graded.reason}")))
        best[key] = kept
    return list(best.values())


def _pseudonym(student: str, seed: str) -> str:
    return "p" + hmac.new(seed.encode(), student.encode(), hashlib.sha256).hexdigest()[:10]
