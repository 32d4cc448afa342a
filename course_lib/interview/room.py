"""The drill and the mock interview, to be shown in a notebook.

>>> drill()               # what is due today, by all topics  # doctest: +SKIP
>>> mock("precision")     # ten questions with a clock        # doctest: +SKIP
"""

from collections.abc import Callable
from datetime import UTC, date, datetime
from html import escape
from typing import Any

from course_lib.i18n import _
from course_lib.interview import progress
from course_lib.interview.answers import folded_html
from course_lib.interview.cards_widget import Cards, static_copy
from course_lib.interview.mock import LENGTH, LIMIT_SECONDS, Answered, draw, score
from course_lib.interview.questions import DIFFICULTIES, TOPICS, Question, chosen
from course_lib.interview.schedule import Standing, midnight, next_due, queue, readiness, standings

Clock = Callable[[], datetime]


def now() -> datetime:
    return datetime.now(UTC)


class Drill:
    """What is due, from the reader's log; a source of cards."""

    def __init__(self, topic: str = "", difficulty: int = 0, clock: Clock = now) -> None:
        self.topic, self.difficulty, self._clock = topic, difficulty, clock

    @property
    def known(self) -> list[Standing]:
        """How the chosen questions stand."""
        asked = chosen(self.topic, self.difficulty)
        return list(standings(asked, progress.reviews(), progress.interview_day()).values())

    @property
    def waiting(self) -> list[Question]:
        """What is to be answered now."""
        return queue(self.known, self._clock(), progress.interview_day())

    def next(self) -> Question | None:
        return next(iter(self.waiting), None)

    def graded(self, question: Question, rating: int, seconds: float) -> None:
        progress.grade(question.id, rating)

    def status(self) -> str:
        known, day, at = self.known, progress.interview_day(), self._clock()
        said = [
            _("now: {count}").format(count=len(self.waiting)),
            _("seen: {seen} of {count}").format(seen=sum(each.card is not None for each in known), count=len(known)),
        ]
        when = max(at, midnight(day)) if day else at
        said.append(_("you would know {share:.0%}").format(share=readiness(known, when)))
        if day:
            said.append(progress.days_left(day, at.astimezone().date()))
        return " · ".join(said)

    def end(self) -> str:
        due, day = next_due(self.known), progress.interview_day()
        said = _("Nothing more for now.")
        if day and self._clock() >= midnight(day):
            said = _("The day of the interview has come: nothing comes back any more. For another, set another day.")
        elif due and due > self._clock():
            said += " " + _("The next question comes back on {when}.").format(when=f"{due.astimezone():%Y-%m-%d %H:%M}")
        return f'<p role="status">{escape(said)}</p>'


class Mock:
    """A mock interview; a source of cards. Its grades count in the drill as well."""

    def __init__(self, topic: str = "", difficulty: int = 0, seed: int | None = None) -> None:
        self.drawn = draw(chosen(topic, difficulty), seed)
        self.answered: list[Answered] = []

    def next(self) -> Question | None:
        return self.drawn[len(self.answered)] if len(self.answered) < len(self.drawn) else None

    def graded(self, question: Question, rating: int, seconds: float) -> None:
        progress.grade(question.id, rating)
        self.answered.append(Answered(question, rating, seconds))
        if len(self.answered) == len(self.drawn):
            progress.keep_mock(score(self.answered), len(self.answered))

    def status(self) -> str:
        if len(self.answered) == len(self.drawn):
            return _("The interview is over.")
        return _("question {number} of {count}").format(number=len(self.answered) + 1, count=len(self.drawn))

    def end(self) -> str:
        before = [each.score for each in progress.mocks()[:-1]]
        said = _("Readiness score: {score} of 100.").format(score=score(self.answered))
        if before:
            said += " " + _("Before: {scores}.").format(scores=", ".join(map(str, before[-5:])))
        weak = [each for each in self.answered if each.worth < 1]
        again = folded_html(each.question for each in weak)
        title = _("To go over once more, too slow or with gaps:") if weak else _("No gaps, and none too slow.")
        return f'<p role="status"><b>{escape(said)}</b></p><p>{escape(title)}</p>{again}'


def drill(topic: str = "", difficulty: int = 0) -> None:
    """Show the drill: what is due, one card after another, with filters and the day of the interview.

    Raises:
        CourseError: no such topic or difficulty.
    """
    import ipywidgets
    from IPython.display import display

    source = Drill(topic, difficulty)
    cards = Cards(source)
    topics, difficulties = _filters(topic, difficulty)
    day = ipywidgets.DatePicker(value=progress.interview_day(), description=_("interview on"), **_look())

    def change(_change: Any = None) -> None:
        source.topic, source.difficulty = topics.value, difficulties.value
        progress.set_interview(day.value)
        cards.deal()

    for each in (topics, difficulties, day):
        each.observe(change, "value")
    _show([topics, difficulties, day], cards)
    display(static_copy(_("The questions without the drill"), folded_html(chosen(topic, difficulty))))


def mock(topic: str = "", difficulty: int = 0, seed: int | None = None) -> None:
    """Show a mock interview of ten questions, with a clock and a readiness score at its end.

    Args:
        topic: a key of TOPICS, or all.
        difficulty: 1 to 3, or 0 for all.
        seed: draws the same questions again; a new draw without it.

    Raises:
        CourseError: no such topic or difficulty, or no question there.
    """
    import ipywidgets
    from IPython.display import display

    cards = Cards(Mock(topic, difficulty, seed), LIMIT_SECONDS)
    topics, difficulties = _filters(topic, difficulty)
    again = ipywidgets.Button(description=_("Begin anew"), layout=ipywidgets.Layout(width="auto"))

    def begin(_change: Any = None) -> None:
        if chosen(topics.value, difficulties.value):
            cards.source = Mock(topics.value, difficulties.value)
            cards.deal()

    again.on_click(begin)
    for each in (topics, difficulties):
        each.observe(begin, "value")
    drawn = folded_html(cards.source.drawn)  # type: ignore[attr-defined]
    _show([topics, difficulties, again], cards)
    title = _("These {count} questions without the clock").format(count=min(LENGTH, len(chosen(topic, difficulty))))
    display(static_copy(title, drawn))


def set_interview(day: date | str | None) -> None:
    """Set the day of the interview, such as ``"2026-12-05"``, or forget it with None; the drill follows it."""
    progress.set_interview(day)
    kept = progress.interview_day()
    print(progress.days_left(kept, now().astimezone().date()) if kept else _("no day is set"))


def _filters(topic: str, difficulty: int) -> tuple[Any, Any]:
    """Sliders, for words as well: JupyterLab keeps the arrow keys from drop-down lists, not from sliders."""
    import ipywidgets

    topics = [(_("all"), ""), *((_(name), key) for key, name in TOPICS.items())]
    difficulties = [(_("all"), 0), *((_(name), key) for key, name in DIFFICULTIES.items())]
    return tuple(
        ipywidgets.SelectionSlider(
            options=options, value=value, description=label, continuous_update=False, **_look()
        )
        for options, value, label in (
            (topics, topic, _("topic")),
            (difficulties, difficulty, _("difficulty")),
        )
    )


def _look() -> dict[str, Any]:
    import ipywidgets

    return {"style": {"description_width": "7em"}, "layout": ipywidgets.Layout(width="30em")}


def _show(controls: list[Any], cards: Cards) -> None:
    import ipywidgets
    from IPython.display import display

    wrap = ipywidgets.Layout(flex_flow="row wrap", max_width="960px")
    display(ipywidgets.VBox([ipywidgets.HBox(controls, layout=wrap), cards.box]))
