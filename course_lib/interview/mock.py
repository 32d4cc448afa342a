"""A mock interview: ten questions across the topics, a clock, and a score."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from course_lib.errors import CourseError
from course_lib.interview.questions import TOPICS, Question

LENGTH, LIMIT_SECONDS = 10, 90
#: What a grade is worth in the interview; over the limit at most half.
WORTH = {1: 0.0, 2: 0.5, 3: 1.0, 4: 1.0}


class Answered(NamedTuple):
    """One question of a mock interview."""

    question: Question
    rating: int  #: one's own grade, 1 to 4
    seconds: float  #: from the question to the moment when the answer was shown

    @property
    def worth(self) -> float:
        """0 to 1."""
        return min(WORTH[self.rating], 1.0 if self.seconds <= LIMIT_SECONDS else 0.5)


def draw(pool: Sequence[Question], seed: int | None = None, count: int = LENGTH) -> list[Question]:
    """Questions for one interview: from each topic in turn, easier ones first.

    Raises:
        CourseError: there is nothing to draw from.
    """
    if not pool:
        raise CourseError("mock: got no questions, expected at least one; choose another topic or difficulty")
    random = Random(seed)
    by_topic = [[each for each in pool if each.topic == topic] for topic in TOPICS]
    piles = [random.sample(pile, len(pile)) for pile in by_topic if pile]
    random.shuffle(piles)
    drawn: list[Question] = []
    while len(drawn) < min(count, len(pool)):
        drawn += [pile.pop() for pile in piles if pile][: count - len(drawn)]
    return sorted(drawn, key=lambda each: each.difficulty)


def score(answered: Sequence[Answered]) -> int:
    """The readiness score, 0 to 100: the mean worth of the answers."""
    return round(100 * sum(each.worth for each in answered) / len(answered)) if answered else 0
