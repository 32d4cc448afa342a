"""The course's own small GPT: the model on which everything is shown before a 7B is predicted.

It follows GPT-2 (learned positions, pre-norm blocks, GELU, dropout where GPT-2 has it, a head tied to the
embedding) and keeps only what a memory bill needs. Shapes stand beside the lines that make them:
B sequences of T tokens, width H, N heads of D numbers, vocabulary V.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.errors import CourseError
from course_lib.shape import ModelShape

IGNORED = -100  #: a target of this value is no token to predict


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a :class:`GPT`."""

    vocab: int = 256  #: V, different tokens
    block_size: int = 128  #: the longest sequence, rows of the position embedding
    layers: int = 4  #: blocks
    heads: int = 4  #: N; must divide ``width``
    width: int = 128  #: H, numbers per token between blocks
    dropout: float = 0.0  #: share of numbers set to zero in training
    tied_head: bool = True  #: the head uses the embedding's weight

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise CourseError(f"GPTConfig: width {self.width} cannot be split evenly over {self.heads} heads")


class Attention(nn.Module):
    """Causal self-attention, ``[B, T, H] -> [B, T, H]``."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.c_attn = nn.Linear(config.width, 3 * config.width)
        self.c_proj = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)  # [B, N, T, D]
            for part in self.c_attn(x).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention, then an MLP four times as wide; each adds to the residual stream ``[B, T, H]``."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attn = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attn(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """``tokens`` int64 ``[B, T]`` to logits ``[B, T, V]``; its blocks are in ``.blocks``."""

    def __init__(self, config: GPTConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or GPTConfig()
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.positions = nn.Embedding(config.block_size, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        self.apply(_start_small)
        if config.tied_head:
            self.head.weight = self.embedding.weight

    @property
    def shape(self) -> ModelShape:
        """The sizes from which the ledger writes this model's bill."""
        config = self.config
        return ModelShape(
            "GPT", "gpt2", config.vocab, config.width, config.layers, config.heads, config.heads,
            config.width // config.heads, 4 * config.width, config.tied_head, True, True, True,
            config.block_size, config.block_size, config.dropout, config.dropout, gelu_steps=1,
        )  # fmt: skip

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > self.config.block_size:
            raise CourseError(f"{length} tokens in a sequence, but this GPT has {self.config.block_size} positions")
        positions = torch.arange(length, device=tokens.device)  # [T]
        x = self.dropout(self.embedding(tokens) + self.positions(positions))  # [B, T, H]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # [B, T, V]


def next_token_loss(logits: Tensor, targets: Tensor, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
    """Cross-entropy in nats over the targets that are not masked.

    Args:
        logits: ``[B, T, V]``.
        targets: int64 ``[B, T]``, already shifted: ``targets[b, t]`` follows token t; -100 is ignored.
        reduction: ``mean`` over unmasked tokens, or their ``sum``.

    Returns:
        A scalar; with ``mean`` and no unmasked target it is nan, with ``sum`` 0.
    """
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction=reduction)


def _start_small(module: nn.Module) -> None:
    """GPT-2's initialisation: normal with standard deviation 0.02, biases zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
