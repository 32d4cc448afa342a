"""The clinic's probe: put it around any training loop, and it finds model, optimizer and scaler by itself.

::

    with Watch() as watch:
        the_loop()
    watch.reading

It is a :class:`~course_lib.meter.Meter` that learns of models when they are called and of optimizers when they step,
and that takes down more. It looks at every number, so it is for small loops; a loop that runs for hours has
:class:`~course_lib.recorder.Recorder`.

With ``card_bytes`` memory ends there: the operator that would exceed it raises what PyTorch raises on a card.
"""

import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from course_lib.accounts import Account, Moment
from course_lib.cards import Capability
from course_lib.clinic.card import out_of_memory_text
from course_lib.clinic.numbers import facts_of_update, first_size, largest_gradient, moved_share, nonfinite
from course_lib.clinic.optimizers import Together, trained_by
from course_lib.clinic.reading import Backward, Death, Mean, Pass, Piece, Reading, Recomputed, Update
from course_lib.meter import Meter
from course_lib.oom import read_messages
from course_lib.probe import as_on_a_card, scratch_of
from course_lib.units import round_to_block

_SCALER_METHODS = ("scale", "unscale_", "step", "update")


class Watch(Meter):
    """``with Watch() as watch: loop()``, then ``watch.reading``.

    Args:
        device: where the loop's tensors are: ``cpu``, ``cuda``, or ``meta`` for real sizes.
        card_bytes: how much memory there is.
        capability: of the card that the loop is meant for.
    """

    def __init__(
        self, device: str = "cpu", card_bytes: int | None = None, capability: Capability | None = None
    ) -> None:
        super().__init__(device, [], kernel_scratch=scratch_of(torch.device(device)))
        self.card_bytes = card_bytes
        self.reading = Reading(capability=capability)
        self._seen_models: list[weakref.ref[nn.Module]] = []
        self._seen_optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._optimizer = Together(self._seen_optimizers)
        self._looks: list[tuple[tuple[int, ...], torch.dtype, Moment]] = []  # beside _allocations
        self._trained: set[int] = set()  # places in _allocations of parameters that want a gradient
        self._live_bytes = 0
        self._depth = self._scaler_depth = 0  # of calls within calls
        self._rerun: list[int] = []  # layers that were computed again, since the last step backwards
        self._passes: list[Pass] = []
        self._updates: list[Update] = []
        self._notes: dict[str, list[Any]] = {
            name: [] for name in ("means", "backwards", "nonfinite", "recomputed", "deaths", "scaler_calls")
        }
        self._weights_before: list[Tensor] = []
        self._scale = 1.0
        self._stack = ExitStack()

    # --- in and out ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._stack.enter_context(as_on_a_card(torch.device(self._device_type)))
        self._warned = self._stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        for hook in (
            register_module_forward_pre_hook(self._before_module),
            register_module_forward_hook(self._after_module, always_call=True),
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ):
            self._stack.callback(hook.remove)
        self._stack.enter_context(patch.object(torch.Tensor, "backward", self._noting_backward(torch.Tensor.backward)))
        for name in _SCALER_METHODS:
            method = getattr(torch.amp.GradScaler, name)
            self._stack.enter_context(patch.object(torch.amp.GradScaler, name, self._noting_scaler(name, method)))
        super().__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        if error is not None and self._moment is Moment.FORWARD:
            for _reference, each in self._alive.values():  # no backward pass came to say what they were for
                each.account = each.account or Account.ACTIVATIONS
        self._stack.close()
        self._finish()
        if error is not None:
            lines = str(error).splitlines()
            self.reading.error, self.reading.message = type(error).__name__, lines[0] if lines else ""
            pretended = any(each.tried_bytes for each in self.reading.deaths[-1:])
            if isinstance(error, torch.OutOfMemoryError) and not pretended:
                self.reading.counters = next(iter(read_messages(str(error))), None)

    def _finish(self) -> None:
        reading = self.reading
        reading.pieces = tuple(
            Piece(
                round_to_block(each.size_bytes), each.born, each.died, each.account or Account.TEMPORARY, moment,
                shape, dtype, place in self._trained,
            )
            for place, (each, (shape, dtype, moment)) in enumerate(zip(self._allocations, self._looks, strict=True))
        )  # fmt: skip
        reading.passes, reading.updates = tuple(self._passes), tuple(self._updates)
        reading.operators = tuple(self._operators)
        reading.warnings = tuple(str(each.message) for each in self._warned)
        for name, notes in self._notes.items():
            setattr(reading, name, tuple(notes))
        reading.trace = self.trace()

    # --- every operator -----------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = len(self._allocations)
        try:
            out = super().__torch_dispatch__(func, types, args, kwargs)
        except torch.OutOfMemoryError:  # a card's own
            self._note_death(0)
            raise
        here, name = len(self._operators) - 1, func.overloadpacket.__name__
        while len(self._looks) < len(self._allocations):  # scratch, which no tensor holds
            self._looks.append(((), torch.uint8, self._moment))
        if self._moment is Moment.BACKWARD and not torch.is_grad_enabled() and name != "detach":
            self._end_rerun()  # checkpoints detach what they compute again
        if self.card_bytes and self._live_bytes > self.card_bytes:
            tried = sum(round_to_block(each.size_bytes) for each in self._allocations[first:] if each.born == here)
            self._note_death(tried)
            live = self._live_bytes - tried
            del out
            raise torch.OutOfMemoryError(out_of_memory_text(tried, self.card_bytes, live))
        if self._device_type != "meta":
            self._look_at_numbers(here, name, func, args, out)
        return out

    def _note_death(self, tried_bytes: int) -> None:
        here = len(self._operators) - 1
        self._notes["deaths"].append(Death(here, len(self._updates), self._moment, tried_bytes, self._live_bytes))

    def _look_at_numbers(self, here: int, name: str, func: Any, args: Any, out: Any) -> None:
        if name == "nll_loss_forward":
            targets = int((args[1] != args[4]).sum())
            value = float(out[0].sum()) / (targets if args[3] == 2 and targets else 1)
            self._notes["means"].append(Mean(value, targets, here))
        known = self._notes["nonfinite"]
        now = (len(self._updates), self._moment)
        if not (known and (known[-1].update, known[-1].moment) == now):
            found = nonfinite(name, args, out)
            if found:
                known.append(found._replace(at=here, update=now[0], moment=now[1]))

    def _count(self, tensor: Tensor, born: int) -> Any:
        before = len(self._allocations)
        each = super()._count(tensor, born)
        if each and len(self._allocations) > before:
            while len(self._looks) < before:
                self._looks.append(((), torch.uint8, self._moment))
            self._looks.append((tuple(tensor.shape), tensor.dtype, self._moment))
            self._live_bytes += round_to_block(each.size_bytes)
        return each

    def _died(self, address: int) -> None:
        self._live_bytes -= round_to_block(self._alive[address][1].size_bytes)
        super()._died(address)

    # --- models -------------------------------------------------------------------------------------------------------

    def _before_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch._C._current_graph_task_id() != -1:
            if any(True for _ in module.parameters(recurse=False)):
                self._rerun.append(id(module))
            return
        self._depth += 1
        if self._depth > 1 or not any(True for _ in module.parameters()):
            if self._passes and self._passes[-1].length == 0 and first_size(args):
                self._set_size(args)  # a model that is called with names shows its tokens to the embedding
            return
        if module not in [each() for each in self._seen_models]:
            self._seen_models.append(weakref.ref(module))
            self._meet(module)
        handling = sys.exception()
        self._passes.append(
            Pass(
                len(self._operators), len(self._updates), module.training, torch.is_grad_enabled(),
                self._autocast(), 0, 0, 0, type(handling).__name__ if handling else "",
                [each() for each in self._seen_models].index(module),
                any(getattr(each, "gradient_checkpointing", False) and not each.training for each in module.modules()),
            )
        )  # fmt: skip
        if first_size(args):
            self._set_size(args)

    def _after_module(self, module: nn.Module, args: Any, out: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            return
        self._depth -= 1
        result = getattr(out, "logits", out[0] if isinstance(out, tuple) else out)
        if self._depth == 0 and self._passes and isinstance(result, Tensor):
            self._passes[-1] = self._passes[-1]._replace(outputs=result.shape[-1] if result.dim() else 1)

    def _set_size(self, args: tuple[Any, ...]) -> None:
        rows, length = first_size(args) or (0, 0)
        self._passes[-1] = self._passes[-1]._replace(rows=rows, length=length)

    def _autocast(self) -> torch.dtype | None:
        kind = "cuda" if self._device_type == "meta" else self._device_type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None

    def _meet(self, module: nn.Module) -> None:
        self._settle_residents()
        places = {id(each): place for place, each in enumerate(self._allocations)}
        for parameter in module.parameters():
            if parameter.requires_grad and (each := self._count(parameter, -1)) is not None:
                self._trained.add(places.get(id(each), -1))

    def _settle_residents(self) -> None:
        self._models = [model for each in self._seen_models if (model := each()) is not None]
        super()._settle_residents()
        self._models = []

    def _parameters(self) -> Iterator[nn.Parameter]:
        for each in self._seen_models:
            if (model := each()) is not None:
                yield from model.parameters()
        for group in self._optimizer.param_groups:
            yield from group["params"]

    def _end_rerun(self) -> None:
        if self._rerun:
            of = max(
                (sum(any(True for _ in part.parameters(recurse=False)) for part in model.modules())
                 for each in self._seen_models if (model := each()) is not None), default=0,
            )  # fmt: skip
            self._notes["recomputed"].append(Recomputed(len(self._operators) - 1, len(set(self._rerun)), of))
            self._rerun.clear()

    # --- backward passes, updates, scalers ----------------------------------------------------------------------------

    def _noting_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def noting(loss: Tensor, *args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                value = float("nan") if loss.device.type == "meta" else float(loss.detach().float().sum()) / self._scale
                found = tuple(largest_gradient(trained_by(each())) for each in self._seen_optimizers)
            begin, update = len(self._operators), len(self._updates)
            try:
                return backward(loss, *args, **kwargs)
            finally:
                if self._rerun:  # it died while it computed again
                    self._end_rerun()
                self._notes["backwards"].append(Backward(begin, len(self._operators), update, value, found))

        return noting

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if optimizer not in [each() for each in self._seen_optimizers]:
            self._seen_optimizers.append(weakref.ref(optimizer))
        number = [each() for each in self._seen_optimizers].index(optimizer)
        self._settle_residents()
        parameters = trained_by(optimizer)
        with _disable_current_modes():
            self._weights_before = [] if self._device_type == "meta" else [each.detach().clone() for each in parameters]
            self._before = facts_of_update(parameters, len(self._operators), number, self._scale)

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = trained_by(optimizer)
        with _disable_current_modes():
            moved, finite = moved_share(parameters, self._weights_before)
        self._updates.append(self._before._replace(end=len(self._operators), moved=moved, finite_after=finite))
        self._weights_before = []

    def _noting_scaler(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def noting(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if self._scaler_depth == 0:
                self._notes["scaler_calls"].append(name)
            self._scaler_depth += 1
            try:
                return method(scaler, *args, **kwargs)
            finally:
                self._scaler_depth -= 1
                if name in ("scale", "update"):
                    with _disable_current_modes():
                        self._scale = scaler.get_scale()

        return noting
