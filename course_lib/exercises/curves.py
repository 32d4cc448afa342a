"""Exercise 3, when are two loss curves the same: what ``same_curve`` promises, and the mistakes that people make."""

import operator
import random
from collections.abc import Callable, Iterator
from typing import Any

from course_lib.exercises.judge import Facts, Mistake, Promise, Raised, judge, observe
from course_lib.i18n import N_

LESSON = "04_accumulation"
NAN = float("nan")
ROUNDING, DIFFERENT = 0.99e-5, 1.01e-3  #: relative differences on the two sides of what is left free

#: What is asked: a word for it, and how the second curve is made of the first.
CASES: dict[str, tuple[Callable[[list[float]], list[float]], bool]] = {
    "the same numbers": (lambda curve: list(curve), True),
    "every entry 1e-5 higher": (lambda curve: [each * (1 + ROUNDING) for each in curve], True),
    "one entry 1e-5 lower": (lambda curve: [curve[0] * (1 - ROUNDING), *curve[1:]], True),
    "first entry 1e-3 higher": (lambda curve: [curve[0] * (1 + DIFFERENT), *curve[1:]], False),
    "last entry 1e-3 lower": (lambda curve: [*curve[:-1], curve[-1] * (1 - DIFFERENT)], False),
    "one up and one down by 1e-3": (lambda curve: [
        curve[0] * (1 + DIFFERENT), curve[1] - curve[0] * DIFFERENT, *curve[2:]], False),
    "one entry missing at the end": (lambda curve: curve[:-1], False),
    "one entry more": (lambda curve: [*curve, curve[-1]], False),
    "nan in the second": (lambda curve: [*curve[:-1], NAN], False),
}  # fmt: skip
BOTH_NAN = "nan in both at the same place"
#: An absolute tolerance that suits one of them is wrong for the other.
SCALES = {"losses about 3": 1.0, "losses about 3e6": 1e6, "losses about 3e-6": 1e-6}


def some_curve(seed: int) -> tuple[float, ...]:
    """Five losses, no two alike."""
    draw = random.Random(seed)
    return tuple(loss + draw.uniform(-0.1, 0.1) for loss in (5.0, 4.25, 4.5, 3.0, 2.5))


def check_same_curve(same_curve: Callable[..., Any], curve: tuple[float, ...] = (3.5, 3.1, 2.7)) -> None:
    """``same_curve`` on made-up curves at three scales, whichever comes first."""
    right: dict[str, Any] = {}
    came: dict[str, Any] = {}
    for scale, factor in SCALES.items():
        first = [each * factor for each in curve]
        for what, (make, same) in CASES.items():
            fact = f"{what}, {scale}"
            right[fact] = same
            both = [_asked(same_curve, first, make(first)), _asked(same_curve, make(first), first)]
            came[fact] = both[0] if both[0] == both[1] else "depends on which comes first"
    with_nan = [*curve[:-1], NAN]
    right[BOTH_NAN], came[BOTH_NAN] = False, _asked(same_curve, with_nan, list(with_nan))
    promise = Promise(
        "same_curve", lambda fact: True,
        N_("another comparison than the relative difference, entry by entry. Compare the lengths first; then each "
           "pair: abs(x - y) at most 1e-4 × the larger; a nan is never the same"),
        LESSON,
    )  # fmt: skip
    judge(promise, came, right, MISTAKES, curve)


def _asked(same_curve: Callable[..., Any], first: list[float], second: list[float]) -> Any:
    said = observe(same_curve, first, second)
    return bool(said) if type(said).__name__ in ("bool_", "bool", "Tensor") else said  # numpy's and torch's will do


def _by_rule(*rules: Callable[[list[float], list[float]], Any]) -> Callable[[Any], Iterator[Facts]]:
    """What comes when this rule is used instead."""

    def shows(curve: Any) -> Iterator[Facts]:
        for rule in rules:
            shown: dict[str, Any] = {}
            for scale, factor in SCALES.items():
                first = [each * factor for each in curve]
                for what, (make, _same) in CASES.items():
                    both = [rule(first, make(first)), rule(make(first), first)]
                    shown[f"{what}, {scale}"] = both[0] if both[0] == both[1] else "depends on which comes first"
            with_nan = [*curve[:-1], NAN]
            yield {**shown, BOTH_NAN: rule(with_nan, list(with_nan))}

    return shows


