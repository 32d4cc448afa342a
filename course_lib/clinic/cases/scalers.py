"""What a GradScaler is asked to do in the wrong order, or with the wrong weights."""

import torch
from torch import nn
from torch.nn import functional as F

from course_lib.clinic.case import Case
from course_lib.clinic.patients import labels, mlp, scaler, sgd, vectors
from course_lib.clinic.reading import Reading
from course_lib.i18n import N_, _


def fp16_weights_with_a_scaler() -> None:
    _train_in_steps(mlp().half(), unscale=1)


def fp32_weights_with_a_scaler() -> None:
    _train_in_steps(mlp(), unscale=1)


def refuses_fp16_gradients(reading: Reading) -> str | None:
    if reading.error != "ValueError" or "unscale FP16 gradients" not in reading.message:
        return None
    return _("the scaler was given FP16 gradients, so the trained weights are FP16")


def unscales_twice() -> None:
    _train_in_steps(mlp(), unscale=2)


def unscales_once() -> None:
    _train_in_steps(mlp(), unscale=1)


def unscaled_already(reading: Reading) -> str | None:
    calls = reading.scaler_calls
    twice = any(pair == ("unscale_", "unscale_") for pair in zip(calls, calls[1:], strict=False))
    if not twice or "already been called" not in reading.message:
        return None
    return _("two calls of unscale_() with no update() between them: {calls}").format(calls=" · ".join(calls[-4:]))


def never_updates_the_scale() -> None:
    _train_in_steps(mlp(), unscale=0, update=False)


def updates_the_scale() -> None:
    _train_in_steps(mlp(), unscale=0)


def stepped_already(reading: Reading) -> str | None:
    if reading.error != "RuntimeError" or "step() has already been called" not in reading.message:
        return None
    return _("step() was called {count} times, update() never").format(count=reading.scaler_calls.count("step"))


def optimizer_of_another_model() -> None:
    model = mlp()
    optimizer = sgd(model)
    model = mlp()  # the cell that makes the model was run again
    _train_in_steps(model, unscale=0, optimizer=optimizer)


def optimizer_of_this_model() -> None:
    model = mlp()
    _train_in_steps(model, unscale=0, optimizer=sgd(model))


def nobody_has_a_gradient(reading: Reading) -> str | None:
    if reading.error != "AssertionError" or "No inf checks were recorded" not in reading.message:
        return None
    return _("backward() ran {count} times, and no parameter of this optimizer has a gradient").format(
        count=len(reading.backwards)
    )


def clips_scaled_gradients() -> None:
    _train_in_steps(mlp(), unscale=0, clip=1.0)


def clips_unscaled_gradients() -> None:
    _train_in_steps(mlp(), unscale=1, clip=1.0)


def clipped_before_unscale(reading: Reading) -> str | None:
    lengths = [each.norm * each.scale for each in reading.updates if each.scale > 1]
    if len(lengths) < 2 or "unscale_" in reading.scaler_calls or reading.error:
        return None
    if max(lengths) > 1.02 * min(lengths) or min(lengths) < 1e-3:
        return None
    return _(
        "every update has a gradient of length {length:.2g}: the same {scaled:.2f} each time, divided by the scale "
        "{scale:.0f}"
    ).format(
        length=reading.updates[-1].norm, scaled=lengths[-1], scale=reading.updates[-1].scale
    )  # fmt: skip


