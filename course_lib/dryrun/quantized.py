"""Frozen weights in 4 or 8 bits: bitsandbytes' own layers on the meta device, with their stored layout.

The layers, and peft's adapters around them, are the libraries' own code. Two functions are replaced, because they
call CUDA kernels: the 4-bit and the 8-bit matrix product, by autograd functions that allocate what the
kernels' Python code allocates (bitsandbytes/autograd/_functions.py: MatMul4Bit, MatMul8bitLt).

Layout of a weight of n elements (bitsandbytes/functional.py: quantize_4bit, QuantState): n/2 bytes of packed
values; one fp32 maximum per 64 values, or with double quantisation one byte per 64 and one fp32 per
64 x 256; a code of 16 fp32 numbers (and 256 for the maxima). int8: n bytes and one fp32 number a row.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.errors import CourseError
from course_lib.recipe import Recipe

BLOCKSIZE, NESTED_BLOCKSIZE = 64, 256


def quantise(model: nn.Module, recipe: Recipe) -> None:
    """Replace every linear layer of ``model`` but its head by a quantised one.

    Raises:
        CourseError: bitsandbytes is missing; int8 on a device other than meta.
    """
    bnb = _bitsandbytes()
    head = model.get_output_embeddings()  # type: ignore[operator]
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child is not head:
                make = _nf4_layer if recipe.quant == "nf4" else _int8_layer
                if child.weight.device.type != "meta":
                    make = _real_nf4_layer
                setattr(parent, name, make(bnb, child, recipe))
    setattr(model, "is_loaded_in_4bit" if recipe.quant == "nf4" else "is_loaded_in_8bit", True)


@contextmanager
def quantised_products() -> Iterator[None]:
    """Within it, bitsandbytes multiplies on the meta device."""
    bnb = _bitsandbytes()
    originals = bnb.matmul_4bit, bnb.matmul
    bnb.matmul_4bit, bnb.matmul = _matmul_4bit, _matmul_8bit
    try:
        yield
    finally:
        bnb.matmul_4bit, bnb.matmul = originals


def _bitsandbytes() -> Any:
    try:
        import bitsandbytes
    except ImportError as error:
        raise CourseError(
            "the dry run of quantised weights needs bitsandbytes; pip install bitsandbytes, or ask `course ledger`"
        ) from error
    return bitsandbytes


def _nf4_layer(bnb: Any, linear: nn.Linear, recipe: Recipe) -> nn.Module:
    layer = bnb.nn.Linear4bit(
        linear.in_features, linear.out_features, linear.bias is not None, torch.bfloat16,
        compress_statistics=recipe.double_quant, quant_type="nf4", device="meta",
    )  # fmt: skip
    state = _quant_state(bnb, linear.weight, recipe.double_quant)
    packed = torch.empty((ceil(linear.weight.numel() / 2), 1), dtype=torch.uint8, device="meta")
    layer.weight = bnb.nn.Params4bit(
        packed, requires_grad=False, quant_state=state, quant_type="nf4", bnb_quantized=True, module=layer
    )
    layer.weight.quant_state = layer.quant_state = state
    layer.bias = linear.bias
    tensors = {"absmax": state.absmax, "code": state.code}
    if state.nested:
        tensors |= {"offset": state.offset, "nested_absmax": state.state2.absmax, "nested_code": state.state2.code}
    for name, tensor in tensors.items():  # so that whoever counts weights finds them
        layer.register_buffer(f"quantisation_{name}", tensor, persistent=False)
    return layer


def _real_nf4_layer(bnb: Any, linear: nn.Linear, recipe: Recipe) -> nn.Module:
    """bitsandbytes' own quantisation of numbers that are there."""
    if recipe.quant != "nf4":
        raise CourseError(f"quant {recipe.quant}: only nf4 is measured on a device; choose quant nf4")
    layer = bnb.nn.Linear4bit(
        linear.in_features, linear.out_features, linear.bias is not None, torch.bfloat16,
        compress_statistics=recipe.double_quant, quant_type="nf4", device="meta",
    )  # fmt: skip
    weight = bnb.nn.Params4bit(
        linear.weight.detach(), requires_grad=False, compress_statistics=recipe.double_quant, quant_type="nf4",
        module=layer,
    )  # fmt: skip
    layer.weight, layer.bias = weight.to(linear.weight.device), linear.bias
    return layer


