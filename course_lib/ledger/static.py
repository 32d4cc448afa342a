"""What stays from step to step (weights, gradients, optimizer state), and what the update itself takes."""

from collections.abc import Iterator

from course_lib.accounts import Account
from course_lib.cublas import CUBLAS_WORKSPACE_BYTES, CUBLAS_WORKSPACES
from course_lib.ledger.bill import ALWAYS, BACKWARD, Entry, Instant
from course_lib.recipe import Recipe
from course_lib.shape import ModelShape
from course_lib.units import round_to_block

#: fp32 numbers an optimizer keeps per trained parameter.
_MOMENTS = {"adamw": 2, "sgd": 0, "sgd-momentum": 1}


def trained_sizes(shape: ModelShape, recipe: Recipe) -> list[int]:
    """The number of elements of each trained tensor."""
    if not recipe.lora_rank:
        return shape.parameter_sizes()
    targets = shape.targets(recipe.target_names)
    rank = recipe.lora_rank
    return [size for target in targets for size in (rank * target.inputs, target.outputs * rank)] * shape.layers


def trained_params(shape: ModelShape, recipe: Recipe) -> int:
    """How many parameters are trained."""
    return sum(trained_sizes(shape, recipe))


def state_bytes(recipe: Recipe) -> int:
    """Bytes of optimizer state per trained parameter; masters in fp32 come with fp32 moments."""
    if recipe.precision == "master-bf16":
        return 4 + 4 * _MOMENTS[recipe.optimizer]
    return recipe.trained_bytes * _MOMENTS[recipe.optimizer]


def step_counters(sizes: list[int], recipe: Recipe) -> int:
    """Adam's step counters on the card: one fp32 number a tensor where fused, host memory otherwise."""
    return len(sizes) if recipe.optimizer == "adamw" and recipe.optimizer_impl == "fused" else 0


def static_bytes(shape: ModelShape, recipe: Recipe) -> dict[Account, int]:
    """Tensor bytes of the three accounts that stay, without rounding to blocks."""
    sizes = trained_sizes(shape, recipe)
    trained = sum(sizes)
    adapters = trained * recipe.trained_bytes if recipe.lora_rank else 0
    return {
        Account.WEIGHTS: shape.params * recipe.weight_bytes + adapters,
        Account.GRADIENTS: trained * recipe.trained_bytes,
        Account.OPTIMIZER: trained * state_bytes(recipe) + 4 * step_counters(sizes, recipe),
    }


def static_entries(shape: ModelShape, recipe: Recipe) -> Iterator[Entry]:
    """Weights, gradients, optimizer state, the update's temporary, and cuBLAS's workspaces."""
    sizes = trained_sizes(shape, recipe)
    width = recipe.trained_bytes
    yield Entry(
        Account.WEIGHTS, "base weights" if recipe.lora_rank else "weights", ALWAYS,
        _blocks(shape.parameter_sizes(), recipe.weight_bytes), f"{recipe.weight_bytes} B x {shape.params:,} parameters",
        "a parameter is stored once, in its own type",
    )  # fmt: skip
    if recipe.lora_rank:
        yield Entry(
            Account.WEIGHTS, "adapters", ALWAYS, _blocks(sizes, width),
            f"{width} B x {sum(sizes):,} = rank x (inputs + outputs) a target", "Hu et al. 2021, LoRA, section 4.1",
        )  # fmt: skip
    yield from _gradients(shape, recipe, sizes)
    counters = step_counters(sizes, recipe)
    yield Entry(
        Account.OPTIMIZER, "optimizer state", ALWAYS,
        _masters(sizes, recipe) + _moments(sizes, recipe) + round_to_block(4) * counters,
        f"{state_bytes(recipe)} B x {sum(sizes):,} trained parameters",
        f"torch/optim/{recipe.optimizer.partition('-')[0]}.py",
    )  # fmt: skip
    yield from _update(recipe, sizes)
    yield Entry(
        Account.TEMPORARY, "cuBLAS workspaces", ALWAYS, CUBLAS_WORKSPACES * CUBLAS_WORKSPACE_BYTES,
        f"{CUBLAS_WORKSPACES} threads x (2 x 4096 KiB + 8 x 16 KiB)", "aten/src/ATen/cuda/CublasHandlePool.cpp",
    )  # fmt: skip


def _masters(sizes: list[int], recipe: Recipe) -> int:
    return _blocks(sizes, 4) if recipe.precision == "master-bf16" else 0


