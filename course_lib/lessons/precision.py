"""The tasks of lesson 02_mixed_precision: a type for a card, a step with a scaler, the gap between two numbers."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from course_lib.cards import training_type_for
from course_lib.i18n import N_, _
from course_lib.tasks import expect, task

#: Compute capabilities that the first task asks for, each with a card that has it.
ASKED = {(6, 1): "GTX 1080", (7, 0): "V100", (7, 5): "T4", (8, 6): "RTX 3090", (9, 0): "H100", (12, 0): "RTX 5090"}


@task(
    N_("Two numbers decide: 7.0 brought tensor cores for FP16, 8.0 brought BF16."),
    N_("Tuples compare like words in a dictionary: (7, 5) < (8, 0) and (12, 0) > (8, 0)."),
    N_("BF16 if capability >= (8, 0); else FP16 if capability >= (7, 0); else FP32."),
)
def type_for(answer: Any) -> str:
    """``type_for(capability)`` is "bf16", "fp16" or "fp32"."""
    for capability, card in ASKED.items():
        right = training_type_for(capability).dtype
        causes = {
            "bf16": _("before 8.0 BF16 is only emulated, even where is_bf16_supported() says True"),
            "fp16": _("BF16 is native here and needs no scaler")
            if right == "bf16"
            else _("before 7.0 there are no tensor cores: FP16 would need a scaler and gain little time"),
            "fp32": _("this card has tensor cores for 16 bits"),
        }
        causes.pop(right)
        expect(answer(capability), right, f"type_for({capability}), {card}", causes=causes)
    return _("That is what course_lib.gpu asks, too: the capability, not is_bf16_supported().")


@task(
    N_("Five calls, in this order: scale the loss and backward, unscale, clip, step, update."),
    N_("Clipping compares a length with max_norm, so the gradients must have their true length by then."),
    N_("scaler.scale(loss).backward(); scaler.unscale_(optimizer); clip_grad_norm_(...); scaler.step(optimizer); ..."),
)
def fp16_step(answer: Any) -> str:
    """``fp16_step(loss, parameters, optimizer, scaler, max_norm)``: one update, clipped; none when it overflows."""
    limit, scale = 0.5, 1024.0
    start, gradient = _weights(_problem()[0]), _gradient()
    clipped = gradient * min(1.0, limit / float(gradient.norm()))
    tiny = scale * gradient * min(1.0, limit / float((scale * gradient).norm())) / scale
    model, loss, optimizer, scaler = _problem(scale)
    _try(answer, loss(1.0), model, optimizer, scaler, limit)
    causes = {
        _after(start, tiny): _("clipped while the gradients still carried the scale: unscale_ comes before clipping"),
        _after(start, gradient): _("nothing was clipped"),
        _after(start, scale * gradient): _("the gradients reached the weights with the scale in them"),
        _after(start, clipped * 0): _("the weights did not move: is scaler.step(optimizer) there?"),
    }
    expect(_weights(model), _after(start, clipped), _("weights after a step"), rel=1e-4, causes=causes)
    expect(scaler.get_scale(), scale, _("scale after a good step"), cause=_("one good step changes no scale"))
    left = any(each.grad is not None and bool(each.grad.any()) for each in model.parameters())
    expect(left, False, _("gradients left after the step"), cause=_("drop them at the end: optimizer.zero_grad()"))
    model, loss, optimizer, scaler = _problem(scale)
    _try(answer, loss(math.inf), model, optimizer, scaler, limit)
    expect(
        _weights(model), start, _("weights after an overflow"),
        cause=_("infinite gradients must not reach the weights: scaler.step(optimizer), not optimizer.step()"),
    )  # fmt: skip
    expect(
        scaler.get_scale(), scale / 2, _("scale after an overflow"),
        cause=_("scaler.update() is missing: it halves the scale after an overflow"),
    )  # fmt: skip
    return _("Exercise 3 builds on this order, with several micro-batches between two updates.")


@task(
    N_("Between 1 and 2 the numbers of a type stand 2**-p apart, p being its mantissa bits. And between 2 and 4?"),
    N_("Each power of two further, the gap doubles. Which power of two does the value lie above?"),
    N_("2.0 ** (math.floor(math.log2(abs(value))) - mantissa_bits)"),
)
def spacing(answer: Any) -> str:
    """``spacing(value, mantissa_bits)``: from a normal number to the next larger one."""
    for dtype, mantissa_bits in ((torch.bfloat16, 7), (torch.float16, 10), (torch.float32, 23)):
        for value in (1.0, 0.02, 3.5, 1000.0, 0.5):
            stored = torch.tensor(value).to(dtype).item()
            right = 2.0 ** (math.floor(math.log2(stored)) - mantissa_bits)
            causes = {
                2.0**-mantissa_bits: _("that is the gap between 1 and 2; it grows with the number"),
                right / 2: _("that is half of the gap"),
                right * 2: _("that is twice the gap: round the exponent down"),
                stored * 2.0**-mantissa_bits: _("the gap stays the same between two powers of two, it does not grow "
                                                "with every number"),
            }  # fmt: skip
            causes.pop(right, None)
            expect(answer(stored, mantissa_bits), right, f"spacing({stored:.6g}, {mantissa_bits})", causes=causes)
    return _("An update below half of this gap is rounded away, however often it comes.")


def _problem(scale: float = 1.0) -> tuple[nn.Module, Callable[[float], torch.Tensor], Any, Any]:
    """A linear layer, ``loss(factor)`` of it, SGD with rate 1, and a scaler that starts at ``scale``."""
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, -1.0, 0.25, 2.0]]))
    inputs = torch.tensor([[1.0, 2.0, -1.0, 0.5], [0.5, -0.5, 1.5, 1.0]])  # [B, H]

    def loss(factor: float) -> torch.Tensor:
        return (model(inputs) * factor).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, loss, optimizer, torch.amp.GradScaler("cpu", init_scale=scale)


def _gradient() -> torch.Tensor:
    model, loss, _optimizer, _scaler = _problem()
    loss(1.0).backward()
    gradient = next(model.parameters()).grad
    assert gradient is not None
    return gradient.flatten().clone()


def _try(answer: Any, loss: Any, model: nn.Module, optimizer: Any, scaler: Any, limit: float) -> None:
    try:
        answer(loss, list(model.parameters()), optimizer, scaler, limit)
    except (RuntimeError, AssertionError, ValueError) as error:
        cause = _("each call belongs once into an update, unscale_ before step and update last")
        expect(f"{type(error).__name__}: {error}", _("a step without an error"), "fp16_step(...)", cause=cause)


def _weights(model: nn.Module) -> tuple[float, ...]:
    return tuple(next(model.parameters()).detach().flatten().tolist())


def _after(start: tuple[float, ...], gradient: torch.Tensor) -> tuple[float, ...]:
    return tuple((torch.tensor(start) - gradient).tolist())
