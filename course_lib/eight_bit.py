"""AdamW with 8-bit state, from bitsandbytes; it also runs on the meta device, paged or not."""

from typing import Any

import torch
from torch import nn

from course_lib.errors import CourseError


def adamw_8bit(trained: list[nn.Parameter], *, paged: bool) -> torch.optim.Optimizer:
    """bitsandbytes' AdamW with 8-bit moments; ``paged`` keeps those of large tensors in managed memory.

    Raises:
        CourseError: bitsandbytes is not installed.
    """
    try:
        import bitsandbytes
    except ImportError as error:
        raise CourseError(
            "8-bit optimizers need bitsandbytes; pip install bitsandbytes, or ask `course ledger`"
        ) from error
    if not paged:
        return bitsandbytes.optim.AdamW8bit(trained, lr=1e-3)
    optimizer = bitsandbytes.optim.PagedAdamW8bit(trained, lr=1e-3)
    if any(parameter.device.type == "meta" for parameter in trained):
        _page_without_cuda(optimizer)
    return optimizer


def _page_without_cuda(optimizer: Any) -> None:
    """Managed memory comes from the CUDA driver; on meta, tensors that say they are paged stand in for it."""
    allocate = type(optimizer).get_state_buffer

    def get_state_buffer(parameter: nn.Parameter, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        optimizer.is_paged = False
        buffer = allocate(optimizer, parameter, dtype=dtype)
        optimizer.is_paged = True
        buffer.is_paged = parameter.numel() >= 1e5  # as get_state_buffer decides in bitsandbytes/optim/optimizer.py
        return buffer

    optimizer.get_state_buffer = get_state_buffer
    optimizer.prefetch_state = lambda parameter: None
