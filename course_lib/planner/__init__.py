"""The planner: the cheapest cuts with which a model's training fits a card, by the ledger alone.

``ladder(wish)`` climbs through the recipes of :mod:`course_lib.planner.cuts` in order of price and keeps each that
needs clearly less memory than all before it; a plan is that ladder up to its first rung that fits. So of two cards
that train in the same number format, the larger never needs a rung more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from course_lib import ledger
from course_lib.cards import Card
from course_lib.device import Capacity, DeviceRange, Verdict
from course_lib.errors import CourseError
from course_lib.planner.cuts import Change, Choice, Wish, choices, merge, pays_for_nothing, with_cut
from course_lib.planner.price import price_of
from course_lib.recipe import MOST, MOST_TOKENS, Recipe
from course_lib.report import Report
from course_lib.shape import ModelShape

#: Half a per cent, to which the ledger is good on published peaks (benchmarks/README.md); a smaller saving is none.
LEDGER_ERROR_PER_MILLE = 5

__all__ = ["Plan", "Step", "Wish", "ladder", "plan", "wish_for"]


@dataclass(frozen=True)
class Step:
    """A recipe that needs less than the ones before it: what it changes of the wish, and what that costs."""

    wish: Wish
    recipe: Recipe
    report: Report

    @property
    def peak_bytes(self) -> int:
        """Allocated."""
        return self.report.forecast.peak_bytes

    @property
    def device(self) -> DeviceRange:
        return self.report.device

    @property
    def cut(self) -> str:
        return self.recipe.flags_beyond(self.wish.recipe)

    @property
    def price(self) -> str:
        return price_of(self.wish, self.recipe)

    def to_dict(self) -> dict[str, Any]:
        return {
            "cut": self.cut,
            "recipe": self.recipe.to_dict(),
            "peak_allocated_bytes": self.peak_bytes,
            "device_used_high": self.device.high_bytes,
            "price": self.price,
        }


@dataclass(frozen=True)
class Plan:
    """The way from a wish to a recipe that fits, or as far as cuts lead."""

    wish: Wish
    card: Capacity
    start: Step  #: the wish itself, without a cut
    steps: tuple[Step, ...]

    @property
    def end(self) -> Step:
        return self.steps[-1] if self.steps else self.start

    @property
    def verdict(self) -> Verdict:
        return self.end.device.verdict(self.card.usable_bytes)

    @property
    def fits(self) -> bool:
        """Surely; a recipe that is tight does not count."""
        return self.verdict == "fits"

    @property
    def exit_code(self) -> int:
        return int(self.verdict == "does-not-fit")

    @cached_property
    def max_batch(self) -> int:
        """The largest micro-batch that surely fits, with all else as in the plan; 0 where none does."""
        recipe = self.end.recipe
        return self._largest("batch", min(MOST["batch"], MOST_TOKENS // recipe.seq))

    @cached_property
    def max_seq(self) -> int:
        """The longest sequences that surely fit, with all else as in the plan; 0 where none do."""
        most = self.wish.shape.learned_positions or MOST["seq"]
        return self._largest("seq", min(most, MOST_TOKENS // self.end.recipe.batch))

    def _largest(self, field: str, most: int) -> int:
        def fits(size: int) -> bool:
            step = _step(self.wish, replace(self.end.recipe, **{field: size}))  # type: ignore[arg-type]
            return step.device.verdict(self.card.usable_bytes) == "fits"

        return _largest_that(fits, most)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON holds it; every size in bytes."""
        return {
            "gpu": self.card.name,
            "usable_bytes": self.card.usable_bytes,
            "fits": self.fits,
            "recipe": self.end.recipe.to_dict(),
            "steps": [step.to_dict() for step in self.steps],
            "max_batch": self.max_batch,
            "max_seq": self.max_seq,
        }


def wish_for(shape: ModelShape, recipe: Recipe, kept: frozenset[str], card: Capacity) -> Wish:
    """A wish for this card: where the number format is open, the one that the card trains in.

    Raises:
        CourseError: what is kept of the recipe does not go with that format.
    """
    dtype = card.training_type().dtype if isinstance(card, Card) else "bf16"
    if "precision" not in kept:
        recipe = replace(recipe, precision={"bf16": "bf16", "fp16": "amp-fp16", "fp32": "fp32"}[dtype])
    return Wish(shape, recipe, kept, dtype)


def ladder(wish: Wish) -> Iterator[Step]:
    """The wish, then ever dearer recipes, each of which needs less than all before it: allocated and on the card.

    Raises:
        CourseError: the ledger does not cover the wish.
    """
    start = _step(wish, wish.recipe)
    yield start
    yield from _Climb(wish, start).below(Change(), choices(wish))


class _Climb:
    """Goes through all combinations of cuts in order of price, and past those that cannot need less."""

    def __init__(self, wish: Wish, start: Step) -> None:
        self.wish, self.least = wish, start
        self._measured: dict[Recipe, Step | None] = {wish.recipe: start}

    def below(self, cut: Change, rest: tuple[Choice, ...]) -> Iterator[Step]:
        """The steps with ``cut``, dearer choices, made already and the ``rest``, cheaper ones, open."""
        if pays_for_nothing(cut):
            return
        if not rest:
            step = self._measure(cut)
            if step and _clearly_less(step, self.least):
                self.least = step
                yield step
            return
        best = [self._measure(merge(cut, *changes)) for changes in product(*(choice.extremes for choice in rest))]
        if any(best) and not any(step and _clearly_less(step, self.least) for step in best):
            return
        for change in rest[0].levels:
            yield from self.below(merge(cut, change), rest[1:])

    def _measure(self, cut: Change) -> Step | None:
        recipe = with_cut(self.wish, cut)
        if recipe is None:
            return None
        if recipe not in self._measured:
            try:
                self._measured[recipe] = _step(self.wish, recipe)
            except CourseError:  # the ledger does not cover it
                self._measured[recipe] = None
        return self._measured[recipe]


def plan(wish: Wish, card: Capacity) -> Plan:
    """The cheapest cuts with which ``wish`` surely fits ``card``; if none do, all the way down."""
    steps: list[Step] = []
    for step in ladder(wish):
        steps.append(step)
        if step.device.verdict(card.usable_bytes) == "fits":
            break
    return Plan(wish, card, steps[0], tuple(steps[1:]))


def _clearly_less(step: Step, than: Step) -> bool:
    """Allocated and on the card, by more than the ledger's own error."""
    sizes = ((step.peak_bytes, than.peak_bytes), (step.device.high_bytes, than.device.high_bytes))
    return all(1000 * size <= (1000 - LEDGER_ERROR_PER_MILLE) * least for size, least in sizes)


def _step(wish: Wish, recipe: Recipe) -> Step:
    return Step(wish, recipe, ledger.report(wish.shape, recipe))


def _largest_that(fits: Callable[[int], bool], most: int) -> int:
    """The largest whole number up to ``most`` that fits, where no larger number fits if a smaller one does not."""
    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, high * 2
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
