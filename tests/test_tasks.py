"""Tasks: a wrong answer raises and explains itself, a stub never passes, hints come one at a time."""

import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from course_lib import lessons
from course_lib.accounts import Moment
from course_lib.errors import CourseError
from course_lib.i18n import set_language
from course_lib.tasks import Task, Unsolved, check, expect, hint, is_stub, passed, task

Capture = pytest.CaptureFixture[str]


def _bytes_of_a_model(answer: Any) -> str:
    expect(answer, 28.0, "7e9 in FP32", "GB", causes={14.0: "2 bytes a parameter are 16 bit"}, cause="a slip")
    return "That fits on no consumer card."


def _double(answer: Callable[[float], float]) -> None:
    for x in (1.5, -2.0):
        expect(answer(x), 2 * x, f"double({x})")


def _tests_nothing(answer: Any) -> None:
    pass


@pytest.fixture(autouse=True)
def demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lesson with three tasks."""
    module = ModuleType("course_lib.lessons.demo")
    for function in (_bytes_of_a_model, _double, _tests_nothing):
        function.__module__ = module.__name__
        made = task("the first hint", "the second hint")(function)
        setattr(module, function.__name__, made)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def refusal(name: str, answer: Any) -> list[str]:
    with pytest.raises(Unsolved) as refused:
        check(name, answer)
    return str(refused.value).splitlines()


def test_a_right_answer_passes_says_so_and_is_kept(capsys: Capture) -> None:
    for answer in (28, 28.0, np.float32(28), torch.tensor(28)):
        check("demo._bytes_of_a_model", answer)
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["✓ demo._bytes_of_a_model", "  That fits on no consumer card."]
    assert list(passed()) == ["demo._bytes_of_a_model"]


def test_a_wrong_answer_says_what_came_what_was_expected_and_why() -> None:
    assert refusal("demo._bytes_of_a_model", 14) == [
        "✗ demo._bytes_of_a_model",
        "  7e9 in FP32: came 14 GB, expected 28 GB",
        "  Usual cause: 2 bytes a parameter are 16 bit",
        "  Next: hint('demo._bytes_of_a_model') shows hint 1 of 2.",
    ]
    assert "  Usual cause: a slip" in refusal("demo._bytes_of_a_model", 15)
    assert passed() == {}


def test_hints_come_one_at_a_time_and_stay(capsys: Capture) -> None:
    hint("demo._double")
    assert capsys.readouterr().out.splitlines() == ["Hint 1 of 2: the first hint"]
    assert refusal("demo._double", abs)[-1] == "  Next: hint('demo._double') shows hint 2 of 2."
    for _again in range(2):
        hint("demo._double")
        said = capsys.readouterr().out.splitlines()
        assert said[:2] == ["Hint 1 of 2: the first hint", "Hint 2 of 2: the second hint"]
        assert "solutions/" in said[2]
    assert not any("Next" in line for line in refusal("demo._double", abs))


def _not_written(_x: float) -> float:
    raise NotImplementedError


@pytest.mark.parametrize("stub", [..., None, NotImplemented, [1, ...], {"a": None}, _not_written, lambda x: None])
def test_a_stub_never_passes(stub: Any) -> None:
    for name in ("demo._double", "demo._bytes_of_a_model", "demo._tests_nothing"):
        if not callable(stub) or name == "demo._double":
            assert refusal(name, stub)[0] == f"✗ {name}"
    assert passed() == {}


def test_an_answer_that_raises_is_told_without_a_way_through_the_test() -> None:
    def halved(x: float) -> float:
        return x / 0

    lines = refusal("demo._double", halved)
    assert lines[1].strip() == "it raises ZeroDivisionError: float division by zero"


def test_no_task_of_the_course_passes_a_stub() -> None:
    modules = [import_module(f"course_lib.lessons.{found.name}") for found in pkgutil.iter_modules(lessons.__path__)]
    tasks = [each for module in modules for each in vars(module).values() if isinstance(each, Task)]
    assert tasks
    for each in tasks:
        assert each.hints, f"{each.name} has no hint"
        for stub in (..., None, {}, [], "", _not_written, lambda *_args, **_named: None):
            with pytest.raises((Unsolved, TypeError, AttributeError)):
                check(each.name, stub)
    assert passed() == {}


def test_a_task_that_tests_nothing_is_a_bug_of_ours() -> None:
    with pytest.raises(RuntimeError, match="tests nothing"):
        check("demo._tests_nothing", 3)


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        (1, 1.0),
        ((1, 2), [1, 2]),
        (torch.tensor([1.0, 2.0]), [1, 2]),
        (np.eye(2), torch.eye(2)),
        ({"a": (1, 2)}, {"a": [1, 2.0]}),
        ("backward", Moment.BACKWARD),
        (True, True),
        (1e9 + 100, 1e9),
    ],
)
def test_equal_enough(came: Any, expected: Any) -> None:
    expect(came, expected)


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        (1, 1.1),
        ("28", 28),
        (1, True),
        (True, 1),
        ([1], [1, 2]),
        ({"a": 1}, {"a": 1, "b": 2}),
        (float("nan"), float("nan")),
        (torch.zeros(2, 1), torch.zeros(2)),
        ("forward", Moment.BACKWARD),
        (1e9 + 1e4, 1e9),
        (7, "7"),
    ],
)
def test_not_equal(came: Any, expected: Any) -> None:
    with pytest.raises(Unsolved, match="came .*, expected "):
        expect(came, expected)


def test_the_expected_value_can_be_kept_back() -> None:
    with pytest.raises(Unsolved, match="came 3, expected four bytes a parameter") as refused:
        expect(3, 4, shown="four bytes a parameter")
    assert "expected 4" not in str(refused.value)


def test_stubs_are_told_from_empty_answers() -> None:
    assert not any(is_stub(value) for value in (0, "", [], {}, False, 0.0))


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(CourseError, match=r"no task 'demo.nothing'; expected one of demo._bytes_of_a_model, "):
        check("demo.nothing", 1)
    with pytest.raises(CourseError, match="no lesson 'nowhere'"):
        hint("nowhere.nothing")


def test_a_notebook_shows_the_message_and_no_traceback(capsys: Capture) -> None:
    shell = InteractiveShell.instance()
    shell.run_cell("from course_lib.tasks import check; check('demo._double', abs)")
    shown = capsys.readouterr().out
    InteractiveShell.clear_instance()
    assert "double(1.5): came 1.5, expected 3" in shown
    assert "Traceback" not in shown
    assert "tasks.py" not in shown


def test_a_task_speaks_chinese(capsys: Capture) -> None:
    set_language("zh")
    lines = refusal("demo._bytes_of_a_model", 14)
    assert "得到 14 GB，应为 28 GB" in lines[1]
    hint("demo._double")
    assert capsys.readouterr().out == "提示 1/2：the first hint\n"
