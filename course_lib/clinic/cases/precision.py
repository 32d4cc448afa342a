"""NaN, or a loss that does not move, because of what 16 bits can hold; and a card that has no BF16."""

import torch
from torch.nn import functional as F

from course_lib.accounts import Moment
from course_lib.cards import FIRST_WITH_NATIVE_BF16, dotted, find_card
from course_lib.clinic.case import Case
from course_lib.clinic.patients import labels, mlp, scaler, sgd, vectors
from course_lib.clinic.reading import Reading
from course_lib.i18n import N_, _


def activations_beyond_fp16() -> None:
    _train_wide(torch.float16)


def activations_in_bf16() -> None:
    _train_wide(torch.bfloat16)


def _train_wide(dtype: torch.dtype) -> None:
    """A model whose activations are as large as T5's: 66,246 in one feed-forward layer, where FP16 ends at 65,504."""
    model, scaling = mlp(), scaler()
    optimizer = sgd(model, 1e-9)
    with torch.no_grad():
        model[0].get_parameter("weight").mul_(1e5)
    for x in vectors(3):
        with torch.autocast("cpu", dtype=dtype):
            loss = F.cross_entropy(model(x).float() / 1e5, labels(x))
        if dtype == torch.float16:
            scaling.scale(loss).backward()
            scaling.step(optimizer)
            scaling.update()
        else:
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()


def forward_leaves_fp16(reading: Reading) -> str | None:
    found = reading.nonfinite[:1]  # what follows the first is its consequence
    if not found or found[0].moment is not Moment.FORWARD or found[0].dtype != torch.float16:
        return None
    return _(
        "in the forward pass {operator} made an infinite FP16 number of finite ones; FP16 ends at {most:.0f}"
    ).format(
        operator=found[0].operator, most=torch.finfo(torch.float16).max
    )  # fmt: skip


def small_gradients_without_scaler() -> None:
    model = mlp(outputs=512)
    optimizer = sgd(model)
    for x in vectors(3):
        with torch.autocast("cpu", dtype=torch.float16):
            outputs = model(x)
            loss = (outputs - x.repeat(1, 8)).square().mean() * 1e-4  # weighted against other losses
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def small_gradients_scaled() -> None:
    model, scaling = mlp(outputs=512), scaler()
    optimizer = sgd(model)
    for x in vectors(3):
        with torch.autocast("cpu", dtype=torch.float16):
            outputs = model(x)
            loss = (outputs - x.repeat(1, 8)).square().mean() * 1e-4
        scaling.scale(loss).backward()
        scaling.step(optimizer)
        scaling.update()
        optimizer.zero_grad()


def gradients_became_zero(reading: Reading) -> str | None:
    half = any(each.autocast == torch.float16 for each in reading.passes)
    zeros = [each.zeros for each in reading.updates]
    if not half or "scale" in reading.scaler_calls or not zeros or min(zeros) < 0.5:
        return None
    return _("{share:.0%} of the gradients are exactly 0 under FP16 autocast, and no scaler was used").format(
        share=min(zeros)
    )


def half_weights_with_adam() -> None:
    model = mlp().half()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x in vectors(3):
        (F.cross_entropy(model(x.half()).float(), labels(x)) / 8).backward()
        optimizer.step()
        optimizer.zero_grad()


def full_weights_with_autocast() -> None:
    model, scaling = mlp(), scaler()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x in vectors(3):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x).float(), labels(x)) / 8
        scaling.scale(loss).backward()
        scaling.step(optimizer)
        scaling.update()
        optimizer.zero_grad()


def update_destroys_half_weights(reading: Reading) -> str | None:
    for number, update in enumerate(reading.updates, 1):
        if torch.float16 in update.weight_dtypes and update.finite and not update.finite_after:
            return _(
                "update {number} turned finite FP16 weights and gradients into inf or nan: Adam's eps, 1e-8, is 0 in "
                "FP16"
            ).format(
                number=number
            )  # fmt: skip
    return None


def bf16_weights_with_small_updates() -> None:
    model = mlp().bfloat16()
    optimizer = sgd(model, 1e-4)
    for x in vectors(4):
        F.cross_entropy(model(x.bfloat16()).float(), labels(x)).backward()
        optimizer.step()
        optimizer.zero_grad()


