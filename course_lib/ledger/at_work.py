"""What one transformer block takes beyond what it keeps, while it is being worked on.

With the symbols of :mod:`~course_lib.ledger.block`. A backward pass is at its most in one of four places: in the
MLP, where three of its inner gradients are alive at once; at its last product, where there is one of them, and a
quantised matrix in full; in attention, where the kernel works in fp32; or, under checkpointing, while the block
runs forward again.
"""

from math import ceil

from course_lib.ledger.block import Block


def forward_bytes(block: Block) -> int:
    """The most that is live, beyond other blocks, while the block runs forward and keeps."""
    tokens = block.recipe.tokens
    in_a_product = round((block.kept_bytes + _product_extra(block)) * tokens) + block.dequantised_bytes
    return max(in_a_product, round((block.kept_bytes + _adapter_extra(block)) * tokens))


def backward_bytes(block: Block) -> int:
    """The most that is live, beyond other blocks, while the block's backward pass runs.

    Under checkpointing that includes running it forward once more.
    """
    tokens = block.recipe.tokens
    after_mlp = sum(each.bytes_per_token for each in block.kept if each.part in ("norm1", "attention"))
    last_product = block.kept_bytes + block.m * block.shape.ffn + block.w * block.shape.hidden
    places = [
        round((block.kept_bytes + _mlp_extra(block)) * tokens),
        round(last_product * tokens) + block.dequantised_bytes,
        round((after_mlp + _attention_extra(block)) * tokens),
    ]
    if block.recipe.checkpoint_every:
        places.append(forward_bytes(block) + round(_waiting_gradients(block) * tokens))
    return max(places)


def passing_bytes(block: Block) -> int:
    """The most that is live while the block runs forward behind a checkpoint, which keeps only what went in.

    In the MLP: what the first products returned, the activation, their product, and the residual stream; where the
    whole score matrix is built, in attention.
    """
    shape, tokens = block.shape, block.recipe.tokens
    stream = (block.w + (4 if shape.family == "gpt2" and block.recipe.autocast else block.w)) * shape.hidden
    wide = 4 if shape.family == "gpt2" and block.recipe.autocast else block.m
    places = [3 * wide * shape.ffn + stream]
    if block.attention_kind == "scores":
        places.append((block.softmax_bytes + block.s) * shape.heads * block.recipe.seq + stream)
    return round(max(places) * tokens) + block.dequantised_bytes


def _mlp_extra(block: Block) -> float:
    """Gradients of the MLP's inner tensors, three at once, and the residual stream's, per token.

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
    gradients = s * (shape.query_width + 2 * block.key_width)
    if kind == "efficient":
        return stream + gradients
    rows = ceil(block.recipe.seq / 128) * 128 / block.recipe.seq
    expanded = 2 * s * shape.query_width if block.key_width != shape.query_width else 0
    head_dim = ceil(shape.head_dim / 32) * 32
    return stream + gradients + expanded + 4 * rows * shape.heads * (head_dim + 1)


def _product_extra(block: Block) -> float:
    """The MLP's product, which its last matrix reads, where nothing keeps it; and what that matrix returns."""
    if block.shape.family == "gpt2":
        return 0
    kept = any(each.part == "mlp" and each.what.startswith("input of") for each in block.kept)
    return (0 if kept and not _closing_is_copied(block) else block.m * block.shape.ffn) + block.m * block.shape.hidden


def _closing_is_copied(block: Block) -> bool:
    """Whether the last matrix has an adapter that keeps a copy of the product, not the product."""
    return block.shape.linears[-1] in block.adapted and block.adapter_copies_input(block.m)


def _adapter_width(block: Block) -> int:
    """Bytes of a number in an adapter's output; fp32 adapters over 16-bit weights promote it."""
    return max(block.m, block.adapter_s)


def _adapter_extra(block: Block) -> float:
    """What an adapter of the MLP takes while it runs forward: its input, its output, the same scaled, what waits."""
    if block.one_kernel_adapters:
        return 0
    return max(0, _closing_adapter_extra(block), _up_adapter_extra(block))


def _closing_adapter_extra(block: Block) -> float:
    closing, ffn, hidden = block.shape.linears[-1], block.shape.ffn, block.shape.hidden
    if closing not in block.adapted:
        return 0
    recipe, product = block.recipe, 0
    if _closing_is_copied(block) and recipe.quant != "int8":
        product = block.m * ffn
    # peft turns an adapter's input to the adapter's type, but for quantised matrices under autocast.
    width = block.m if recipe.autocast and recipe.quant != "none" else recipe.trained_bytes
    turned = width * ffn if width != block.m and (recipe.autocast or recipe.lora_dropout) else 0
    dropped = width * ffn if recipe.lora_dropout and width != block.adapter_s else 0  # autocast keeps a 16-bit copy
    stream = block.w * hidden if block.w == 2 and block.shape.family == "llama" else 0
    outputs = (block.m + 2 * _adapter_width(block)) * hidden
    return product + turned + max(dropped + block.m * hidden, outputs) + stream


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
