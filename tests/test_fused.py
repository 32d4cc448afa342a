"""Fused kernels and losses of the dry run: what each keeps, counted by hand, and beside Liger's own code."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor, nn

from course_lib.accounts import Account, Moment
from course_lib.dryrun import dry_run, dry_run_config
from course_lib.dryrun.fused import _Norm, _rotate
from course_lib.dryrun.losses import _FusedLinear, _InPlace, rows_at_once
from course_lib.hf_config import read_config
from course_lib.recipe import Recipe
from course_lib.trace import Trace

BF16, TOKENS, WIDTH, VOCAB = torch.bfloat16, 4096, 1024, 32000


def traced(function: Callable[[Tensor, Tensor], Tensor], *sizes: tuple[int, ...]) -> Trace:
    """Forward and backward of ``function`` of two trained tensors of these sizes, in bf16."""
    tensors = nn.ParameterList([nn.Parameter(torch.empty(size, dtype=BF16, device="meta")) for size in sizes])

    def step() -> None:
        function(*(each * 1 for each in tensors)).sum().backward()
        for each in tensors:
            each.grad = None

    return dry_run(tensors, step)


def kept(trace: Trace) -> int:
    return trace.end_of(Moment.FORWARD)[Account.ACTIVATIONS]


def labels() -> Tensor:
    return torch.zeros(TOKENS, dtype=torch.long, device="meta")


OURS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "norm": (lambda x, w: _Norm.apply(x, w), ((TOKENS, WIDTH), (WIDTH,))),
    "cross-entropy": (lambda x, _: _InPlace.apply(x, labels()), ((TOKENS, VOCAB), (1,))),
    "fused linear": (lambda x, w: _FusedLinear.apply(x, w, labels()), ((TOKENS, WIDTH), (VOCAB, WIDTH))),
    "rotation": (lambda q, k: _rotated(_rotate, q, k), ((1, 512, 8, 64), (1, 512, 2, 64))),
}


def _rotated(rotate: Callable[..., tuple[Tensor, Tensor]], q: Tensor, k: Tensor) -> Tensor:
    table = torch.empty(1, 512, 64, dtype=BF16, device="meta")
    q, k = rotate(q.transpose(1, 2), k.transpose(1, 2), table, table)
    return q.sum() + k.sum()


def test_what_is_kept_by_hand() -> None:
    traces = {name: traced(case[0], *case[1]) for name, case in OURS.items()}
    product = {name: sum(2 * torch.Size(size).numel() for size in case[1]) for name, case in OURS.items()}
    # The norm: its input, its weight, one fp32 number a row. The factors 1 are scalars, which nobody keeps.
    assert kept(traces["norm"]) == pytest.approx(2 * TOKENS * WIDTH + 2 * WIDTH + 4 * TOKENS, abs=4096)
    # Cross-entropy: the logits, which become their gradient. One tensor all the way.
    assert kept(traces["cross-entropy"]) == pytest.approx(2 * TOKENS * VOCAB, abs=4096)
    # With the head in it: both gradients, and in the forward pass some rows of logits.
    assert rows_at_once(TOKENS, WIDTH, VOCAB) == 128
    assert kept(traces["fused linear"]) == pytest.approx(product["fused linear"], rel=0.01)
    most = 2 * product["fused linear"] + 2 * 128 * VOCAB + 2 * VOCAB * WIDTH + 2 * TOKENS * WIDTH
    assert traces["fused linear"].moment_peaks[Moment.FORWARD] == pytest.approx(most, rel=0.001)
    assert kept(traces["rotation"]) == pytest.approx(2 * 512 * 64, abs=4096)


@pytest.fixture(scope="module")
def module_patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def liger(module_patch: pytest.MonkeyPatch) -> Iterator[dict[str, Callable[..., Any]]]:
    """Liger's own functions on the meta device; its kernels, which only a card runs, do nothing."""
    pytest.importorskip("liger_kernel", reason="Liger is not installed")
    before = dict(sys.modules)
    if importlib.util.find_spec("triton") is None:
        _without_triton()
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.rope import LigerRopeFunction

    module_patch.setattr(torch, "equal", lambda *_: True)  # the loss is the last operator: its gradient is 1
    yield {
        "norm": lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", True, False),
        "cross-entropy": lambda x, _: LigerCrossEntropyFunction.apply(x, labels(), None)[0],
        "fused linear": lambda x, w: LigerFusedLinearCrossEntropyFunction.apply(x, w, labels())[0],
        "rotation": lambda q, k: _rotated(LigerRopeFunction.apply, q, k),
    }
    for name in set(sys.modules) - set(before):
        if name.partition(".")[0] in ("triton", "liger_kernel"):
            del sys.modules[name]


class _Kernel:
    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *_, **__: None


def _without_triton() -> None:
    for name in ("", ".language", ".language.extra", ".language.extra.libdevice", ".language.extra.cuda",
                 ".language.extra.cuda.libdevice", ".language.math", ".runtime"):  # fmt: skip
        module: ModuleType = MagicMock()
        module.__spec__, module.__path__, module.__name__ = ModuleSpec("triton" + name, None), [], "triton" + name
        sys.modules["triton" + name] = module
    triton: Any = sys.modules["triton"]
    triton.__version__ = "3.4.0"
    triton.jit = lambda function=None, **_: _Kernel() if function else (lambda _: _Kernel())
    triton.cdiv, triton.next_power_of_2 = (lambda a, b: -(-a // b)), (lambda n: 1 << (n - 1).bit_length())


@pytest.mark.parametrize("name", OURS)
def test_the_same_as_ligers_own(name: str, liger: dict[str, Callable[..., Any]]) -> None:
    function, sizes = OURS[name]
    ours, theirs = traced(function, *sizes), traced(liger[name], *sizes)
    assert kept(ours) == pytest.approx(kept(theirs), rel=1e-3)
    # Off a card Liger multiplies into new tensors and sums a weight's gradient in fp32 first; on one it does not.
    if name != "fused linear":
        assert ours.peak_bytes == pytest.approx(theirs.peak_bytes, rel=0.01)
    assert ours.peak_bytes <= theirs.peak_bytes * 1.01


def test_fused_adapters_keep_nothing_of_rank_r() -> None:
    """Over a quantised matrix: the common input and what each dropout let through; without dropout, the input."""
    config = read_config("llama3.2-1b") | {"num_hidden_layers": 2, "vocab_size": 256}

    def keep(**settings: Any) -> int:
        return kept(dry_run_config(config, Recipe(seq=1024, quant="nf4", lora_rank=8, **settings)))

    width = 2 * 1024 * 2048  # bf16
    without, dropout = (keep(kernels="fused", lora_targets="q_proj,v_proj", lora_dropout=p) for p in (0.0, 0.1))
    assert dropout - without == pytest.approx(2 * 2 * width, rel=0.01)
    assert keep(kernels="fused", lora_dropout=0.1) < keep(kernels="stock", lora_dropout=0.1)


def test_rotation_happens_in_place() -> None:
    """No new tensor as large as the queries is made in the forward pass."""
    function, sizes = OURS["rotation"]
    trace = traced(function, *sizes)
    queries = 2 * 512 * 8 * 64
    assert trace.moment_peaks[Moment.FORWARD] < 2 * (queries + queries // 4) + queries
