"""Types, scaling and autocast: C3 to C9 and C20. Lesson 02 shows the same with more operators and longer training."""

import copy
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.article import Finding, finding
from course_lib.article.bills import FP32 as FP32_RUN
from course_lib.article.bills import bill_of
from course_lib.cards import CARDS
from course_lib.dryrun import on_meta
from course_lib.floats import BF16, FP16, FP32
from course_lib.i18n import _
from course_lib.recipe import Recipe
from course_lib.units import GIB

#: Published times without and with mixed precision: NVIDIA/apex#297 (minutes), facebookresearch/fairchem#397 (seconds).
PUBLISHED_TIMES = {"ResNet-20": (15.0, 21.0), "SCN, A100": (5.44, 9.06)}


@finding("C3")
def range_of_fp16() -> Finding:
    info = torch.finfo(torch.float16)
    subnormal = info.smallest_normal * info.eps  # one bit of the mantissa is left
    assert FP16.stored(subnormal) > 0 == FP16.stored(subnormal / 2)
    about = {"smallest normal": info.smallest_normal, "smallest positive": subnormal}
    cases = {"max": info.max == 65504} | {name: 5.5e-5 < size < 6.5e-5 for name, size in about.items()}
    figures = ", ".join(f"{name} {size:.2g}" for name, size in about.items())
    return Finding(cases, f"max {info.max:.0f}, {figures}")


@finding("C4")
def fp16_halves_and_speeds_up() -> Finding:
    full = sum(bill_of("llama-7b", FP32_RUN).static_bytes.values())
    kept = {
        name: sum(bill_of("llama-7b", Recipe(precision=name)).static_bytes.values()) / full
        for name in ("bf16", "amp-fp16")
    }
    cases = {f"memory, {name}": share <= 0.501 for name, share in kept.items()}
    cases |= {f"time, {name}": plain / mixed >= 2 for name, (plain, mixed) in PUBLISHED_TIMES.items()}
    times = ", ".join(f"{name} × {plain / mixed:.2f}" for name, (plain, mixed) in PUBLISHED_TIMES.items())
    said = _("what stays, of FP32: bf16 {pure:.0%}, amp-fp16 {mixed:.0%}; published speed-up: {times}")
    return Finding(cases, said.format(pure=kept["bf16"], mixed=kept["amp-fp16"], times=times))


@finding("C5")
def fields_of_bf16() -> Finding:
    cases = {
        "range": FP32.exponent_bits == BF16.exponent_bits,
        "1 + 8 + 7": BF16.fields == (1, 8, 7),
        "1 + 5 + 10": FP16.fields == (1, 5, 10),
    }
    figures = ", ".join(f"{each.name} {' + '.join(map(str, each.fields))}" for each in (FP32, FP16, BF16))
    return Finding(cases, figures)


@finding("C6")
def type_by_card() -> Finding:
    cases: dict[str, bool] = {}
    for card in sorted(CARDS, key=lambda card: card.capability):
        major, minor = card.capability
        expected = "bf16" if major >= 8 else "fp16"
        cases.setdefault(f"{card.name}, {major}.{minor}", card.training_type().dtype == expected)
    by_type = {dtype: sum(card.training_type().dtype == dtype for card in CARDS) for dtype in ("bf16", "fp16", "fp32")}
    said = _("of {count} cards by compute capability: {bf16} BF16, {fp16} FP16, {fp32} neither of them")
    by_capability = {name.rpartition(", ")[2]: (name, true) for name, true in reversed(cases.items())}
    return Finding(dict(reversed(by_capability.values())), said.format(count=len(CARDS), **by_type))


@finding("C7")
def the_scaler() -> Finding:
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        torch.cuda.amp.GradScaler()
        old = [each for each in complaints if each.category is FutureWarning]
        complaints.clear()
        scaler = torch.amp.GradScaler("cpu")
        new = list(complaints)
    said = _("the old name is deprecated; begins at {begin:.0f}, × {down} after an overflow, × {up} after {count} "
             "good steps")  # fmt: skip
    return Finding(
        {"torch.cuda.amp.GradScaler()": not old, 'torch.amp.GradScaler("cuda")': not new},
        said.format(begin=scaler.get_scale(), down=scaler.get_backoff_factor(), up=scaler.get_growth_factor(),
                    count=scaler.get_growth_interval()),
    )  # fmt: skip


