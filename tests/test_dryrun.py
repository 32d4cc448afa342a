"""The dry run's pretence: the operators and types that CUDA would choose, and nothing left behind."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from small_gpt import BATCH, LENGTH, SmallStep, small_step
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.accounts import Account, Moment
from course_lib.dryrun import dry_run, dry_run_config, on_meta
from course_lib.dryrun.autocast import CPU_LISTS, CUDA_LISTS, cast_operators
from course_lib.errors import CourseError
from course_lib.hf_config import read_config
from course_lib.models import GPTConfig
from course_lib.recipe import Recipe
from course_lib.trace import Trace
from course_lib.training import train_step

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


class Operators(TorchDispatchMode):
    """Notes the names of the operators that run, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def meta(*size: int, dtype: torch.dtype = FP32, grad: bool = True) -> Tensor:
    return torch.empty(*size, device="meta", dtype=dtype, requires_grad=grad)


FLASH, EFFICIENT, PLAIN = (
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention", "_safe_softmax",
)  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "head_dim", "kv_heads", "mask", "chosen"),
    [
        (BF16, 64, 4, None, FLASH),
        (FP16, 64, 4, None, FLASH),
        (BF16, 64, 2, None, FLASH),
        (BF16, 20, 4, None, FLASH),  # padded to 24
        (BF16, 512, 4, None, EFFICIENT),
        (BF16, 64, 4, torch.bool, EFFICIENT),
        (BF16, 64, 4, BF16, EFFICIENT),
        (BF16, 64, 2, torch.bool, PLAIN),  # only flash shares key and value heads
        (FP32, 64, 4, None, EFFICIENT),
        (FP32, 64, 4, torch.bool, EFFICIENT),
        (FP32, 64, 2, None, PLAIN),
        (FP32, 18, 4, None, PLAIN),
    ],
)
def test_attention_as_cuda_chooses(
    dtype: torch.dtype, head_dim: int, kv_heads: int, mask: torch.dtype | None, chosen: str
) -> None:
    """The conditions of sdp_utils.cpp: flash is 16 bit without a mask, efficient has no grouped queries and aligns."""
    query, key, value = (meta(2, heads, 16, head_dim, dtype=dtype) for heads in (4, kv_heads, kv_heads))
    attn_mask = None if mask is None else torch.ones(16, 16, device="meta", dtype=mask)
    with on_meta(), Operators() as ran:
        causal, grouped = mask is None, kv_heads < 4
        out = F.scaled_dot_product_attention(query, key, value, attn_mask, is_causal=causal, enable_gqa=grouped)
        out.sum().backward()
    assert out.shape == query.shape
    assert key.grad.shape == key.shape
    assert {FLASH, EFFICIENT, PLAIN} & set(ran.names) == {chosen}
    assert f"{chosen}_backward" in ran.names or chosen == PLAIN


def test_flash_keeps_no_scores() -> None:
    """Memory that grows with the square of the length is the plain formula's alone."""

    def attention_peak(dtype: torch.dtype, kv_heads: int, length: int) -> int:
        heads = nn.ParameterList(meta(1, n, length, 64, dtype=dtype) for n in (4, kv_heads, kv_heads))
        step = lambda: F.scaled_dot_product_attention(*heads, enable_gqa=True).sum().backward()  # noqa: E731
        return dry_run(heads, step).peak_bytes

    assert attention_peak(BF16, 2, 4096) < 2.1 * attention_peak(BF16, 2, 2048)
    assert attention_peak(FP32, 2, 4096) > 3.5 * attention_peak(FP32, 2, 2048)


@pytest.mark.parametrize(("key", "lists"), [("AutocastCUDA", CUDA_LISTS), ("AutocastCPU", CPU_LISTS)])
def test_autocast_lists_are_pytorchs(key: str, lists: dict[str, str]) -> None:
    """Every operator that this PyTorch casts is on exactly one list; but that CUDA refuses one in a region, and that
    recurrent networks of cuDNN are left out.
    """
    ours = [operator.name() for names in lists.values() for operator in cast_operators(names, key)]
    registered = {
        name for name in torch._C._dispatch_get_registrations_for_dispatch_key(key) if name.startswith("aten::")
    }
    assert len(ours) == len(set(ours))
    assert registered - set(ours) <= {"aten::binary_cross_entropy", "aten::_cudnn_rnn"}


