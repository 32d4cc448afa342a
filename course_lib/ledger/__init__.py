"""The memory ledger: a training step's bill in closed form, in a millisecond, without torch.

``predict(shape, recipe)`` is the whole interface. It covers Llama-like and GPT-2-like models as
transformers 5 implements them; for any other model there is the dry run.
"""

from collections.abc import Iterator
from math import ceil

from course_lib.accounts import Account
from course_lib.errors import CourseError
from course_lib.ledger.bill import Bill, Entry, Instant
from course_lib.ledger.block import Block
from course_lib.ledger.head import head_entries
from course_lib.ledger.static import static_bytes, static_entries
from course_lib.recipe import Recipe
from course_lib.shape import ModelShape

__all__ = ["Bill", "Entry", "Instant", "predict"]

_BLOCK_SOURCE = "the block's forward, operator by operator (course_lib/ledger/block.py)"


def predict(shape: ModelShape, recipe: Recipe) -> Bill:
    """The bill of the second training step of ``shape`` under ``recipe``.

    Raises:
        CourseError: the ledger does not support a value of the recipe yet, or the model cannot be trained so.
    """
    _refuse_unsupported(shape, recipe)
    entries = (*static_entries(shape, recipe), *_activations(shape, recipe), *head_entries(shape, recipe))
    return Bill(tuple(entry for entry in entries if entry.size_bytes), static_bytes(shape, recipe))


def _activations(shape: ModelShape, recipe: Recipe) -> Iterator[Entry]:
    """What the stack of blocks keeps, and what the block being worked on takes."""
    block = Block(shape, recipe)
    tokens, every = recipe.tokens, recipe.checkpoint_every
    weight_casts = block.weight_casts_bytes
    before_blocks = (Instant.FORWARD_END, Instant.BACKWARD_HEAD)
    inside = round(block.backward_bytes * tokens) + _weight_gradient_cast(block)
    if every:
        segments = ceil(shape.layers / every)
        boundary = block.boundary_bytes * tokens
        yield Entry(
            Account.ACTIVATIONS, "checkpoints, one per segment", (*before_blocks, Instant.BACKWARD_TOP),
            segments * boundary, f"{segments} x tokens x {block.boundary_bytes // shape.hidden} B x H", "torch/utils/checkpoint.py",
        )  # fmt: skip
        yield Entry(
            Account.ACTIVATIONS, "the last checkpoint to be used", (Instant.BACKWARD_BOTTOM,), boundary,
            f"tokens x {block.boundary_bytes // shape.hidden} B x H", "torch/utils/checkpoint.py",
        )  # fmt: skip
        yield _casts(shape.layers * block.cached_casts_bytes, (Instant.FORWARD_END,))
        first = last = min(every, shape.layers) - 1
        if shape.layers % every:  # the remainder is the last segment, the first that backward reaches
            last = shape.layers % every - 1
        others = {Instant.BACKWARD_TOP: last, Instant.BACKWARD_BOTTOM: first}
    else:
        kept = round(shape.layers * block.kept_bytes * tokens)
        yield Entry(
            Account.ACTIVATIONS, "kept by the blocks", before_blocks, kept,
            f"{shape.layers} blocks x tokens x {block.kept_bytes:,.0f} B", _BLOCK_SOURCE,
        )  # fmt: skip
        yield _casts(shape.layers * weight_casts, before_blocks)
        others = {Instant.BACKWARD_TOP: shape.layers - 1, Instant.BACKWARD_BOTTOM: 0}
    for instant, count in others.items():
        yield Entry(
            Account.ACTIVATIONS, "kept by the other blocks", (instant,),
            count * (round(block.kept_bytes * tokens) + weight_casts),
            f"{count} blocks x tokens x {block.kept_bytes:,.0f} B", _BLOCK_SOURCE,
        )  # fmt: skip
        yield Entry(
            Account.ACTIVATIONS, "kept by the block at work", (instant,), round(block.kept_bytes * tokens) + weight_casts,
            f"tokens x {block.kept_bytes:,.0f} B", _BLOCK_SOURCE,
        )  # fmt: skip
        yield Entry(
            Account.TEMPORARY, "gradients inside the block at work", (instant,),
            inside - round(block.kept_bytes * tokens), "the most at once, less what it replaces", _BLOCK_SOURCE,
        )  # fmt: skip


def _casts(size_bytes: int, instants: tuple[Instant, ...]) -> Entry:
    return Entry(
        Account.ACTIVATIONS, "weights cast to 16 bit by autocast", instants, size_bytes,
        "2 B x elements of the matrices", "cached_cast in aten/src/ATen/autocast_mode.cpp",
    )  # fmt: skip


def _weight_gradient_cast(block: Block) -> int:
    """Under autocast a weight's gradient is 16 bit first; the largest of a block is there beside its copy."""
    if not (block.recipe.autocast and block.trains_all and block.w == 4):
        return 0
    return 2 * max(linear.inputs * linear.outputs for linear in block.shape.linears)


def _refuse_unsupported(shape: ModelShape, recipe: Recipe) -> None:
    refusals = (
        (recipe.quant != "none", f"quant {recipe.quant}"),
        (recipe.optimizer not in ("adamw", "sgd", "sgd-momentum"), f"optimizer {recipe.optimizer}"),
        (recipe.loss.startswith("chunked"), f"loss {recipe.loss}"),
    )
    for unsupported, what in refusals:
        if unsupported:
            raise CourseError(f"the ledger does not support {what} yet")
    if shape.learned_positions and recipe.seq > shape.learned_positions:
        raise CourseError(
            f"seq {recipe.seq}: {shape.name} has {shape.learned_positions} learned positions; "
            f"choose seq {shape.learned_positions} or less"
        )
