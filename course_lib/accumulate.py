"""One update in small pieces, right and wrong, on the small GPT: what lesson 04 shows and three claims rest on.

A window is what one update learns from: ``tokens`` and ``targets``, int64 ``[sequences, length]``, a target of -100
being none to predict.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from course_lib import finetune
from course_lib.models import GPT, IGNORED, GPTConfig, next_token_loss

Divide = Literal["tokens", "means", "nothing"]
Window = tuple[Tensor, Tensor]
SEQUENCES, LENGTH = 32, 32


class Way(NamedTuple):
    """How a window is worked through."""

    pieces: int = 8  #: micro-batches
    divide: Divide = "tokens"  #: summed losses by all tokens; each mean by the number of pieces; each mean by nothing


WHOLE = Way(1)  #: the window as one batch


def small_gpt(seed: int = 0, dropout: float = 0.0) -> GPT:
    """The model that is trained here: 2 blocks of width 64 on bytes."""
    torch.manual_seed(seed)
    return GPT(GPTConfig(vocab=256, block_size=LENGTH, layers=2, heads=4, width=64, dropout=dropout))


def windows(count: int, *, uneven: bool = False, seed: int = 0) -> list[Window]:
    """Stretches of the course's own source code, ``SEQUENCES`` to a window.

    With ``uneven`` the first sequences are nearly all masked, as short answers are in a batch of long ones.
    """
    made = []
    for rows in islice(finetune.windows(list(finetune.course_text().encode()), SEQUENCES, LENGTH + 1, seed), count):
        targets = rows[:, 1:].clone()
        if uneven:
            kept = torch.linspace(2, LENGTH, SEQUENCES).long()  # targets of each sequence
            targets[torch.arange(LENGTH) >= kept[:, None]] = IGNORED
        made.append((rows[:, :-1], targets))
    return made


def losses(model: nn.Module, window: Window, way: Way) -> Iterator[Tensor]:
    """The loss of each micro-batch as it goes into ``backward()``."""
    tokens, targets = window
    counted = int((targets != IGNORED).sum())
    for some, wanted in zip(tokens.chunk(way.pieces), targets.chunk(way.pieces), strict=True):
        if way.divide == "tokens":
            yield next_token_loss(model(some), wanted, "sum") / counted
        else:
            yield next_token_loss(model(some), wanted) / (way.pieces if way.divide == "means" else 1)


def gradient(model: nn.Module, window: Window, way: Way) -> Tensor:
    """The gradient that a window leaves, as one long vector."""
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other longer than they work
    model.zero_grad()
    for loss in losses(model, window, way):
        loss.backward()
    return torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])


def relative_difference(one: Tensor, other: Tensor) -> float:
    """Length of the difference by the length of ``other``."""
    return float((one - other).norm() / other.norm())


def train(
    way: Way,
    data: Sequence[Window],
    make_optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer],
    *,
    clip: float | None = None,
    model: nn.Module | None = None,
) -> list[float]:
    """The loss of each update, a token, before it; the same model each time unless one is given.

    Args:
        way: how each window is worked through.
        data: the windows.
        make_optimizer: from parameters.
        clip: the largest gradient norm.
        model: trained in place.
    """
    model = model or small_gpt()
    optimizer = make_optimizer(model.parameters())
    curve = []
    for window in data:
        with torch.no_grad():
            curve.append(float(next_token_loss(model(window[0]), window[1])))
        gradient(model, window, way)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return curve


def sgd(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def adamw(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


class Normed(nn.Module):
    """A small classifier with a norm in the middle, on 16 numbers; its targets are made of its inputs."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(16, 32), norm(32), nn.ReLU(), nn.Linear(32, 4))

    def gradient(self, inputs: Tensor, pieces: int) -> Tensor:
        """Of the mean loss of ``inputs`` ``[B, 16]``, in equal pieces."""
        self.zero_grad()
        for some in inputs.chunk(pieces):
            loss = nn.functional.cross_entropy(self.layers(some), some[:, :4].argmax(1))
            (loss / pieces).backward()
        return torch.cat([each.grad.flatten() for each in self.parameters() if each.grad is not None])
