"""Exercise 2, what checkpointing saves and costs: what each function promises, and how that is seen.

The names of mistakes are in :mod:`course_lib.exercises.checkpointing_mistakes` and :mod:`.saving_mistakes`.
"""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from course_lib.exercises import checkpointing_mistakes as mistakes
from course_lib.exercises import saving_mistakes
from course_lib.exercises.judge import Near, Promise, Raised, judge, observe
from course_lib.exercises.segments import Bed, compared
from course_lib.i18n import N_, _
from course_lib.models import GPT

CheckpointBlocks = Callable[..., Any]
LESSON = "03_checkpointing"


def check_gradients(checkpoint_blocks: CheckpointBlocks, seed: int = 0, model: type[nn.Module] = GPT) -> None:
    """Same loss, bitwise the same gradients, every block run twice."""
    _judge(checkpoint_blocks, Bed(seed, model), Promise(
        "checkpoint_blocks",
        lambda fact: fact in (mistakes.RETURNS, mistakes.LOSS, mistakes.GRADIENTS, mistakes.RUNS),
        N_("a block that is not run as it was. Change each block's forward in place, keep the old one, and let the "
           "new one call torch.utils.checkpoint.checkpoint on it; return the same model"),
        LESSON,
    ))  # fmt: skip


def check_segments(checkpoint_blocks: CheckpointBlocks, seed: int = 0, model: type[nn.Module] = GPT) -> None:
    """``every`` consecutive blocks are one segment, the remainder the last."""
    _judge(checkpoint_blocks, Bed(seed, model), Promise(
        "checkpoint_blocks(model, every)",
        lambda fact: fact.startswith((mistakes.KEPT, mistakes.EVERY)),
        N_("segments cut in another way. Blocks 0 … every−1 are one segment, the next `every` blocks another, what "
           "is left the last; each segment is one call of checkpoint; every below 1 raises ValueError"),
        LESSON,
    ))  # fmt: skip


def check_dropout(checkpoint_blocks: CheckpointBlocks, seed: int = 0, model: type[nn.Module] = GPT) -> None:
    """With the same seed, the recomputed pass drops the same numbers."""
    _judge(checkpoint_blocks, Bed(seed, model), Promise(
        _("checkpoint_blocks, with dropout"), lambda fact: fact == mistakes.DROPOUT,
        N_("a second pass that draws other random numbers. checkpoint keeps the random state unless it is told not to"),
        LESSON,
    ))  # fmt: skip


def check_frozen(checkpoint_blocks: CheckpointBlocks, seed: int = 0, model: type[nn.Module] = GPT) -> None:
    """Blocks learn although what enters the first of them needs no gradient."""
    _judge(checkpoint_blocks, Bed(seed, model), Promise(
        _("checkpoint_blocks, with a frozen embedding"), lambda fact: fact == mistakes.FROZEN,
        N_("the reentrant variant, whose output needs no gradient when its input needs none. Say use_reentrant=False"),
        LESSON,
    ))  # fmt: skip


def check_modes(checkpoint_blocks: CheckpointBlocks, seed: int = 0, model: type[nn.Module] = GPT) -> None:
    """Recomputed in training mode alone, and the weights keep their names."""
    _judge(checkpoint_blocks, Bed(seed, model), Promise(
        _("checkpoint_blocks, modes and names"),
        lambda fact: fact in (mistakes.RUNS_EVAL, mistakes.RUNS_AGAIN, mistakes.EVAL_LOSS, mistakes.KEYS),
        N_("a mode that is not asked when the block runs. Look at block.training inside the new forward, and put no "
           "new module around a block, which would rename its weights"),
        LESSON,
    ))  # fmt: skip


def _judge(checkpoint_blocks: CheckpointBlocks, bed: Bed, promise: Promise) -> None:
    came, right = bed.look(checkpoint_blocks), bed.right()
    runs = came[mistakes.RUNS]
    if isinstance(runs, list) and 2 in runs:  # which blocks are recomputed was judged before
        right[mistakes.RUNS_AGAIN] = right[mistakes.RUNS_LATER] = runs
    judge(promise, came, right, mistakes.TABLE, bed)


