"""``kernels fused``: RMSNorm, rotary positions and adapters as one kernel each, as Liger, Unsloth and foak write them.

These kernels run on a card only. Here each is an autograd function that allocates and keeps what the library's
Python code does: Liger's ops/rms_norm.py (the input and one fp32 number a row; the gradient is written over the
output's), ops/rope.py (in place, nothing kept), and the adapters of Unsloth and foak (kernels/fast_lora.py: the
input and, with dropout, what it let through; nothing of rank r).
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.dryrun.quantized import dense_weight
from course_lib.recipe import Recipe

_ROTATE = "apply_rotary_pos_emb"


def fuse(model: nn.Module, recipe: Recipe) -> None:
    """Give ``model``'s norms and, where a library has a kernel for them, its adapters the fused forward pass."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(_norm, module)
        elif hasattr(module, "lora_A") and (recipe.quant != "none" or not recipe.lora_dropout):
            module.forward = partial(_adapted, module)


@contextmanager
def rotated_in_place(model: nn.Module) -> Iterator[None]:
    """Within it, ``model``'s attention turns queries and keys where they are."""
    sources = {sys.modules[type(module).__module__] for module in model.modules()}
    with ExitStack() as stack:
        for source in sources:
            if hasattr(source, _ROTATE):
                stack.callback(setattr, source, _ROTATE, getattr(source, _ROTATE))
                setattr(source, _ROTATE, _rotate)
        yield


def _norm(module: Any, x: Tensor) -> Tensor:
    return _Norm.apply(x, module.weight)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        deviation = x.new_empty(x.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(x, weight, deviation)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        _, weight, _ = ctx.saved_tensors
        return gradient, torch.empty_like(weight) if ctx.needs_input_grad[1] else None


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return _Rotation.apply(q, k, cos, sin)


class _Rotation(torch.autograd.Function):
    """``[B, heads, T, D]``, a view of what the matrix product returned as ``[B, T, heads, D]``."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        return q.view_as(q), k.view_as(k)

    @staticmethod
    def backward(ctx: Any, for_q: Tensor, for_k: Tensor) -> Any:
        turned = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (for_q, for_k))
        return *turned, None, None


def _adapted(module: Any, x: Tensor) -> Tensor:
    name = module.active_adapters[0]
    a, b = module.lora_A[name].weight, module.lora_B[name].weight
    dropout = getattr(module.lora_dropout[name], "p", 0.0)
    return _Adapted.apply(x, a, b, module.base_layer, dropout)


class _Adapted(torch.autograd.Function):
    """``x W + dropout(x) A B``: one operator for the matrix and its adapter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor, base: nn.Module, dropout: float) -> Tensor:
        dropped = torch.empty_like(x) if dropout else x
        out = base(x)
        out += dropped.to(out.dtype) @ a.to(out.dtype).t() @ b.to(out.dtype).t()
        ctx.save_for_backward(x, dropped, a, b)
        ctx.base = base
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, dropped, a, b = ctx.saved_tensors
        rows, dtype = gradient.flatten(0, -2), gradient.dtype
        inputs = dropped.to(dtype).flatten(0, -2)
        narrow = rows @ b.to(dtype)
        for_a, for_b = narrow.t() @ inputs, rows.t() @ (inputs @ a.to(dtype).t())
        for_x = rows @ dense_weight(ctx.base, dtype)
        for_x += narrow @ a.to(dtype)
        return for_x.view(x.shape).to(x.dtype), for_a.to(a.dtype), for_b.to(b.dtype), None, None