#: Operators of every policy, on a 16-bit and a 32-bit matrix; what they return says which type they worked in.
CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mm": lambda h, f: f @ f,
    "mixed mm": lambda h, f: h @ f,
    "linear": lambda h, f: F.linear(f, f, f.view(64).narrow(0, 0, 8)),
    "addmm": lambda h, f: torch.addmm(f, f, f),
    "bmm": lambda h, f: torch.bmm(f.view(1, 8, 8), f.view(1, 8, 8)),
    "einsum": lambda h, f: torch.einsum("ij,jk", f, f),
    "conv1d": lambda h, f: F.conv1d(f.view(1, 8, 8), f.view(8, 8, 1)),
    "prelu": lambda h, f: F.prelu(f, f.view(64).narrow(0, 0, 1)),
    "attention": lambda h, f: F.scaled_dot_product_attention(*[f.view(1, 1, 8, 8)] * 3),
    "exp": lambda h, f: h.exp(),
    "pow": lambda h, f: h.pow(2),
    "rsqrt": lambda h, f: h.rsqrt(),
    "layer_norm": lambda h, f: F.layer_norm(h, (8,)),
    "rms_norm": lambda h, f: F.rms_norm(h, (8,)),
    "group_norm": lambda h, f: F.group_norm(h, 2),
    "nll_loss": lambda h, f: F.nll_loss(h, torch.zeros(8, dtype=torch.long, device=h.device)),
    "cross_entropy": lambda h, f: F.cross_entropy(h, torch.zeros(8, dtype=torch.long, device=h.device)),
    "mse_loss": lambda h, f: F.mse_loss(h, h),
    "norm": lambda h, f: h.norm(),
    "interpolate": lambda h, f: F.interpolate(h.view(1, 8, 8), scale_factor=2),
    "softmax": lambda h, f: h.softmax(-1),
    "softmax to bf16": lambda h, f: F.softmax(f, -1, dtype=BF16),
    "log_softmax": lambda h, f: h.log_softmax(-1),
    "sum": lambda h, f: h.sum(),
    "sum over a dimension": lambda h, f: h.sum(-1),
    "cumsum": lambda h, f: h.cumsum(0),
    "mean": lambda h, f: h.mean(),
    "addcmul": lambda h, f: torch.addcmul(f, h, f),
    "promotion that is not needed": lambda h, f: torch.addcmul(h, h, h),
    "cat": lambda h, f: torch.cat([h, f]),
    "add": lambda h, f: h + f,
    "gelu": lambda h, f: F.gelu(h),
    "silu": lambda h, f: F.silu(f),
    "float64 is left alone": lambda h, f: f.double() @ f.double(),
    "integers are left alone": lambda h, f: f.long().sum(),
}


@contextmanager
def real_cuda_autocast(dtype: torch.dtype) -> Iterator[None]:
    """PyTorch's own kernels for CUDA, on fake tensors that claim to be there: types can be read off without a card."""
    with FakeTensorMode(), torch.no_grad():
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", dtype)
        try:
            yield
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.clear_autocast_cache()


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("name", [name for name in CALLS if name != "attention"])  # asks for the card's properties
def test_types_under_cuda_autocast(name: str, dtype: torch.dtype) -> None:
    call = CALLS[name]
    with real_cuda_autocast(dtype):
        real = call(torch.empty(8, 8, device="cuda", dtype=dtype), torch.empty(8, 8, device="cuda"))
    with on_meta(), torch.autocast("cuda", dtype=dtype):
        ours = call(meta(8, 8, dtype=dtype), meta(8, 8))
    assert ours.dtype is real.dtype
    assert ours.shape == real.shape


@pytest.mark.parametrize("name", [name for name in CALLS if name != "conv1d"])  # oneDNN has no bf16 on every CPU
def test_types_under_cpu_autocast(name: str) -> None:
    call = CALLS[name]
    with torch.autocast("cpu", dtype=BF16):
        real = call(torch.rand(8, 8).to(BF16), torch.rand(8, 8))
    with on_meta("cpu"), torch.autocast("cpu", dtype=BF16):
        ours = call(meta(8, 8, dtype=BF16), meta(8, 8))
    assert ours.dtype is real.dtype


