"""One training step as every instrument runs it, and the optimizers of a recipe.

The step is the plain one: forward and backward once per micro-batch, one update, gradients dropped. Nothing
but the loss is held when the backward pass begins.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.eight_bit import adamw_8bit
from course_lib.recipe import Recipe

LossOf = Callable[[nn.Module, Any], Tensor]


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    micro_batches: Iterable[Any],
    loss_of: LossOf,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    scaler: Any = None,
) -> None:
    """One update from the mean loss of ``micro_batches``; ``loss_of(model, batch)`` is a scalar.

    With a GradScaler the loss is scaled, and the update skipped where gradients overflowed.
    """
    micro_batches = list(micro_batches)
    for batch in micro_batches:
        with autocast():
            loss = loss_of(model, batch) / len(micro_batches)
        (scaler.scale(loss) if scaler else loss).backward()
        del loss
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    optimizer.zero_grad()


def autocast_of(recipe: Recipe, device_type: str = "cuda") -> Callable[[], AbstractContextManager[Any]]:
    """The autocast region of ``recipe``'s precision; no region where it has none."""
    if not recipe.autocast:
        return nullcontext
    dtype = torch.float16 if recipe.precision == "amp-fp16" else torch.bfloat16
    return lambda: torch.autocast(device_type, dtype=dtype)


def weight_dtype(recipe: Recipe) -> torch.dtype:
    """The type in which base weights are stored."""
    return torch.float32 if recipe.weight_bytes == 4 else torch.bfloat16


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """``recipe``'s optimizer over what ``model`` trains."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if recipe.precision == "master-bf16":
        return MasterWeights(trained, lambda masters: _plain_optimizer(masters, recipe), recipe.optimizer_impl)
    return _plain_optimizer(trained, recipe)


def _plain_optimizer(trained: list[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    foreach, fused = recipe.optimizer_impl == "foreach", recipe.optimizer_impl == "fused"
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(trained, lr=1e-3, foreach=foreach, fused=fused)
    if recipe.optimizer in ("sgd", "sgd-momentum"):
        momentum = 0.9 if recipe.optimizer == "sgd-momentum" else 0.0
        return torch.optim.SGD(trained, lr=1e-3, momentum=momentum, foreach=foreach, fused=fused)
    if recipe.optimizer == "adafactor":
        return torch.optim.Adafactor(trained, lr=1e-3, foreach=foreach)
    return adamw_8bit(trained, paged=recipe.optimizer.startswith("paged"))


class MasterWeights(torch.optim.Optimizer):
    """Trains 16-bit parameters through fp32 copies, as Megatron-LM and Apex do.

    The copies and the inner optimizer's moments are its state: with Adam 4 + 8 bytes a parameter. At
    the step gradients are turned to fp32: all at once for a foreach optimizer, one at a time for a
    forloop, never as a tensor for a fused one, whose kernel reads 16-bit gradients.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        make_inner: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        implementation: str,
    ) -> None:
        super().__init__(parameters, {})
        self._trained = parameters
        self._masters = [nn.Parameter(parameter.detach().float()) for parameter in parameters]
        self._inner = make_inner(self._masters)
        self._implementation = implementation
        self.state = self._inner.state
        self.param_groups = self._inner.param_groups

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        pairs = list(zip(self._trained, self._masters, strict=True))
        one_by_one = self._implementation == "forloop"
        for window in [[pair] for pair in pairs] if one_by_one else [pairs]:
            for parameter, master in window:
                if parameter.grad is not None:
                    master.grad = parameter.grad.float()
            self._inner.step()
            for _, master in window:
                master.grad = None
        for parameter, master in pairs:
            parameter.copy_(master)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self._trained:
            parameter.grad = None


class InBackward(torch.optim.Optimizer):
    """An update for each parameter as soon as its gradient is whole, in the backward pass, which then frees it.

    Never more than a few gradients are there at once; ``step`` and ``zero_grad`` have nothing left to do. One
    micro-batch an update, no clipping by the norm of all gradients, no GradScaler: all three need them together.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    ) -> None:
        """
        Args:
            make: an optimizer of one parameter.
        """
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        super().__init__(trained, {})
        self._each = {parameter: make([parameter]) for parameter in trained}
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(self._update)

    def _update(self, parameter: Tensor) -> None:
        one = self._each[parameter]  # type: ignore[index]
        one.step()
        self.state[parameter] = one.state[parameter]
        parameter.grad = None

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        return

    def zero_grad(self, set_to_none: bool = True) -> None:
        return
