"""Exercise 3, one large batch in small pieces: what ``train`` and ``same_curve`` promise, and how that is seen.

The names of mistakes are in :mod:`course_lib.exercises.accumulation_mistakes`.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import nn

from course_lib.exercises import accumulation_mistakes as mistakes
from course_lib.exercises import gradient_mistakes, update_mistakes
from course_lib.exercises.accumulation_mistakes import CALL, ENTRIES, FIRST, FULL, KINDS, LESSON, NUMBERS, ROOM, Case
from course_lib.exercises.judge import Facts, Near, Promise, judge, same
from course_lib.exercises.watched_training import Bench, Piece, Seen, Train, watch
from course_lib.i18n import N_, _
from course_lib.models import GPT

#: Sequences of a micro-batch; another number than accum_steps, so that a division by the one is not that by the other.
_ROWS, _STEPS = 3, 4


def even_bench(seed: int = 0, model: type[nn.Module] = GPT, updates: int = 2, left: int = 2) -> Bench:
    """Micro-batches of as many tokens each: full windows, and ``left`` micro-batches more."""
    return Bench((Piece(_ROWS),) * (updates * _STEPS + left), _STEPS, seed, model)


def uneven_bench(seed: int = 0, model: type[nn.Module] = GPT) -> Bench:
    """From 2 to 24 targets in a micro-batch, and a partial last window."""
    pieces = (
        Piece(3), Piece(2, (7,)), Piece(3, (2, 6)), Piece(2, (1,)),
        Piece(3, (7, 7, 0)), Piece(2), Piece(2, (3,)), Piece(3, (6,)),
    )  # fmt: skip
    turn = seed % 3
    return Bench(pieces[turn:] + pieces[:turn], 3, seed, model)


def holey_bench(seed: int = 0, model: type[nn.Module] = GPT) -> Bench:
    """One micro-batch has no target at all, its window has."""
    return Bench((Piece(2), Piece(2, (8,)), Piece(2, (4,)), Piece(2)), 2, seed, model)


def check_windows(train: Train, seed: int = 0, model: type[nn.Module] = GPT) -> None:
    """Where the updates fall, and what the list holds, for micro-batches of as many tokens each."""
    bench = even_bench(seed, model)
    case = Case(bench, watch(train, bench))
    right: dict[str, Any] = {CALL: NUMBERS}
    case.came[CALL] = case.seen.failed or NUMBERS
    if not case.seen.failed:
        right |= {
            mistakes.WINDOWS: [len(window) for window in bench.windows],
            ENTRIES: mistakes.near(bench.loss(window) for window in bench.windows),
            FIRST: "the same with another learning rate",
        }
        entries, moving = case.seen.entries or [], watch(train, bench, lr=1.0).entries or []
        alike = bool(entries and moving) and same(moving[0], Near(entries[0], ROOM))
        case.came |= {
            mistakes.WINDOWS: [len(window) for window in case.seen.windows],
            ENTRIES: entries,
            FIRST: right[FIRST] if alike or not entries else "changed by the update",
        }
    promise = Promise(
        _("train, windows and entries"), lambda fact: True,
        N_("an update in the wrong place. With 10 micro-batches and accum_steps=4 there are updates after the 4th, "
           "the 8th and the 10th, and one entry for each: summed loss ÷ unmasked tokens of its window"),
        LESSON,
    )  # fmt: skip
    judge(promise, case.came, right, mistakes.TRAIN, case)


def check_gradients(train: Train, seed: int = 0, model: type[nn.Module] = GPT) -> None:
    """The gradients of full windows of equal micro-batches, whichever windows the student's function made."""
    case, right = _even_gradients(train, seed, model)
    promise = Promise(
        _("train, gradients"), lambda fact: True,
        N_("a wrong divisor, or gradients lost or left over. backward() adds to .grad: divide each summed loss by "
           "the tokens of the whole window, and call zero_grad() once per window"),
        LESSON,
    )  # fmt: skip
    judge(promise, case.came, right, gradient_mistakes.GRADIENT, case)


def _even_gradients(train: Train, seed: int, model: type[nn.Module]) -> tuple[Case, Facts]:
    bench = even_bench(seed, model, updates=3, left=0)
    case = Case(bench, watch(train, bench))
    if case.seen.failed:
        case.came[CALL] = case.seen.failed
        return case, {CALL: NUMBERS}
    case.windows = [window for window in case.seen.windows if len(window) == bench.accum_steps]
    case.came[FULL] = "some" if case.windows else "none"
    return case, {FULL: "some", **_gradient_facts(case)}


def _gradient_facts(case: Case) -> Facts:
    """Right gradients of the windows that are judged; those that came go into the case."""
    right = {}
    for number, (window, gradient) in enumerate(zip(case.seen.windows, case.seen.gradients, strict=True), 1):
        if window in case.windows:
            fact = gradient_mistakes.gradient_fact(number)
            right[fact] = gradient_mistakes.RIGHT_GRADIENT
            case.came[fact] = gradient_mistakes.against(gradient, case.bench.gradient(window))
    return right


