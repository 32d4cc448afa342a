"""Fine-tuning end to end on any text: windows of tokens, the course's training step, a loss that is shown.

One loop for a tiny model on a processor and a pretrained one on a card; what differs is the recipe.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.errors import CourseError
from course_lib.recipe import Recipe
from course_lib.training import make_optimizer, train_step


def course_text() -> str:
    """A text that is always at hand: source code of this course, 26 kB, in a copy that never changes.

    The code itself does, and with it would every loss that a lesson states.
    """
    return Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")


def windows(tokens: Sequence[int], batch: int, length: int, seed: int = 0) -> Iterator[Tensor]:
    """Random stretches of a text without end, int64 ``[batch, length]``; the same seed gives the same ones.

    Raises:
        CourseError: the text is shorter than one window.
    """
    if len(tokens) <= length:
        raise CourseError(f"windows: got a text of {len(tokens)} tokens, expected more than length {length}")
    text, draw = torch.tensor(tokens), torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(0, len(text) - length, (batch,), generator=draw)
        yield torch.stack([text[start : start + length] for start in starts.tolist()])


def finetune(
    model: nn.Module,
    tokens: Sequence[int],
    recipe: Recipe,
    *,
    updates: int,
    learning_rate: float,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    scaler: Any = None,
    show: Callable[[str], None] = print,
    seed: int = 0,
) -> list[float]:
    """Train what ``model`` has to train; the loss of each update in nats a token, before it.

    Args:
        model: a transformers causal language model, with or without adapters.
        tokens: the text as token numbers.
        recipe: its ``batch``, ``seq``, ``accum`` and optimizer are used; precision is the caller's.
        updates: how many times the weights change.
        learning_rate: the same throughout.
        autocast: the region of the forward pass, none by default.
        scaler: a GradScaler, for FP16 alone.
        show: told about ten times how far it is.
        seed: of the windows that are drawn.
    """
    optimizer = make_optimizer(model, recipe)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    device = next(model.parameters()).device
    if device.type == "cpu":
        torch.set_num_threads(1)  # tensors are small there: threads would wait for each other longer than they work
    drawn = windows(tokens, recipe.batch, recipe.seq, seed)
    curve: list[float] = []
    seen: list[Tensor] = []

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        seen.append(loss.detach())
        return loss

    model.train()
    for update in range(1, updates + 1):
        batches = [next(drawn).to(device) for _ in range(recipe.accum)]
        train_step(model, optimizer, batches, loss_of, autocast, scaler)
        curve.append(float(torch.stack(seen).mean()))
        seen.clear()
        if update == 1 or update % max(1, updates // 10) == 0:
            show(f"update {update:3} of {updates}   loss {curve[-1]:.3f}")
    return curve
