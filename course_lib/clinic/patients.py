"""What the clinic's loops train: the course's small GPT and a few layers, on a little text, always the same."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.corpus import VOCAB, draw_batch
from course_lib.models import GPT, GPTConfig, next_token_loss

Batch = tuple[Tensor, Tensor]  #: tokens and targets, int64 [B, T] each


def gpt(layers: int = 2, width: int = 64, length: int = 64, vocab: int = VOCAB, **more: Any) -> GPT:
    """A small GPT, in training mode."""
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab=vocab, block_size=length, layers=layers, width=width, **more)).train()


def batches(count: int, rows: int = 4, length: int = 64) -> list[Batch]:
    draw = torch.Generator().manual_seed(0)
    return [draw_batch(rows, length, draw) for _ in range(count)]


def mlp(depth: int = 4, width: int = 64, outputs: int = 8, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Linear layers with a ReLU between them; 64 numbers in."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for number in range(depth):
        inputs, made = (64 if number == 0 else width), (width if number < depth - 1 else outputs)
        layers += [nn.Linear(inputs, made, dtype=dtype), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def vectors(count: int, rows: int = 32, width: int = 64) -> list[Tensor]:
    """Batches of numbers around 0, ``[B, width]``."""
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(rows, width, generator=draw) for _ in range(count)]


def labels(x: Tensor) -> Tensor:
    """Classes to learn: which of the first 8 numbers is the largest, ``[B]``."""
    return x[:, :8].argmax(1)


def adamw(model: nn.Module, rate: float = 1e-3) -> torch.optim.AdamW:
    """As it steps on a card: all tensors at once."""
    return torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=rate, foreach=True)


def sgd(model: nn.Module, rate: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=rate)


def scaler(start: float = 2.0**16) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=start)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """The mean cross-entropy of a batch; nothing but the loss stays behind."""
    return next_token_loss(model(batch[0]), batch[1])


class Adapter(nn.Module):
    """A frozen linear layer in BF16, and beside it a narrow FP32 path that is trained (lesson 05)."""

    def __init__(self, width: int, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(width, width, bias=False).bfloat16().requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [B, H] -> [B, H]
        return F.gelu(self.base(x.bfloat16()).float() + self.up(self.down(x)))