def check_tokens(train: Train, seed: int = 0, model: type[nn.Module] = GPT) -> None:
    """The same where micro-batches differ in the number of their targets. What was wrong before is not judged again."""
    even, even_right = _even_gradients(train, seed, model)
    wrong_gradients = not _holds(even.came, even_right)
    wrong_entries = even.seen.entries is not None and not _entries_hold(even)
    if wrong_gradients and wrong_entries:
        wrong_gradients = wrong_entries = False
    for bench in (uneven_bench(seed, model), holey_bench(seed, model)):
        case = Case(bench, watch(train, bench))
        right: dict[str, Any] = {CALL: NUMBERS}
        case.came[CALL] = case.seen.failed or NUMBERS
        if not case.seen.failed:
            if not wrong_gradients:
                case.windows = [window for window in case.seen.windows if any(bench.counts[each] for each in window)]
                right |= _gradient_facts(case)
            if not wrong_entries:
                entries = case.seen.entries or []
                if case.seen.windows == bench.windows or len(entries) == len(case.seen.windows):
                    right[ENTRIES] = mistakes.near(bench.loss(window) for window in case.seen.windows)
                    case.came[ENTRIES] = entries
        promise = Promise(
            _("train, unequal micro-batches") if bench.accum_steps == 3 else _("train, a micro-batch without targets"),
            lambda fact: True,
            N_("a mean over micro-batches where a mean over tokens was promised. Count the unmasked tokens of the "
               "whole window, take summed losses, and divide by that count"),
            LESSON,
        )  # fmt: skip
        judge(promise, case.came, right, gradient_mistakes.TOKENS, case)


def _holds(came: Facts, right: Facts) -> bool:
    return all(same(came[fact], right[fact]) for fact in right)


def _entries_hold(case: Case) -> bool:
    entries = (case.seen.entries or [])[: len(case.seen.windows)]
    return same(entries, mistakes.near(case.bench.loss(window) for window in case.seen.windows))


def check_empty(train: Train, seed: int = 0, model: type[nn.Module] = GPT) -> None:
    """A window without targets changes nothing and reports nan; windows of one micro-batch."""
    bench = Bench((Piece(2), Piece(2, (8,)), Piece(2, (3,))), 1, seed, model)
    seen = watch(train, bench, partial(torch.optim.AdamW, weight_decay=0.1), lr=0.01)
    right: dict[str, Any] = {CALL: NUMBERS}
    came: dict[str, Any] = {CALL: seen.failed or NUMBERS}
    if not seen.failed:
        right |= {KINDS: [mistakes.NUMBER, mistakes.NAN, mistakes.NUMBER], mistakes.WEIGHTS: mistakes.BEFORE}
        came |= {KINDS: [_kind(entry) for entry in seen.entries or []], mistakes.WEIGHTS: _weights_after(seen)}
    promise = Promise(
        _("train, a window without targets"), lambda fact: True,
        N_("a division by zero tokens, or an update that should not be. Where a window has no unmasked token, append "
           "float(\"nan\") and go on with the next window"),
        LESSON,
    )  # fmt: skip
    judge(promise, came, right, mistakes.EMPTY)


def _kind(entry: float) -> str:
    return mistakes.NAN if math.isnan(entry) else "0" if entry == 0 else mistakes.NUMBER


def _weights_after(seen: Seen) -> str:
    """Whether the third micro-batch met the weights that the first update left."""
    if not seen.after_update or 2 not in seen.at_forward:
        return "not seen"
    weights = seen.at_forward[2]
    if bool(weights.isnan().any()):
        return "nan"
    return mistakes.BEFORE if torch.equal(weights, seen.after_update[0]) else "changed"


def check_clip(train: Train, seed: int = 0, model: type[nn.Module] = GPT) -> None:
    """The first update's gradient with a limit, beside the student's own without."""
    case, came, right = _first_clipped(train, seed, model)
    promise = Promise(
        "train, max_grad_norm", lambda fact: True,
        N_("clipping at another moment, or of something else. Once per window, between the last backward and step(): "
           "torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)"),
        LESSON,
    )  # fmt: skip
    judge(promise, came, right, update_mistakes.CLIP if case else (), case)