def casts(run: Callable[[], Any]) -> int:
    with on_meta(), Operators() as ran:
        run()
    return ran.names.count("_to_copy")


def test_a_trained_weight_is_cast_once_a_region() -> None:
    """cached_cast in autocast_mode.cpp: leaves in fp32 that are trained, until the outermost region ends."""
    weight, frozen, x = meta(8, 8), meta(8, 8, grad=False), meta(8, 8, dtype=BF16)

    def twice(w: Tensor) -> None:
        with torch.autocast("cuda", dtype=BF16):
            (x @ w) @ w

    def in_an_inner_region() -> None:
        with torch.autocast("cuda", dtype=BF16):
            x @ weight
            with torch.autocast("cuda", dtype=BF16):
                x @ weight
            x @ weight

    def in_two_regions() -> None:
        twice(weight)
        twice(weight)

    assert casts(lambda: twice(weight)) == 1
    assert casts(lambda: twice(frozen)) == 2
    assert casts(lambda: twice(weight.t())) == 2  # a view is no leaf
    assert casts(in_an_inner_region) == 1
    assert casts(in_two_regions) == 2


def test_cast_weights_go_when_their_region_ends() -> None:
    """Under no_grad nothing else holds them."""
    layers = nn.Sequential(*[nn.Linear(256, 256, bias=False, device="meta") for _ in range(4)])

    def step() -> None:
        with torch.no_grad(), torch.autocast("cuda", dtype=BF16):
            layers(torch.empty(1, 256, device="meta"))
        torch.empty(1, device="meta")

    trace = dry_run(layers, step)
    weights = 4 * 256 * 256 * 4
    assert trace.static_bytes[Account.WEIGHTS] == weights
    assert trace.peak_bytes >= weights * 1.5
    assert trace.live_total[-1] <= weights + 2 * 512


def test_autocast_off_and_nested_regions() -> None:
    with on_meta():
        with torch.autocast("cuda", enabled=False):
            assert (meta(8, 8) @ meta(8, 8)).dtype is FP32
        with torch.autocast("cuda", dtype=FP16):
            with torch.autocast("cuda", enabled=False):
                assert (meta(8, 8) @ meta(8, 8)).dtype is FP32
            assert (meta(8, 8) @ meta(8, 8)).dtype is FP16
        assert (meta(8, 8) @ meta(8, 8)).dtype is FP32
        with torch.autocast("cpu", dtype=BF16):  # another device's region
            assert (meta(8, 8) @ meta(8, 8)).dtype is FP32


def test_recomputation_repeats_autocast_and_attention() -> None:
    """A region has ended long before the backward pass repeats what was in it."""
    step = small_step("meta", checkpointed=True, autocast="cuda")
    with on_meta(), Operators() as ran:
        step()
    assert ran.names.count(FLASH) == 2 * 3
    assert ran.names.count(f"{FLASH}_backward") == 3
    assert EFFICIENT not in ran.names

    plain = small_step("meta", autocast="cuda")
    again, once = (dry_run(each.model, each, each.optimizer) for each in (step, plain))
    kept = [trace.end_of(Moment.FORWARD)[Account.ACTIVATIONS] for trace in (again, once)]
    assert kept[0] < kept[1] / 2


def everything_patched() -> list[Any]:
    adam, sgd = importlib.import_module("torch.optim.adam"), importlib.import_module("torch.optim.sgd")
    flags = [torch.is_autocast_enabled(device) for device in ("cuda", "cpu", "privateuseone")]
    types = [torch.get_autocast_dtype(device) for device in ("cuda", "cpu", "privateuseone")]
    return [
        torch.autocast, torch.amp.autocast, torch.amp.autocast_mode.autocast, torch.utils.checkpoint._infer_device_type,
        adam._device_dtype_check_for_fused, sgd._device_dtype_check_for_fused, torch._C._len_torch_dispatch_stack(),
        *flags, *types,
    ]  # fmt: skip


