"""The mistakes that people make in ``checkpoint_blocks``, and how each of them shows.

A row says which facts would come instead of the right ones; facts that it leaves out would be right. The case of each
row is the :class:`~course_lib.exercises.segments.Bed` on which the function was tried.
"""

import math
from typing import Any

from course_lib.exercises.judge import ANYTHING, Facts, Mistake, Near, Raised
from course_lib.i18n import N_

ROOM = 0.02
RETURNS = N_("what checkpoint_blocks(model) returns")
LOSS = N_("loss with every=1, against the plain model")
GRADIENTS = N_("gradients with every=1, against the plain model")
RUNS = N_("runs of each block in a training step")
DROPOUT = N_("gradients with dropout and the same seed, against the plain model")
FROZEN = N_("gradients with a frozen embedding, against the plain model")
RUNS_EVAL = N_("runs of each block in a step in eval mode")
RUNS_AGAIN = N_("runs of each block after eval() and train()")
RUNS_LATER = N_("runs of each block when checkpoint_blocks saw the model in eval mode, then came train()")
EVAL_LOSS = N_("loss in eval mode, against the plain model")
KEYS = N_("state_dict keys")
KEPT, EVERY = "kept for the backward pass", "every="
LESSON = "03_checkpointing"


def kept(every: int) -> str:
    return N_("kept for the backward pass with every={}, in block inputs").format(every)


def loss_of(every: int) -> str:
    return N_("every={}: loss, against the plain model").format(every)


def refused(every: int) -> str:
    return f"{EVERY}{every}"


def _all_kept(bed: Any, count: Any) -> Facts:
    """What is kept for each segment length, where ``count(every)`` inputs and plain blocks are."""
    from course_lib.exercises.segments import EVERY as LENGTHS

    return {kept(every): Near(count(every), ROOM) for every in LENGTHS}


def _plain_remainder(bed: Any, every: int) -> float:
    return bed.blocks // every + bed.blocks % every * bed.plain_block


def _plain_last(bed: Any, every: int) -> float:
    segments = math.ceil(bed.blocks / every)
    return segments - 1 + (bed.blocks - every * (segments - 1)) * bed.plain_block


def _cut(bed: Any) -> Facts:
    """Nothing before the last segment's input is reached: neither gradients nor a second run."""
    runs = [1] * (bed.blocks - 1) + [2]
    none = {GRADIENTS: "some are None", DROPOUT: "some are None", FROZEN: "some are None"}
    return {**none, RUNS: runs, RUNS_AGAIN: runs, RUNS_LATER: runs, **dict.fromkeys(_all_kept(bed, float), ANYTHING)}


def _whatever_else(bed: Any, known: Facts) -> Facts:
    """Only the known facts decide; the others may be anything."""
    return {**dict.fromkeys(bed.right(), ANYTHING), **known}


def _the_last_runs_for_all(bed: Any, times: int) -> Facts:
    return {RUNS: [0] * (bed.blocks - 1) + [times * bed.blocks], LOSS: "different"}


def _unchanged(bed: Any) -> Facts:
    once = [1] * bed.blocks
    return {
        RUNS: once,
        RUNS_AGAIN: once,
        RUNS_LATER: once,
        **_all_kept(bed, lambda every: bed.blocks * bed.plain_block),
    }


