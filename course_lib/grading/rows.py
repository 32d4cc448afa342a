"""A graded submission with its student: what reports are made of."""

from dataclasses import dataclass
from datetime import datetime

from course_lib.grading.assignment import Assignment
from course_lib.grading.score import Graded


@dataclass
class Row:
    student: str  #: the id, or the pseudonym
    assignment: Assignment
    graded: Graded
    handed_in: datetime | None = None
    penalty: float = 0.0
    total: float | None = None  #: with a person's marks, from the gradebook

    @property
    def score(self) -> float:
        return max(0.0, self.graded.points - self.penalty) if self.total is None else self.total

    @property
    def has_score(self) -> bool:
        """Whether there are points at all, rather than a reason why there are none."""
        return any(each.points is not None for each in self.graded.scores)