def numbers() -> list[Tensor]:
    """What a real CPU computes: attention, autocast, dropout, a norm; and what it refuses on meta."""
    torch.manual_seed(0)
    query = torch.rand(1, 2, 8, 8)
    with torch.autocast("cpu", dtype=BF16):
        product = query @ query
    with pytest.raises(RuntimeError):
        torch.empty(1, device="meta").item()
    return [F.scaled_dot_product_attention(query, query, query), product, F.dropout(query), F.rms_norm(query, (8,))]


def fails(step: SmallStep) -> Callable[[], None]:
    def run() -> None:
        step.forward().backward()
        raise ZeroDivisionError

    return run


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_nothing_is_left_behind(device: str) -> None:
    before, real = everything_patched(), numbers()
    step = small_step("meta", checkpointed=True, autocast=device, implementation="fused")
    dry_run(step.model, step, step.optimizer, imitate=device)
    assert everything_patched() == before
    assert all(map(torch.equal, numbers(), real))
    with pytest.raises(ZeroDivisionError):
        dry_run(step.model, fails(step), imitate=device)
    assert everything_patched() == before
    assert all(map(torch.equal, numbers(), real))
    with Operators() as ran:
        F.scaled_dot_product_attention(*[meta(1, 1, 8, 8, dtype=BF16)] * 3)
    assert FLASH not in ran.names


def test_real_tensors_keep_their_own_operators_meanwhile() -> None:
    with on_meta():
        query = torch.rand(1, 2, 8, 8)
        with Operators() as ran:
            F.scaled_dot_product_attention(query, query, query)
        assert "_scaled_dot_product_flash_attention_for_cpu" in ran.names


def test_a_model_with_memory_is_refused() -> None:
    step = small_step("cpu")
    with pytest.raises(CourseError, match="memory.*meta.*probe"):
        dry_run(step.model, step, step.optimizer)


@pytest.mark.parametrize(
    ("optimizer", "state_per_param"),
    [("adamw", 8), ("adam", 8), ("sgd", 0), ("sgd-momentum", 4)],
)
@pytest.mark.parametrize("implementation", ["foreach", "forloop", "fused"])
def test_optimizers(optimizer: str, state_per_param: int, implementation: str) -> None:
    make: Any = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}.get(optimizer, torch.optim.SGD)
    settings = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
    model = nn.Linear(1024, 1024, device="meta")
    if optimizer == "sgd-momentum":
        settings["momentum"] = 0.9
    update = make(model.parameters(), lr=0.1, **settings)

    def step() -> None:
        model(torch.empty(1, 1024, device="meta")).sum().backward()
        update.step()
        update.zero_grad()

    trace = dry_run(model, step, update)
    count = 1024 * 1024 + 1024
    counters = 2 * 4 if implementation == "fused" and "adam" in optimizer else 0
    assert trace.static_bytes == {
        Account.WEIGHTS: 4 * count,
        Account.GRADIENTS: 4 * count,
        Account.OPTIMIZER: state_per_param * count + counters,
    }
    at_step = trace.moment_peaks[Moment.OPTIMIZER_STEP] - (8 + state_per_param) * count
    made = {"foreach": 4 * count, "forloop": 2 * 4 * 1024 * 1024, "fused": 0}[implementation]
    made *= "adam" in optimizer
    assert made <= at_step < made + 16 * 1024


def test_the_first_step_is_not_the_second() -> None:
    """Adam's state appears in the first: its forward pass does without it."""
    step = small_step("meta")
    first = dry_run(step.model, step, step.optimizer, warm_up=0)
    second = dry_run(step.model, step, step.optimizer)
    state = second.static_bytes[Account.OPTIMIZER]
    rounded = second.bill_at(0)[Account.OPTIMIZER]
    assert rounded >= state
    assert first.bill_at(0)[Account.OPTIMIZER] == 0
    assert second.moment_peaks[Moment.FORWARD] - first.moment_peaks[Moment.FORWARD] == rounded


