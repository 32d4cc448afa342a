"""Exercise 3, the student's own configuration: what accumulation does to the peak of an update, and why."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from course_lib.accounts import Moment
from course_lib.dryrun.grow import at_depth
from course_lib.exercises.bench import Batch
from course_lib.exercises.judge import Broken, Mistake, Near, Promise, judge, refuse_stubs
from course_lib.i18n import N_, _
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.probe import as_on_a_card, probe
from course_lib.trace import Trace
from course_lib.training import train_step
from course_lib.units import GB, GIB

ROOM = 0.02
LESSON = "04_accumulation"
#: The example in the exercise's text, which is nobody's own configuration.
EXAMPLE = GPTConfig(vocab=4096, layers=4, heads=8, width=512, block_size=256)
#: From the second micro-batch on, which finds gradients there, an update's timeline repeats itself.
_ENOUGH = 2


def trace_of_update(config: GPTConfig, batch: int, length: int, accum_steps: int) -> Trace:
    """One fp32 update with AdamW (foreach) on the meta device, its state present.

    Args:
        batch: sequences in a micro-batch.
        length: tokens in each.
    """
    return at_depth(
        lambda layers: _measured(replace(config, layers=layers), batch, length, accum_steps), config.layers
    )


@cache
def _measured(config: GPTConfig, batch: int, length: int, accum_steps: int) -> Trace:
    with torch.device("meta"):
        model = GPT(config)
        tokens = torch.zeros(batch, length, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batches = [(tokens, torch.zeros_like(tokens)) for _ in range(min(accum_steps, _ENOUGH))]

    def update(window: list[Batch]) -> None:
        train_step(model, optimizer, window, lambda model, batch: next_token_loss(model(batch[0]), batch[1]))

    with as_on_a_card(tokens.device):
        update(batches[:1])  # makes Adam's state
    with probe(model, optimizer) as measured:
        update(batches)
    return measured.trace


def check_own_peaks(
    config: Any, batch: Any, length: Any, steps: Any, big_gib: Any, small_gib: Any, kept_gib: Any
) -> None:
    """The peak with one big batch and with micro-batches, and the gradients that stay between these, in GiB."""
    big, small, kept_bytes = _own(config, batch, length, steps)
    right = {name: Near(size_bytes / GIB, ROOM, "GiB") for name, size_bytes in (
        (_BIG, big.peak_bytes), (_SMALL, small.peak_bytes), (_KEPT, kept_bytes))}  # fmt: skip
    came = dict(zip((_BIG, _SMALL, _KEPT), (big_gib, small_gib, kept_gib), strict=True))
    promise = Promise(
        _("your configuration"), lambda fact: True,
        N_("other sizes than those in the cell, or another unit. Measure with trace_of(...), divide the bytes by "
           "2**30; an fp32 gradient has 4 bytes for each parameter"),
        LESSON, tells=False,
    )  # fmt: skip
    judge(promise, came, right, PEAKS, ({name: near.value for name, near in right.items()}, steps))


def check_own_reason(config: Any, batch: Any, length: Any, steps: Any, reason: Any) -> None:
    """What would lower the accumulated peak: by the moment in which it falls."""
    _big, small, _kept = _own(config, batch, length, steps)
    right = "A" if small.peak_moment is Moment.OPTIMIZER_STEP else "B"
    promise = Promise(
        _("your reason (the peak with accumulation falls in {moment})").format(moment=small.peak_moment),
        lambda fact: True,
        N_("a reason that belongs to another moment of the update. Ask which accounts are alive at the peak with "
           "accumulation, and whether a smaller micro-batch makes any of them smaller"),
        LESSON, tells=False,
    )  # fmt: skip
    judge(promise, {"reason": reason}, {"reason": right}, REASON)


def _own(config: Any, batch: Any, length: Any, steps: Any) -> tuple[Trace, Trace, int]:
    """Traces of the big batch and of the micro-batches, and the bytes of all gradients, if the configuration is one.

    Raises:
        Broken: it is not, is the example's, or too large to be measured quickly.
    """
    def refuse(what: str) -> None:
        raise Broken(f"✗ {what}")

    refuse_stubs(_("your configuration"), config, batch, length, steps)
    if not isinstance(config, GPTConfig) or not all(type(each) is int and each > 0 for each in (batch, length, steps)):
        refuse(_("expected my_config = GPTConfig(...), my_batch, my_length and my_steps whole numbers from 1; got "
                 "{came}").format(came=(config, batch, length, steps)))  # fmt: skip
    if config == EXAMPLE:
        refuse(_("this is the example's configuration: change at least the number of layers or the width"))
    if steps < 2 or config.layers > 24 or length > config.block_size or steps * batch * length > 2**17:
        refuse(_("expected my_steps from 2, at most 24 layers, 131,072 tokens in an update, and my_length at most "
                 "block_size; got {steps} steps, {layers} layers, {tokens:,} tokens, my_length {length} with "
                 "block_size {block}").format(steps=steps, layers=config.layers, tokens=steps * batch * length,
                                              length=length, block=config.block_size))  # fmt: skip
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in GPT(config).parameters())
    if not 10**6 <= count <= 10**10:
        refuse(_("expected between a million and ten billion parameters, got {count:,}").format(count=count))
    return trace_of_update(config, steps * batch, length, 1), trace_of_update(config, batch, length, steps), 4 * count


_BIG, _SMALL, _KEPT = "big batch", "accumulated", "kept gradients"

PEAKS = (
    Mistake("gb-for-gib",
            N_("that is GB, of 10**9 bytes. A GiB has 2**30, 7 % more: divide by 2**30"),
            "01_ledger", lambda case: ({name: Near(value * GIB / GB, ROOM / 4) for name, value in case[0].items()},)),
    Mistake("mib-for-gib",
            N_("that is MiB. Divide by 2**30"),
            "01_ledger", lambda case: ({name: Near(value * 1024, ROOM) for name, value in case[0].items()},)),
    Mistake("peak-divided-by-n",
            N_("you divided the big batch's peak by the number of micro-batches. Only activations shrink; weights, "
               "gradients and Adam's state stay. Measure it"),
            LESSON, lambda case: ({_SMALL: Near(case[0][_BIG] / case[1], ROOM)},)),
    Mistake("gradients-times-n",
            N_("every backward adds to the same .grad: there is one gradient for each parameter, whatever the number "
               "of micro-batches"),
            LESSON, lambda case: ({_KEPT: Near(case[0][_KEPT] * case[1], ROOM)},)),
    Mistake("gradients-in-16-bit",
            N_("you counted 2 bytes for a gradient. This update is fp32: 4 bytes"),
            LESSON, lambda case: ({_KEPT: Near(case[0][_KEPT] / 2, ROOM)},)),
    Mistake("gradients-freed",
            N_("gradients do not go away between micro-batches: they are what accumulates"),
            LESSON, lambda case: ({_KEPT: none} for none in (0, 0.0))),
    Mistake("peaks-swapped",
            N_("the two peaks are swapped"),
            LESSON, lambda case: ({_BIG: Near(case[0][_SMALL], ROOM), _SMALL: Near(case[0][_BIG], ROOM)},)),
)  # fmt: skip

REASON = (
    Mistake("peak-divided-by-n",
            N_("C would be right if activations were all. What does not depend on the batch stays as it is"),
            LESSON, lambda case: ({"reason": "C"},)),
    Mistake("gradients-times-n",
            N_("D: backward() adds to the .grad that is there. N micro-batches have one set of gradients between them"),
            LESSON, lambda case: ({"reason": "D"},)),
    Mistake("wrong-moment",
            N_("A and B differ in the moment of the peak with accumulation. In the optimizer's step no activation is "
               "alive, so a smaller micro-batch changes nothing; in the forward and backward pass they are"),
            "01_ledger", lambda case: ({"reason": letter} for letter in ("A", "B"))),
)  # fmt: skip
