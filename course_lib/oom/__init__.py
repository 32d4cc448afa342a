"""The OOM reader: what an out-of-memory message says, why memory ran out, and what to do next. Without torch.

``explain(text)`` takes a message, a traceback or a whole log. Of several messages it explains the first whose figures
are complete, or the first: what follows a failed allocation is often its consequence.
"""

from dataclasses import dataclass
from typing import Any

from course_lib.i18n import sentences
from course_lib.oom import words
from course_lib.oom.against_ledger import Run, beside_the_ledger, next_changes
from course_lib.oom.causes import Cause, cause_of
from course_lib.oom.message import ALLOCATION, OomMessage, lines_near, read_messages
from course_lib.oom.place import place_in
from course_lib.oom.signs import Place, find_sign

_MOST_TRACEBACK_LINES = 120

__all__ = ["Cause", "Diagnosis", "OomMessage", "Run", "explain", "read_messages"]


@dataclass(frozen=True)
class Diagnosis:
    """What a text about memory says, and what to do; in the language that was set when it was made."""

    message: OomMessage  #: its figures; all None where the text has none
    cause: Cause
    explanation: str
    next_steps: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as JSON holds it; every size in bytes."""
        told = {"cause": str(self.cause), "explanation": self.explanation, "next_steps": list(self.next_steps)}
        return {**self.message.figures, **told}


def explain(text: str, run: Run | None = None) -> Diagnosis:
    """Read ``text``, name the cause and say what to do.

    Args:
        text: a message, a traceback or a log.
        run: the model and the recipe that ran, where they are known; the ledger then says what it should take.
    """
    messages = read_messages(text)
    if messages:
        message = next((each for each in messages if each.is_complete), messages[0])
        cause = cause_of(message)
        traceback = lines_near(text, ALLOCATION, before=_MOST_TRACEBACK_LINES, after=2)
        said, steps = words.of_figures(message, cause, place_in(traceback))
        if len(messages) > 1:
            said.append(words.one_of(len(messages)))
    elif sign := find_sign(text):
        kind, tried_bytes = sign
        message = OomMessage(tried_bytes=tried_bytes)
        cause = Cause.HOST_RAM if kind.place in (Place.HOST, Place.SHARED) else Cause.CANNOT_TELL
        said, steps = words.of_sign(kind, tried_bytes)
    else:
        message, cause = OomMessage(), Cause.NOT_AN_OOM
        said, steps = words.of_nothing()
    if run:
        said += beside_the_ledger(message, run)
        steps = [step.replace("MODEL …", run.in_flags).replace("MODEL", run.model) for step in steps]
        if cause not in (Cause.IMPOSSIBLE_REQUEST, Cause.NOT_AN_OOM, Cause.HOST_RAM):
            steps = [*next_changes(message, run), *steps]
    return Diagnosis(message, cause, sentences(said), tuple(steps))