def check_compare(
    compare: Callable[..., Any],
    checkpoint_blocks: CheckpointBlocks,
    key: str,
    seed: int = 0,
    model: type[nn.Module] = GPT,
) -> None:
    """``compare``'s ``activation_saving`` or ``extra_flops``, for whatever ``checkpoint_blocks`` does."""
    right: dict[str, Any] = {}
    came: dict[str, Any] = {}
    cases = []
    usual = _USUAL[key]
    for every, dropout in ((1, 0.0), (2, 0.1)):
        bed = Bed(seed, model, dropout)
        said = _said(compare, bed, every)
        measured = _measured(checkpoint_blocks, bed, every)
        if isinstance(measured, Raised):  # then compare cannot be right either
            measured, usual = compared(lambda model, every: model, bed, every), _USUAL["step 1"]
        cases.append((every, bed, measured))
        for name, value in measured.figures.items():
            fact = saving_mistakes.figure_of(name, every, bed)
            came[fact] = said.get(name, "nothing") if isinstance(said, dict) else said
            right[fact] = Near(value, mistakes.ROOM)
        ratio = saving_mistakes.figure_of("time_ratio", every, bed)
        seconds = said.get("time_ratio") if isinstance(said, dict) else said
        above_0 = isinstance(seconds, int | float) and seconds > 0
        came[ratio], right[ratio] = "a number above 0" if above_0 else seconds, "a number above 0"
    promise = Promise(f"compare, {key}", lambda fact: key in fact or "time_ratio" in fact, usual, LESSON)
    judge(promise, came, right, saving_mistakes.COMPARE, cases)


_USUAL = {
    saving_mistakes.SAVING: N_(
        "other bytes than those saved for the backward pass. Count in saved_tensors_hooks around forward pass and "
        "loss, each storage once, no parameters; then 1 − with ÷ without"
    ),
    saving_mistakes.FLOPS: N_(
        "another quotient. Count the FLOPs of a whole step, forward and backward, with and without: (with − without) ÷ "
        "without"
    ),
    "step 1": N_("checkpoint_blocks itself fails on this model. Mend step 1 first, then run this cell again"),
}


def _said(compare: Callable[..., Any], bed: Bed, every: int) -> Any:
    """What ``compare`` returns or raises."""
    return _once(compare, bed, every, lambda: observe(compare, bed.fresh, bed.batch, every))


def _measured(checkpoint_blocks: CheckpointBlocks, bed: Bed, every: int) -> Any:
    """What it has to find."""
    return _once(checkpoint_blocks, bed, every, lambda: observe(compared, checkpoint_blocks, bed, every))


_found: "WeakKeyDictionary[Callable[..., Any], dict[Any, Any]]" = WeakKeyDictionary()


def _once(function: Callable[..., Any], bed: Bed, every: int, find: Callable[[], Any]) -> Any:
    """Two test cells ask the same of a function; once is enough."""
    known = _found.setdefault(function, {})
    key = (str(bed), *bed.key, every)
    if key not in known:
        known[key] = find()
    return known[key]


def some_blocks(seed: int) -> list[tuple[int, int, int]]:
    """For :func:`check_best_every`: blocks, boundary bytes, inside bytes; the corners, and some in between."""
    draw = torch.Generator().manual_seed(seed)

    def one(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=draw))

    corners = [(1, 5, 5), (24, 64, 64), (96, 1000, 1), (80, 8192, 122_880)]
    return corners + [(one(20, 100), one(50, 5000), one(5, 500)) for _ in range(4)]


def check_best_every(best_every: Callable[[int, int, int], Any], asked: Sequence[tuple[int, int, int]]) -> None:
    """``best_every`` for each (blocks, boundary bytes, inside bytes)."""
    right = {f"best_every{each}": saving_mistakes.cheapest(*each) for each in asked}
    came = {f"best_every{each}": observe(best_every, *each) for each in asked}
    promise = Promise(
        "best_every", lambda fact: True,
        N_("a formula that does not fit whole segments. Try every K from 1 to n_blocks, compute "
           "ceil(n_blocks / K) · boundary + K · inside, and keep the first of the smallest"),
        LESSON,
    )  # fmt: skip
    judge(promise, came, right, saving_mistakes.BEST, asked)
