"""A little text to train on that needs no download: some pages of this course, byte by byte.

``corpus.txt`` is a copy that never changes, so that what is measured with it does not change either.
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from course_lib.errors import CourseError

VOCAB = 256  #: a token is a byte


@cache
def text() -> Tensor:
    """All of it, int64 ``[bytes]``."""
    return torch.tensor(list(Path(__file__).with_suffix(".txt").read_bytes()))


def draw_batch(sequences: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Stretches of the text from random places.

    Returns:
        Tokens and targets, both int64 ``[sequences, length]``; ``targets[b, t]`` follows ``tokens[b, t]``.
    """
    if length >= len(text()):
        raise CourseError(f"draw_batch: got length {length}, expected less than the text's {len(text())} tokens")
    starts = torch.randint(len(text()) - length, (sequences,), generator=generator)
    windows = text()[starts[:, None] + torch.arange(length + 1)]  # [sequences, length + 1]
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
