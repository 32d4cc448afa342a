"""What can be seen of a training loop from outside: which micro-batches went before each update, with which gradients.

A student's ``train`` gets a small model and an optimizer that report. With a learning rate of zero the weights
stay where they are, so that each update's gradient can be compared with what the same tokens give in one batch.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course_lib.exercises.judge import Raised, observe, one_thread, quiet
from course_lib.models import GPT, IGNORED, GPTConfig, next_token_loss

Batch = tuple[Tensor, Tensor]
Train = Callable[..., Any]
SMALL = GPTConfig(vocab=16, layers=1, heads=2, width=16, block_size=8)
_LENGTH = 8


class Piece(NamedTuple):
    """A micro-batch: its sequences, and how many targets of each are masked."""

    rows: int
    masked: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Bench:
    """A model and micro-batches. Every sequence is another one, so that it is known again wherever it turns up."""

    pieces: tuple[Piece, ...]
    accum_steps: int
    seed: int = 0
    model: type[nn.Module] = GPT  #: takes a ``GPTConfig``

    def make_model(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return self.model(SMALL).train()

    @cached_property
    def batches(self) -> list[Batch]:
        """Tokens and targets, int64 ``[B, T]`` each."""
        draw = torch.Generator().manual_seed(self.seed)
        made = []
        for piece in self.pieces:
            tokens = torch.randint(SMALL.vocab, (piece.rows, _LENGTH + 1), generator=draw)
            inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
            for row in range(piece.rows):
                targets[row, : piece.masked[row % len(piece.masked)]] = IGNORED
            made.append((inputs, targets))
        return made

    @cached_property
    def counts(self) -> list[int]:
        """Unmasked targets of each micro-batch."""
        return [int((targets != IGNORED).sum()) for _tokens, targets in self.batches]

    @cached_property
    def sums(self) -> list[float]:
        """Summed loss of each micro-batch under the first weights."""
        model = self.make_model()
        with torch.no_grad(), one_thread():
            return [float(next_token_loss(model(tokens), targets, "sum")) for tokens, targets in self.batches]

    @cached_property
    def gradients(self) -> list[Tensor]:
        """Gradient of each micro-batch's summed loss under the first weights, all parameters in one vector."""
        model, found = self.make_model(), []
        for tokens, targets in self.batches:
            model.zero_grad()
            with one_thread():
                next_token_loss(model(tokens), targets, "sum").backward()
            found.append(gradient_of(model))
        return found

    @property
    def windows(self) -> list[list[int]]:
        """The micro-batches of each update, as promised."""
        places = range(len(self.pieces))
        return [list(places[start : start + self.accum_steps]) for start in range(0, len(places), self.accum_steps)]

    def loss(self, window: Sequence[int]) -> float:
        """Summed loss ÷ unmasked tokens."""
        count = sum(self.counts[each] for each in window)
        return sum(self.sums[each] for each in window) / count if count else float("nan")

    def gradient(self, window: Sequence[int]) -> Tensor:
        """Of the window's tokens in one big batch."""
        count = sum(self.counts[each] for each in window)
        return sum((self.gradients[each] for each in window), torch.zeros(())) / count

    @cached_property
    def places(self) -> dict[tuple[int, ...], int]:
        """To which micro-batch a sequence belongs."""
        return {tuple(row): place for place, (tokens, _) in enumerate(self.batches) for row in tokens.tolist()}


@dataclass
class Seen:
    """What a run of ``train`` showed."""

    returned: Any = None
    windows: list[list[int]] = field(default_factory=list)  #: micro-batches before each update
    gradients: list[Tensor] = field(default_factory=list)  #: at each update
    after_update: list[Tensor] = field(default_factory=list)  #: all weights
    at_forward: dict[int, Tensor] = field(default_factory=dict)  #: all weights when a micro-batch was first seen
    most_rows: int = 0  #: sequences in one forward pass
    waiting: int = 0  #: earlier micro-batches without their backward pass, at most
    kept: int = 0  #: graphs other than the last one that were still there in a forward pass or at the end, at most

    @property
    def entries(self) -> list[float] | None:
        """What was returned, as numbers; None where it is something else."""
        try:
            with quiet():  # an entry that is still a tensor makes PyTorch warn
                return [float(entry) for entry in self.returned]
        except (TypeError, ValueError, RuntimeError):
            return None

    @property
    def failed(self) -> Any:
        """What ``train`` raised or returned instead of a list of numbers; None when it did its work."""
        if isinstance(self.returned, Raised):
            return self.returned
        return None if self.entries is not None else type(self.returned).__name__


class _Mark:
    """Lives as long as the graph of one forward pass."""

    def __init__(self, went_back: Callable[[], None]) -> None:
        self.went_back = went_back
        self.done = False  #: its backward pass has run


class _Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, mark: _Mark) -> Tensor:
        ctx.mark = mark
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.mark.done = True
        ctx.mark.went_back()
        return gradient, None


def watch(
    train: Train,
    bench: Bench,
    make_optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    overflow_at: int | None = None,
    lr: float = 0.0,
    **settings: Any,
) -> Seen:
    """Run a student's ``train`` and look on.

    Args:
        overflow_at: the micro-batch whose gradient is made infinite, as FP16 does when the scale is too large.
        settings: ``max_grad_norm`` and ``scaler``.
    """
    seen, model = Seen(), bench.make_model()
    optimizer = make_optimizer(model.parameters(), lr=lr)
    window: set[int] = set()
    marks: list[weakref.ref[_Mark]] = []
    last: list[int] = []

    def before_forward(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if not torch.is_grad_enabled():
            return
        rows = inputs[0].tolist()
        last[:] = sorted({bench.places.get(tuple(row), -1) for row in rows})
        seen.at_forward.setdefault(last[0], _flat(model.parameters()))
        seen.most_rows = max(seen.most_rows, len(rows))
        earlier = [mark for each in marks if (mark := each()) is not None]
        seen.waiting = max(seen.waiting, sum(not mark.done for mark in earlier))
        seen.kept = max(seen.kept, len(earlier) - 1)

    def after_forward(_module: nn.Module, _inputs: Any, logits: Tensor) -> Tensor:
        if not logits.requires_grad:
            return logits
        places = list(last)
        mark = _Mark(lambda: window.update(places))
        marks.append(weakref.ref(mark))
        return _Marked.apply(logits, mark)

    def before_update(*_: Any) -> None:
        seen.windows.append(sorted(window))
        window.clear()
        seen.gradients.append(gradient_of(model))

    model.register_forward_pre_hook(before_forward)
    model.register_forward_hook(after_forward)
    optimizer.register_step_pre_hook(before_update)
    optimizer.register_step_post_hook(lambda *_: seen.after_update.append(_flat(model.parameters())))
    if overflow_at is not None:
        next(model.parameters()).register_hook(lambda grad: grad * float("inf") if overflow_at in window else grad)
    batches = [(tokens.clone(), targets.clone()) for tokens, targets in bench.batches]
    with one_thread():
        seen.returned = observe(train, model, batches, accum_steps=bench.accum_steps, optimizer=optimizer, **settings)
    seen.kept = max(seen.kept, sum(each() is not None for each in marks))
    return seen


def gradient_of(model: nn.Module) -> Tensor:
    """All gradients in one vector, float64; zeros where there is none."""
    return _flat(torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters())


def _flat(tensors: Any) -> Tensor:
    return torch.cat([each.detach().flatten().double() for each in tensors])
