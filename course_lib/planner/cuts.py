"""What can be given up for memory, from the cheapest to the dearest.

A *choice* is one thing that a recipe decides, with ways to decide it that need less and less memory. The order of
the choices is the order of their prices: first what changes neither the result nor the work, then work, then how
exactly something is kept, then how much is trained, then how long the sequences are. A dearer price is worth more
than all cheaper ones together: of two sets of cuts, the cheaper is the one whose dearest difference is less.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from course_lib.errors import CourseError
from course_lib.recipe import Recipe
from course_lib.shape import ModelShape

Change = dict[str, Any]  #: fields of a Recipe, and what they become
LORA_RANK = 16
LEAST_SEQ = 256


@dataclass(frozen=True)
class Wish:
    """A run as it is wanted, before any cut."""

    shape: ModelShape
    recipe: Recipe
    kept: frozenset[str] = frozenset()  #: fields of the recipe that no cut may touch
    dtype: str = "bf16"  #: what the card computes in: bf16, fp16 or fp32


class Choice(NamedTuple):
    """One thing that a recipe decides."""

    levels: tuple[Change, ...]  #: from the cheapest, which is to change nothing, to the dearest
    extremes: tuple[Change, ...]  #: those of them among which the one with the least memory is


def choices(wish: Wish) -> tuple[Choice, ...]:
    """What can be cut, the dearest choice first."""
    found = []
    for choice in reversed(_CHOICES):
        levels = (Change(), *(each for each in choice(wish) if not wish.kept & each.keys()))
        # Accumulation keeps gradients through the forward pass, autocast adds copies: these may take more, not less.
        both_ends = choice in (_micro_batch, _number_format)
        found.append(Choice(levels, (levels[0], levels[-1]) if both_ends else levels[-1:]))
    return tuple(found)


def merge(*changes: Change) -> Change:
    """All changes as one; no two choices touch the same field."""
    return {name: value for change in changes for name, value in change.items()}


def with_cut(wish: Wish, cut: Change) -> Recipe | None:
    """The wish with a cut; None where there is no such recipe, for example adapters with fp32 masters."""
    try:
        return replace(wish.recipe, **cut)
    except CourseError:
        return None


def pays_for_nothing(cut: Change) -> bool:
    """Where adapters take the place of the weights, the optimizer keeps so little that a cut there buys nothing."""
    return "lora_rank" in cut and bool({"optimizer", "optimizer_impl"} & cut.keys())


def _update(wish: Wish) -> Iterator[Change]:
    impl = {"adamw": "fused", "adafactor": "forloop"}.get(wish.recipe.optimizer)
    if impl and wish.recipe.optimizer_impl == "foreach":
        yield {"optimizer_impl": impl}


def _attention(wish: Wish) -> Iterator[Change]:
    if wish.recipe.attention == "eager":
        yield {"attention": "sdpa"}


def _loss(wish: Wish) -> Iterator[Change]:
    if wish.recipe.loss != "fused-linear-ce":
        yield {"loss": "fused-linear-ce"}


def _micro_batch(wish: Wish) -> Iterator[Change]:
    batch, accum = wish.recipe.batch, wish.recipe.accum
    while batch > 1:
        parts = 2 if batch % 2 == 0 else batch  # what does not halve is taken one by one
        batch, accum = batch // parts, accum * parts
        yield {"batch": batch, "accum": accum}


def _checkpoint(wish: Wish) -> Iterator[Change]:
    if wish.recipe.checkpoint_every != 1:
        yield {"checkpoint": "block"}


def _number_format(wish: Wish) -> Iterator[Change]:
    """16 bit for activations; then for everything, where the card computes BF16."""
    if wish.recipe.precision == "fp32":
        yield {"precision": "amp-bf16" if wish.dtype == "bf16" else "amp-fp16"}
    if wish.dtype == "bf16" and (wish.recipe.weight_bytes == 4 or wish.recipe.precision == "master-bf16"):
        yield {"precision": "bf16"}


def _optimizer(wish: Wish) -> Iterator[Change]:
    if wish.recipe.optimizer == "adamw":
        yield {"optimizer": "adamw-8bit"}
    if wish.recipe.optimizer in ("adamw", "adamw-8bit"):
        yield {"optimizer": "paged-adamw-8bit"}


def _adapters(wish: Wish) -> Iterator[Change]:
    if wish.recipe.lora_rank:
        return
    if "lora_targets" in wish.kept:
        yield {"lora_rank": LORA_RANK}
    yield {"lora_rank": LORA_RANK, "lora_targets": "all-linear"}
    yield {"lora_rank": LORA_RANK, "lora_targets": "attention"}


def _quantisation(wish: Wish) -> Iterator[Change]:
    if wish.recipe.quant != "nf4" and wish.shape.family == "llama":  # as far as the ledger goes
        yield {"quant": "nf4", "double_quant": True}


def _length(wish: Wish) -> Iterator[Change]:
    seq = wish.recipe.seq // 2
    while seq >= LEAST_SEQ:
        yield {"seq": seq}
        seq //= 2


_CHOICES: tuple[Callable[[Wish], Iterator[Change]], ...] = (
    _update,
    _attention,
    _loss,
    _micro_batch,
    _checkpoint,
    _number_format,
    _optimizer,
    _adapters,
    _quantisation,
    _length,
)
