"""When a question comes back: FSRS, up to the day of the interview.

FSRS (Ye et al. 2022, A Stochastic Shortest Path Algorithm for Optimizing Spaced Repetition Scheduling; here the package
``fsrs``) predicts how likely one still knows an answer, and brings it back when that has fallen to nine tenths. An
interview adds three rules: on its day nothing comes back any more; on the day before everything comes back once; and
what was never seen is spread over the days that are left.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from math import ceil

from fsrs import Card, Rating, Scheduler

from course_lib.interview.progress import Review
from course_lib.interview.questions import Question

#: Where nothing else is left, what comes back this soon is shown already.
AHEAD = timedelta(minutes=20)
_SCHEDULER = Scheduler(enable_fuzzing=False)


@dataclass(frozen=True)
class Standing:
    """How well a question is known."""

    question: Question
    card: Card | None  #: FSRS's memory of it; None where it was never seen
    due: datetime | None  #: when it comes back; None: not before the interview, or never seen
    first_seen: datetime | None = None

    def recall(self, at: datetime) -> float:
        """How likely it is to be known at that time, from 0 to 1."""
        return _SCHEDULER.get_card_retrievability(self.card, at) if self.card else 0.0


def standings(
    asked: Iterable[Question], reviews: Sequence[Review], interview: date | None = None
) -> dict[str, Standing]:
    """How each question stands after all reviews, by its id."""
    found = {}
    for number, each in enumerate(asked):
        own = [review for review in reviews if review.question == each.id]
        card = Card(card_id=number) if own else None
        for review in own:
            card, _log = _SCHEDULER.review_card(card, Rating(review.rating), review.at)  # type: ignore[arg-type]
        due = _before(interview, card) if card else None
        found[each.id] = Standing(each, card, due, own[0].at if own else None)
    return found


def queue(known: Iterable[Standing], now: datetime, interview: date | None = None) -> list[Question]:
    """What is to be answered now, in order: what is due, the weakest first; then new ones, the usual ones first.

    Args:
        known: of the questions in play.
        now: with its time zone; the reader's day begins at midnight there.
        interview: the day of the interview, if there is one.
    """
    if interview and now >= midnight(interview):
        return []
    known = list(known)
    due = sorted((each for each in known if each.due and each.due <= now), key=lambda each: each.recall(now))
    new = sorted((each for each in known if not each.card), key=lambda each: each.question.difficulty)
    soon = sorted((each for each in known if _is_soon(each, now)), key=lambda each: each.due or now)
    if interview:
        today = midnight(now.astimezone().date())
        begun = sum(each.first_seen is not None and each.first_seen >= today for each in known)
        left = max(1, (interview - now.astimezone().date()).days)
        new = new[: max(0, ceil((len(new) + begun) / left) - begun)]
    return [each.question for each in due + new + soon]


def _is_soon(each: Standing, now: datetime) -> bool:
    return each.due is not None and now < each.due <= now + AHEAD


def next_due(known: Iterable[Standing]) -> datetime | None:
    """When the next question comes back, if any does."""
    return min((each.due for each in known if each.due), default=None)


def readiness(known: Sequence[Standing], at: datetime) -> float:
    """The share of questions that one would know at that time, as FSRS predicts it; what was never seen counts 0."""
    return sum(each.recall(at) for each in known) / len(known) if known else 0.0


def midnight(day: date) -> datetime:
    """The beginning of a day where the reader is."""
    return datetime.combine(day, time.min).astimezone(UTC)


def _before(interview: date | None, card: Card) -> datetime | None:
    """FSRS's time, brought forward to the day before the interview; None where that day has been used already."""
    if not interview:
        return card.due
    day, eve = midnight(interview), midnight(interview - timedelta(days=1))
    reviewed = card.last_review or eve
    due = card.due if reviewed >= eve else min(card.due, eve)
    return due if due < day else None
