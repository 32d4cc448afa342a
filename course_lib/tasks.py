"""A reader's own small tasks: an instant test that explains itself, and hints one at a time.

In a notebook:

>>> check("start.bytes_of_a_model", 13.5)  # doctest: +SKIP
>>> hint("start.bytes_of_a_model")         # doctest: +SKIP

In ``course_lib/lessons/start.py`` a task is a function that tests an answer::

    @task(N_("How many bytes has one FP32 number?"), N_("Multiply by the number of parameters."))
    def bytes_of_a_model(answer):
        expect(answer, 28.0, _("7e9 parameters in FP32"), "GB", causes={14.0: _("that is 2 bytes a parameter")})
        return _("It fits on no consumer card.")   # said when everything held

A wrong answer raises, so that nobody takes it for right; a stub (``...``, None, NotImplementedError)
never passes. What a task says follows the language of the notebook.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from numbers import Number
from traceback import extract_tb
from typing import Any

from course_lib.errors import CourseError
from course_lib.i18n import _
from course_lib.reader_log import ReaderLog

Test = Callable[[Any], str | None]
_log = ReaderLog("tasks")


class Unsolved(AssertionError):
    """The answer is not there, or is not right. In a notebook it shows its message alone."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()  # IPython asks for this; where the test stands helps nobody


@dataclass(frozen=True)
class Task:
    name: str  #: ``lesson.function``
    test: Test
    hints: tuple[str, ...]


def task(*hints: str) -> Callable[[Test], Task]:
    """Make a task of a test function; ``hints`` are marked with ``N_``, the mildest first."""

    def make(test: Test) -> Task:
        return Task(f"{test.__module__.rpartition('.')[2]}.{test.__name__}", test, hints)

    return make


def check(name: str, answer: Any) -> None:
    """Test an answer at once.

    Args:
        name: ``lesson.task``.
        answer: what the task asks for: a value or a function.

    Raises:
        Unsolved: what came, what was expected, the usual cause, and where the next hint is.
        CourseError: there is no such task.
    """
    found = _find(name)
    before = _expectations
    try:
        if is_stub(answer):
            raise Unsolved(_("nothing to test yet: write your answer in place of the dots"))
        said = found.test(answer)
    except Exception as error:  # a traceback would lead through the test, past its right values
        raise Unsolved("\n".join([f"✗ {name}", f"  {_told(error)}", *_offer(found)])) from None
    if _expectations == before:
        raise RuntimeError(f"the task {name} tests nothing: its function calls no expect()")
    if name not in passed():
        _log.append(event="passed", task=name)
    print(f"✓ {name}" + (f"\n  {said}" if said else ""))


def _told(error: Exception) -> str:
    if isinstance(error, Unsolved):
        return str(error)
    if isinstance(error, NotImplementedError):
        return _("not written yet: it raises NotImplementedError")
    said = _("it raises {kind}: {says}").format(kind=type(error).__name__, says=error)
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if "ipykernel" in frame.filename
             or frame.filename.startswith("<ipython-input")]  # fmt: skip
    # The first is the cell that called check().
    return said if len(lines) < 2 else said + _(", in line {line} of your cell").format(line=lines[-1])


def hint(name: str) -> None:
    """Show the next hint, below those shown before."""
    found = _find(name)
    taken = _hints_taken(name)
    if taken < len(found.hints):
        taken += 1
        _log.append(event="hint", task=name)
    for number, text in enumerate(found.hints[:taken], 1):
        print(_("Hint {number} of {count}: {text}").format(number=number, count=len(found.hints), text=_(text)))
    if taken == len(found.hints):
        print(_("There are no more; the solved notebook is in solutions/."))


def passed() -> dict[str, str]:
    """When each task was first passed (ISO 8601, UTC)."""
    first: dict[str, str] = {}
    for record in _log.read():
        if record.get("event") == "passed":
            first.setdefault(record["task"], record["at"])
    return first


