"""What a recipe with cuts costs beside the wish, in words, with a number where the price has one."""

from collections.abc import Iterator

from course_lib import ledger
from course_lib.accounts import Account
from course_lib.i18n import _, clauses
from course_lib.ledger.optimizer import LEAST_PAGED_ELEMENTS
from course_lib.ledger.weights import adapters, trained
from course_lib.planner.cuts import Wish
from course_lib.planner.work import operations_per_token
from course_lib.recipe import Recipe
from course_lib.units import GB

_LEAST_SHARE = 0.005  #: of the operations that is worth a word


def price_of(wish: Wish, recipe: Recipe) -> str:
    """The price of everything in which ``recipe`` falls short of ``wish``; in the reader's language."""
    return clauses(_prices(wish, recipe))


def _prices(wish: Wish, recipe: Recipe) -> Iterator[str]:
    old, shape = wish.recipe, wish.shape
    changed = {name for name, value in recipe.to_dict().items() if value != old.to_dict()[name]}
    if "seq" in changed:
        yield _("sequences of {seq:,} tokens instead of {more:,}").format(seq=recipe.seq, more=old.seq)
    if "quant" in changed:
        yield _("frozen weights in {bits:.1f} bits on average instead of {more:.1f}").format(
            bits=_bits_a_weight(wish, recipe), more=_bits_a_weight(wish, old)
        )
    if "lora_rank" in changed:
        share = shape.lora_params(recipe.lora_rank, recipe.target_names) / shape.params
        yield _("{share:.2%} of the parameters are trained, a change of low rank").format(share=share)
    if "optimizer" in changed:
        yield _("Adam's state in 8 bits instead of {bits}").format(bits=8 * old.trained_bytes)
    if recipe.optimizer.startswith("paged") and "optimizer" in changed:
        yield _("up to {size:.1f} GB to the host and back in each update").format(size=_paged_bytes(wish, recipe) / GB)
    if "precision" in changed:
        yield _number_format(recipe)
    extra = operations_per_token(shape, recipe) / operations_per_token(shape, old) - 1
    if abs(extra) >= _LEAST_SHARE:
        yield _("{extra:+.0%} operations in all").format(extra=extra)
    if "batch" in changed:
        yield _("micro-batches of {batch} instead of {more}: a less busy card, the same gradient if summed over tokens"
                ).format(batch=recipe.batch, more=old.batch)  # fmt: skip
    if "loss" in changed:
        yield _("a kernel for head and loss together, such as Liger's, the same loss")
    if "attention" in changed:
        yield _("attention without its score matrix, the same result")
    if "optimizer_impl" in changed:
        yield _("the same update, fused into one kernel") if recipe.optimizer_impl == "fused" else _(
            "the same update, one tensor after the other")


def _number_format(recipe: Recipe) -> str:
    if recipe.precision == "amp-fp16":
        return _("activations in FP16, with loss scaling")
    if recipe.autocast:
        return _("activations in BF16")
    return _("weights, gradients and Adam's state in BF16: small updates are rounded away")


def _bits_a_weight(wish: Wish, recipe: Recipe) -> float:
    """Of the base model, adapters aside."""
    shape = wish.shape
    stored = ledger.predict(shape, recipe).static_bytes[Account.WEIGHTS]
    added = sum(each.total_bytes for each in adapters(shape, recipe))
    return 8 * (stored - added) / shape.params


def _paged_bytes(wish: Wish, recipe: Recipe) -> int:
    """Two 8-bit moments of what is paged, there and back."""
    large = (each for each in trained(wish.shape, recipe) if each.elements >= LEAST_PAGED_ELEMENTS)
    return sum(2 * 2 * each.count * each.elements for each in large)
