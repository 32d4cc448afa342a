"""What stands before and after the blocks: the batch, positions, the final norm, the logits and the loss.

The logits are the surprise of small models: tokens x vocabulary numbers, several times over. How many
bytes a logit takes at the worst moment depends on the loss's implementation, and on nothing else.
"""

from collections.abc import Iterator
from math import ceil

from course_lib.accounts import Account
from course_lib.ledger.bill import ALWAYS, Entry, Instant
from course_lib.ledger.block import Block
from course_lib.recipe import Recipe
from course_lib.shape import ModelShape

_END, _HEAD = Instant.FORWARD_END, Instant.BACKWARD_HEAD


def head_entries(shape: ModelShape, recipe: Recipe) -> Iterator[Entry]:
    """Everything outside the blocks."""
    tokens, w = recipe.tokens, recipe.norm_bytes
    trained = not recipe.lora_rank
    yield Entry(
        Account.ACTIVATIONS, "the batch", ALWAYS, 24 * tokens * recipe.accum,
        "8 B x (token, mask, label) x tokens x micro-batches", "int64 tensors of [batch, seq]",
    )  # fmt: skip
    in_blocks = tuple(instant for instant in Instant if instant not in (Instant.BACKWARD_END, Instant.OPTIMIZER_STEP))
    if shape.family == "llama":
        yield Entry(
            Account.ACTIVATIONS, "cosines and sines of the positions", in_blocks, 2 * w * shape.head_dim * recipe.seq,
            f"2 x {w} B x head size x seq", "LlamaRotaryEmbedding",
        )  # fmt: skip
    if recipe.attention == "eager":
        yield Entry(
            Account.ACTIVATIONS, "the causal mask", in_blocks if recipe.checkpoint_every else (_END,),
            w * recipe.seq**2, f"{w} B x seq x seq", "create_causal_mask in transformers",
        )  # fmt: skip
    norm = _final_norm_bytes(shape, recipe)
    yield Entry(
        Account.ACTIVATIONS, "kept by the final norm and the head", (_END, _HEAD), norm * tokens,
        f"tokens x {norm} B", "the norm's input, its normalised form, the head's input",
    )  # fmt: skip
    held = 0 if trained else recipe.norm_bytes * tokens * shape.hidden
    yield Entry(
        Account.TEMPORARY, "the head's input, held until the loss is there", (_END,), held,
        f"tokens x {recipe.norm_bytes} B x H", "a local variable of the model's forward",
    )  # fmt: skip
    yield from _logits(shape, recipe)
    if recipe.autocast and recipe.table_bytes == 4:
        kept_cast = (_END,) if recipe.loss == "fused-linear-ce" else (_END, _HEAD)
        # A frozen weight's cast is not cached: each product makes, and keeps, one of its own.
        products = recipe.loss_number or 1 if recipe.loss.startswith("chunked") and not trained else 1
        yield Entry(
            Account.ACTIVATIONS, "the head's weight cast to 16 bit by autocast", kept_cast,
            products * 2 * shape.vocab * shape.hidden, f"{products} x 2 B x V x H",
            "cached_cast in aten/src/ATen/autocast_mode.cpp",
        )  # fmt: skip


def _final_norm_bytes(shape: ModelShape, recipe: Recipe) -> int:
    """Per token; the same as a block's norm, but that LoRA's first block has no norm to keep anything for."""
    w, s, hidden, trained = recipe.norm_bytes, recipe.compute_bytes, shape.hidden, not recipe.lora_rank
    norm = sum(kept.bytes_per_token for kept in Block(shape, recipe).norm("norm2"))
    if not trained and not recipe.checkpoint_every:
        norm = 0
    mask = hidden if shape.dropout and trained else 0
    return (
        round(norm) + mask + (s * hidden if trained else 0) + (w * hidden if mask and w == 2 and recipe.autocast else 0)
    )


def logit_bytes(recipe: Recipe) -> tuple[float, float, float]:
    """Bytes per logit: alive at the end of the forward pass, of those kept, alive at their gradient.

    ``hf`` (transformers 5): the logits, their fp32 copy, log-softmax's output, which is kept; in the backward
    pass log-softmax's output, the loss's gradient, log-softmax's gradient. ``hf-4.48`` shifts the logits through one
    more fp32 copy. Liger's cross-entropy writes the gradient over its logits, a shifted copy of the model's.
    """
    s = recipe.compute_bytes
    copy = 4 if s == 2 else 0
    if recipe.loss.startswith("logits"):
        return recipe.loss_number, recipe.loss_number, recipe.loss_number  # type: ignore[return-value]
    if recipe.loss_number:  # all logits, but copies to fp32 and gradients of one chunk at a time
        return s + copy / recipe.loss_number + 4, 4, 4 + 8 / recipe.loss_number
    return {
        "hf": (s + copy + 4, 4, 12),
        "hf-4.48": (s + copy + 4 + 4, 4, 12),
        "fused-ce": (2 * s, s, 2 * s),
        "fused-linear-ce": (0, 0, 0),
    }[recipe.loss]


def _logits(shape: ModelShape, recipe: Recipe) -> Iterator[Entry]:
    logits = recipe.tokens * shape.vocab
    at_end, kept, at_head = logit_bytes(recipe)
    source = {
        "hf": "ForCausalLMLoss in transformers/loss/loss_utils.py",
        "hf-4.48": "ForCausalLMLoss in transformers 4.48",
        "fused-ce": "liger_cross_entropy_kernel in liger_kernel/ops/cross_entropy.py",
    }.get(recipe.loss, "the recipe's loss")
    yield Entry(
        Account.ACTIVATIONS, "log-probabilities, kept for the loss's gradient", (_END, _HEAD), round(kept * logits),
        f"{kept:g} B x tokens x V", source,
    )  # fmt: skip
    for instant, alive in ((_END, at_end), (_HEAD, at_head)):
        yield Entry(
            Account.TEMPORARY, "logits and their copies", (instant,), round((alive - kept) * logits),
            f"{alive - kept:g} B x tokens x V", source,
        )  # fmt: skip
    if recipe.loss == "fused-linear-ce":
        yield from _fused_linear(shape, recipe)


def _fused_linear(shape: ModelShape, recipe: Recipe) -> Iterator[Entry]:
    """Liger's cross-entropy with the head in it: gradients made in the forward pass, a few rows of logits at a time."""
    source = "fused_linear_cross_entropy_forward in liger_kernel/ops/fused_linear_cross_entropy.py"
    flow, s, tokens = recipe.norm_bytes, recipe.compute_bytes, recipe.tokens
    yield Entry(
        Account.ACTIVATIONS, "gradient of the head's input, made in the forward pass", (_END, _HEAD),
        flow * tokens * shape.hidden, f"{flow} B x tokens x H", source,
    )  # fmt: skip
    if not recipe.lora_rank:
        yield Entry(
            Account.TEMPORARY, "the head's gradient, made in the forward pass", (_END, _HEAD),
            recipe.table_bytes * shape.vocab * shape.hidden, f"{recipe.table_bytes} B x V x H", source,
        )  # fmt: skip
    at_once = ceil(tokens / ceil(shape.vocab / shape.hidden))
    rows = min(tokens, 1 << (at_once - 1).bit_length())
    yield Entry(
        Account.TEMPORARY, "some rows of logits at a time", (_END,), s * rows * shape.vocab,
        f"{s} B x {rows:,} tokens x V", source,
    )  # fmt: skip