def _quant_state(bnb: Any, weight: Tensor, double: bool) -> Any:
    blocks = ceil(weight.numel() / BLOCKSIZE)
    common = {
        "shape": weight.shape,
        "code": _meta(16),
        "blocksize": BLOCKSIZE,
        "quant_type": "nf4",
        "dtype": torch.bfloat16,
    }
    make = bnb.functional.QuantState
    if not double:
        return make(absmax=_meta(blocks), **common)
    nested = make(
        absmax=_meta(ceil(blocks / NESTED_BLOCKSIZE)), code=_meta(256), blocksize=NESTED_BLOCKSIZE, dtype=torch.float32
    )
    return make(absmax=_meta(blocks, torch.uint8), offset=_meta(), state2=nested, **common)


def _int8_layer(bnb: Any, linear: nn.Linear, _: Recipe) -> nn.Module:
    layer = bnb.nn.Linear8bitLt(
        linear.in_features, linear.out_features, linear.bias is not None,
        has_fp16_weights=False, threshold=6.0, device="meta",
    )  # fmt: skip
    values = torch.empty(linear.weight.shape, dtype=torch.int8, device="meta")
    layer.weight = nn.Parameter(values, requires_grad=False)
    layer.weight.CB = None
    layer.state.CB, layer.state.SCB = layer.weight, _meta(linear.out_features)
    layer.bias = linear.bias
    layer.register_buffer("quantisation_scales", layer.state.SCB, persistent=False)
    return layer


def dense_weight(layer: Any, dtype: torch.dtype) -> Tensor:
    """The matrix of ``layer`` as ``[outputs, inputs]`` in ``dtype``: its own, or made anew from 4 or 8 bits."""
    state = getattr(layer, "state", None) or getattr(layer, "quant_state", None)
    if state is None:
        weight = layer.weight.t() if type(layer).__name__ == "Conv1D" else layer.weight
        return weight.to(dtype)
    return _dequantise(state, dtype) if hasattr(state, "absmax") else _from_int8(state, dtype)


def _meta(size: int | tuple[()] = (), dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


def _matmul_4bit(a: Tensor, b: Tensor, quant_state: Any, out: None = None, bias: Tensor | None = None) -> Tensor:
    return _Product4bit.apply(a, b, bias, quant_state)


def _matmul_8bit(
    a: Tensor, b: Tensor, out: None = None, state: Any = None, bias: Tensor | None = None, **_: Any
) -> Tensor:
    return _Product8bit.apply(a, bias, state)


def _dequantise(state: Any, dtype: torch.dtype) -> Tensor:
    """The whole matrix in 16 bits, made anew at each use."""
    if state.nested:
        absmax = torch.empty(state.absmax.shape, dtype=torch.float32, device="meta")
        absmax += state.offset
    return torch.empty(tuple(state.shape), dtype=state.dtype, device="meta").to(dtype)


def _from_int8(state: Any, dtype: torch.dtype) -> Tensor:
    return state.CB.to(dtype, copy=True).mul_(state.SCB.unsqueeze(1))


class _Product4bit(torch.autograd.Function):
    """Keeps nothing but the packed weight."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, bias: Tensor | None, state: Any) -> Tensor:
        ctx.state, ctx.packed = state, b
        return torch.nn.functional.linear(a, _dequantise(state, a.dtype), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad @ _dequantise(ctx.state, grad.dtype), None, None, None


class _Product8bit(torch.autograd.Function):
    """Keeps its input in the type in which it came, quantises it row by row, and sums in int32."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, bias: Tensor | None, state: Any) -> Tensor:
        ctx.state, ctx.kept = state, a
        rows, outputs = prod(a.shape[:-1]), state.CB.shape[0]
        half = a.to(torch.float16)
        quantised = torch.empty(half.shape, dtype=torch.int8, device="meta")
        scales = _meta(rows)
        summed = torch.empty((rows, outputs), dtype=torch.int32, device="meta")
        out = torch.empty((*a.shape[:-1], outputs), dtype=a.dtype, device="meta")
        del half, quantised, scales, summed
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        dtype = ctx.kept.dtype
        return grad.to(dtype) @ _from_int8(ctx.state, dtype), None, None
