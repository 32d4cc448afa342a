"""The memory ledger: a training step's bill in closed form, in a millisecond, without torch.

``predict(shape, recipe)`` is the bill, ``report(shape, recipe, card)`` the bill held against a card. It covers
Llama-like and GPT-2-like models as transformers 5 implements them; for any other model there is the dry run.
"""

from collections.abc import Iterator
from math import ceil

from course_lib.accounts import Account
from course_lib.device import Capacity
from course_lib.errors import CourseError
from course_lib.ledger.at_work import backward_bytes, forward_bytes, passing_bytes
from course_lib.ledger.bill import Bill, Entry, Instant
from course_lib.ledger.block import Block
from course_lib.ledger.gradients import gradient_entries
from course_lib.ledger.head import head_entries
from course_lib.ledger.optimizer import optimizer_entries, state_sizes
from course_lib.ledger.weights import trained, weight_bytes, weight_entries
from course_lib.recipe import Recipe
from course_lib.report import Report
from course_lib.shape import ModelShape

__all__ = ["Bill", "Entry", "Instant", "predict", "report"]

_CHECKPOINT_SOURCE = "torch/utils/checkpoint.py; Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost"
_UNTIL_STEP = tuple(instant for instant in Instant if instant is not Instant.OPTIMIZER_STEP)
_BLOCK_SOURCE = "the block's forward, operator by operator (course_lib/ledger/block.py)"


def predict(shape: ModelShape, recipe: Recipe) -> Bill:
    """The bill of the second training step of ``shape`` under ``recipe``.

    Raises:
        CourseError: the ledger does not support a value of the recipe yet, or the model cannot be trained so.
    """
    _refuse_impossible(shape, recipe)
    parts = (weight_entries, gradient_entries, optimizer_entries, _activations, head_entries)
    entries = (entry for part in parts for entry in part(shape, recipe) if entry.size_bytes)
    static = {
        Account.WEIGHTS: weight_bytes(shape, recipe),
        Account.GRADIENTS: sum(each.total_bytes for each in trained(shape, recipe)),
        Account.OPTIMIZER: sum(state_sizes(shape, recipe)),
    }
    return Bill(tuple(entries), static)


def report(shape: ModelShape, recipe: Recipe, card: Capacity | None = None) -> Report:
    """The bill of ``shape`` under ``recipe``, held against ``card`` where one is named.

    Raises:
        CourseError: as :func:`predict`.
    """
    trainable = shape.lora_params(recipe.lora_rank, recipe.target_names) if recipe.lora_rank else shape.params
    return Report(shape.name, shape.params, trainable, recipe, predict(shape, recipe), card)


def _activations(shape: ModelShape, recipe: Recipe) -> Iterator[Entry]:
    """What the stack of blocks keeps, and what the block being worked on takes."""
    block = Block(shape, recipe)
    tokens, every, layers = recipe.tokens, recipe.checkpoint_every, shape.layers
    kept = round(block.kept_bytes * tokens)
    kept_by_all = (Instant.FORWARD_END, Instant.BACKWARD_HEAD)
    if every:
        segments, width = ceil(layers / every), block.boundary_bytes
        first = recipe.table_bytes * shape.hidden  # the first segment's door is the embedding's output
        for label, instants, count in (
            ("checkpoints, one per segment", (Instant.FORWARD_TOP, *kept_by_all, Instant.BACKWARD_TOP), segments),
            ("the last checkpoint to be used", (Instant.BACKWARD_BOTTOM,), 1),
        ):
            formula = f"tokens x ({first:,} B + {count - 1} x {width:,} B)"
            size = tokens * (first + (count - 1) * width)
            yield Entry(Account.ACTIVATIONS, label, instants, size, formula, _CHECKPOINT_SOURCE)
        yield Entry(
            Account.ACTIVATIONS, "inputs that int8 products hold, checkpointed or not", _UNTIL_STEP,
            layers * block.int8_inputs_bytes * tokens, f"{layers} x tokens x {block.int8_inputs_bytes:,} B",
            "MatMul8bitLt in bitsandbytes/autograd/_functions.py",
        )  # fmt: skip
        yield _casts(layers * block.cached_casts_bytes, (Instant.FORWARD_TOP, Instant.FORWARD_END))
        yield Entry(
            Account.TEMPORARY, "what the block at work takes, keeping nothing", (Instant.FORWARD_TOP,),
            passing_bytes(block), "the most at once", _BLOCK_SOURCE,
        )  # fmt: skip
        if recipe.kernels == "fused":  # stock checkpoints are not reentrant, and stop before they make it
            yield Entry(
                Account.TEMPORARY, "the recomputed segment's output", (Instant.BACKWARD_TOP, Instant.BACKWARD_BOTTOM),
                tokens * block.boundary_bytes, f"tokens x {block.boundary_bytes:,} B",
                "CheckpointFunction in torch/utils/checkpoint.py, the default of transformers before 5",
            )  # fmt: skip
        # The remainder is the last segment, so the first that the backward pass reaches.
        others = {Instant.BACKWARD_TOP: (layers - 1) % every, Instant.BACKWARD_BOTTOM: min(every, layers) - 1}
        shared = block.shared_with_checkpoint_bytes * tokens
    else:
        formula = f"{layers} blocks x tokens x {block.kept_bytes:,.0f} B"
        yield Entry(Account.ACTIVATIONS, "kept by the blocks", kept_by_all, layers * kept, formula, _BLOCK_SOURCE)
        yield _casts(layers * block.weight_casts_bytes, kept_by_all)
        others = {Instant.FORWARD_TOP: layers - 1, Instant.BACKWARD_TOP: layers - 1, Instant.BACKWARD_BOTTOM: 0}
        shared = 0
    for instant, count in others.items():
        most = forward_bytes(block) if instant is Instant.FORWARD_TOP else backward_bytes(block)
        extra = most - kept + (0 if instant is Instant.FORWARD_TOP else _weight_gradient_cast(block))
        per_block = f"tokens x {block.kept_bytes:,.0f} B"
        for label, account, size, formula in (
            ("kept by the other blocks at hand", Account.ACTIVATIONS, count * kept, f"{count} x {per_block}"),
            ("kept by the block at work", Account.ACTIVATIONS, kept - shared, per_block),
            ("what the block at work takes", Account.TEMPORARY, extra, "the most at once, less what it replaces"),
        ):  # fmt: skip
            yield Entry(account, label, (instant,), size, formula, _BLOCK_SOURCE)
        yield _casts((count + 1) * block.weight_casts_bytes, (instant,))


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


def _refuse_impossible(shape: ModelShape, recipe: Recipe) -> None:
    if recipe.quant != "none" and shape.family != "llama":
        raise CourseError(
            f"quant {recipe.quant}: the ledger covers quantised Llama-like models; {shape.name} is not one"
        )
    if shape.learned_positions and recipe.seq > shape.learned_positions:
        raise CourseError(
            f"seq {recipe.seq}: {shape.name} has {shape.learned_positions} learned positions; "
            f"choose seq {shape.learned_positions} or less"
        )
