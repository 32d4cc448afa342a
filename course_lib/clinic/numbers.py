"""What the probe reads off the numbers themselves: gradients, weights, and where inf and nan come from."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from course_lib.accounts import Moment
from course_lib.clinic.reading import Nonfinite, Update
from course_lib.meter import tensors_in

#: Memory that nobody has written yet, and masks that are infinite on purpose.
_NO_RESULT = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "full", "full_like",
              "fill_", "masked_fill", "masked_fill_", "where", "lift_fresh")  # fmt: skip


def nonfinite(operator: str, args: Any, out: Any) -> Nonfinite | None:
    """Whether an operator made inf or nan of finite numbers; where and when is for the caller to fill in."""
    if operator in _NO_RESULT:
        return None
    for made in tensors_in(out):
        if made.is_floating_point() and not _finite(made):
            given = [each for each in tensors_in(args) if each.is_floating_point() and each.numel()]
            # an operator that works in place has overwritten what it was given
            came = [each for each in given if each.data_ptr() != made.data_ptr()]
            if all(_finite(each) for each in came):
                largest = max((float(each.abs().max()) for each in came), default=math.nan)
                return Nonfinite(0, 0, Moment.FORWARD, operator, made.dtype, largest)
            return None
    return None


def first_size(args: tuple[Any, ...]) -> tuple[int, int] | None:
    """B and T of the first tensor among ``args``."""
    for each in args:
        if isinstance(each, Tensor) and each.dim() >= 1:
            return each.shape[0], each.shape[1] if each.dim() > 1 else 1
    return None


def largest_gradient(parameters: Iterable[torch.nn.Parameter]) -> float:
    """The largest absolute value among all gradients; nan where there is none, or none that has numbers."""
    return max((float(each.abs().max()) for each in _gradients(parameters)), default=math.nan)


def facts_of_update(parameters: list[torch.nn.Parameter], at: int, optimizer: int, scale: float) -> Update:
    """What is known when an optimizer begins to step."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    known = list(_gradients(parameters))
    norm = zeros = math.nan
    if known:
        norm = math.sqrt(sum(float(each.double().square().sum()) for each in known))
        zeros = sum(int((each == 0).sum()) for each in known) / sum(each.numel() for each in known)
    return Update(
        at, at, optimizer, len(parameters), len(gradients), frozenset(each.dtype for each in gradients),
        frozenset(each.dtype for each in parameters), norm, zeros, math.nan,
        all(_finite(each) for each in known), True, scale,
    )  # fmt: skip


def moved_share(parameters: list[torch.nn.Parameter], before: list[Tensor]) -> tuple[float, bool]:
    """Share of the weights with a gradient other than 0 that changed, and whether all are finite."""
    moved = wanted = 0
    finite = True
    for parameter, old in zip(parameters, before, strict=False):
        finite = finite and _finite(parameter.detach())
        for gradient in _gradients([parameter]):
            pulled = gradient.ne(0)
            wanted += int(pulled.sum())
            moved += int((pulled & (parameter.detach() != old)).sum())
    return (moved / wanted if wanted else math.nan), finite


def _gradients(parameters: Iterable[torch.nn.Parameter]) -> Iterator[Tensor]:
    """Those that are there and have numbers."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.device.type != "meta" and gradient.numel():
            yield gradient


def _finite(tensor: Tensor) -> bool:
    """One sum finds nearly every tensor finite; only a sum that is not is looked into."""
    return math.isfinite(float(tensor.sum(dtype=torch.float32))) or bool(tensor.isfinite().all())