def test_dropouts_mask_takes_a_byte() -> None:
    """CUDA's native_dropout keeps a mask of bytes; embedding, attention's output and MLP have one each."""
    kept = []
    for dropout in (0.0, 0.1):
        step = small_step("meta", config=GPTConfig(block_size=LENGTH, layers=2, width=128, dropout=dropout))
        kept.append(dry_run(step.model, step, step.optimizer).end_of(Moment.FORWARD)[Account.ACTIVATIONS])
    assert kept[1] - kept[0] == BATCH * LENGTH * 128 * (1 + 2 * 2)


def test_dropouts_masks_of_transformers_gpt2() -> None:
    gpt2 = read_config("gpt2") | {"n_layer": 2}
    without = gpt2 | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    traces = [dry_run_config(config, Recipe(seq=128)) for config in (without, gpt2)]
    kept = [trace.end_of(Moment.FORWARD)[Account.ACTIVATIONS] for trace in traces]
    assert kept[1] - kept[0] == 128 * 768 * (1 + 2 * 2)


def test_a_model_and_a_step_of_ones_own() -> None:
    """Two layers, a buffer, two losses in one step, and an answer read off a tensor; counted by hand."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(512, 2048, bias=False)
            self.outer = nn.Linear(2048, 512, bias=False)
            self.register_buffer("offset", torch.zeros(512))

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(self.inner(x))
            if (hidden > 0).any().item():
                hidden = hidden * 1
            return self.outer(hidden) + self.offset

    with torch.device("meta"):
        model, x = Own(), torch.empty(64, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def step() -> None:
        first = model(x).square().mean()
        second = model(x).abs().mean()
        (first + second).backward()
        optimizer.step()
        optimizer.zero_grad()

    trace = dry_run(model, step, optimizer)
    weights = 2 * 4 * 512 * 2048
    assert trace.static_bytes == {
        Account.WEIGHTS: weights + 2048, Account.GRADIENTS: weights, Account.OPTIMIZER: 0,
    }  # fmt: skip
    hidden, out = 64 * 2048 * 4, 64 * 512 * 4
    # Each pass keeps relu's output and its product with 1; square() keeps its input, abs() too. Five scalars stand by:
    # both losses, their sum, where its gradient starts, and x, which is as large as an output.
    kept = trace.end_of(Moment.FORWARD)[Account.ACTIVATIONS]
    assert kept == pytest.approx(2 * (2 * hidden + out) + out, abs=5 * 512)


def test_another_versions_loss_is_refused() -> None:
    with pytest.raises(CourseError, match="loss hf-4.48 with transformers"):
        dry_run_config(read_config("gpt2"), Recipe(loss="hf-4.48"))


def test_a_config_that_transformers_refuses() -> None:
    with pytest.raises(CourseError, match="transformers .* cannot read"):
        dry_run_config(read_config("gpt2") | {"n_layer": "many"}, Recipe(seq=64))


def test_targets_that_the_model_lacks() -> None:
    with pytest.raises(CourseError, match="'q_proj'.*c_attn"):
        dry_run_config(read_config("gpt2"), Recipe(seq=64, lora_rank=4, lora_targets="q_proj"))


def test_float16_softmax_makes_no_copy_on_the_way() -> None:
    """CUDA's softmax reads fp16 and writes fp32; bf16 is copied first."""

    def peak(dtype: torch.dtype) -> Trace:
        scores = nn.Parameter(meta(1024, 1024, dtype=dtype))

        def step() -> None:
            with torch.no_grad(), torch.autocast("cuda", dtype=dtype):
                torch.softmax(scores, -1)

        return dry_run(nn.ParameterList([scores]), step)

    size = 1024 * 1024
    assert peak(BF16).peak_bytes == (2 + 4 + 4) * size
    assert peak(FP16).peak_bytes == (2 + 4) * size


def test_the_step_of_training_is_the_one_that_is_dry_run() -> None:
    """train_step: forward and backward once a micro-batch, one update, gradients dropped."""
    step = small_step("meta", accum=3)
    with on_meta(), Operators() as ran:
        train_step(step.model, step.optimizer, step.batches, lambda model, batch: model(batch[0]).sum())
    assert ran.names.count("embedding_dense_backward") == 2 * 3
    assert ran.names.count("_foreach_sqrt") == 1
    assert all(parameter.grad is None for parameter in step.model.parameters())