def fp32_weights_with_small_updates() -> None:
    model = mlp()
    optimizer = sgd(model, 1e-4)
    for x in vectors(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), labels(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def updates_are_rounded_away(reading: Reading) -> str | None:
    moved = [each.moved for each in reading.updates if torch.bfloat16 in each.weight_dtypes]
    if not moved or max(moved) > 0.1:
        return None
    return _(
        "of the BF16 weights with a gradient, at most {share:.1%} changed in an update: the rest were rounded back"
    ).format(
        share=max(moved)
    )  # fmt: skip


def bf16_on_an_old_card() -> None:
    _train_on_t4(torch.bfloat16)


def fp16_on_an_old_card() -> None:
    _train_on_t4(torch.float16)


def _train_on_t4(dtype: torch.dtype) -> None:
    model, scaling = mlp(), scaler()
    optimizer = sgd(model)
    for x in vectors(3):
        with torch.autocast("cpu", dtype=dtype):
            loss = F.cross_entropy(model(x).float(), labels(x))
        if dtype == torch.float16:
            scaling.scale(loss).backward()
            scaling.step(optimizer)
            scaling.update()
        else:
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()


def bf16_is_emulated(reading: Reading) -> str | None:
    if reading.capability is None or reading.capability >= FIRST_WITH_NATIVE_BF16:
        return None
    used = any(each.autocast == torch.bfloat16 for each in reading.passes)
    if not used and not any(torch.bfloat16 in each.weight_dtypes for each in reading.updates):
        return None
    return _("the run computes in BF16, and the card's capability is {capability}; BF16 needs {needed}").format(
        capability=dotted(reading.capability), needed=dotted(FIRST_WITH_NATIVE_BF16)
    )


CASES = (
    Case(
        name="fp16-overflow",
        branch=("wrong numbers", "loss is NaN"),
        symptom=N_("FP16 training: the loss becomes NaN"),
        words=N_(
            "loss nan fp16; gradient overflow underflow; inf; NaN after some steps; T5; GradScaler keeps halving; "
            "scale goes to 0"
        ),
        cause=N_("an activation leaves FP16's range, which ends at 65504; loss scaling cannot help a forward pass"),
        change=N_(
            "BF16; on an older card run that layer in FP32. Check also that the scaler is complete: scale, step, "
            "update"
        ),
        surer=N_("the largest absolute output of each layer, by forward hooks: where does it pass 65504?"),
        unit="02_mixed_precision",
        sign=forward_leaves_fp16,
        broken=activations_beyond_fp16,
        mended=activations_in_bf16,
        sure="certain",
    ),
    Case(
        name="fp16-underflow",
        branch=("wrong numbers", "loss does not fall"),
        symptom=N_("FP16 training: no error, no NaN, and the loss stands still"),
        words=N_(
            "loss does not decrease fp16; gradients zero; underflow; vanishing gradients; grad norm 0; forgot "
            "GradScaler"
        ),
        cause=N_("gradients below 6e-8 become 0 in FP16, and no scaler lifts them"),
        change=N_('torch.amp.GradScaler("cuda"): scale(loss).backward(), step(optimizer), update(); or BF16'),
        surer=N_("the share of gradient elements that are exactly 0, with and without autocast"),
        unit="02_mixed_precision",
        sign=gradients_became_zero,
        broken=small_gradients_without_scaler,
        mended=small_gradients_scaled,
    ),
    Case(
        name="half-adam",
        branch=("wrong numbers", "loss is NaN"),
        symptom=N_("model.half() with Adam: NaN, or a loss of 0, after the first update"),
        words=N_("model.half(); pure fp16; weights nan after one step; Adam eps; loss 0 eval nan"),
        cause=N_("the weights themselves are FP16: Adam's eps of 1e-8 is stored as 0, and the update divides by 0"),
        change=N_("FP32 weights under autocast with a scaler, or BF16 weights; never model.half() for what is trained"),
        surer=N_("weights before and after the first optimizer.step(): finite, then not"),
        unit="02_mixed_precision",
        sign=update_destroys_half_weights,
        broken=half_weights_with_adam,
        mended=full_weights_with_autocast,
        sure="certain",
    ),
    Case(
        name="bf16-rounding",
        branch=("wrong numbers", "loss does not fall"),
        symptom=N_("Pure BF16 training stalls although gradients are fine"),
        words=N_(
            "bf16 weights do not change; loss plateaus bf16; update too small; stochastic rounding; low learning rate"
        ),
        cause=N_("an update smaller than half a BF16 step of its weight, about 1/512 of it, is rounded away"),
        change=N_("FP32 weights (autocast or master weights), stochastic rounding, or LoRA with FP32 adapters"),
        surer=N_("(weight != weight_before).float().mean() after a step"),
        unit="02_mixed_precision",
        sign=updates_are_rounded_away,
        broken=bf16_weights_with_small_updates,
        mended=fp32_weights_with_small_updates,
        sure="certain",
    ),
    Case(
        name="bf16-old-card",
        branch=("too slow", "since 16 bit"),
        symptom=N_("BF16 on a T4 or V100 runs, and is slower than FP32"),
        words=N_(
            "bf16 T4; bfloat16 V100; is_bf16_supported True; Colab bf16 slow; Your setup doesn't support bf16/gpu; "
            "Turing"
        ),
        cause=N_("cards before Ampere emulate BF16; is_bf16_supported() answers True all the same"),
        change=N_("FP16 under autocast with a GradScaler; FP32 where there are no tensor cores"),
        surer=N_("course gpu, or torch.cuda.get_device_capability(): native BF16 begins at (8, 0)"),
        unit="02_mixed_precision",
        sign=bf16_is_emulated,
        broken=bf16_on_an_old_card,
        mended=fp16_on_an_old_card,
        sure="certain",
        messages=("Your setup doesn't support bf16/gpu",),
        capability=find_card("T4").capability,
    ),
)
