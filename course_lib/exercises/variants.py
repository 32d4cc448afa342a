"""A second model for the tests: what holds for the course's GPT alone is not a promise kept.

Like :class:`course_lib.models.GPT` it has ``.blocks`` and maps tokens ``[B, T]`` to logits ``[B, T, V]``; inside it is
another: no attention, no positions, a gated MLP, RMSNorm, a head of its own.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.models import GPTConfig


class MixBlock(nn.Module):
    """Each token takes the mean of those before it, then a gated MLP; ``[B, T, H] -> [B, T, H]``."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.width)
        self.mix = nn.Linear(config.width, config.width, bias=False)
        self.gate = nn.Linear(config.width, 2 * config.width, bias=False)
        self.up = nn.Linear(config.width, 2 * config.width, bias=False)
        self.down = nn.Linear(2 * config.width, config.width, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        count = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)  # [T]
        x = x + self.mix(x.cumsum(1) / count[:, None])
        y = self.norm(x)
        return x + self.dropout(self.down(F.silu(self.gate(y)) * self.up(y)))


class MixGPT(nn.Module):
    """``tokens`` int64 ``[B, T]`` to logits ``[B, T, V]``."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(MixBlock(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
