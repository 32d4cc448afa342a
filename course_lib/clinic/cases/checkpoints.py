"""Checkpointing is on, and the peak does not shrink, or the adapters do not learn."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_lib.clinic.case import Case
from course_lib.clinic.patients import Adapter, batches, gpt, labels, loss_of, sgd, vectors
from course_lib.clinic.reading import Reading
from course_lib.i18n import N_, _
from course_lib.models import GPT
from course_lib.units import MIB


class Switched(GPT):
    """Checkpoints each block as transformers' layers do: where the switch is on, in training mode alone."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(gpt(**sizes).config)
        for block in self.blocks:
            block.gradient_checkpointing = True  # type: ignore[assignment]

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            on = block.gradient_checkpointing and block.training
            x = checkpoint(block, x, use_reentrant=False) if on else block(x)
        return self.head(self.norm(x))


def trains_in_evaluation_mode() -> None:
    model = Switched(layers=4)
    optimizer = sgd(model)
    model.eval()
    with torch.no_grad():
        loss_of(model, batches(1)[0])
    for batch in batches(2):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def returns_to_training_mode() -> None:
    model = Switched(layers=4)
    optimizer = sgd(model)
    model.eval()
    with torch.no_grad():
        loss_of(model, batches(1)[0])
    model.train()
    for batch in batches(2):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def switch_without_effect(reading: Reading) -> str | None:
    last = reading.last_pass
    if not reading.death or not last or not last.grad or not last.dead_switch or reading.recomputed:
        return None
    return _(
        "gradient_checkpointing is on in the model's layers, their training flag is off, and nothing was computed "
        "twice"
    )


class Whole(GPT):
    """One checkpoint around all blocks."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        x = checkpoint(nn.Sequential(*self.blocks), x, use_reentrant=False)
        return self.head(self.norm(x))


class Blockwise(GPT):
    """A checkpoint around each block."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


def checkpoints_the_whole_stack() -> None:
    _train(Whole(gpt(layers=6).config), batches(2))


def checkpoints_each_block() -> None:
    _train(Blockwise(gpt(layers=6).config), batches(2))


def computes_everything_again(reading: Reading) -> str | None:
    if not reading.death or not reading.recomputed:
        return None
    most = max(reading.recomputed, key=lambda each: each.layers)
    if most.layers < 0.6 * most.of:
        return None
    return _(
        "{layers} of the model's {of} layers were computed again at once, before the backward pass had used any of "
        "them"
    ).format(
        layers=most.layers, of=most.of
    )  # fmt: skip


class Adapted(nn.Module):
    """Frozen blocks with adapters, each within a checkpoint, and a head that is trained."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.head = nn.ModuleList(Adapter(64) for _ in range(3)), nn.Linear(64, 8)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def adapters_in_reentrant_checkpoints() -> None:
    _train_adapters(Adapted(reentrant=True))


def adapters_in_other_checkpoints() -> None:
    _train_adapters(Adapted(reentrant=False))


def adapters_without_gradient(reading: Reading) -> str | None:
    warned = any("None of the inputs have requires_grad" in each for each in reading.warnings)
    if not warned or not any(each.with_gradient < each.parameters for each in reading.updates):
        return None
    update = reading.updates[-1]
    return _(
        "{without} of {all} trained tensors have no gradient, and PyTorch warned that no input of the checkpoint "
        "requires one"
    ).format(
        without=update.parameters - update.with_gradient, all=update.parameters
    )  # fmt: skip


def _train(model: nn.Module, data: list[Any], loss: Callable[[nn.Module, Any], Tensor] = loss_of) -> None:
    optimizer = sgd(model)
    for batch in data:
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def _train_adapters(model: nn.Module) -> None:
    _train(model, vectors(3), lambda model, x: nn.functional.cross_entropy(model(x), labels(x)))


CASES = (
    Case(
        name="evaluation-mode",
        branch=("out of memory", "although checkpointing is on"),
        symptom=N_("Checkpointing was switched on, and the peak is what it was without"),
        words=N_(
            "gradient_checkpointing=True, and memory is the same; gradient_checkpointing_enable has no effect; "
            "saves nothing; peak did not shrink; model.eval() before training; out of memory after the first validation"
        ),
        cause=N_(
            "layers checkpoint in training mode alone, and the model is in eval mode: an evaluation left it there"
        ),
        change=N_("model.train() after every evaluation; for a frozen backbone set dropout to 0 instead of eval()"),
        surer=N_(
            "print(model.training) in the training loop; count how often a block's forward runs in a step: twice is "
            "right"
        ),
        unit="03_checkpointing",
        sign=switch_without_effect,
        broken=trains_in_evaluation_mode,
        mended=returns_to_training_mode,
        sure="certain",
        card_bytes=4 * MIB,
    ),
    Case(
        name="one-segment",
        branch=("out of memory", "although checkpointing is on"),
        symptom=N_(
            "With one checkpoint around the model the peak moved from the forward to the backward pass, no lower"
        ),
        words=N_("checkpoint around the whole model; checkpoint(model, x); saves nothing; peak in backward"),
        cause=N_("the whole stack is computed again at once, so all its activations are alive together after all"),
        change=N_("one checkpoint for each block, or for every few blocks"),
        surer=N_(
            "the activations at the beginning of the backward pass, in a probe's timeline: one hill instead of a comb"
        ),
        unit="03_checkpointing",
        sign=computes_everything_again,
        broken=checkpoints_the_whole_stack,
        mended=checkpoints_each_block,
        card_bytes=15 * MIB // 2,
    ),
    Case(
        name="reentrant-adapters",
        branch=("wrong numbers", "loss does not fall"),
        symptom=N_("LoRA with checkpointing trains, but the adapters stay as they were"),
        words=N_(
            "None of the inputs have requires_grad=True; element 0 of tensors does not require grad; use_reentrant; "
            "enable_input_require_grads; LoRA loss does not decrease; LoRA no gradient"
        ),
        cause=N_("the frozen embedding's output needs no gradient, and a reentrant checkpoint then cuts the graph"),
        change=N_("use_reentrant=False, or model.enable_input_require_grads()"),
        surer=N_("count trained parameters whose .grad is None after backward()"),
        unit="03_checkpointing",
        sign=adapters_without_gradient,
        broken=adapters_in_reentrant_checkpoints,
        mended=adapters_in_other_checkpoints,
        sure="certain",
        messages=(
            "None of the inputs have requires_grad=True. Gradients will be None",
            "element 0 of tensors does not require grad and does not have a grad_fn",
        ),
    ),
)
