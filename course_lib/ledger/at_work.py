"""What one transformer block takes beyond what it keeps, while it is being worked on.

In bytes per token, with the symbols of :mod:`~course_lib.ledger.block`. A backward pass is at its most in one of
three places: in the MLP, where three of its inner gradients are alive at once; in attention, where the
kernel works in fp32; or, under checkpointing, while the block runs forward again.
"""

from math import ceil

from course_lib.ledger.block import Block


def forward_bytes(block: Block) -> float:
    """The most that is live per token, beyond other blocks, while the block runs forward and keeps."""
    return block.kept_bytes + _adapter_extra(block)


def backward_bytes(block: Block) -> float:
    """The most that is live per token, beyond other blocks, while the block's backward pass runs.

    Under checkpointing that includes running it forward once more.
    """
    after_mlp = sum(each.bytes_per_token for each in block.kept if each.part in ("norm1", "attention"))
    again = forward_bytes(block) + _waiting_gradients(block) if block.recipe.checkpoint_every else 0
    return max(block.kept_bytes + _mlp_extra(block), after_mlp + _attention_extra(block), again)


def _mlp_extra(block: Block) -> float:
    """Gradients of the MLP's inner tensors, three at once, and the residual stream's.

    The product's gradient takes the place of the product, where that was kept.
    """
    wide = 4 if block.shape.family == "gpt2" and block.recipe.autocast else block.m
    closing = [each for each in block.kept if each.part == "mlp" and each.what.startswith("input of")]
    freed = sum(each.bytes_per_token for each in closing)
    return 3 * wide * block.shape.ffn + block.w * block.shape.hidden - freed


def _attention_extra(block: Block) -> float:
    shape, s, kind = block.shape, block.s, block.attention_kind
    stream = (block.w + s) * shape.hidden
    if kind == "scores":  # softmax's output and its gradient, before and after; what the product read is gone then
        per_score = block.score_bytes()
        most = max(3 * block.softmax_bytes, per_score + s)
        return stream + (most - per_score) * shape.heads * block.recipe.seq
    gradients = s * (shape.query_width + 2 * shape.kv_width)
    if kind == "efficient":
        return stream + gradients
    rows = ceil(block.recipe.seq / 128) * 128 / block.recipe.seq
    expanded = 2 * s * shape.query_width if shape.heads != shape.kv_heads else 0
    head_dim = ceil(shape.head_dim / 32) * 32
    return stream + gradients + expanded + 4 * rows * shape.heads * (head_dim + 1)


def _adapter_width(block: Block) -> int:
    """Bytes of a number in an adapter's output; fp32 adapters over 16-bit weights promote it."""
    return max(block.m, block.adapter_s)


def _adapter_extra(block: Block) -> float:
    """What an adapter of the MLP takes while it runs forward: its output, the same scaled, and what waits."""
    if block.recipe.kernels == "fused":
        return 0
    return max(0, _closing_adapter_extra(block), _up_adapter_extra(block))


def _closing_adapter_extra(block: Block) -> float:
    closing, ffn, hidden = block.shape.linears[-1], block.shape.ffn, block.shape.hidden
    if closing not in block.adapted:
        return 0
    cast = block.adapter_copies_input(block.m)
    product = block.m * ffn if cast and block.recipe.quant != "int8" else 0
    fp32_copy = 4 * ffn if cast and block.recipe.autocast and block.recipe.quant == "none" else 0
    stream = block.w * hidden if block.w == 2 and block.shape.family == "llama" else 0
    return product + fp32_copy + (block.m + 2 * _adapter_width(block)) * hidden + stream


def _up_adapter_extra(block: Block) -> float:
    linears = {linear.name: linear for linear in block.adapted}
    if "up_proj" not in linears or _adapter_width(block) == block.m:
        return 0
    not_yet = _adapter_width(block) * block.shape.ffn if "down_proj" in linears else 0
    return 2 * _adapter_width(block) * block.shape.ffn + 2 * block.w * block.shape.hidden - not_yet


def _waiting_gradients(block: Block) -> float:
    """Gradients that wait while a block is recomputed: the residual stream's, and its copy for an fp32 adapter."""
    copies = 4 + block.w if block.shape.linears[-1] in block.adapted and block.adapter_s != block.w else 0
    return (block.w + copies) * block.shape.hidden
