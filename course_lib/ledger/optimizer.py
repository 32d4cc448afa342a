"""What the optimizer keeps from step to step, and what its update takes while it runs."""

from collections.abc import Iterator
from math import ceil

from course_lib.accounts import Account
from course_lib.ledger.bill import ALWAYS, Entry, Instant
from course_lib.ledger.weights import Tensors, trained
from course_lib.recipe import Recipe
from course_lib.shape import ModelShape
from course_lib.units import round_to_block

#: bitsandbytes keeps tensors below this many elements in fp32, has one fp32 maximum per block of 8-bit state, and
#: pages tensors from this many elements on (Optimizer2State and get_state_buffer in bitsandbytes/optim/optimizer.py).
LEAST_8BIT_ELEMENTS, BLOCK_8BIT, LEAST_PAGED_ELEMENTS = 4096, 256, 100_000
_CODES_8BIT = (4 * 256, 4 * 256)  #: the two 8-bit codes, shared by all tensors

_SOURCES = {
    "adamw": "Loshchilov & Hutter 2019, AdamW; torch/optim/adam.py",
    "sgd": "torch/optim/sgd.py",
    "sgd-momentum": "torch/optim/sgd.py",
    "adafactor": "Shazeer & Stern 2018, Adafactor; torch/optim/_adafactor.py",
    "adamw-8bit": "Dettmers et al. 2022, 8-bit Optimizers; bitsandbytes/optim/optimizer.py",
    "paged-adamw-8bit": "bitsandbytes/optim/optimizer.py; paged state lives in managed memory, outside PyTorch's count",
}


def state_sizes(shape: ModelShape, recipe: Recipe) -> list[int]:
    """Bytes of every tensor of the optimizer's state that is on the card."""
    sizes: list[int] = []
    widths = _matrix_sides(shape, recipe)
    for tensors, sides in zip(trained(shape, recipe), widths, strict=True):
        sizes += _state_of(tensors, sides, recipe) * tensors.count
    if "8bit" in recipe.optimizer and any(each.elements >= LEAST_8BIT_ELEMENTS for each in trained(shape, recipe)):
        sizes += _CODES_8BIT
    return sizes


def optimizer_entries(shape: ModelShape, recipe: Recipe) -> Iterator[Entry]:
    """State, and the update's own tensors."""
    sizes = state_sizes(shape, recipe)
    parameters = sum(each.count * each.elements for each in trained(shape, recipe))
    yield Entry(
        Account.OPTIMIZER, "optimizer state", ALWAYS, sum(map(round_to_block, sizes)),
        f"{sum(sizes) / parameters:.3g} B x {parameters:,} trained parameters", _SOURCES[recipe.optimizer],
    )  # fmt: skip
    count, size, what = _update(shape, recipe)
    yield Entry(
        Account.TEMPORARY, "the update's own tensors", (Instant.OPTIMIZER_STEP,), count * size,
        f"{count} x {what}", _SOURCES[recipe.optimizer],
    )  # fmt: skip


def _state_of(tensors: Tensors, sides: tuple[int, int] | None, recipe: Recipe) -> list[int]:
    """Bytes of the state of one tensor."""
    elements, width = tensors.elements, recipe.trained_bytes
    master = recipe.precision == "master-bf16"
    if master:
        width = 4
    counter = [4] if recipe.optimizer == "adamw" and recipe.optimizer_impl == "fused" else []  # else in host memory
    if recipe.optimizer == "adafactor":
        return [width * side for side in sides] if sides else [width * elements]
    if "8bit" in recipe.optimizer:
        if elements < LEAST_8BIT_ELEMENTS:
            return [4 * elements] * 2
        paged = recipe.optimizer.startswith("paged") and elements >= LEAST_PAGED_ELEMENTS
        return ([] if paged else [elements] * 2) + [4 * ceil(elements / BLOCK_8BIT)] * 2
    moments = {"adamw": 2, "sgd": 0, "sgd-momentum": 1}[recipe.optimizer]
    return [width * elements] * (moments + master) + counter


def _matrix_sides(shape: ModelShape, recipe: Recipe) -> list[tuple[int, int] | None]:
    """Rows and columns of each trained tensor, None for a vector; in the order of ``trained``."""
    if recipe.lora_rank:
        targets = shape.targets(recipe.target_names)
        return [(recipe.lora_rank, side) for target in targets for side in (target.inputs, target.outputs)]
    sizes = shape.parameter_tensors.values()
    return [(size[0], size[1]) if len(size) == 2 else None for size in sizes]


def _update(shape: ModelShape, recipe: Recipe) -> tuple[int, int, str]:
    """How many tensors the update makes at once, the bytes of each, and what each is as large as.

    Adam's denominator is one (a loop makes its quotient, too), Adafactor's estimate another; fp32 masters need their
    gradients in fp32. foreach makes them for all parameters at once, bitsandbytes and fused kernels make none.
    """
    tensors = trained(shape, recipe)
    together, fused = recipe.optimizer_impl == "foreach", recipe.optimizer_impl == "fused"
    master = recipe.precision == "master-bf16"
    count = {"adamw": 1 if together else 2, "adafactor": 1}.get(recipe.optimizer, 0)
    count = 0 if fused else count + master
    scale = 2 if master else 1  # trained tensors are 16-bit there, what is made is fp32
    if together:
        return count, sum(each.count * round_to_block(scale * each.size_bytes) for each in tensors), "what is trained"
    return count, max(round_to_block(scale * each.size_bytes) for each in tensors), "the largest trained tensor"
