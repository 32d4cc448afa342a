"""What CUDA would run where the meta device runs something else, and what its kernels take inside.

On the meta device some composite operators decompose as they do on the CPU, which takes other
memory than on a card: attention would build its whole score matrix, dropout would keep a mask in the
input's type. Within :func:`cuda_on_meta` they go to the operators that CUDA would choose.
"""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

aten = torch.ops.aten
_FUSED_CHECK = "_device_dtype_check_for_fused"


@contextmanager
def cuda_on_meta(imitated: str = "cuda") -> Iterator[None]:
    """Within it, meta tensors take the operators that ``imitated`` (cuda or cpu) would take."""
    kernels = torch.library.Library("aten", "IMPL")  # noqa: TOR901
    kernels.impl("_local_scalar_dense", _answer, "Meta", allow_override=True)
    # PyTorch's own make the same tensors, by way of a dozen operators written in Python.
    kernels.impl("native_layer_norm", _layer_norm, "Meta", allow_override=True)
    kernels.impl("native_layer_norm_backward", _layer_norm_backward, "Meta", allow_override=True)
    if hasattr(aten, "_grouped_mm"):
        kernels.impl("_grouped_mm", _grouped_mm, "Meta", allow_override=True)
    for fused in ("_fused_sgd_", "_fused_sgd_.tensor_lr"):  # in place; has no meta kernel in every version
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{fused}", "Meta"):
            kernels.impl(fused, lambda *_, **__: None, "Meta")
    if imitated == "cuda":
        kernels.impl("scaled_dot_product_attention", _cuda_attention, "AutogradMeta")
        kernels.impl("dropout", _cuda_dropout, "AutogradMeta")
        if _has_fused_rms_norm():
            kernels.impl("rms_norm", _cuda_rms_norm, "AutogradMeta")
    else:
        kernels.impl("scaled_dot_product_attention", _cpu_attention, "AutogradMeta")
    with ExitStack() as stack:
        stack.callback(kernels._destroy)
        # Fused optimizers refuse devices that they have no kernel for; their meta kernels do exist.
        for name in ("adam", "sgd"):
            optimizer = importlib.import_module(f"torch.optim.{name}")  # torch.optim hides its modules
            stack.callback(setattr, optimizer, _FUSED_CHECK, getattr(optimizer, _FUSED_CHECK))
            setattr(optimizer, _FUSED_CHECK, lambda *_, **__: None)
        yield


def scratch_bytes(operator: Any, args: tuple[Any, ...]) -> int:
    """Bytes that the CUDA kernel of ``operator`` allocates and frees inside itself.

    FlashAttention's backward pass (mha_bwd in aten/src/ATen/native/transformers/cuda/flash_attn/
    flash_api.cpp) sums dQ in fp32 and keeps one fp32 number a row; where query heads share key and
    value heads, it first writes dK and dV once per query head.
    """
    if operator is not aten._scaled_dot_product_flash_attention_backward.default:
        return 0
    _, query, key = args[:3]
    batch, heads, length, head_dim = query.shape
    rows = batch * heads * _round_up(length, 128)
    scratch = 4 * rows * (_round_up(head_dim, 32) + 1)
    if key.shape[1] != heads:
        scratch += 2 * batch * heads * key.shape[2] * head_dim * key.element_size()
    return scratch


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _answer(tensor: torch.Tensor) -> bool | int:
    """``tensor.item()`` where there is no number: yes, the mask is trivial; nothing overflowed."""
    return True if tensor.dtype is torch.bool else 0


def _layer_norm(
    x: torch.Tensor, normalized_shape: list[int], weight: Any, bias: Any, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output, and mean and reciprocal deviation of each row in fp32 at least."""
    rows = (*x.shape[: x.dim() - len(normalized_shape)], *(1 for _ in normalized_shape))
    mean = x.new_empty(rows, dtype=torch.promote_types(x.dtype, torch.float32))
    return torch.empty_like(x, memory_format=torch.contiguous_format), mean, torch.empty_like(mean)


def _layer_norm_backward(
    gradient: torch.Tensor, x: torch.Tensor, normalized_shape: list[int], mean: Any, deviation: Any,
    weight: Any, bias: Any, wanted: list[bool],
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients of the input, the weight and the bias, where they are wanted."""
    return tuple(
        torch.empty_like(each, memory_format=torch.contiguous_format) if each is not None and asked else None
        for each, asked in zip((x, weight, bias), wanted, strict=True)
    )


def _grouped_mm(
    a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """Each expert's product, in any type: PyTorch's own function for shapes knows bf16 alone, its CUDA code all.

    One of ``a`` and ``b`` or both hold all experts' rows in two dimensions, cut at ``offs``. Rows of the result are
    padded to 16 bytes (create_grouped_gemm_output_tensor in aten/src/ATen/native/GroupedMMUtils.h).
    """
    experts = []
    if a.dim() == b.dim():
        experts = [offs.shape[0] if a.dim() == 2 and offs is not None else a.shape[0]]
    dtype = out_dtype or a.dtype
    rows, columns = a.shape[-2], b.shape[-1]
    stride = _round_up(columns, 16 // dtype.itemsize)
    return torch.empty_strided(
        (*experts, rows, columns), (*(rows * stride for _ in experts), stride, 1), dtype=dtype, device="meta"
    )


def _cuda_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Flash for 16 bits without a mask, memory-efficient with one or in fp32, else the plain formula.

    As select_sdp_backend in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp decides for Ampere.
    """
    grouped = query.shape[1] != key.shape[1]
    sixteen_bit = query.dtype in (torch.float16, torch.bfloat16)
    head_dim = query.shape[-1]
    one_width = value.shape[-1] == head_dim  # FlashAttention knows only one
    if sixteen_bit and attn_mask is None and head_dim <= 256 and one_width:
        if padding := -head_dim % 8:
            query, key, value = (torch.nn.functional.pad(tensor, (0, padding)) for tensor in (query, key, value))
            scale = head_dim**-0.5 if scale is None else scale
        out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :head_dim] if padding else out
    if not grouped and head_dim % (8 if sixteen_bit else 4) == 0:
        if attn_mask is not None:
            bias = attn_mask
            if bias.dtype is torch.bool:
                bias = torch.zeros_like(bias, dtype=query.dtype)
            attn_mask = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        trains = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, trains, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _cpu_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    if dropout_p == 0.0 and not enable_gqa:
        return aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _cuda_dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """CUDA keeps a mask of one byte an element (native_dropout)."""
    return aten.native_dropout(tensor, p, train)[0] if train and p > 0 else tensor


def _has_fused_rms_norm() -> bool:
    """CUDA has it since torch 2.9; what bore the name before is for Apple's cards and takes a number of dimensions."""
    operator = getattr(aten, "_fused_rms_norm", None)
    return operator is not None and operator.default._schema.arguments[1].name == "normalized_shape"


def _cuda_rms_norm(
    tensor: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    return aten._fused_rms_norm(tensor, normalized_shape, weight, eps)[0]
