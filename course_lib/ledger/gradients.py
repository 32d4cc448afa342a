"""When gradients are there: they fill up from the head to the embedding, and stay until the update."""

from collections.abc import Iterator

from course_lib.accounts import Account
from course_lib.ledger.bill import ALWAYS, BACKWARD, Entry, Instant
from course_lib.ledger.weights import trained
from course_lib.recipe import Recipe
from course_lib.shape import ModelShape

_SOURCE = "torch/csrc/autograd/functions/accumulate_grad.h"


def gradient_entries(shape: ModelShape, recipe: Recipe) -> Iterator[Entry]:
    """Gradients, and new ones on their way to be added to them."""
    tensors, width = trained(shape, recipe), recipe.trained_bytes
    whole = sum(each.block_bytes for each in tensors)
    formula = f"{width} B x {sum(each.count * each.elements for each in tensors):,} trained parameters"
    if recipe.accum > 1:
        yield Entry(Account.GRADIENTS, "gradients", ALWAYS, whole, formula, _SOURCE)
        new = max(each.size_bytes for each in tensors if each.count > 1 or shape.layers == 1)
        at_work = (Instant.BACKWARD_TOP, Instant.BACKWARD_BOTTOM)
        label = "a weight's new gradient, before it is added"
        yield Entry(Account.TEMPORARY, label, at_work, new, f"{width} B x the largest matrix", _SOURCE)
    else:
        done = (Instant.BACKWARD_END, Instant.OPTIMIZER_STEP)
        yield Entry(Account.GRADIENTS, "gradients", done, whole, formula, _SOURCE)
        if not recipe.lora_rank:
            yield from _partial_gradients(shape, recipe, whole)
    if not recipe.lora_rank:
        yield from _embedding_gradients(shape, recipe)


def _partial_gradients(shape: ModelShape, recipe: Recipe, whole: int) -> Iterator[Entry]:
    """What of the gradients is there while the last and the first block are worked on."""
    width = recipe.weight_bytes
    closing = shape.linears[-1]  # the first matrix of a block that the backward pass reaches
    head = shape.norm_params + (0 if shape.tied_head else shape.vocab * shape.hidden)
    at_hand = max(1, min(recipe.checkpoint_every, shape.layers))  # blocks of the first segment, all run again
    to_come = at_hand * shape.block_params - closing.params
    embedding = (shape.vocab + shape.learned_positions) * shape.hidden
    yield Entry(
        Account.GRADIENTS, "gradients so far", (Instant.BACKWARD_TOP,), width * (head + closing.params),
        f"{width} B x (head, final norm, {closing.name})", _SOURCE,
    )  # fmt: skip
    yield Entry(
        Account.GRADIENTS, "gradients so far", (Instant.BACKWARD_BOTTOM,), whole - width * (to_come + embedding),
        f"{width} B x (all but the embedding and what is at work)", _SOURCE,
    )  # fmt: skip


def _embedding_gradients(shape: ModelShape, recipe: Recipe) -> Iterator[Entry]:
    """A tied weight gets two gradients, the head's first; they are added into a third tensor."""
    table = recipe.weight_bytes * shape.vocab * shape.hidden
    formula = f"{recipe.weight_bytes} B x V x H"
    if shape.tied_head:
        waiting = tuple(instant for instant in BACKWARD if instant is not Instant.BACKWARD_HEAD)
        yield Entry(Account.TEMPORARY, "the tied head's gradient, waiting", waiting, table, formula, _SOURCE)
    beside = shape.tied_head + (recipe.accum > 1)
    yield Entry(
        Account.TEMPORARY, "the embedding's gradient, before it is added", (Instant.BACKWARD_END,), beside * table,
        f"{beside} x {formula}", _SOURCE,
    )  # fmt: skip
