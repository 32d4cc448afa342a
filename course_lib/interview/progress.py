"""What a reader answered and when, and the day of the interview: kept where predictions are kept.

The log only grows, and a record that makes no sense is passed over; so a damaged file costs what is damaged, and no
more (:mod:`course_lib.reader_log`). Standings are computed from it anew each time: nothing is kept twice.
"""

from contextlib import suppress
from datetime import UTC, date, datetime
from typing import NamedTuple

from course_lib.errors import CourseError
from course_lib.i18n import N_, _
from course_lib.interview.questions import question
from course_lib.reader_log import ReaderLog

#: The grades one gives oneself; the numbers are those of FSRS.
RATINGS = {1: N_("not at all"), 2: N_("with gaps"), 3: N_("well"), 4: N_("at once")}
_log = ReaderLog("interview")


class Review(NamedTuple):
    """One answer, graded by the reader."""

    question: str  #: the question's id
    rating: int  #: a key of :data:`RATINGS`
    at: datetime  #: UTC


class MockResult(NamedTuple):
    """A mock interview that was taken to its end."""

    score: int  #: 0 to 100
    asked: int  #: how many questions
    at: datetime


def grade(question_id: str, rating: int) -> None:
    """Keep how an answer went.

    Raises:
        CourseError: no such question or grade.
    """
    question(question_id)
    if type(rating) is not int or rating not in RATINGS:
        raise CourseError(f"grade: got {rating!r}, expected one of {', '.join(map(str, RATINGS))}")
    _log.append(event="graded", question=question_id, rating=rating)


def reviews() -> list[Review]:
    """All answers so far, the oldest first."""
    found = []
    for record in _log.read():
        match record:
            case {"event": "graded", "question": str(name), "rating": int(rating), "at": str(at)}:
                if rating in RATINGS and (when := _time_of(at)):
                    found.append(Review(name, rating, when))
    return sorted(found, key=lambda each: each.at)


def set_interview(day: date | str | None) -> None:
    """Set the day of the interview; None forgets it.

    Args:
        day: a date, or a text such as ``"2026-12-05"``.

    Raises:
        CourseError: not a date.
    """
    try:
        text = date.fromisoformat(str(day)).isoformat() if day else ""
    except ValueError:
        raise CourseError(f"interview: got {day!r}, expected a day such as 2026-12-05") from None
    if text != (str(interview_day() or "")):
        _log.append(event="interview", day=text)


def interview_day() -> date | None:
    """The day of the interview, if one is set."""
    day = None
    for record in _log.read():
        match record:
            case {"event": "interview", "day": str(text)}:
                with suppress(ValueError):
                    day = date.fromisoformat(text) if text else None
    return day


def keep_mock(score: int, count: int) -> None:
    """Keep the result of a mock interview."""
    _log.append(event="mock", score=score, count=count)


def mocks() -> list[MockResult]:
    """The mock interviews so far, the oldest first."""
    found = []
    for record in _log.read():
        match record:
            case {"event": "mock", "score": int(score), "count": int(count), "at": str(at)}:
                if when := _time_of(at):
                    found.append(MockResult(score, count, when))
    return found


def days_left(day: date, today: date) -> str:
    """How far the interview is, in words."""
    left = (day - today).days
    if left > 1:
        return _("interview on {day}, in {left} days").format(day=day, left=left)
    if left >= 0:
        return _("interview tomorrow") if left else _("interview today")
    return _("the interview was on {day}").format(day=day)


def _time_of(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.astimezone(UTC) if at.tzinfo else None
