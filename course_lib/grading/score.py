"""What each question earned, and why: the word of the test in the student's process, and the referee's."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from course_lib.grading.assignment import Assignment, Question
from course_lib.grading.execute import Outcome, Ran
from course_lib.grading.referee import Verdict
from course_lib.i18n import N_

#: What can be seen of these from outside are counts that a program could make up without doing the work; everything
#: else needs the right value for inputs that nobody knew before.
WEAK_PROOF = ("checkpoint-modes", "train-released")
#: The peak of a 16-bit recipe is judged only where the fp32 peak is right; else all that is left is types.
_RESTS_ON = {"measure-peak-recipes": "measure-peak-fp32"}
GONE = {
    "time": N_("the time ran out"),
    "memory": N_("it took more memory than a submission may"),
    "processes": N_("it started more processes than a submission may"),
    "died": N_("the kernel died"),
    "skipped": N_("a cell that had killed the kernel was left out"),
}
#: Before one of these, where the answer had passed its test.
ASKED_FROM_OUTSIDE = N_("asked from outside, ")
_FORGED = N_("its test passes in the notebook, but its values are not right when they are compared outside")


@dataclass
class Score:
    """One question's. ``points`` is None where a person has to mark it."""

    question: str
    points: float | None
    max_points: float
    reason: str = ""
    flag: str = ""  #: why a person should look
    mistake: str | None = None
    hidden: bool = False  #: it was the hidden part that failed


@dataclass
class Graded:
    """One submission, without a name."""

    assignment: str
    status: str  #: graded, needs-human or failed
    reason: str
    scores: list[Score] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cells: list[dict[str, Any]] = field(default_factory=list)  #: for the feedback: kind, text, grade_id, outputs, error
    language: str = "en"

    @property
    def points(self) -> float:
        return sum(each.points or 0.0 for each in self.scores)

    @property
    def max_points(self) -> float:
        return sum(each.max_points for each in self.scores)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Graded":
        return cls(**{**data, "scores": [Score(**each) for each in data["scores"]]})


def ungraded(assignment: Assignment, status: str, reason: str) -> Graded:
    """A row for what could not be graded: no points yet, and why."""
    scores = [Score(each.grade_id, None, each.points, reason) for each in assignment.questions]
    return Graded(assignment.name, status, reason, scores)


def score(assignment: Assignment, outcome: Outcome, written: Mapping[str, str]) -> list[Score]:
    """Every question's score, in the notebook's order."""
    ran = {each.grade_id: each for each in outcome.ran if each.grade_id}
    scores = []
    for question in assignment.questions:
        if question.by_hand:
            scores.append(_by_hand(question, written.get(question.grade_id, "")))
            continue
        scores.append(_score(question, ran.get(question.grade_id), outcome.visible.get(question.grade_id),
                             outcome.hidden.get(question.grade_id)))  # fmt: skip
    earned = {each.question for each in scores if each.points}
    for each in scores:
        rests_on = _RESTS_ON.get(each.question)
        if each.points and rests_on and rests_on not in earned:
            each.flag = each.flag or f"rests on the test's own word, since {rests_on} is not right"
    return scores


def _by_hand(question: Question, text: str) -> Score:
    if text.strip() in {stub.strip() for stub in question.stub.values()} | {""}:
        return Score(question.grade_id, 0.0, question.points, N_("no answer"))
    return Score(question.grade_id, None, question.points, N_("to be marked by a person"))


def _score(question: Question, ran: Ran | None, visible: Verdict | None, hidden: Verdict | None) -> Score:
    lost = Score(question.grade_id, 0.0, question.points)
    if ran is None or ran.gone:
        lost.reason = GONE.get(ran.gone if ran else "died", GONE["died"])
        return lost
    if ran.error:
        lost.reason, lost.mistake = _first_line(ran.error), ran.error.get("mistake")
        return lost
    asked = visible or hidden  # the visible part only where that is needed, then last
    if asked is None or asked.gone:
        lost.reason = ASKED_FROM_OUTSIDE + GONE.get(asked.gone if asked else "died", GONE["died"])
        lost.flag = f"its test passes, but {lost.reason}"
        return lost
    if not asked.passed:
        lost.reason = _FORGED
        lost.flag = lost.reason
        return lost
    if hidden and not hidden.passed:
        lost.hidden, lost.mistake, lost.reason = True, hidden.mistake, "a hidden test fails"
        return lost
    full = Score(question.grade_id, question.points, question.points)
    if asked.unproven:
        full.flag = f"rests on the test's own word: {asked.unproven}"
    return full


def _first_line(error: Mapping[str, Any]) -> str:
    said = str(error.get("says", "")).strip().splitlines() or [""]
    name = str(error.get("name", ""))
    return said[0][:200] if said[0].startswith("✗") else f"{name}: {said[0]}"[:200]