_expectations = 0  #: how often expect() was called: a test that expects nothing would pass a stub


def expect(
    came: Any,
    expected: Any,
    what: str = "",
    unit: str = "",
    *,
    rel: float = 1e-6,
    causes: Mapping[Any, str] | None = None,
    cause: str = "",
    shown: str = "",
) -> None:
    """One expectation within a task.

    Args:
        came: the reader's value; numbers, texts, tensors and arrays, and lists or dicts of them.
        expected: the right one.
        what: names the value in the message.
        unit: of both.
        rel: the relative difference that numbers may have.
        causes: for wrong values that have a known cause, that cause.
        cause: the usual cause where none of ``causes`` fits.
        shown: said in place of ``expected``, where the number itself would give the answer away.

    Raises:
        Unsolved: ``came`` is not ``expected``.
    """
    global _expectations
    _expectations += 1
    subject = f"{what}: " if what else ""
    if is_stub(came):
        raise Unsolved(subject + _("nothing came yet (got {came!r})").format(came=came))
    if _equal(came, expected, rel):
        return
    lines = [
        subject
        + _("came {came}, expected {expected}").format(
            came=_show(came, unit), expected=shown or _show(expected, unit)
        )
    ]
    known = next((text for wrong, text in (causes or {}).items() if _equal(came, wrong, max(rel, 1e-3))), cause)
    if known:
        lines.append(_("Usual cause: {cause}").format(cause=known))
    raise Unsolved("\n  ".join(lines))


def is_stub(value: Any) -> bool:
    """Whether a value is a placeholder, or holds one."""
    if value is None or value is ... or value is NotImplemented:
        return True
    if isinstance(value, Mapping):
        return any(is_stub(each) for each in value.values())
    return isinstance(value, list | tuple | set) and any(is_stub(each) for each in value)


def _equal(came: Any, expected: Any, rel: float) -> bool:
    came, expected = _plain(came), _plain(expected)
    if isinstance(expected, Mapping):
        return (
            isinstance(came, Mapping)
            and came.keys() == expected.keys()
            and all(_equal(came[key], expected[key], rel) for key in expected)
        )
    if isinstance(expected, list):
        return (
            isinstance(came, list)
            and len(came) == len(expected)
            and all(_equal(one, other, rel) for one, other in zip(came, expected, strict=True))
        )
    if isinstance(came, bool) or isinstance(expected, bool):
        return came is expected
    if isinstance(came, int | float) and isinstance(expected, int | float):
        return math.isclose(came, expected, rel_tol=rel)
    return type(came) is type(expected) and bool(came == expected)


def _plain(value: Any) -> Any:
    """Tensors and arrays as lists or Python numbers, tuples as lists, enumerated texts as texts."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, str) else value


def _show(value: Any, unit: str) -> str:
    value = _plain(value)
    text = f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else repr(value)
    return f"{text} {unit}" if unit and isinstance(value, Number) else text


def _offer(found: Task) -> list[str]:
    taken, count = _hints_taken(found.name), len(found.hints)
    if taken >= count:
        return []
    return ["  " + _("Next: hint({name!r}) shows hint {number} of {count}.").format(
        name=found.name, number=taken + 1, count=count
    )]  # fmt: skip


def _hints_taken(name: str) -> int:
    return sum(record.get("event") == "hint" and record.get("task") == name for record in _log.read())


def _find(name: str) -> Task:
    lesson, _dot, function = name.partition(".")
    try:
        module = import_module(f"course_lib.lessons.{lesson}")
    except ModuleNotFoundError as error:
        raise CourseError(f"no lesson {lesson!r} has tasks; expected a name such as 'ledger.bill'") from error
    known = {key: value for key, value in vars(module).items() if isinstance(value, Task)}
    if function not in known:
        raise CourseError(f"no task {name!r}; expected one of {', '.join(f'{lesson}.{each}' for each in known)}")
    return known[function]