def _train_in_steps(
    model: nn.Sequential,
    unscale: int,
    update: bool = True,
    clip: float | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """FP16 autocast, and the scaler's calls one by one."""
    optimizer, scaling = optimizer or sgd(model), scaler(2.0**12)
    for x in vectors(3):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x).float(), labels(x))
        scaling.scale(loss).backward()
        for _time in range(unscale):
            scaling.unscale_(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaling.step(optimizer)
        if update:
            scaling.update()
        optimizer.zero_grad()


CASES = (
    Case(
        name="fp16-gradients",
        branch=("an error", "from a GradScaler"),
        symptom=N_("ValueError: Attempting to unscale FP16 gradients."),
        words=N_(
            "fp16=True with a model loaded in float16; LoRA adapters in half; modules_to_save; GradScaler ValueError"
        ),
        cause=N_("the weights that are trained are FP16; a scaler expects FP32 ones under autocast"),
        change=N_(
            "cast what is trained to FP32 (param.data = param.data.float()), leave frozen weights as they are; or "
            "load in FP32 or BF16"
        ),
        surer="Counter(p.dtype for p in model.parameters() if p.requires_grad)",
        unit="02_mixed_precision",
        sign=refuses_fp16_gradients,
        broken=fp16_weights_with_a_scaler,
        mended=fp32_weights_with_a_scaler,
        sure="certain",
        messages=("Attempting to unscale FP16 gradients",),
    ),
    Case(
        name="unscale-twice",
        branch=("an error", "from a GradScaler"),
        symptom=N_("RuntimeError: unscale_() has already been called on this optimizer since the last update()."),
        words=N_(
            "gradient clipping with GradScaler; unscale twice; accumulation with scaler; clip_grad_norm in Trainer "
            "and loop"
        ),
        cause=N_("unscale_() ran twice before update(): in the loop and in a library, or once for each micro-batch"),
        change=N_("call unscale_(optimizer) once for each update, right before clipping, after the last micro-batch"),
        surer=N_("count unscale_() between two update() calls"),
        unit="02_mixed_precision",
        sign=unscaled_already,
        broken=unscales_twice,
        mended=unscales_once,
        sure="certain",
        messages=("unscale_() has already been called on this optimizer since the last update()",),
    ),
    Case(
        name="update-forgotten",
        branch=("an error", "from a GradScaler"),
        symptom=N_("RuntimeError: step() has already been called since the last update()."),
        words=N_("scaler.update() missing; GradScaler step twice; two optimizers one scaler"),
        cause=N_("scaler.update() was left out, or stands behind a condition"),
        change=N_("scaler.update() once after scaler.step() of every optimizer"),
        surer=N_("print(scaler.get_scale()) each step: it never changes"),
        unit="02_mixed_precision",
        sign=stepped_already,
        broken=never_updates_the_scale,
        mended=updates_the_scale,
        sure="certain",
        messages=("step() has already been called since the last update()",),
    ),
    Case(
        name="no-inf-checks",
        branch=("an error", "from a GradScaler"),
        symptom=N_("AssertionError: No inf checks were recorded for this optimizer."),
        words=N_(
            "no gradients; all grads None; optimizer holds another model; model moved or wrapped after the optimizer "
            "was made; frozen parameters; notebook cell run again"
        ),
        cause=N_(
            "no parameter of this optimizer has a gradient: it holds another model's, or the loss does not reach them"
        ),
        change=N_(
            "make the optimizer after the model, from the parameters that are trained; do not comment the check out"
        ),
        surer=N_(
            "[n for n, p in model.named_parameters() if p.grad is not None], and whether the optimizer holds the "
            "same objects"
        ),
        unit="02_mixed_precision",
        sign=nobody_has_a_gradient,
        broken=optimizer_of_another_model,
        mended=optimizer_of_this_model,
        sure="certain",
        messages=("No inf checks were recorded for this optimizer",),
    ),
    Case(
        name="clipped-scaled",
        branch=("wrong numbers", "loss does not fall"),
        symptom=N_("FP16 with gradient clipping hardly learns; without clipping it does"),
        words=N_("clip_grad_norm before unscale; grad norm huge 10000; clipping with GradScaler; learns very slowly"),
        cause=N_(
            "gradients were clipped while still multiplied by the scale, so after unscaling almost nothing is left"
        ),
        change=N_("scaler.unscale_(optimizer) before clip_grad_norm_"),
        surer=N_("the norm that clip_grad_norm_ returns: thousands mean that it is scaled"),
        unit="02_mixed_precision",
        sign=clipped_before_unscale,
        broken=clips_scaled_gradients,
        mended=clips_unscaled_gradients,
    ),
)