def _moments(sizes: list[int], recipe: Recipe) -> int:
    width = 4 if recipe.precision == "master-bf16" else recipe.trained_bytes
    return _MOMENTS[recipe.optimizer] * _blocks(sizes, width)


def _gradients(shape: ModelShape, recipe: Recipe, sizes: list[int]) -> Iterator[Entry]:
    """They fill up from the last block to the first; with accumulation they stay from one micro-batch to the next."""
    width, whole = recipe.trained_bytes, _blocks(sizes, recipe.trained_bytes)
    formula = f"{width} B x {sum(sizes):,} trained parameters"
    source = "torch/csrc/autograd/functions/accumulate_grad.h"
    if recipe.accum > 1:
        yield Entry(Account.GRADIENTS, "gradients", ALWAYS, whole, formula, source)
        largest = max(linear.inputs * linear.outputs for linear in shape.linears)
        added = recipe.lora_rank * max(shape.hidden, shape.ffn) if recipe.lora_rank else largest
        yield Entry(
            Account.TEMPORARY, "a weight's new gradient, before it is added",
            (Instant.BACKWARD_TOP, Instant.BACKWARD_BOTTOM), width * added, f"{width} B x the largest matrix", source,
        )  # fmt: skip
    else:
        yield Entry(
            Account.GRADIENTS, "gradients", (Instant.BACKWARD_END, Instant.OPTIMIZER_STEP), whole, formula, source
        )
        if not recipe.lora_rank:
            yield from _partial_gradients(shape, recipe, whole, source)
    if not recipe.lora_rank:
        yield from _embedding_gradients(shape, recipe, source)


def _partial_gradients(shape: ModelShape, recipe: Recipe, whole: int, source: str) -> Iterator[Entry]:
    """What of the gradients is there while the last and the first block are worked on."""
    width = recipe.weight_bytes
    closing = shape.linears[-1]  # the first matrix of a block that the backward pass reaches
    head = shape.norm_params + (0 if shape.tied_head else shape.vocab * shape.hidden)
    last_block = shape.block_params - closing.params
    embedding = (shape.vocab + shape.learned_positions) * shape.hidden
    yield Entry(
        Account.GRADIENTS, "gradients so far", (Instant.BACKWARD_TOP,), width * (head + closing.params),
        f"{width} B x (head, final norm, {closing.name})", source,
    )  # fmt: skip
    yield Entry(
        Account.GRADIENTS, "gradients so far", (Instant.BACKWARD_BOTTOM,), whole - width * (last_block + embedding),
        f"{width} B x (all but the embedding and most of the first block)", source,
    )  # fmt: skip


def _embedding_gradients(shape: ModelShape, recipe: Recipe, source: str) -> Iterator[Entry]:
    """A tied weight gets two gradients, the head's first; they are added into a third tensor."""
    table = recipe.weight_bytes * shape.vocab * shape.hidden
    formula = f"{recipe.weight_bytes} B x V x H"
    if shape.tied_head:
        waiting = tuple(instant for instant in BACKWARD if instant is not Instant.BACKWARD_HEAD)
        yield Entry(Account.TEMPORARY, "the tied head's gradient, waiting", waiting, table, formula, source)
    beside = shape.tied_head + (recipe.accum > 1)
    yield Entry(
        Account.TEMPORARY, "the embedding's gradient, before it is added", (Instant.BACKWARD_END,), beside * table,
        f"{beside} x {formula}", source,
    )  # fmt: skip


def _update(recipe: Recipe, sizes: list[int]) -> Iterator[Entry]:
    master = recipe.precision == "master-bf16"
    width = 4 if master else recipe.trained_bytes
    # Adam's denominator: foreach makes it for all tensors at once; a loop makes it and its quotient one by one.
    tensors = {"foreach": 1, "forloop": 2, "fused": 0}[recipe.optimizer_impl] * (recipe.optimizer == "adamw")
    tensors += master and recipe.optimizer_impl != "fused"  # gradients in fp32
    size = _blocks(sizes, width) if recipe.optimizer_impl == "foreach" else round_to_block(width * max(sizes))
    what = "all trained parameters" if recipe.optimizer_impl == "foreach" else "the largest tensor"
    yield Entry(
        Account.TEMPORARY, "the update's own tensors", (Instant.OPTIMIZER_STEP,), tensors * size,
        f"{tensors} x {width} B x {what}", "_multi_tensor_adam and _single_tensor_adam in torch/optim/adam.py",
    )  # fmt: skip


def _blocks(sizes: list[int], width: int) -> int:
    """Bytes of the tensors in blocks of the allocator."""
    return sum(round_to_block(width * size) for size in sizes)