@finding("C8")
def what_autocast_casts() -> Finding:
    operators: dict[str, tuple[Callable[[Tensor], Tensor], torch.dtype]] = {
        "matmul": (lambda x: x @ x.mT, torch.bfloat16),
        "conv1d": (lambda x: F.conv1d(x, x[:, :, :3]), torch.bfloat16),
        "layer_norm": (lambda x: F.layer_norm(x, (16,)), torch.float32),
        "softmax": (lambda x: x.softmax(-1), torch.float32),
        "cross_entropy": (lambda x: F.cross_entropy(x[0], x[0].softmax(-1)), torch.float32),
    }

    def ran_in(run: Callable[[Tensor], Tensor], device: str) -> torch.dtype:
        x = torch.ones(16, 16, 16, dtype=torch.bfloat16, device=device)
        with torch.autocast("cuda" if device == "meta" else "cpu", dtype=torch.bfloat16):
            return run(x).dtype

    cases: dict[str, bool] = {}
    with on_meta("cuda"):
        cases |= {f"{name}, CUDA": ran_in(run, "meta") is dtype for name, (run, dtype) in operators.items()}
    cases |= {f"{name}, CPU": ran_in(run, "cpu") is dtype for name, (run, dtype) in operators.items()}
    said = _("of {count} operators as claimed: CUDA's autocast {cuda}, the CPU's {cpu}")
    right = [sum(true for name, true in cases.items() if name.endswith(device)) for device in ("CUDA", "CPU")]
    return Finding(cases, said.format(count=len(operators), cuda=right[0], cpu=right[1]))


@finding("C9")
def what_stays_under_autocast() -> Finding:
    layer = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(layer.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = layer(torch.ones(2, 8))
        loss = product.float().sum()
    loss.backward()
    optimizer.step()
    kept: dict[str, list[Tensor]] = {
        "weights": list(layer.parameters()),
        "gradients": [each.grad for each in layer.parameters() if each.grad is not None],
        "Adam's moments": [state["exp_avg"] for state in optimizer.state.values()],
    }
    types = {name: {str(each.dtype).removeprefix("torch.") for each in some} for name, some in kept.items()}
    said = _("one step under autocast: the product is {product}, weights, gradients and moments are {kept}")
    return Finding(
        {name: each == {"float32"} for name, each in types.items()},
        said.format(product=str(product.dtype).removeprefix("torch."), kept=", ".join(set.union(*types.values()))),
    )


@finding("C20")
def free_of_charge() -> Finding:
    """One AdamW update at a rate of 1e-5, on weights as they are initialised; and gradients between micro-batches."""
    torch.manual_seed(0)
    weights = nn.Parameter(0.02 * torch.randn(100_000))
    moved = {}
    for name, dtype in (("autocast", torch.float32), ("pure BF16", torch.bfloat16)):
        trained = nn.Parameter(copy.deepcopy(weights.data).to(dtype))
        before = trained.detach().clone()
        trained.grad = torch.randn(100_000).to(dtype)
        torch.optim.AdamW([trained], lr=1e-5, weight_decay=0.0).step()
        moved[name] = float((trained.detach() != before).float().mean())
    once, often = (bill_of("gpt2", Recipe(precision="fp32", seq=1024, accum=accum)).peak_bytes for accum in (1, 8))
    cases = {f"BF16: {name}, rate 1e-5": share > 0.9 for name, share in moved.items()}
    cases["accumulation: no memory"] = often <= once
    said = _("an update at 1e-5 moves {mixed:.0%} of FP32 weights, {pure:.0%} of BF16 ones; accumulating with GPT-2 "
             "keeps {more:.2f} GiB more")  # fmt: skip
    return Finding(cases, said.format(mixed=moved["autocast"], pure=moved["pure BF16"], more=(often - once) / GIB))
