"""One training step of a small GPT, the same on memory and on the meta device, for tests that compare the two."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.training import train_step

BATCH, LENGTH = 4, 32
CONFIG = GPTConfig(vocab=1024, block_size=LENGTH, layers=3, heads=4, width=128)


@dataclass
class SmallStep:
    """Call it to train ``model`` one step; ``forward()`` is the loss of its first micro-batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: list[tuple[Tensor, Tensor]]
    autocast: Callable[[], AbstractContextManager[Any]]

    def __call__(self) -> None:
        train_step(self.model, self.optimizer, self.batches, loss_of, self.autocast)

    def forward(self) -> Tensor:
        with self.autocast():
            return loss_of(self.model, self.batches[0])


class Checkpointed(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=False)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    tokens, targets = batch
    return next_token_loss(model(tokens), targets)


def small_step(
    device: str,
    *,
    checkpointed: bool = False,
    autocast: str | None = None,
    accum: int = 1,
    implementation: str = "foreach",
    config: GPTConfig = CONFIG,
) -> SmallStep:
    """A step on ``device``; ``autocast`` names the device whose bf16 region the forward pass runs in."""
    with torch.device(device):
        model = GPT(config)
        batches = [(torch.zeros(BATCH, LENGTH, dtype=torch.long), torch.zeros(BATCH, LENGTH, dtype=torch.long))] * accum
        batches = [(tokens.clone(), targets.clone()) for tokens, targets in batches]
    if checkpointed:
        model.blocks = nn.ModuleList(Checkpointed(block) for block in model.blocks)
    optimizer = torch.optim.AdamW(
        model.parameters(), foreach=implementation == "foreach", fused=implementation == "fused"
    )
    region = (lambda: torch.autocast(autocast, dtype=torch.bfloat16)) if autocast else nullcontext
    return SmallStep(model, optimizer, batches, region)