def _first_clipped(
    train: Train, seed: int, model: type[nn.Module]
) -> tuple[update_mistakes.Clipped | None, Facts, Facts]:
    """The case, what came, and what is right."""
    bench = even_bench(seed, model)
    plain = watch(train, bench)
    if plain.failed or not plain.gradients or not float(plain.gradients[0].norm()):
        return None, {CALL: plain.failed or "no update"}, {CALL: NUMBERS}
    gradient = plain.gradients[0]
    # Low enough for single numbers to lie above it, or a clip by value would change nothing.
    low, high = float(gradient.abs().max()) / 2, float(gradient.norm()) * 1.5
    limits = {update_mistakes.CLIPPED: low, update_mistakes.UNTOUCHED: high}
    expected = {fact: update_mistakes.clip(gradient, limit) for fact, limit in limits.items()}
    case = update_mistakes.Clipped(bench, plain.windows[0], gradient, low, high, expected)
    came: dict[str, Any] = {}
    for fact, limit in limits.items():
        seen = watch(train, bench, max_grad_norm=limit)
        if seen.failed or not seen.gradients:
            came[fact] = seen.failed or "no update"
        else:
            came[fact] = gradient_mistakes.against(seen.gradients[0], expected[fact])
    return case, came, dict.fromkeys(came, gradient_mistakes.RIGHT_GRADIENT)


def check_scaler(train: Train, seed: int = 0, model: type[nn.Module] = GPT) -> None:
    """With a GradScaler the optimizer sees what it saw without; an overflow leaves the update out."""
    bench = even_bench(seed, model)
    plain = watch(train, bench)
    _, clip_came, clip_right = _first_clipped(train, seed, model)
    right: dict[str, Any] = {CALL: NUMBERS}
    if plain.failed or not plain.gradients:
        judge(_scaler_promise(), {CALL: plain.failed or "no update"}, right, ())
    gradient = plain.gradients[0]
    clips = _holds(clip_came, clip_right)  # where clipping itself is wrong, it was judged there
    limit = float(gradient.norm()) * 0.4 if clips else None
    scaler = _Scaler(2.0**10)
    seen = watch(train, bench, scaler=scaler, max_grad_norm=limit)
    expected = update_mistakes.clip(gradient, limit) if limit else gradient
    short = Bench((Piece(2),) * 4, 2, seed, model)
    windows = watch(train, short).windows
    case = update_mistakes.Scaled(
        gradient, limit, scaler.before, plain.entries or [], expected, len(windows), scaler.scaled
    )
    case.came[CALL] = seen.failed or NUMBERS
    if seen.gradients:
        right[update_mistakes.SCALED] = gradient_mistakes.RIGHT_GRADIENT
        case.came[update_mistakes.SCALED] = gradient_mistakes.against(seen.gradients[0], expected)
    if not seen.failed:
        right[update_mistakes.SCALED_ENTRIES] = mistakes.near(plain.entries or [])
        case.came[update_mistakes.SCALED_ENTRIES] = seen.entries
    scaler = _Scaler(2.0**10)
    over = watch(train, short, scaler=scaler, overflow_at=windows[-1][-1])
    right |= {update_mistakes.OVERFLOW_UPDATES: len(windows) - 1, update_mistakes.OVERFLOW_SCALE: Near(0.5)}
    case.came[update_mistakes.OVERFLOW_UPDATES] = len(over.gradients)
    case.came[update_mistakes.OVERFLOW_SCALE] = scaler.get_scale() / scaler.before
    judge(_scaler_promise(), case.came, right, update_mistakes.SCALER, case)


def _scaler_promise() -> Promise:
    return Promise(
        _("train, with a GradScaler"), lambda fact: True,
        N_("a call too many, too few, or in another order. Per micro-batch: scaler.scale(loss).backward(). Per "
           "window, once: scaler.unscale_(optimizer), clip, scaler.step(optimizer), scaler.update()"),
        update_mistakes.SCALER_LESSON,
    )  # fmt: skip


class _Scaler(torch.amp.GradScaler):
    """PyTorch's own on the CPU; remembers its first scale, and how often it was asked to scale."""

    def __init__(self, scale: float) -> None:
        super().__init__("cpu", init_scale=scale)
        self.before, self.scaled = scale, 0

    def scale(self, outputs: Any) -> Any:
        self.scaled += 1
        return super().scale(outputs)


def check_released(train: Train, seed: int = 0, model: type[nn.Module] = GPT) -> None:
    """One micro-batch's graph at a time, and numbers in the list."""
    bench = Bench((Piece(_ROWS),) * 8, _STEPS, seed, model)
    seen = watch(train, bench)
    right: dict[str, Any] = {CALL: NUMBERS}
    came: dict[str, Any] = {CALL: seen.failed or NUMBERS}
    if not seen.failed:
        right |= {mistakes.WAITING: 0, mistakes.KEPT: 0, mistakes.ROWS: _ROWS, mistakes.TYPES: ["float"]}
        came |= {mistakes.WAITING: seen.waiting, mistakes.KEPT: seen.kept, mistakes.ROWS: seen.most_rows}
        came[mistakes.TYPES] = sorted({type(entry).__name__ for entry in seen.returned})
    promise = Promise(
        _("train, what is kept"), lambda fact: True,
        N_("something that holds a graph. backward() after each forward pass, loss.item() for the sum, and no list "
           "of tensors"),
        LESSON,
    )  # fmt: skip
    judge(promise, came, right, mistakes.RELEASED, bench)
