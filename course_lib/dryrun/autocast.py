"""``torch.autocast`` for tensors without memory: CUDA's lists and CUDA's cache of cast weights.

PyTorch has no autocast for the meta device. Its dispatcher does have an autocast key for
out-of-tree devices (``AutocastPrivateUse1``); inside a dry run that key is switched on for meta
tensors, with kernels that cast as ``aten/src/ATen/autocast_mode.{h,cpp}`` casts for CUDA or the CPU.
Autograd records the casts as it would on the card, so their memory is counted.
"""

from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from typing import Any, Self

import torch
import torch.utils.checkpoint
from torch.utils._pytree import tree_map

_STANDS_FOR = "privateuseone"
_KEY = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
_KEYSET = torch._C.DispatchKeySet(_KEY)

#: Operators by policy, from AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE,
#: AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE and AT_FORALL_PROMOTE in autocast_mode.h. Which of them are cast, and which
#: overloads, differs between versions of PyTorch; that is read off its dispatcher.
CUDA_LISTS = {
    "lower": """_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
        convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv
        linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell
        lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
        scaled_dot_product_attention""",
    "fp32": """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus
        layer_norm native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss
        cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss
        mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
        binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp norm upsample_nearest1d upsample_nearest2d
        upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
        upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
        _upsample_bicubic2d_aa""",
    "fp32_output": "prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum",
    "promote": """addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add cat
        stack""",
}
#: The same for the CPU: layer norm and softmax are on no list and stay in their input's type.
CPU_LISTS = {
    "lower": """_convolution conv1d conv2d conv3d bmm mm linalg_vecdot baddbmm addmm _addmm_activation addbmm linear
        matmul conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d mkldnn_rnn_layer prelu
        scaled_dot_product_attention _native_multi_head_attention""",
    "fp32": """avg_pool3d binary_cross_entropy grid_sampler polar prod quantile nanquantile stft cdist trace
        view_as_complex cholesky cholesky_inverse cholesky_solve inverse lu_solve orgqr ormqr pinverse mse_loss
        cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss poisson_nll_loss smooth_l1_loss
        cross_entropy_loss l1_loss huber_loss margin_ranking_loss soft_margin_loss triplet_margin_loss
        multi_margin_loss ctc_loss kl_div multilabel_margin_loss binary_cross_entropy_with_logits
        multilabel_margin_loss_forward max_pool3d max_unpool2d max_unpool3d adaptive_avg_pool3d adaptive_max_pool3d
        fractional_max_pool2d fractional_max_pool3d reflection_pad1d reflection_pad2d replication_pad1d
        replication_pad2d replication_pad3d grid_sampler_2d grid_sampler_3d _grid_sampler_2d_cpu_fallback
        fake_quantize_per_tensor_affine geqrf qr svd triangular_solve _lu_with_info fft_fft fft_ifft fft_fft2 fft_ifft2
        fft_fftn fft_ifftn fft_rfft fft_irfft fft_rfft2 fft_irfft2 fft_rfftn fft_irfftn fft_hfft fft_ihfft
        linalg_cholesky linalg_cholesky_ex linalg_cond linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh
        linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq linalg_matrix_rank linalg_qr linalg_solve
        linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve""",
    "fp32_output": "",
    "promote": "stack cat index_copy",
}

_cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
_nesting = 0


