"""Several optimizers, seen as the meter sees one."""

import weakref
from typing import Any

import torch


class Together:
    """The states and groups of all optimizers that are still alive."""

    def __init__(self, optimizers: "list[weakref.ref[torch.optim.Optimizer]]") -> None:
        self._optimizers = optimizers

    @property
    def state(self) -> dict[Any, Any]:
        return {key: value for each in self._alive() for key, value in each.state.items()}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for each in self._alive() for group in each.param_groups]

    def _alive(self) -> list[torch.optim.Optimizer]:
        return [found for each in self._optimizers if (found := each()) is not None]


def trained_by(optimizer: torch.optim.Optimizer | None) -> list[torch.nn.Parameter]:
    """Its parameters; none where the optimizer is gone."""
    return [each for group in optimizer.param_groups for each in group["params"]] if optimizer else []
