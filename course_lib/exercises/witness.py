"""Hands models to a student's ``measure_peak`` and sees what happens to them."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from course_lib.exercises.bench import Batch, Size
from course_lib.exercises.judge import observe

MeasurePeak = Callable[[Callable[[], nn.Module], Callable[[], Batch], str, str], int]


class Seen(NamedTuple):
    """What a model noticed in its forward pass."""

    weights: str
    autocast: str
    others_alive: int  #: models that were made before it and are still there


@dataclass(eq=False)
class Witness:
    """Hands models to a student's function, and keeps what the last forward pass and the optimizer showed."""

    size: Size
    device: str
    made: list["weakref.ref[nn.Module]"] = field(default_factory=list)
    seen: Seen | None = None
    optimizer: str = "none"

    def ask(self, measure_peak: MeasurePeak, recipe: str) -> Any:
        """The student's figure."""
        self.seen, self.optimizer = None, "none"
        hook = register_optimizer_step_post_hook(
            lambda optimizer, *_: setattr(self, "optimizer", _described(optimizer))
        )
        try:
            return observe(
                measure_peak, self.make_model, lambda: self.size.make_batch(self.device), recipe, self.device
            )
        finally:
            hook.remove()

    def make_model(self) -> nn.Module:
        model = self.size.make_model(self.device)
        self.made.append(weakref.ref(model))

        def look(module: nn.Module, _inputs: Any) -> None:  # a function: a copied model reports here, too
            others = sum(each() is not None and each() is not module for each in self.made)
            weights = {str(parameter.dtype) for parameter in module.parameters()}
            self.seen = Seen(", ".join(sorted(weights)), _autocast_now(), others)

        model.register_forward_pre_hook(look)
        return model


def _described(optimizer: torch.optim.Optimizer) -> str:
    group = optimizer.param_groups[0]
    way = next((way for way in ("foreach", "fused") if group.get(way)), "a loop over tensors")
    return f"{type(optimizer).__name__}, {way}"


def _autocast_now() -> str:
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device))
    return "off"
