"""A flight recorder for a training loop: when a step dies of memory, it leaves what is needed to mend it.

::

    record = Recorder(model, optimizer)
    for batch in loader:
        with record.step(batch):
            train_step(...)

The error then carries a note with the step's number, the batch's shapes and the bill at the moment of death,
``record.death`` keeps them, and so does a JSON file where a path was given. On a card it costs nothing
while all goes well: weights, gradients and optimizer state are looked up when the step dies, and PyTorch's
counter gives the rest. Elsewhere there is no counter, so each step is metered, which slows small models
about threefold.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path, tree_iter

from course_lib.accounts import Account
from course_lib.meter import Meter
from course_lib.probe import device_of
from course_lib.units import GIB, Unit, format_bytes


@dataclass(frozen=True)
class Death:
    """A step that ran out of memory."""

    step: int  #: counted from 1
    batch_shapes: dict[str, tuple[int, ...]]
    bill_bytes: dict[str, int]  #: live bytes by account when memory ran out; on a card the last two as one, "the rest"
    error: str

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in self.batch_shapes.items())
        unit: Unit = "GiB" if sum(self.bill_bytes.values()) >= GIB else "MiB"
        bill = ", ".join(f"{account} {format_bytes(size, unit)}" for account, size in self.bill_bytes.items())
        return f"step {self.step} ran out of memory with batch {shapes}; live then: {bill}"


class Recorder:
    """Watches the steps of one training loop."""

    def __init__(self, model: nn.Module, optimizer: Any, path: str | Path | None = None) -> None:
        self._model, self._optimizer, self._path = model, optimizer, Path(path) if path else None
        self.steps = 0  #: steps begun
        self.death: Death | None = None

    @contextmanager
    def step(self, batch: Any = None) -> Iterator[None]:
        """One step on ``batch``: tensors, or any tuple, list or dict of them."""
        self.steps += 1
        device = device_of(self._model)
        meter = None if device.type == "cuda" else Meter(device, self._model, self._optimizer)
        try:
            if meter:
                with meter:
                    yield
            else:
                yield
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            bill = _bill_of(meter) if meter else self._bill_on_card(device)
            self.death = Death(self.steps, _shapes(batch), bill, str(error).splitlines()[0])
            if self._path:
                self._path.write_text(json.dumps(asdict(self.death), indent=2))
            error.add_note(str(self.death))
            raise

    def _bill_on_card(self, device: torch.device) -> dict[str, int]:
        parameters = list(self._model.parameters())
        bill = {
            Account.WEIGHTS.value: _size((parameters, list(self._model.buffers()))),
            Account.GRADIENTS.value: _size([each.grad for each in parameters]),
            Account.OPTIMIZER.value: _size([list(state.values()) for state in self._optimizer.state.values()]),
        }
        return bill | {"the rest": torch.cuda.memory_allocated(device) - sum(bill.values())}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that memory ran out, on a card or on the host."""
    text = str(error).lower()
    return (
        isinstance(error, torch.OutOfMemoryError | MemoryError) or "out of memory" in text or "allocate memory" in text
    )


def _bill_of(meter: Meter) -> dict[str, int]:
    return {account.value: size for account, size in meter.live.items()}


def _shapes(batch: Any) -> dict[str, tuple[int, ...]]:
    leaves, _ = tree_flatten_with_path(batch)
    return {"".join(map(str, path)) or "batch": tuple(leaf.shape) for path, leaf in leaves if isinstance(leaf, Tensor)}


def _size(tree: Any) -> int:
    """Bytes of the tensors in ``tree``, each storage once."""
    storages = {
        leaf.untyped_storage()._cdata: leaf.untyped_storage() for leaf in tree_iter(tree) if isinstance(leaf, Tensor)
    }
    return sum(storage.nbytes() for storage in storages.values() if storage.device.type != "cpu")