TABLE = (
    Mistake("one-segment",
            N_("one checkpoint lies around the whole stack. Then its inside is alive at once when it is recomputed, "
               "and nothing is saved at the peak. Cut the stack into segments of `every` blocks"),
            LESSON, lambda bed: (_all_kept(bed, lambda every: 1),)),
    Mistake("every-ignored",
            N_("`every` changes nothing: each block is a segment. Let one checkpoint run `every` blocks one after "
               "another"),
            LESSON, lambda bed: (_all_kept(bed, lambda every: bed.blocks),)),
    Mistake("nothing-checkpointed",
            N_("nothing is recomputed: each block runs once in a training step. A block's new forward has to call "
               "checkpoint; defining it is not enough, the model must call it"),
            LESSON, lambda bed: (_unchanged(bed),)),
    Mistake("last-segment-plain",
            N_("the last segment is not checkpointed, as checkpoint_sequential leaves it. Here every segment is"),
            LESSON, lambda bed: ({RUNS: [2] * (bed.blocks - 1) + [1], RUNS_AGAIN: [2] * (bed.blocks - 1) + [1],
                                  RUNS_LATER: [2] * (bed.blocks - 1) + [1],
                                  **_all_kept(bed, lambda every: _plain_last(bed, every))},)),
    Mistake("remainder-plain",
            N_("the blocks that are left over when `every` does not divide their number are not checkpointed. "
               "They are the last segment"),
            LESSON, lambda bed: (_all_kept(bed, lambda every: _plain_remainder(bed, every)),)),
    Mistake("remainder-lost",
            N_("the blocks that are left over when `every` does not divide their number are not run at all, so the "
               "loss is another. They are the last segment"),
            LESSON, lambda bed: ({**{loss_of(every): "different" for every in (2, 3, 9) if bed.blocks % every},
                                  **_all_kept(bed, lambda every: bed.blocks // every)},)),
    Mistake("late-binding",
            N_("every block runs the last block's forward: a function made in a loop looks its variables up when it "
               "runs, and then they have their last values. Bind them: functools.partial, or a default argument"),
            LESSON, lambda bed: (_whatever_else(bed, _the_last_runs_for_all(bed, times)) for times in (1, 2))),
    Mistake("calls-itself",
            N_("the new forward calls itself without end: keep the block's old forward before you replace it"),
            LESSON, lambda bed: (_whatever_else(bed, {LOSS: Raised("RecursionError")}),)),
    Mistake("detached",
            N_("detach() cuts the graph: no gradient reaches what lies before it. checkpoint needs no detach; hand "
               "the input on as it is"),
            LESSON, lambda bed: (_cut(bed),)),
    Mistake("reentrant",
            N_("the reentrant variant: when no input needs a gradient (a frozen embedding), its output needs none "
               "either, and the blocks learn nothing, without an error. Say use_reentrant=False"),
            LESSON, lambda bed: ({FROZEN: "some are None"},)),
    Mistake("random-state-lost",
            N_("the recomputed pass drops other numbers than the first one. Leave preserve_rng_state at True"),
            LESSON, lambda bed: ({DROPOUT: "different"},)),
    Mistake("checkpointed-in-eval",
            N_("blocks are recomputed in eval mode, too. Ask block.training when the block runs"),
            LESSON, lambda bed: ({RUNS_EVAL: [2] * bed.blocks},)),
    Mistake("mode-read-once",
            N_("the mode is read when checkpoint_blocks runs, not when the block does. model.train() and "
               "model.eval() come later: ask block.training inside the new forward"),
            LESSON, lambda bed: ({RUNS_EVAL: [2] * bed.blocks, RUNS_LATER: [1] * bed.blocks},)),
    Mistake("keys-renamed",
            N_("a module was put around each block, so the weights have other names and no checkpoint file fits any "
               "more. Change block.forward instead"),
            LESSON, lambda bed: ({KEYS: "renamed"},)),
    Mistake("another-model",
            N_("a copy is returned. Change the model in place and return it: the optimizer holds its parameters"),
            LESSON, lambda bed: ({RETURNS: "another object"},)),
    Mistake("nothing-returned",
            N_("the function returns nothing. End it with: return model"),
            LESSON, lambda bed: ({RETURNS: "None"},)),
    Mistake("every-not-checked",
            N_("every below 1 is taken. range() refuses 0 only: test for every < 1 and raise ValueError"),
            LESSON, lambda bed: ({refused(-1): "an answer"}, {refused(-1): "an answer", refused(0): "an answer"},
                                 {refused(0): Raised("ZeroDivisionError"), refused(-1): "an answer"})),
)  # fmt: skip
