"""Losses that take the head's input, and what each of them makes and keeps of the logits ``[tokens, vocabulary]``.

``hf`` is the model's own, and needs nothing from here. Liger's kernels run on a card only; the functions here allocate
and keep what its Python code allocates and keeps around them (liger_kernel 0.8.5, ops/cross_entropy.py and
ops/fused_linear_cross_entropy.py).
"""

from collections.abc import Callable
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.recipe import Recipe
from course_lib.training import LossOf

_HeadLoss = Callable[[Tensor, nn.Module, Tensor], Tensor]


def loss_of(recipe: Recipe) -> LossOf:
    """``loss(model, batch)`` of ``recipe`` for a causal language model of transformers, within peft's or not."""
    if recipe.loss in ("hf", "hf-4.48"):
        return lambda model, batch: model(**batch).loss
    kind, number = recipe.loss.partition(":")[0], recipe.loss_number or 0
    losses: dict[str, _HeadLoss] = {
        "fused-ce": _fused_cross_entropy,
        "fused-linear-ce": lambda hidden, head, labels: _FusedLinear.apply(hidden.flatten(0, 1), head.weight, labels),
        "chunked": lambda hidden, head, labels: _in_chunks(hidden, head, labels, number),
        "logits": lambda hidden, head, labels: _SoManyBytes.apply(hidden, head.weight, number),
    }
    return lambda model, batch: _of_hidden(model, batch, losses[kind])


def _of_hidden(model: Any, batch: dict[str, Tensor], loss: _HeadLoss) -> Tensor:
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    decoder = whole.model if whole.base_model is whole else whole.base_model
    hidden = decoder(**inputs).last_hidden_state
    labels = F.pad(batch["labels"], (0, 1), value=-100)[..., 1:].contiguous()
    return loss(hidden, whole.get_output_embeddings(), labels)


def _fused_cross_entropy(hidden: Tensor, head: nn.Module, labels: Tensor) -> Tensor:
    """The logits without each sequence's last, which has no label, are a copy; the kernel works in that."""
    logits = head(hidden)
    shifted = logits[:, :-1].contiguous()
    return _InPlace.apply(shifted.flatten(0, 1), labels)


class _InPlace(torch.autograd.Function):
    """Liger's cross-entropy: the gradient is written over the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        losses = logits.new_zeros(logits.shape[0])
        ctx.save_for_backward(logits.detach())
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient, None


class _FusedLinear(torch.autograd.Function):
    """Liger's cross-entropy with the head in it: a few rows of logits at a time, gradients made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        rows, width = hidden.shape
        vocab = weight.shape[0]
        at_once = rows_at_once(rows, width, vocab)
        for_hidden = torch.zeros_like(hidden)
        for_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        losses = hidden.new_zeros(rows, dtype=torch.float32)
        in_place = _product_dtype(hidden) == hidden.dtype == weight.dtype
        logits = hidden.new_empty(at_once, vocab) if in_place else None
        for start in range(0, rows, at_once):
            part = hidden[start : start + at_once]
            if logits is not None:  # made anew in the same memory, and so is the gradient of the part
                chunk = logits[: len(part)]
                torch.mm(part, weight.t(), out=chunk)
                torch.mm(chunk, weight, out=for_hidden[start : start + at_once])
            else:
                chunk = part @ weight.t()
                for_hidden[start : start + at_once] = chunk @ weight
            del chunk, part  # the weight's gradient is summed in its own memory
        ctx.save_for_backward(for_hidden, for_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        for_hidden, for_weight = ctx.saved_tensors
        return for_hidden, for_weight, None


def rows_at_once(rows: int, width: int, vocab: int) -> int:
    """How many of ``rows`` tokens Liger turns to logits at once: about as many numbers as their hidden states have."""
    wanted = ceil(rows / ceil(vocab / width))
    return min(rows, 1 << (wanted - 1).bit_length())


def _product_dtype(tensor: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else tensor.dtype


def _in_chunks(hidden: Tensor, head: nn.Module, labels: Tensor, chunks: int) -> Tensor:
    """torchtune's: head and loss for one part of each sequence at a time (CEWithChunkedOutputLoss)."""
    parts = labels.chunk(chunks, dim=1)
    logits = [head(part) for part in hidden.chunk(chunks, dim=1)]
    total = logits[0].new_zeros((), dtype=torch.float32)
    for chunk, part in zip(logits, parts, strict=True):
        total = total + F.cross_entropy(chunk.flatten(0, 1).float(), part.flatten(), reduction="sum")
    return total / labels.numel()


class _SoManyBytes(torch.autograd.Function):
    """A loss of which one thing is known: how many bytes a logit takes until the gradients are made."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, number: int) -> Tensor:
        tokens = hidden.numel() // hidden.shape[-1]
        ctx.logits = torch.empty(number * tokens * weight.shape[0], dtype=torch.uint8, device=hidden.device)
        ctx.trains_head, ctx.of_hidden = ctx.needs_input_grad[1], (hidden.shape, hidden.dtype)
        factor = weight.to(_product_dtype(weight)) if weight.dtype is torch.float32 else weight
        ctx.save_for_backward(weight, factor, hidden if ctx.trains_head else None)
        return hidden.new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        del ctx.logits
        weight, _, _ = ctx.saved_tensors
        shape, dtype = ctx.of_hidden
        for_hidden = weight.new_empty(shape, dtype=dtype)
        for_weight = torch.empty_like(weight) if ctx.trains_head else None
        return for_hidden, for_weight, None
