"""The mistakes of exercise 3 that lie between the last backward pass and the update: clipping, and the scaler."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.exercises.accumulation_mistakes import CALL, LESSON, near
from course_lib.exercises.gradient_mistakes import DIVISIONS, RIGHT_GRADIENT, against, combined, tokens_in
from course_lib.exercises.judge import Facts, Mistake, Near, Raised, same
from course_lib.exercises.watched_training import Bench
from course_lib.i18n import N_

# --- clipping ---------------------------------------------------------------------------------------------------------


class Clipped(NamedTuple):
    """A first update with clipping beside the same without."""

    bench: Bench
    window: list[int]
    plain: Tensor  #: the student's own gradient without clipping
    low: float  #: a limit below its length, which must clip
    high: float  #: one above it, which must not
    right: dict[str, Tensor]  #: by fact

    @property
    def tokens(self) -> int:
        return tokens_in(self.bench, self.window)


CLIPPED, UNTOUCHED = N_("first gradient, limit below its length"), N_("first gradient, limit above its length")


def clip(gradient: Tensor, limit: float) -> Tensor:
    """As ``torch.nn.utils.clip_grad_norm_``: ``g * min(1, limit / (|g| + 1e-6))``."""
    return gradient * min(1.0, limit / (float(gradient.norm()) + 1e-6))


def _clipped(*ways: Callable[[Clipped, float], Tensor]) -> Any:
    def shows(case: Clipped) -> Iterator[Facts]:
        for way in ways:
            yield {fact: against(way(case, limit), case.right[fact])
                   for fact, limit in ((CLIPPED, case.low), (UNTOUCHED, case.high))}  # fmt: skip

    return shows


def _each_micro_batch(case: Clipped, limit: float, division: str = "tokens") -> Tensor:
    total: Tensor = torch.zeros(())
    for each in case.window:
        total = clip(total + combined(case.bench, case.window, DIVISIONS[division], [each]), limit)
    return total


def _own_parts(case: Clipped, limit: float) -> Tensor:
    parts = [clip(combined(case.bench, case.window, DIVISIONS["tokens"], [each]), limit) for each in case.window]
    return sum(parts, torch.zeros(()))


def _each_tensor(case: Clipped, limit: float) -> Tensor:
    sizes = [parameter.numel() for parameter in case.bench.make_model().parameters()]
    return torch.cat([clip(part, limit) for part in case.plain.split(sizes)])


CLIP = (
    Mistake("clip-every-micro-batch",
            N_("clipped after every micro-batch. The limit is for the gradient of the whole window: clip once, after "
               "the last backward and before step()"),
            LESSON, _clipped(_each_micro_batch, lambda case, limit: _each_micro_batch(case, limit, "mean"),
                             lambda case, limit: _each_micro_batch(case, limit, "mean") / len(case.window),
                             lambda case, limit: _each_micro_batch(case, limit, "sum") / case.tokens,
                             _own_parts)),
    Mistake("clip-left-out",
            N_("max_grad_norm changes nothing. Call torch.nn.utils.clip_grad_norm_(model.parameters(), "
               "max_grad_norm) before step(), unless it is None"),
            LESSON, _clipped(lambda case, limit: case.plain)),
    Mistake("clip-by-value",
            N_("each number was clipped by itself. clip_grad_norm_ shortens the whole gradient and keeps its "
               "direction"),
            LESSON, _clipped(lambda case, limit: case.plain.clamp(-limit, limit))),
    Mistake("clip-each-tensor",
            N_("each tensor was clipped by itself. The norm is that of all gradients together: give clip_grad_norm_ "
               "all parameters at once"),
            LESSON, _clipped(_each_tensor)),
    Mistake("clip-stretches",
            N_("a gradient below the limit was made longer. Clipping only shortens: the factor is at most 1"),
            LESSON, _clipped(lambda case, limit: case.plain * limit / case.plain.norm())),
    Mistake("clip-before-division",
            N_("clipped first, divided by the tokens afterwards. The limit is for the gradient that the optimizer "
               "sees: divide, then clip"),
            LESSON, _clipped(
                lambda case, limit: clip(case.plain * case.tokens, limit) / case.tokens,
                lambda case, limit: clip(case.plain * len(case.window), limit) / len(case.window))),
)  # fmt: skip


# --- the scaler -------------------------------------------------------------------------------------------------------


@dataclass
class Scaled:
    """A first update with a scaler beside the same without, and an overflow."""

    plain: Tensor  #: the student's own first gradient without clipping or scaler
    limit: float | None  #: where the first run clips
    scale: float
    entries: list[float]  #: the student's own without a scaler
    right: Tensor
    updates: int  #: in the run with an overflow, the last of them included
    scaled_losses: int = 0  #: calls of ``scaler.scale``
    came: dict[str, Any] = field(default_factory=dict)


SCALED, SCALED_ENTRIES = N_("first gradient with a scaler"), N_("entries with a scaler")
OVERFLOW_UPDATES, OVERFLOW_SCALE = N_("updates, when the last overflows"), N_("scale afterwards ÷ before")


def _scaled(case: Scaled, gradient: Tensor, **more: Any) -> Facts:
    return {SCALED: against(gradient, case.right), **more}


def _unscaled_twice(case: Scaled) -> Iterator[Facts]:
    if _told(case, "unscale_() has already") and not _first_is_right(case):
        yield {CALL: case.came[CALL], **_as_it_came(case)}
    limited = clip(case.plain / case.scale, case.limit) if case.limit else case.plain / case.scale
    yield _scaled(case, limited)


def _past_the_scaler(case: Scaled) -> Iterator[Facts]:
    if not case.scaled_losses:
        return
    long = case.plain * case.scale
    no_update_before = SCALED not in case.came
    if _told(case, "No inf checks") and not (no_update_before and _told(case, "prior to update")):
        yield {CALL: case.came[CALL], SCALED: case.came.get(SCALED), **_as_it_came(case)}
    if _told(case, "unscale_() has already") and _first_is_right(case):
        yield {CALL: case.came[CALL], **_as_it_came(case)}
    for gradient in (case.right, long, clip(long, case.limit) if case.limit else long):
        for scale in (1.0, 0.5):
            yield {SCALED: against(gradient, case.right), OVERFLOW_UPDATES: case.updates, OVERFLOW_SCALE: Near(scale)}


def _update_left_out(case: Scaled) -> Iterator[Facts]:
    if _told(case, "step() has already") or _told(case, "called after step()"):
        yield {CALL: case.came[CALL], **_as_it_came(case)}


def _update_too_often(case: Scaled) -> Iterator[Facts]:
    if _told(case, "prior to update") and SCALED not in case.came:
        yield {CALL: case.came[CALL], **_as_it_came(case)}


def _told(case: Scaled, words: str) -> bool:
    """Whether the scaler complained with these words (torch/amp/grad_scaler.py)."""
    told = case.came.get(CALL)
    return isinstance(told, Raised) and words in told.text


def _first_is_right(case: Scaled) -> bool:
    return SCALED in case.came and same(case.came[SCALED], RIGHT_GRADIENT)


def _as_it_came(case: Scaled) -> Facts:
    """What the overflow showed matters little where the first run ended in an error."""
    return {fact: case.came.get(fact) for fact in (OVERFLOW_UPDATES, OVERFLOW_SCALE)}


SCALER_LESSON = "02_mixed_precision"
SCALER = (
    Mistake("unscaled-twice",
            N_("the gradients are unscaled more than once. unscale_() belongs once per update: after the window's "
               "last backward, before clipping. scaler.step() unscales by itself where you have not"),
            SCALER_LESSON, _unscaled_twice),
    Mistake("clip-before-unscale",
            N_("clipped while the gradients still carry the scale, so nearly everything is cut off. Call "
               "scaler.unscale_(optimizer) first, then clip"),
            SCALER_LESSON, lambda case: (_scaled(case, clip(case.plain * case.scale, case.limit) / case.scale),)
            if case.limit else ()),
    Mistake("scaler-ignored",
            N_("the scaler is never asked: scale the loss before backward, and let scaler.step(optimizer) and "
               "scaler.update() do the update"),
            SCALER_LESSON, lambda case: () if case.scaled_losses else (
                {OVERFLOW_UPDATES: case.updates, OVERFLOW_SCALE: Near(1.0)},)),
    Mistake("past-the-scaler",
            N_("optimizer.step() was called past the scaler, so gradients that are scaled or infinite reach the "
               "weights. Call scaler.step(optimizer), which leaves the update out when a gradient is infinite, then "
               "scaler.update()"),
            SCALER_LESSON, _past_the_scaler),
    Mistake("scaler-update-left-out",
            N_("scaler.update() is missing. Call it once per update, after scaler.step(optimizer); it halves the "
               "scale after an overflow"),
            SCALER_LESSON, _update_left_out),
    Mistake("scaler-update-too-often",
            N_("scaler.update() runs before there is an update to judge. Call it once per update, after "
               "scaler.step(optimizer), not after each micro-batch"),
            SCALER_LESSON, _update_too_often),
    Mistake("entry-scaled",
            N_("the entries carry the scale. Read the loss before it is scaled"),
            SCALER_LESSON, lambda case: ({SCALED_ENTRIES: near(entry * case.scale for entry in case.entries)},)),
)  # fmt: skip