def _pairs(close: Callable[[float, float], bool], lengths: Any = False) -> Callable[[list[float], list[float]], Any]:
    """``close`` for all pairs; ``lengths`` is the answer where lengths differ, None: the shorter one counts."""

    def rule(first: list[float], second: list[float]) -> Any:
        if len(first) != len(second) and lengths is not None:
            return lengths
        return all(close(one, other) for one, other in zip(first, second, strict=False))

    return rule


def _within(relative: float, absolute: float = 0.0) -> Callable[[list[float], list[float]], Any]:
    return _pairs(lambda one, other: abs(one - other) <= absolute + relative * max(abs(one), abs(other)))


def _relative(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-4 * max(abs(one), abs(other))


def _ends(first: list[float], second: list[float]) -> bool:
    return len(first) == len(second) and _relative(first[-1], second[-1])


def _averages(first: list[float], second: list[float]) -> bool:
    return len(first) == len(second) and _relative(sum(first) / len(first), sum(second) / len(second))


MISTAKES = (
    Mistake("absolute-difference",
            N_("the difference is compared with a fixed number, which is too strict for large losses or lets small "
               "ones through. Divide the difference by the loss"),
            LESSON, _by_rule(*(_within(0, limit) for limit in (1e-3, 3e-4, 1e-4, 5e-5)))),
    Mistake("relative-and-absolute",
            N_("besides the relative tolerance there is an absolute one (atol), which lets small losses through. Set "
               "it to 0"),
            LESSON, _by_rule(*(_within(1e-4, atol) for atol in (1e-3, 1e-6, 1e-8)))),
    Mistake("too-strict",
            N_("equal to the last bit is too much to ask: adding up in another order moves a sum by rounding. Allow "
               "a relative difference of 1e-5"),
            LESSON, _by_rule(operator.eq, *(_within(limit) for limit in (0, 1e-9, 1e-7, 1e-6)))),
    Mistake("too-loose",
            N_("a relative difference of 1e-3 passes, which is far more than rounding. Take a tolerance such as 1e-4"),
            LESSON, _by_rule(*(_within(limit) for limit in (1e-1, 1e-2, 3e-3)))),
    Mistake("lengths-ignored",
            N_("zip() stops at the shorter list, so unequal lengths pass. Compare the lengths first, or zip(..., "
               "strict=True)"),
            LESSON, _by_rule(_pairs(_relative, None))),
    Mistake("lengths-raise",
            N_("unequal lengths raise an error. The answer is False"),
            LESSON, _by_rule(*(_pairs(_relative, Raised(kind))
                               for kind in ("ValueError", "IndexError", "RuntimeError", "AssertionError")))),
    Mistake("nan-passes",
            N_("a nan passes: every comparison with nan is False, so `difference > tolerance` never objects. Ask the "
               "other way: all(difference <= tolerance)"),
            LESSON, _by_rule(_pairs(lambda one, other: not abs(one - other) > 1e-4 * max(abs(one), abs(other))))),
    Mistake("two-nans-are-the-same",
            N_("a nan in both curves passes. It says that nothing is known there; the answer is False"),
            LESSON, _by_rule(_pairs(lambda one, other: _relative(one, other) or (one != one and other != other)))),
    Mistake("only-the-end",
            N_("only the last entry is compared. Two curves that end alike can have gone different ways"),
            LESSON, _by_rule(_ends)),
    Mistake("averages-compared",
            N_("the averages of the curves are compared. One entry too high and one too low cancel out; compare "
               "entry by entry"),
            LESSON, _by_rule(_averages)),
    Mistake("no-abs",
            N_("the sign of the difference is lost on the way: a curve below the other always passes. Take abs() of "
               "it"),
            LESSON, _by_rule(_pairs(lambda one, other: one - other <= 1e-4 * max(abs(one), abs(other))),
                             _pairs(lambda one, other: other - one <= 1e-4 * max(abs(one), abs(other))))),
)  # fmt: skip
