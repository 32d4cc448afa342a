"""Counts every tensor's memory while a training step runs, and says what each byte was for.

One mechanism serves the dry run (meta tensors: sizes without memory) and the probe (real
tensors). A ``TorchDispatchMode`` sees each operator that PyTorch runs, in the forward pass, in
autograd's backward pass and in the optimizer. Each new storage is counted once, as the caching
allocator would round it, and taken off again when a weak reference says that it died.

To which account a storage belongs is decided afterwards, when it is known what became of it:

* **weights**: the model's parameters and buffers
* **gradients**: what some ``parameter.grad`` held at the end of a backward pass
* **optimizer**: what is in the optimizer's state after its step
* **activations**: made by forward code (recomputation included) and still alive when the next
  operator of the backward pass runs; the batch itself, too
* **temporary**: the rest

Known limits: memory that a kernel allocates and frees inside itself is not seen (the dry run
adds what CUDA kernels are known to take, see :mod:`course_lib.dryrun.cuda_kernels`); tensors that
nobody hands to an operator are not seen; custom C++ autograd nodes that keep raw pointers neither.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from types import TracebackType
from typing import Any, Self

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.accounts import ACCOUNTS, Account, Moment
from course_lib.trace import Change, Event, Tensor, Trace
from course_lib.units import round_to_block

_RESIDENT = -1  #: born before the first operator
_NEVER = 2**62


@dataclass(slots=True)
class _Allocation:
    """One storage: its size, the operators between which it lived, and what it turned out to be."""

    size_bytes: int
    born: int
    died: int = _NEVER
    account: Account | None = None


class Meter(TorchDispatchMode):
    """``with Meter(device, model, optimizer) as meter: step()``, then ``meter.trace()``.

    Args:
        device: memory on this kind of device is counted (``meta``, ``cpu`` or ``cuda``).
        model: its parameters and buffers are the weights; several models may be given in a list.
        optimizer: anything with ``state``; None where nothing is trained.
        kernel_scratch: ``(operator, arguments) -> bytes`` that the operator's kernel takes and gives back
            while it runs, for kernels that only pretend to run.
    """

    def __init__(
        self,
        device: torch.device | str,
        model: torch.nn.Module | Iterable[torch.nn.Module],
        optimizer: Any = None,
        kernel_scratch: Callable[[Any, tuple[Any, ...]], int] | None = None,
    ) -> None:
        super().__init__()
        self._device_type = torch.device(device).type
        self._models = [model] if isinstance(model, torch.nn.Module) else list(model)
        self._optimizer = optimizer
        self._allocations: list[_Allocation] = []
        self._kernel_scratch = kernel_scratch
        self._alive: dict[int, tuple[Any, _Allocation]] = {}  # by address of the storage, with its weak reference
        self._operators: list[tuple[Moment, str]] = []
        self._made_forward: list[_Allocation] = []
        self._moment = Moment.LOAD
        self._optimizer_depth = 0  # an optimizer may call another
        self._hooks: list[Any] = []
        # Adam keeps its step counters in host memory unless it is fused or capturable; where the host is
        # the device being measured, they would be counted although no card ever holds them.
        groups = getattr(optimizer, "param_groups", [])
        on_card = any(group.get("fused") or group.get("capturable") for group in groups)
        self._steps_on_host = self._device_type == "cpu" and not on_card

    def __enter__(self) -> Self:
        self._settle_residents()
        self._hooks = [
            register_optimizer_step_pre_hook(lambda *_: self._enter_optimizer()),
            register_optimizer_step_post_hook(lambda *_: self._leave_optimizer()),
        ]
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        for hook in self._hooks:
            hook.remove()
        self._settle_residents()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "profiler":  # the marks around an optimizer's step belong to no moment
            return func(*args, **(kwargs or {}))
        self._turn_to(self._moment_now())
        self._operators.append((self._moment, func.overloadpacket.__name__))
        here = len(self._operators) - 1
        fresh = func is torch.ops.aten.lift_fresh.default  # torch.tensor(...) hands over what it has just filled
        for tensor in tensors_in((args, kwargs)):  # the batch, and whatever else was there before us
            self._count(tensor, here if fresh else _RESIDENT)
        out = func(*args, **(kwargs or {}))
        if self._kernel_scratch and (scratch_bytes := self._kernel_scratch(func, args)):
            self._allocations.append(_Allocation(scratch_bytes, here, here, Account.TEMPORARY))
        for tensor in tensors_in(out):
            self._count(tensor, here)
        return out

    def trace(self) -> Trace:
        """What happened since ``__enter__``, as a :class:`~course_lib.trace.Trace`."""
        changes: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        for each in self._allocations:
            account = ACCOUNTS.index(each.account or Account.TEMPORARY)
            tensor = Tensor(account, each.size_bytes, self._operator_at(each.born))
            for when, part in ((each.born, 0), (each.died, 1)):
                if when != _NEVER:
                    changes.setdefault(when, ([], []))[part].append(tensor)
        for when in range(1, len(self._operators)):  # a moment in which nothing is allocated still begins
            if self._operators[when][0] is not self._operators[when - 1][0]:
                changes.setdefault(when, ([], []))
        events = []
        for when in sorted(changes):
            moment = Moment.LOAD if when == _RESIDENT else self._operators[when][0]
            born, died = changes[when]
            if born or not died:
                events.append(Event(moment, self._operator_at(when), _change(born), born=tuple(born)))
            if died:
                events.append(Event(moment, "free", _change(died, -1), died=tuple(died)))
        return Trace(tuple(events), self.static_bytes())

    def _operator_at(self, when: int) -> str:
        return "resident" if when == _RESIDENT else self._operators[when][1]

    @property
    def live(self) -> dict[Account, int]:
        """Bytes alive now, by account as far as it is known, in blocks."""
        bill = dict.fromkeys(ACCOUNTS, 0)
        for _, each in self._alive.values():
            kept = Account.ACTIVATIONS if self._moment is Moment.FORWARD else Account.TEMPORARY
            bill[each.account or kept] += round_to_block(each.size_bytes)
        return bill

    def count_residents(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count ``tensors`` as there before the step; weights, gradients and optimizer state are found anyway."""
        self._settle_residents()
        for tensor in tensors:
            each = self._count(tensor, _RESIDENT)
            if each and each.account is Account.ACTIVATIONS:
                each.account = Account.TEMPORARY

    def static_bytes(self) -> dict[Account, int]:
        """The most bytes of weights, gradients and optimizer state alive at once, without rounding to blocks."""
        static = {}
        for account in (Account.WEIGHTS, Account.GRADIENTS, Account.OPTIMIZER):
            changes = [
                (when, sign * each.size_bytes)
                for each in self._allocations
                if each.account is account
                for when, sign in ((each.born, 1), (each.died + 0.5, -1))
            ]
            static[account] = max(accumulate((size for _, size in sorted(changes)), initial=0))
        return static

    def _moment_now(self) -> Moment:
        if self._optimizer_depth:
            return Moment.OPTIMIZER_STEP
        return Moment.BACKWARD if torch._C._current_graph_task_id() != -1 else Moment.FORWARD

    def _turn_to(self, moment: Moment) -> None:
        if self._moment is Moment.BACKWARD and moment is not Moment.BACKWARD:
            self._settle_gradients()
        self._moment = moment
        # Backward formulas run without grad mode; recomputation inside the backward pass runs with it.
        if moment is Moment.BACKWARD and not torch.is_grad_enabled() and self._made_forward:
            for each in self._made_forward:
                if each.died == _NEVER and each.account is None:
                    each.account = Account.ACTIVATIONS
            self._made_forward.clear()

    def _count(self, tensor: torch.Tensor, born: int) -> _Allocation | None:
        """The allocation behind ``tensor``; counted as born at operator ``born`` if it is new."""
        if tensor.device.type != self._device_type:
            return None
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # a sparse tensor, or a subclass without storage of its own
            return None
        address = storage._cdata
        if address in self._alive:
            return self._alive[address][1]
        each = _Allocation(storage.nbytes(), born)
        if born == _RESIDENT:
            each.account = Account.ACTIVATIONS
        elif self._moment is Moment.FORWARD or (self._moment is Moment.BACKWARD and torch.is_grad_enabled()):
            self._made_forward.append(each)
        self._allocations.append(each)
        self._alive[address] = (weakref.ref(storage, _teller(weakref.ref(self), address)), each)
        return each

    def _died(self, address: int) -> None:
        _, each = self._alive.pop(address)
        each.died = len(self._operators) - 1

    def _enter_optimizer(self) -> None:
        self._optimizer_depth += 1

    def _leave_optimizer(self) -> None:
        self._optimizer_depth -= 1
        self._settle_optimizer()

    def _settle_residents(self) -> None:
        for model in self._models:
            for tensor in (*model.parameters(), *model.buffers()):
                self._settle(tensor, Account.WEIGHTS)
        self._settle_gradients()
        self._settle_optimizer()

    def _settle_gradients(self) -> None:
        for parameter in self._parameters():
            if parameter.grad is not None:
                self._settle(parameter.grad, Account.GRADIENTS)

    def _settle_optimizer(self) -> None:
        for parameter in self._parameters():  # master weights, and nothing else, are not settled yet
            self._settle(parameter, Account.OPTIMIZER)
        for state in getattr(self._optimizer, "state", {}).values():
            for name, value in state.items():
                for tensor in tensors_in(value):
                    self._settle(tensor, Account.OPTIMIZER)
                    off_card = (name == "step" and self._steps_on_host) or getattr(tensor, "is_paged", False)
                    if off_card and tensor.device.type == self._device_type:
                        self._alive[tensor.untyped_storage()._cdata][1].size_bytes = 0

    def _parameters(self) -> Iterator[torch.nn.Parameter]:
        for model in self._models:
            yield from model.parameters()
        for group in getattr(self._optimizer, "param_groups", []):
            yield from group["params"]

    def _settle(self, tensor: torch.Tensor, account: Account) -> None:
        each = self._count(tensor, _RESIDENT)
        if each and each.account not in (Account.WEIGHTS, Account.GRADIENTS, Account.OPTIMIZER):
            each.account = account


def _teller(meter: "weakref.ref[Meter]", address: int) -> Callable[[Any], None]:
    """Tells the meter of a death without keeping it, and with it the model, alive in a reference cycle."""

    def tell(_: Any) -> None:
        if (found := meter()) is not None:
            found._died(address)

    return tell


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors in an operator's arguments or results; PyTorch's own pytree takes several times as long."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from tensors_in(each)
    elif isinstance(tree, dict):
        yield from tensors_in(tuple(tree.values()))


def _change(tensors: Iterable[Tensor], sign: int = 1) -> Change:
    sums = [0] * len(ACCOUNTS)
    for tensor in tensors:
        sums[tensor.account] += sign * round_to_block(tensor.size_bytes)
    weights, gradients, optimizer, activations, temporary = sums
    return weights, gradients, optimizer, activations, temporary
