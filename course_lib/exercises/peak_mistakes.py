"""The mistakes that people make when they measure a peak, and how each of them shows.

A row says which facts would come instead of the right ones; facts that it leaves out would be right.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from course_lib.exercises.bench import (
    AMP_OVER_BF16,
    Reading,
    Size,
    gradient_bytes,
    left_after,
    on_pretend_card,
    peak_of,
)
from course_lib.exercises.judge import ANYTHING, Facts, Later, Mistake, Near, Raised
from course_lib.i18n import N_
from course_lib.units import GB, GIB, MB, MIB

OPTIMIZER, OTHERS, ON_CARD = "optimizer", "older models alive during the step", "a card"
ADAMW = "AdamW, foreach"
ROOM = 0.02


class Asked(NamedTuple):
    """What was asked of ``measure_peak``, fact by fact in this order, and what came."""

    facts: dict[str, tuple[Size, str]]
    came: dict[str, Any]


def weights_in(recipe: str, device: str) -> str:
    return f"weights that the model sees in {recipe}, {device}"


def autocast_in(recipe: str, device: str) -> str:
    return f"autocast that the model sees in {recipe}, {device}"


# --- measure_peak, fp32 -----------------------------------------------------------------------------------------------


def _read(case: Asked, reading: Reading = Reading(), optimizer: str = ADAMW) -> Facts:  # noqa: B008
    return {
        OPTIMIZER: optimizer,
        **{fact: _later(size, "fp32", device, reading) for fact, (size, device) in case.facts.items()},
    }


def _near(value: float) -> Near:
    return Near(value, ROOM, "B")


def _later(size: Size, recipe: str, device: str, reading: Reading = Reading()) -> Later:  # noqa: B008
    return Later(lambda: _near(peak_of(size, recipe, device, reading)))


def _without_optimizer(case: Asked) -> Facts:
    optimizer = "none" if case.came.get(OPTIMIZER) == "none" else ADAMW
    return _read(case, Reading(warm_up=False, parts=("forward", "backward")), optimizer)


def _other_optimizers(case: Asked) -> Iterator[Facts]:
    for implementation, described in (("fused", "fused"), ("forloop", "a loop over tensors")):
        yield _read(case, Reading(implementation=implementation), f"AdamW, {described}")
    for described in ("foreach", "fused", "a loop over tensors"):
        yield _read(case, Reading(optimizer="SGD"), f"SGD, {described}")
        yield {OPTIMIZER: f"Adam, {described}"}


def _after_the_step(case: Asked) -> Iterator[Facts]:
    left = {fact: left_after(size, "fp32", device) for fact, (size, device) in case.facts.items()}
    yield {fact: _near(size_bytes) for fact, size_bytes in left.items()}
    yield {fact: _near(left[fact] - gradient_bytes(size, "fp32")) for fact, (size, _device) in case.facts.items()}


def _never_reset(case: Asked) -> Iterator[Facts]:
    """Every figure is the largest so far; the first may come from a run before this test."""
    highest = 0.0
    shown: Facts = {}
    for fact, (size, device) in case.facts.items():
        first = case.came[fact] if not shown else 0
        if not isinstance(first, int | float | Near):
            return
        highest = max(highest, first.value if isinstance(first, Near) else first, _right_peak(size, device))
        shown[fact] = _near(highest)
    yield shown


def _others_counted(case: Asked) -> Iterator[Facts]:
    """The same bytes too many, whatever the model: they are none of its own."""
    on_cpu = {fact: _right_peak(size, device) for fact, (size, device) in case.facts.items() if device == "cpu"}
    if not all(isinstance(case.came[fact], int | float) for fact in on_cpu):
        return
    excess = [case.came[fact] - right for fact, right in on_cpu.items()]
    room = ROOM * max(on_cpu.values())
    if min(excess) > room and max(excess) - min(excess) < room:
        yield {fact: case.came[fact] for fact in on_cpu}


def _right_peak(size: Size, device: str) -> int:
    return on_pretend_card(size, "fp32")[0] if device == "cuda" else peak_of(size, "fp32", device)


def _in_units(case: Asked) -> Iterator[Facts]:
    for unit in (GIB, GB, MIB, MB):
        yield {fact: Near(_right_peak(size, device) / unit, ROOM) for fact, (size, device) in case.facts.items()}


def _outside_a_probe(case: Asked) -> Iterator[Facts]:
    told = {fact: came for fact, came in case.came.items()
            if isinstance(came, Raised) and "autocast device_type 'meta'" in came.text}  # fmt: skip
    if told:
        yield {fact: told.get(fact, ANYTHING) if "meta" in fact or fact == OPTIMIZER else value
               for fact, value in case.came.items()}  # fmt: skip


_OUTSIDE = N_("a step ran outside of a probe, where PyTorch knows no autocast for meta tensors. Put every step into "
              "`with probe(model, optimizer):`, the first one, too")  # fmt: skip

PEAK = (
    Mistake("step-outside-a-probe", _OUTSIDE, "01_ledger", _outside_a_probe),
    Mistake("before-the-optimizer",
            N_("the peak was read before Adam's state existed: it appears in the first step(). Run one whole step "
               "first, then measure the second"),
            "01_ledger", lambda case: (_read(case, Reading(warm_up=False)), _without_optimizer(case))),
    Mistake("step-left-out",
            N_("optimizer.step() lies outside what you measure. A wide model on few tokens has its peak there: "
               "a foreach step needs a temporary as large as the weights"),
            "01_ledger", lambda case: (_read(case, Reading(parts=("forward", "backward"))),)),
    Mistake("backward-left-out",
            N_("only the forward pass is measured. The backward pass and the step belong to a training step"),
            "01_ledger", lambda case: (_read(case, Reading(parts=("forward",))),)),
    Mistake("end-of-step",
            N_("what is allocated when the step has ended is not the peak: activations and temporaries are gone by "
               "then. Take the most at any time: measured.peak_bytes, or max_memory_allocated() on a card"),
            "01_ledger", _after_the_step),
    Mistake("other-optimizer",
            N_("another optimizer than a foreach AdamW did the step. Say AdamW(model.parameters(), foreach=True); "
               "away from CUDA the default is a loop over tensors"),
            "01_ledger", _other_optimizers),
    Mistake("gradients-kept",
            N_("the gradients of the step before were still there in the forward pass. Call zero_grad() between the "
               "two steps; it sets them to None"),
            "01_ledger", lambda case: (_read(case, Reading(drop_gradients=False)),)),
    Mistake("unit-not-bytes",
            N_("these are not bytes. measure_peak returns a whole number of bytes; divide by 2**30 (GiB) only to "
               "show it"),
            "01_ledger", _in_units),
    Mistake("peak-never-reset",
            N_("an earlier, higher peak is still in the counter. Measure each step afresh: a new probe, or "
               "reset_peak_memory_stats() just before the step"),
            "01_ledger", _never_reset),
    Mistake("others-counted",
            N_("every peak is too high by the same bytes: tensors of other cells, still alive, were counted, too. "
               "Delete them before you measure, or leave everything=True away"),
            "01_ledger", _others_counted),
)  # fmt: skip


# --- measure_peak, the 16-bit recipes ---------------------------------------------------------------------------------


def _as_recipe(case: Asked, taken_for: str, instead: str) -> Facts:
    """Peaks where ``taken_for`` was measured as if it were ``instead``."""
    return {
        fact: _later(size, instead, device)
        for fact, (size, device) in case.facts.items()
        if fact.startswith(f"{taken_for},")
    }


def _weights(recipe: str, dtype: str, autocast: str | None = None) -> Facts:
    devices = ("cpu", "meta") if recipe == "amp-bf16" else ("cpu",)
    seen = {weights_in(recipe, device): f"torch.{dtype}" for device in devices}
    return seen | ({autocast_in(recipe, device): autocast for device in devices} if autocast else {})


def _autocast_half(case: Asked) -> Iterator[Facts]:
    for dtype in ("bfloat16", "float16"):
        for autocast, recipe in (("off", "bf16"), ("torch.bfloat16", AMP_OVER_BF16), ("torch.float16", AMP_OVER_BF16)):
            yield _weights("amp-bf16", dtype, autocast) | _as_recipe(case, "amp-bf16", recipe)


def _elsewhere(case: Asked) -> Iterator[Facts]:
    for here in ("cpu", "meta"):
        peaks = {fact: _later(size, "fp32", device) for fact, (size, device) in case.facts.items()
                 if fact.startswith(f"amp-bf16, {here}")}  # fmt: skip
        yield {autocast_in("amp-bf16", here): "off", **peaks}


def _as_high_as_fp32(case: Asked) -> Iterator[Facts]:
    if case.facts:
        yield {fact: _later(size, "fp32", device) for fact, (size, device) in case.facts.items()}


_END_OF_STEP, _NOT_BYTES, _NEVER_RESET = (
    next(each.says for each in PEAK if each.name == name)
    for name in ("end-of-step", "unit-not-bytes", "peak-never-reset")
)

RECIPE = (
    Mistake("step-outside-a-probe", _OUTSIDE, "01_ledger", _outside_a_probe),
    Mistake("half-called-autocast",
            N_("the model itself was cast for amp-bf16. That is the other recipe: autocast leaves the weights in "
               "FP32 and casts copies. Leave the model alone and run forward and loss inside torch.autocast"),
            "02_mixed_precision", _autocast_half),
    Mistake("recipe-ignored",
            N_("the recipe changes nothing: both 16-bit recipes ran in FP32. Look at `recipe` after make_model()"),
            "02_mixed_precision", lambda case: (
                _weights("amp-bf16", "float32", "off") | _weights("bf16", "float32")
                | _as_recipe(case, "amp-bf16", "fp32") | _as_recipe(case, "bf16", "fp32"),)),
    Mistake("autocast-left-out",
            N_("amp-bf16 ran without autocast: forward pass and loss have to stand inside the region, "
               "in the measured step, too"),
            "02_mixed_precision", lambda case: (
                _weights("amp-bf16", "float32", "off") | _as_recipe(case, "amp-bf16", "fp32"),)),
    Mistake("autocast-in-fp16",
            N_("autocast ran in FP16, its default on CUDA. Say dtype=torch.bfloat16"),
            "02_mixed_precision", lambda case: (_weights("amp-bf16", "float32", "torch.float16"),)),
    Mistake("autocast-elsewhere",
            N_("autocast was entered for another device than the model's, so it did nothing there. Take the type from "
               "`device`: torch.autocast(torch.device(device).type, …)"),
            "02_mixed_precision", _elsewhere),
    Mistake("bf16-by-autocast",
            N_("bf16 ran with FP32 weights under autocast. This recipe casts the model: model.bfloat16()"),
            "02_mixed_precision", lambda case: (
                _weights("bf16", "float32") | _as_recipe(case, "bf16", "amp-bf16"),
                _weights("bf16", "float32") | _as_recipe(case, "bf16", "fp32"))),
    Mistake("peak-never-reset", _NEVER_RESET, "01_ledger", _as_high_as_fp32),
    Mistake("half-is-fp16",
            N_("model.half() casts to FP16. BF16 is model.bfloat16(): as many bits, another range"),
            "02_mixed_precision", lambda case: (_weights("bf16", "float16"),)),
)  # fmt: skip


# --- measure_peak, again and on a card --------------------------------------------------------------------------------


def _still_alive(case: Asked) -> Iterator[Facts]:
    others = case.came[OTHERS]
    if isinstance(others, int) and others > 0:
        yield case.came  # whatever it does to the peaks: the model is there


def _on_card_after(case: Asked) -> Iterator[Facts]:
    left = {fact: on_pretend_card(size, "fp32")[1] for fact, (size, _device) in case.facts.items()}
    yield {fact: _near(size_bytes) for fact, size_bytes in left.items()}
    yield {fact: _near(left[fact] - gradient_bytes(size, "fp32")) for fact, (size, _device) in case.facts.items()}


RELEASED = (
    Mistake("older-model-alive",
            N_("a model that was made earlier is still alive during the measured step: on a card its bytes would be "
               "part of the peak. Cast the model in place instead of copying it, and keep no model in a list or a "
               "global"),
            "01_ledger", _still_alive),
    Mistake("peak-never-reset", _NEVER_RESET, "01_ledger", _never_reset),
    Mistake("end-of-step", _END_OF_STEP, "01_ledger", _on_card_after),
    Mistake("unit-not-bytes", _NOT_BYTES, "01_ledger", _in_units),
)  # fmt: skip
