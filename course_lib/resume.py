"""A training run that survives a disconnect: what has to be kept so that the curve goes on as if nothing had happened.

Four things beside the weights: the optimizer's state, the scaler's, the random numbers' (dropout draws them), and the
position in the data. The file is written beside the old one and then put in its place, so a run that is killed while it
saves leaves the old file whole.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course_lib.accumulate import Way, Window, adamw, losses, small_gpt
from course_lib.errors import CourseError

EVERYTHING = ("model", "optimizer", "scaler", "random", "position")


def save(path: str | Path, model: nn.Module, optimizer: Any, scaler: Any, position: int) -> None:
    """Keep the state of a run after ``position`` updates."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict() if scaler else {},
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "position": position,
    }
    new = Path(f"{path}.new")
    torch.save(state, new)
    os.replace(new, path)


def load(path: str | Path, model: nn.Module, optimizer: Any, scaler: Any, parts: Sequence[str] = EVERYTHING) -> int:
    """Bring a run back, and say how many updates it had done.

    Args:
        path: as in :func:`save`; read into host memory first, as a second copy of Adam's state may not fit on a card.
        model, optimizer, scaler: made as for a fresh run.
        parts: what to bring back; the others are left as they are, to see what that does.

    Raises:
        CourseError: there is no such file.
    """
    if not Path(path).exists():
        raise CourseError(f"resume: no file {str(path)!r}; expected one that save() wrote")
    state = torch.load(path, map_location="cpu", weights_only=True)
    if "model" in parts:
        model.load_state_dict(state["model"])
    if "optimizer" in parts:
        optimizer.load_state_dict(state["optimizer"])
    if "scaler" in parts and scaler:
        scaler.load_state_dict(state["scaler"])
    if "random" in parts:
        torch.set_rng_state(state["random"])
        if state["random_cuda"]:
            torch.cuda.set_rng_state_all(state["random_cuda"])
    return int(state["position"]) if "position" in parts else 0


def resumable(
    data: Sequence[Window],
    path: str | Path | None = None,
    *,
    parts: Sequence[str] = EVERYTHING,
    updates: int | None = None,
    after_each: Callable[[int], None] = lambda update: None,
) -> list[float]:
    """Train the small GPT, with dropout, accumulation and a scaler; go on from ``path`` where it exists, keep it there.

    Args:
        data: windows, one for each update.
        path: the file; without one the run is neither kept nor resumed.
        parts: what is brought back.
        updates: how many at most; all of ``data`` without it.
        after_each: called when an update is done and kept; an exception of its own ends the run there.

    Returns:
        The loss of each update that ran here.
    """
    torch.set_num_threads(1)
    model = small_gpt(dropout=0.1).train()
    optimizer = adamw(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
    position = load(path, model, optimizer, scaler, parts) if path and Path(path).exists() else 0
    curve: list[float] = []
    for window in list(data)[position : position + (updates or len(data))]:
        total = torch.zeros(())
        for loss in losses(model, window, Way(4)):
            scaler.scale(loss).backward()
            total += loss.detach()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        position += 1
        curve.append(float(total))
        if path:
            save(path, model, optimizer, scaler, position)
        after_each(position)
    return curve
