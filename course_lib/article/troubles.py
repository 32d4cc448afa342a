"""The six troubles, each made to happen: C16. The clinic, lesson 06, cures them."""

import math
from dataclasses import replace

import torch
from torch.autograd.graph import saved_tensors_hooks

from course_lib.accounts import Moment
from course_lib.accumulate import WHOLE, Way, gradient, small_gpt, windows
from course_lib.article import Finding, finding
from course_lib.article.bills import FP32 as FP32_RUN
from course_lib.article.bills import bill_of
from course_lib.floats import FP16
from course_lib.i18n import _
from course_lib.recipe import Recipe
from course_lib.units import GB


@finding("C16")
def six_troubles() -> Finding:
    model, (window,) = small_gpt(), windows(1)
    longer = float(gradient(model, window, Way(8, "nothing")).norm() / gradient(model, window, WHOLE).norm())
    kept = [_kept_bytes(model, window[0], grad) for grad in (True, False)]
    long = Recipe(precision="bf16", lora_rank=16, checkpoint="block", attention="eager", seq=8192)
    eager, flash = (bill_of("llama-7b", replace(long, attention=kind)).peak_bytes / GB for kind in ("eager", "flash"))
    step = bill_of("llama-7b", FP32_RUN)
    eight_bit = bill_of("llama-7b", replace(FP32_RUN, optimizer="adamw-8bit"))
    plain, mixed = (_operators(model, window[0], autocast) for autocast in (False, True))
    cases = {
        "NaN in FP16: overflow": math.isnan(FP16.stored(66246.39) - FP16.stored(66246.39)),
        "NaN in FP16: a gradient underflows": math.isnan(FP16.stored(1e-8)),
        "NaN in FP16: Adam's eps underflows": not math.isfinite(_weight_after_adam_in_fp16()),
        "autocast: more operators": mixed > plain,
        "accumulation: loss not divided": abs(longer - 8) < 1e-3,
        "OOM despite checkpoints: eager attention": eager > flash,
        "OOM in validation: no_grad missing": kept[0] > 0 == kept[1],
        "OOM at the step: Adam": step.peak_moment is Moment.OPTIMIZER_STEP,
        "OOM at the step: 8-bit Adam helps": eight_bit.peak_bytes < step.peak_bytes,
    }
    said = _(
        "an activation of 66246 is stored as {inf}, a gradient of 1e-8 as {zero:g}; {plain} "
        "operators, under autocast {mixed}; gradient × {longer:.1f}; 8192 tokens, eager {eager:.1f}, "
        "flash {flash:.1f} GB; a forward pass with gradients keeps {kept:.1f} MB; peak at the step "
        "{step:.0f} GB, with 8-bit Adam {eight:.0f}"
    )
    return Finding(cases, said.format(
        inf=FP16.stored(66246.39), zero=FP16.stored(1e-8), plain=plain, mixed=mixed, longer=longer, eager=eager,
        flash=flash, kept=kept[0] / 1e6, step=step.peak_bytes / GB, eight=eight_bit.peak_bytes / GB,
    ))  # fmt: skip


def _weight_after_adam_in_fp16() -> float:
    """A weight of 1 with a gradient of 1e-4, after one update: v and eps are both stored as 0."""
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float16))
    weight.grad = torch.full((1,), 1e-4, dtype=torch.float16)
    torch.optim.AdamW([weight], foreach=False).step()
    return float(weight.detach())


def _kept_bytes(model: torch.nn.Module, tokens: torch.Tensor, grad: bool) -> int:
    """What a forward pass leaves behind for a backward pass, in bytes; weights count as well."""
    sizes: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    with torch.set_grad_enabled(grad), saved_tensors_hooks(note, lambda tensor: tensor):
        model(tokens)
    return sum(sizes)


def _operators(model: torch.nn.Module, tokens: torch.Tensor, autocast: bool) -> int:
    """How many operators a forward pass calls."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.calls += 1
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Count() as count, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        model(tokens)
    return count.calls
