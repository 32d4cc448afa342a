"""One card after another: a question, then its answer, then one's own grade. Drill and mock interview are made of it.

It works by keyboard: Tab reaches every button, Space presses it. A grade that is pressed before the answer was seen
shows the answer, so that one can stay on one button. Made of what ipywidgets 7.7.1 and 8 both have.
"""

from collections.abc import Callable
from html import escape
from time import monotonic
from typing import Any, Protocol

from course_lib.i18n import _
from course_lib.interview.answers import parts_html, question_html
from course_lib.interview.progress import RATINGS
from course_lib.interview.questions import Question


class Source(Protocol):
    """Where the cards come from and the grades go."""

    def next(self) -> Question | None:
        """The next question; None at the end."""

    def graded(self, question: Question, rating: int, seconds: float) -> None:
        """Takes a grade, and how long it took from the question to the answer."""

    def status(self) -> str:
        """One line above the card, in the reader's language."""

    def end(self) -> str:
        """HTML in place of a card, when there is none any more."""


class Cards:
    """The widget; :attr:`box` is to be displayed."""

    def __init__(
        self, source: Source, limit_seconds: int | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        import ipywidgets

        self.source, self._limit, self._clock = source, limit_seconds, clock
        self.status, self.card, self.answer = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.HTML()
        wide = ipywidgets.Layout(width="auto", margin="2px 6px 2px 0")
        self.show = ipywidgets.Button(description=_("Show the answer"), button_style="primary", layout=wide)
        self.show.on_click(lambda _button: self._reveal())
        self.grades = {
            rating: ipywidgets.Button(description=f"{rating} · {_(name)}", layout=wide)
            for rating, name in RATINGS.items()
        }
        for rating, button in self.grades.items():
            button.on_click(lambda _button, rating=rating: self._grade(rating))
        wrap = ipywidgets.Layout(flex_flow="row wrap")
        self._buttons = ipywidgets.HBox([self.show, *self.grades.values()], layout=wrap)
        # The answer comes last, so that the buttons stay where they are.
        self.box = ipywidgets.VBox([self.status, self.card, self._buttons, self.answer])
        self.deal()

    def deal(self) -> None:
        """Show the source's next question."""
        self.question = self.source.next()
        self.seconds: float | None = None
        self._begun = self._clock()
        self.status.value = f'<p role="status">{escape(self.source.status())}</p>'
        self.card.value = self._timer() + question_html(self.question) if self.question else self.source.end()
        self.answer.value = ""
        self._buttons.layout.display = "" if self.question else "none"

    def _reveal(self) -> None:
        if self.question and self.seconds is None:
            self.seconds = self._clock() - self._begun
            how = _("How did it go? You took {seconds:.0f} s.").format(seconds=self.seconds)
            self.card.value = question_html(self.question)  # without the timer
            self.answer.value = f'<div role="status"><p><b>{escape(how)}</b></p>{parts_html(self.question)}</div>'

    def _grade(self, rating: int) -> None:
        if self.question and self.seconds is None:
            self._reveal()
        elif self.question and self.seconds is not None:
            self.source.graded(self.question, rating, self.seconds)
            self.deal()

    def _timer(self) -> str:
        """A bar that runs out by itself, in the browser: no message goes to and fro."""
        if not self._limit:
            return ""
        said = escape(_("{seconds} seconds to say it aloud").format(seconds=self._limit))
        bar = f"height:6px;background:#0072B2;animation:interview-timer {self._limit}s linear forwards"
        return (
            "<style>@keyframes interview-timer{from{width:100%}to{width:0;background:#D55E00}}</style>"
            f"<small>{said}</small>"
            f'<div style="height:6px;background:#ddd;max-width:52em"><div style="{bar}"></div></div>'
        )


def static_copy(title: str, listed: str) -> Any:
    """What stays in a notebook that is read without a kernel: the questions, each to unfold."""
    from IPython.display import HTML

    return HTML(f"<details><summary>{escape(title)}</summary>{listed}</details>")
