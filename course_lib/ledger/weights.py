"""How weights are stored: in their own type, or quantised; adapters beside them; cuBLAS's workspaces."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod

from course_lib.accounts import Account
from course_lib.cublas import CUBLAS_WORKSPACE_BYTES, CUBLAS_WORKSPACES
from course_lib.ledger.bill import ALWAYS, Entry
from course_lib.recipe import Recipe
from course_lib.shape import ModelShape
from course_lib.units import round_to_block

#: Values that share one maximum, and maxima that share a second-level one (QLoRA, Dettmers et al. 2023, section 3).
NF4_BLOCK, NF4_NESTED_BLOCK = 64, 256
_BITSANDBYTES = "QuantState in bitsandbytes/functional.py"


@dataclass(frozen=True)
class Tensors:
    """Equal tensors, ``count`` of them: elements and bytes of each."""

    count: int
    elements: int
    size_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.count * self.size_bytes

    @property
    def block_bytes(self) -> int:
        """What the allocator sets aside for them."""
        return self.count * round_to_block(self.size_bytes)


def plain(shape: ModelShape, recipe: Recipe) -> list[Tensors]:
    """The base model's tensors that are stored as numbers: all of them, or what quantisation leaves."""
    tensors = []
    for name, size in shape.parameter_tensors.items():
        if recipe.quant != "none" and _is_matrix_of_a_block(name):
            continue
        tensors.append(Tensors(_copies(name, shape), prod(size), prod(size) * _width(name, recipe)))
    return tensors


def quantised(shape: ModelShape, recipe: Recipe) -> list[Tensors]:
    """The matrices of the blocks as bitsandbytes stores them, with the numbers that undo the quantisation."""
    if recipe.quant == "none":
        return []
    tensors = []
    for name, size in shape.parameter_tensors.items():
        if _is_matrix_of_a_block(name):
            parts = _nf4(prod(size), recipe.double_quant) if recipe.quant == "nf4" else (prod(size), 4 * size[0])
            tensors += [Tensors(_copies(name, shape), prod(size), part) for part in parts]
    return tensors


def adapters(shape: ModelShape, recipe: Recipe) -> list[Tensors]:
    """A of [rank, inputs] and B of [outputs, rank] for each target (LoRA, Hu et al. 2021, section 4.1)."""
    if not recipe.lora_rank:
        return []
    rank, width = recipe.lora_rank, recipe.trained_bytes
    sides = [side for target in shape.targets(recipe.target_names) for side in (target.inputs, target.outputs)]
    return [Tensors(shape.layers, rank * side, rank * side * width) for side in sides]


def weight_entries(shape: ModelShape, recipe: Recipe) -> Iterator[Entry]:
    """Everything of a model that is there all the time."""
    stored, packed, added = plain(shape, recipe), quantised(shape, recipe), adapters(shape, recipe)
    elements = sum(each.count * each.elements for each in stored)
    widths = "/".join(str(width) for width in sorted({each.size_bytes // each.elements for each in stored}))
    yield Entry(
        Account.WEIGHTS, "base weights" if recipe.lora_rank else "weights", ALWAYS, _blocks(stored),
        f"{widths} B x {elements:,} parameters", "a parameter is stored once, in its own type",
    )  # fmt: skip
    yield Entry(
        Account.WEIGHTS, f"{recipe.quant} weights", ALWAYS, _blocks(packed),
        "1 B a parameter, 4 B a row" if recipe.quant == "int8" else _nf4_formula(recipe.double_quant), _BITSANDBYTES,
    )  # fmt: skip
    yield Entry(
        Account.WEIGHTS, "adapters", ALWAYS, _blocks(added),
        f"{recipe.trained_bytes} B x rank x (inputs + outputs) a target", "Hu et al. 2021, LoRA, section 4.1",
    )  # fmt: skip
    yield Entry(
        Account.TEMPORARY, "cuBLAS workspaces", ALWAYS, CUBLAS_WORKSPACES * CUBLAS_WORKSPACE_BYTES,
        f"{CUBLAS_WORKSPACES} threads x (2 x 4096 KiB + 8 x 16 KiB)", "aten/src/ATen/cuda/CublasHandlePool.cpp",
    )  # fmt: skip


def weight_bytes(shape: ModelShape, recipe: Recipe) -> int:
    """Tensor bytes of all weights, without rounding to blocks."""
    tensors = [*plain(shape, recipe), *quantised(shape, recipe), *adapters(shape, recipe)]
    return sum(each.total_bytes for each in tensors)


def trained(shape: ModelShape, recipe: Recipe) -> list[Tensors]:
    """The tensors that are trained."""
    return adapters(shape, recipe) if recipe.lora_rank else plain(shape, recipe)


def _width(name: str, recipe: Recipe) -> int:
    if name in ("embedding", "positions", "head"):
        return recipe.table_bytes
    return recipe.norm_bytes if "norm" in name else recipe.weight_bytes


def _is_matrix_of_a_block(name: str) -> bool:
    return name.startswith("blocks.") and name.endswith(".weight") and "norm" not in name


def _copies(name: str, shape: ModelShape) -> int:
    return shape.layers if name.startswith("blocks.") else 1


def _nf4(elements: int, double: bool) -> tuple[int, ...]:
    """Bytes of each tensor of a 4-bit weight: values, code, maxima; nested: offset, maxima of maxima and their code."""
    blocks = ceil(elements / NF4_BLOCK)
    if not double:
        return ceil(elements / 2), 4 * 16, 4 * blocks
    return ceil(elements / 2), 4 * 16, blocks, 4, 4 * ceil(blocks / NF4_NESTED_BLOCK), 4 * 256


def _nf4_formula(double: bool) -> str:
    if double:
        return f"1/2 B a parameter, 1 B a {NF4_BLOCK}, 4 B a {NF4_BLOCK} x {NF4_NESTED_BLOCK}"
    return f"1/2 B a parameter, 4 B a {NF4_BLOCK}"


def _blocks(tensors: list[Tensors]) -> int:
    return sum(each.block_bytes for each in tensors)