class Autocast(ContextDecorator):
    """Stands in for :class:`torch.autocast` within a dry run; same arguments.

    A region for ``imitated`` or for ``meta`` casts; one for any other device is only counted, since
    leaving the outermost region is what empties the cache of cast weights.
    """

    imitated = "cuda"

    def __init__(
        self,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        self._casts = device_type in (self.imitated, "meta")
        self._enabled = enabled
        self._dtype = dtype or torch.get_autocast_dtype(self.imitated)
        self._cache_enabled = torch.is_autocast_cache_enabled() if cache_enabled is None else cache_enabled

    def __enter__(self) -> Self:
        global _nesting
        _nesting += 1
        self._cached_before = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(self._cache_enabled)
        if self._casts:
            # The imitated device's flags are set too: checkpointing reads them to repeat the region.
            self._before = [
                (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
                for device in (self.imitated, _STANDS_FOR)
            ]
            for device, _, _ in self._before:
                _set(device, self._enabled, self._dtype)
        return self

    def __exit__(self, *_: object) -> None:
        global _nesting
        _nesting -= 1
        torch.set_autocast_cache_enabled(self._cached_before)
        if self._casts:
            for before in self._before:
                _set(*before)
        if not _nesting:
            _cache.clear()


@contextmanager
def autocast_on_meta(imitated: str) -> Iterator[None]:
    """Within it, ``torch.autocast`` works on meta tensors as it does on ``imitated`` (cuda or cpu)."""
    lists, key = (CUDA_LISTS, "AutocastCUDA") if imitated == "cuda" else (CPU_LISTS, "AutocastCPU")
    rules = torch.library.Library("_", "IMPL")  # noqa: TOR901
    rules.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    kernels = torch.library.Library("aten", "IMPL")  # noqa: TOR901
    for policy, names in lists.items():
        for operator in cast_operators(names, key):
            kernels.impl(operator, _kernel(operator, _POLICIES[policy]), "AutocastPrivateUse1")
    stand_in = type("Autocast", (Autocast,), {"imitated": imitated})
    patches = [
        (torch, "autocast", stand_in),
        (torch.amp, "autocast", stand_in),
        (torch.amp.autocast_mode, "autocast", stand_in),
        # Checkpointing repeats the autocast region of the device it infers from its arguments.
        (torch.utils.checkpoint, "_infer_device_type", lambda *_: imitated),
    ]
    originals = [(module, name, getattr(module, name)) for module, name, _ in patches]
    try:
        for module, name, value in patches:
            setattr(module, name, value)
        with torch._C._IncludeDispatchKeyGuard(_KEY):
            yield
    finally:
        for module, name, value in originals:
            setattr(module, name, value)
        _cache.clear()
        kernels._destroy()
        rules._destroy()


def _set(device: str, enabled: bool, dtype: torch.dtype) -> None:
    torch.set_autocast_enabled(device, enabled)
    torch.set_autocast_dtype(device, dtype)


def cast_operators(names: str, key: str) -> Iterator[Any]:
    """The overloads of ``names`` for which PyTorch has a kernel under ``key``, AutocastCUDA or AutocastCPU."""
    registered = set(torch._C._dispatch_get_registrations_for_dispatch_key(key))
    for name in names.split():
        packet = getattr(torch.ops.aten, name, None)  # some names exist only in some versions
        for overload in packet.overloads() if packet else ():
            operator = getattr(packet, overload)
            if operator.name() in registered:
                yield operator


def _kernel(operator: Any, policy: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYSET):
            return policy(operator, args, kwargs)

    return kernel


def _lower(operator: Any, args: Any, kwargs: Any) -> Any:
    dtype = torch.get_autocast_dtype(_STANDS_FOR)
    args, kwargs = tree_map(lambda leaf: _cast(leaf, dtype), (args, kwargs))
    return operator(*args, **kwargs)


def _fp32(operator: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = tree_map(lambda leaf: _cast(leaf, torch.float32), (args, kwargs))
    return operator(*args, **kwargs)


def _fp32_output(operator: Any, args: Any, kwargs: Any) -> Any:
    names = [argument.name for argument in operator._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    if "dtype" not in names or given.get("dtype") is not None or not _eligible(args[0]):
        return operator(*args, **kwargs)
    if args[0].dtype is torch.float16 and names[1] == "dim" and "softmax" in operator._schema.name:
        fused = getattr(torch.ops.aten, f"_{operator.overloadpacket.__name__}")
        return fused(args[0], given["dim"], True)  # CUDA reads fp16 and writes fp32 without a copy between
    return operator(**(given | {"dtype": torch.float32}))


def _promote(operator: Any, args: Any, kwargs: Any) -> Any:
    types = set()
    tree_map(lambda leaf: types.add(leaf.dtype) if _eligible(leaf) else None, (args, kwargs))
    return _fp32(operator, args, kwargs) if torch.float32 in types else operator(*args, **kwargs)


_POLICIES = {"lower": _lower, "fp32": _fp32, "fp32_output": _fp32_output, "promote": _promote}


def _eligible(leaf: Any) -> bool:
    return (
        isinstance(leaf, torch.Tensor)
        and leaf.device.type == "meta"
        and leaf.is_floating_point()
        and leaf.dtype is not torch.float64
    )


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    """``cached_cast``: a trained fp32 weight is cast once and kept until the outermost region ends."""
    if not _eligible(leaf) or leaf.dtype is dtype:
        return leaf
    trained = leaf.dtype is torch.float32 and leaf.requires_grad and leaf.is_leaf and not leaf._is_view()
    if not (trained and torch.is_autocast_cache_enabled()):
        return leaf.to(dtype)
    if id(leaf) not in _cache:
        _cache[id(leaf)] = (leaf, leaf.to(dtype))
    return _cache[id(leaf)][1]
