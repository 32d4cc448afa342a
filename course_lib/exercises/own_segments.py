"""Exercise 2, the student's own model: what a block keeps, and the segment length that follows from it."""

from typing import Any

import torch

from course_lib.exercises.judge import Broken, Mistake, Near, Promise, judge, refuse_stubs
from course_lib.exercises.saving_mistakes import cheapest
from course_lib.exercises.segments import alive_after_forward
from course_lib.i18n import N_, _
from course_lib.models import GPT, GPTConfig
from course_lib.units import MIB

LESSON = "03_checkpointing"
ROOM = 0.03
#: The example in the exercise's text, which is nobody's own model.
EXAMPLE = GPTConfig(vocab=4096, layers=8, heads=8, width=512, block_size=256)

BYTES = (
    Mistake("mib-for-bytes",
            N_("these are MiB. Give bytes, as the instruments do"),
            LESSON, lambda case: ({name: Near(value / MIB, ROOM) for name, value in case.items()},)),
    Mistake("numbers-for-bytes",
            N_("these are numbers, not bytes: a number in FP32 has 4 bytes"),
            LESSON, lambda case: ({"my_boundary_bytes": case["my_boundary_bytes"] // 4},)),
    Mistake("boundary-in-16-bit",
            N_("the model is FP32, so a number of its boundary has 4 bytes, not 2"),
            LESSON, lambda case: ({"my_boundary_bytes": case["my_boundary_bytes"] // 2},)),
    Mistake("inside-with-boundary",
            N_("one block more keeps its inside and its own input. Subtract the boundary once"),
            LESSON, lambda case: ({"my_inside_bytes": Near(
                case["my_inside_bytes"] + case["my_boundary_bytes"], ROOM)},)),
    Mistake("one-sequence",
            N_("that is the boundary of one sequence. It has as many as the batch"),
            LESSON, lambda case: ({"my_boundary_bytes": case["my_boundary_bytes"] // case["batch"]},)),
)  # fmt: skip

EVERY = (
    Mistake("always-the-square-root",
            N_("√n holds only where inside and boundary are alike. In a transformer block the inside is more than "
               "ten times its input, so √(n · boundary ÷ inside) decides"),
            LESSON, lambda case: ({"reason": "C"},)),
    Mistake("one-segment-keeps-least",
            N_("one segment keeps one boundary, but when it is recomputed the insides of all blocks are alive at "
               "once: K · inside"),
            LESSON, lambda case: ({"reason": "D"},)),
)  # fmt: skip


def check_own_bytes(config: Any, batch: Any, length: Any, boundary_bytes: Any, inside_bytes: Any) -> None:
    """A block's input and inside, in bytes, for the student's model in FP32 on a card."""
    boundary, inside = _measured(config, batch, length)
    refuse_stubs("my_boundary_bytes, my_inside_bytes", boundary_bytes, inside_bytes)
    promise = Promise(
        _("your model"), lambda fact: True,
        N_("a boundary that is not one [batch, length, width] tensor in FP32, or an inside that was read off one "
           "model alone. inside = kept with two blocks − kept with one − boundary"),
        LESSON, tells=False,
    )  # fmt: skip
    right = {"my_boundary_bytes": boundary, "my_inside_bytes": Near(inside, ROOM, "B")}
    case = {"my_boundary_bytes": boundary, "my_inside_bytes": inside, "batch": batch}
    judge(promise, {"my_boundary_bytes": boundary_bytes, "my_inside_bytes": inside_bytes}, right, BYTES, case)


def check_own_every(
    config: Any, batch: Any, length: Any, boundary_bytes: Any, inside_bytes: Any, every: Any, reason: Any
) -> None:
    """The K that follows from the student's own figures, and why it is that one."""
    boundary, inside = _measured(config, batch, length)
    refuse_stubs("my_every, reason", every, reason)
    if all(type(each) is int and each > 0 for each in (boundary_bytes, inside_bytes)):
        boundary, inside = boundary_bytes, inside_bytes  # what is wrong with them was said above
    best = cheapest(config.layers, boundary, inside)
    promise = Promise(
        _("your segment length"), lambda fact: True,
        N_("another K than the formula's, or a reason that belongs to another K. Put your layers and both byte "
           "figures into best_every; A says why it can be 1, B why it can be more"),
        LESSON, tells=False,
    )  # fmt: skip
    right = {"my_every": best, "reason": "A" if best == 1 else "B"}
    judge(promise, {"my_every": every, "reason": reason}, right, EVERY)


def _measured(config: Any, batch: Any, length: Any) -> tuple[int, int]:
    """Boundary and inside of a block in bytes, on the meta device.

    Raises:
        Broken: the configuration is none, the example's, or too large to be measured quickly.
    """

    def refuse(what: str) -> None:
        raise Broken(f"✗ {what}")

    refuse_stubs(_("your model"), config, batch, length)
    if not isinstance(config, GPTConfig) or not all(type(each) is int and each > 0 for each in (batch, length)):
        refuse(_("expected my_config = GPTConfig(...), my_batch and my_length whole numbers from 1; got {came}").format(
            came=(config, batch, length)))  # fmt: skip
    if config == EXAMPLE:
        refuse(_("this is the example's configuration: change at least the number of layers or the width"))
    if config.layers < 2 or config.dropout or length > config.block_size or batch * length > 2**17:
        refuse(
            _("expected at least 2 layers, dropout 0, 131,072 tokens in a batch at most, my_length at most block_size")
        )
    kept = []
    with torch.device("meta"):
        tokens = torch.randint(config.vocab, (batch, length))
        for layers in (1, 2):
            sizes = {**vars(config), "layers": layers}
            kept.append(alive_after_forward(GPT(GPTConfig(**sizes)), (tokens, tokens)))
    boundary = batch * length * config.width * 4
    return boundary, kept[1] - kept[0] - boundary
