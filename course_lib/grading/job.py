"""One submission from bytes to bytes: what a worker does, on this machine or on a cluster.

A job holds no student's name. Everything that it needs of the course is in the checkout that the worker has.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from course_lib.grading.assignment import Assignment
from course_lib.grading.execute import Budget, run_submission
from course_lib.grading.namespaces import Limits
from course_lib.grading.sandbox import Ended, Sandbox
from course_lib.grading.sanitize import NeedsHuman, sanitize
from course_lib.grading.score import Graded, score, ungraded
from course_lib.pipeline.repository import Repository

#: By kind. One that is put here before workers are forked is theirs, too.
sandboxes: dict[str, Sandbox] = {}


def make_job(content: bytes, assignment: str, seed: str, sandbox: str, budget: Budget, own: Mapping[str, Any]) -> bytes:
    """
    Args:
        own: an instructor's points and hidden tests for this assignment, as :class:`Assignment` takes them.
    """
    head = {"assignment": assignment, "seed": seed, "sandbox": sandbox, "budget": asdict(budget), "own": dict(own)}
    return json.dumps(head).encode() + b"\n" + content


def grade(job: bytes) -> bytes:
    """Grade one submission; the answer is a :class:`Graded` in JSON."""
    head, _, content = job.partition(b"\n")
    about = json.loads(head)
    assignment = assignment_of(about["assignment"], json.dumps(about["own"], sort_keys=True))
    budget = Budget(**{**about["budget"], "limits": Limits(**about["budget"]["limits"])})
    try:
        graded = _grade(content, assignment, about["seed"], sandbox_of(about["sandbox"]), budget)
    except Ended:
        sandboxes.pop(about["sandbox"])
        graded = _grade(content, assignment, about["seed"], sandbox_of(about["sandbox"]), budget)
    return json.dumps(graded.to_dict()).encode()


@cache
def assignment_of(name: str, own: str = "{}") -> Assignment:
    return Assignment.of(Repository.find(Path(__file__).parent), name, **json.loads(own))


def sandbox_of(kind: str) -> Sandbox:
    """This process's, started when it is first needed."""
    if kind not in sandboxes:
        sandboxes[kind] = Sandbox(kind)
    return sandboxes[kind]


def _grade(content: bytes, assignment: Assignment, seed: str, sandbox: Sandbox, budget: Budget) -> Graded:
    try:
        sane = sanitize(content, assignment)
    except NeedsHuman as error:
        return ungraded(assignment, "needs-human", str(error))
    outcome = run_submission(sandbox, assignment, sane.run, seed, budget)
    scores = score(assignment, outcome, sane.written)
    ran = {each.position: each for each in outcome.ran}
    cells = []
    for position, cell in enumerate(sane.cells):
        shown: dict[str, Any] = {"kind": cell.kind, "text": cell.text, "grade_id": cell.grade_id}
        if position in ran:
            shown |= {"outputs": ran[position].outputs, "error": ran[position].error, "gone": ran[position].gone}
        cells.append(shown)
    by_flag: dict[str, list[str]] = {}
    for each in scores:
        if each.flag:
            by_flag.setdefault(each.flag, []).append(each.question)
    flagged = [f"{', '.join(questions)}: {flag}" for flag, questions in by_flag.items()]
    reasons = [*flagged, *sane.notes]
    return Graded(assignment.name, "needs-human" if flagged else "graded", "; ".join(reasons), scores, sane.notes,
                  cells, sane.language)  # fmt: skip
