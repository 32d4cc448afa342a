"""Says what a student's function shows that was not promised, and which known mistake that looks like.

A test observes *facts*: named values such as ``peak of fp32`` or ``models still alive``. A *promise* is a
group of facts that earns points together. A :class:`Mistake` says what the facts would be if it had been
made. When a promise is broken, every mistake is held against *all* facts: if exactly one explains them, it is
named; if none or several do, the test does not guess and gives the usual causes.
"""

import linecache
import math
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch

from course_lib.i18n import _
from course_lib.tasks import Unsolved
from course_lib.units import MIB, format_bytes

Facts = dict[str, Any]
ANYTHING = object()  #: in what a mistake shows: a fact that may come out one way or another
_SHOWN = 3  #: broken facts in one message


@dataclass(frozen=True)
class Near:
    """A number that may differ by a fraction of itself."""

    value: float
    rel: float = 1e-6
    unit: str = ""  #: ``B`` is shown with MiB beside it


@dataclass(frozen=True)
class Later:
    """A value that takes time to find out, and is only when it is compared."""

    find: Callable[[], Any]


@dataclass(frozen=True)
class Raised:
    """In place of a value: what the student's code raised."""

    kind: str
    text: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raised) and self.kind == other.kind

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that people give.

    ``shows`` maps what the test knows (its case) to the facts that would come; those it leaves out would be
    right. Several mappings stand for several ways to make the mistake.
    """

    name: str  #: stable, for programs: ``peak-never-reset``
    says: str  #: what it is and what to do, marked with ``N_``
    where: str  #: the unit that explains it, such as ``02_mixed_precision``
    shows: Callable[[Any], Iterable[Facts]]


@dataclass(frozen=True)
class Promise:
    """Facts that earn points together. ``usual`` says what mostly breaks them, marked with ``N_``."""

    what: str  #: a short name: mostly the student's function
    facts: Callable[[str], bool]  #: which of the observed facts it is about
    usual: str
    where: str
    tells: bool = True  #: whether the message says what would be right; off where that is the student's own answer


class Broken(Unsolved):
    """A promise that is not kept; ``mistake`` is the name of what it looks like, or None."""

    def __init__(self, message: str, mistake: str | None = None) -> None:
        super().__init__(message)
        self.mistake = mistake


def judge(promise: Promise, came: Facts, right: Facts, mistakes: Sequence[Mistake], case: Any = None) -> None:
    """Raise :class:`Broken` unless the facts of ``promise`` are right; say so when they are.

    Args:
        came: what the student's code showed.
        right: what was promised, fact by fact.
        mistakes: those that could show in these facts.
        case: handed to ``Mistake.shows``.
    """
    asked = [fact for fact in right if promise.facts(fact)]
    if not asked:
        raise RuntimeError(f"the promise {promise.what!r} is about none of {list(right)}")
    broken = [fact for fact in asked if not same(came[fact], right[fact])]
    if not broken:
        print("✓ " + _("{what}: {count} of {count} right").format(what=promise.what, count=len(asked)))
        return
    refuse_stubs(promise.what, *(came[fact] for fact in asked))
    lines = [f"✗ {promise.what}"]
    line = _("{fact}: expected {right}, got {came}") if promise.tells else _("{fact}: {came} is not right")
    lines += [line.format(fact=_told_fact(fact), right=show(right[fact], came[fact]),
              came=show(came[fact], right[fact])) for fact in broken[:_SHOWN]]  # fmt: skip
    if len(broken) > _SHOWN:
        lines.append(_("and {count} more").format(count=len(broken) - _SHOWN))
    found = diagnose(came, right, mistakes, case)
    if found:
        lines.append(_("It looks like [{name}]: {says}").format(name=found.name, says=_(found.says)))
        lines.append(_("Explained in: {where}").format(where=found.where))
    else:
        lines.append(_("The usual cause is: {usual}").format(usual=_(promise.usual)))
        lines.append(_("Explained in: {where}").format(where=promise.where))
    raise Broken("\n  ".join(lines), found.name if found else None)


def _told_fact(fact: str) -> str:
    """A fact's name in the reader's language; the catalogue holds it with braces in place of its numbers."""
    template = re.sub(r"(?<![\w.])-?\d+(?![\w.])", "{}", fact)
    told = _(template)
    return told.format(*re.findall(r"(?<![\w.])-?\d+(?![\w.])", fact)) if told != template else _(fact)


def refuse_stubs(what: str, *values: Any) -> None:
    """Raise :class:`Broken` where a value is still the stub's dots, or the stub itself was called."""
    if any(value is ... or value == Raised("NotImplementedError") for value in values):
        unwritten = _("{what}: not written yet; put your code in place of the stub above and run both cells")
        raise Broken("✗ " + unwritten.format(what=what))


def diagnose(came: Facts, right: Facts, mistakes: Sequence[Mistake], case: Any = None) -> Mistake | None:
    """The one mistake that explains all facts; None where none does, or more than one."""
    fitting = [each for each in mistakes if any(_fits(came, {**right, **shown}) for shown in each.shows(case))]
    return fitting[0] if len(fitting) == 1 else None


def _fits(came: Facts, predicted: Facts) -> bool:
    return all(same(came[fact], value) for fact, value in predicted.items() if fact in came)


def same(came: Any, right: Any) -> bool:
    """Whether a value is the promised one; a whole number stays whole, a :class:`Near` one has room."""
    if isinstance(right, Later):
        right = right.find()
    if right is ANYTHING:
        return True
    if isinstance(right, Near):
        if isinstance(came, Near):
            came = came.value
        if isinstance(came, bool) or not isinstance(came, int | float):
            return False
        if math.isnan(right.value) or math.isnan(came):
            return math.isnan(right.value) and math.isnan(came)
        return math.isclose(came, right.value, rel_tol=right.rel, abs_tol=1e-300)
    if isinstance(right, Mapping):
        return isinstance(came, Mapping) and came.keys() == right.keys() and all(same(came[k], right[k]) for k in right)
    if isinstance(right, list):
        return (
            isinstance(came, list)
            and len(came) == len(right)
            and all(same(one, other) for one, other in zip(came, right, strict=True))
        )
    return type(came) is type(right) and bool(came == right)


def observe(look: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """What ``look`` returns, or what it raises; its warnings stay out of the cell, where they would cost points."""
    with quiet(), one_thread():
        try:
            return look(*arguments, **settings)
        except Exception as error:
            return Raised(type(error).__name__, _told(error))


@contextmanager
def quiet() -> Iterator[None]:
    """nbgrader takes anything on stderr for a failure, a library's warning, too."""
    with warnings.catch_warnings(), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """The tests' models are tiny: threads that wait for each other take longer than their work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def show(value: Any, other: Any = None) -> str:
    """A value as messages show it; bytes with MiB beside them."""
    unit = next((each.unit for each in (value, other) if isinstance(each, Near)), "")
    if isinstance(value, Near):
        value = value.value
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {show(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(show(each) for each in value) + "]"
    if isinstance(value, str):
        return _(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if unit == "B" and abs(value) >= MIB / 100:
        return f"{value:,.0f} B ({format_bytes(value, 'MiB')})"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
    return f"{text} {unit}".strip()


def _told(error: Exception) -> str:
    """An error's own words, and the student's line that it came from."""
    words = " ".join(str(error).split())[:200]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        # In a notebook a cell's code is no file; where a test runs the cells, it is not either.
        if "ipykernel" in frame.filename or frame.filename.startswith("<"):
            code = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
            return f"{words} (line {frame.lineno}: {code})" if code else f"{words} (line {frame.lineno})"
    return words
