"""A flight recorder for a training loop: when a step dies of memory, it leaves what is needed to mend it.

Around each step of a loop of one's own::

    record = Recorder(model, optimizer)
    for batch in longest_first(batches):
        with record.step(batch):
            train_step(...)

or around a loop that somebody else wrote, such as transformers' Trainer::

    with Recorder(trainer.model).run():
        trainer.train()

The error then carries a note with the step's number, the batch's shapes, the bill at the moment of death and the next
change to make; ``record.death`` keeps them, and so does a JSON file where a path was given. On a card it costs
nothing while all goes well: weights, gradients and optimizer state are looked up when the step dies, and PyTorch's
counter gives the rest. Elsewhere there is no counter: ``step`` meters each step, which slows small models
about threefold, and ``run`` leaves the rest out.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_flatten_with_path, tree_iter

from course_lib.accounts import Account, Moment
from course_lib.i18n import N_, _
from course_lib.meter import Meter
from course_lib.probe import device_of
from course_lib.units import format_bytes, unit_for

THE_REST = N_("the rest")  #: on a card: activations and temporaries together
_Sample = TypeVar("_Sample")


@dataclass(frozen=True)
class Death:
    """A step that ran out of memory."""

    step: int  #: counted from 1
    moment: str  #: of the step, by where the traceback ends
    batch_shapes: dict[str, tuple[int, ...]]
    bill_bytes: dict[str, int]  #: live bytes by account when memory ran out
    error: str

    @property
    def next_change(self) -> str:
        """What to change first, by the moment and the largest account, in the reader's language."""
        known = Account.ACTIVATIONS in self.bill_bytes or THE_REST in self.bill_bytes
        largest = max(self.bill_bytes, key=lambda account: self.bill_bytes[account]) if known else THE_REST
        rows = max((shape[0] for shape in self.batch_shapes.values() if shape), default=1)
        if self.moment == Moment.OPTIMIZER_STEP:
            return _(
                "8-bit or paged Adam, or Adafactor; AdamW(fused=True) does without the temporary; LoRA without most "
                "of the state"
            )
        if largest == Account.WEIGHTS:
            return _("weights in 16 bit, then in 4 (QLoRA); they are the largest account")
        if largest in (Account.OPTIMIZER, Account.GRADIENTS):
            return _("LoRA, or 8-bit Adam: optimizer state and gradients are the largest accounts")
        if rows > 1:
            return _(
                "a micro-batch of {half} in place of {rows}, and twice the accumulation; then checkpointing"
            ).format(
                half=rows // 2, rows=rows
            )  # fmt: skip
        return _("checkpointing of each block and a fused attention; then shorter sequences, or a loss in chunks")

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in self.batch_shapes.items())
        unit = unit_for(sum(self.bill_bytes.values()))
        bill = ", ".join(f"{_(account)} {format_bytes(size, unit)}" for account, size in self.bill_bytes.items())
        said = _(
            "step {step} ran out of memory in {moment} with batch {shapes}; live then: {bill}. Next change: {change}"
        )
        return said.format(step=self.step, moment=_(self.moment), shapes=shapes, bill=bill, change=self.next_change)


class Recorder:
    """Watches one training loop.

    Args:
        model: its parameters say which device is watched.
        optimizer: may be left out where the loop makes it.
        path: a file to keep the death in, as JSON.
    """

    def __init__(self, model: nn.Module, optimizer: Any = None, path: str | Path | None = None) -> None:
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
            if is_out_of_memory(error):
                bill = {account.value: size for account, size in meter.live.items()} if meter else self._bill()
                self._keep(error, batch, bill)
            raise

    @contextmanager
    def run(self) -> Iterator[None]:
        """A whole loop; its steps are counted by its updates, its batches seen as they enter the model."""
        self.steps = 1
        batch: dict[Any, Any] = {}

        def updated(optimizer: Any, *_: Any) -> None:
            self._optimizer, self.steps = optimizer, self.steps + 1

        def entered(_module: nn.Module, args: Any, kwargs: Any) -> None:
            batch.clear()
            batch.update(dict(enumerate(args)) | kwargs)

        hooks = [
            register_optimizer_step_post_hook(updated),
            self._model.register_forward_pre_hook(entered, with_kwargs=True),
        ]
        try:
            yield
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                self._keep(error, batch, self._bill())
            raise
        finally:
            batch.clear()
            for hook in hooks:
                hook.remove()

    def _keep(self, error: BaseException, batch: Any, bill: dict[str, int]) -> None:
        self.death = Death(self.steps, _moment_of(error), _shapes(batch), bill, str(error).splitlines()[0])
        if self._path:
            kept = asdict(self.death) | {"next_change": self.death.next_change}
            self._path.write_text(json.dumps(kept, indent=2, ensure_ascii=False), encoding="utf-8")
        error.add_note(str(self.death))

    def _bill(self) -> dict[str, int]:
        parameters = list(self._model.parameters())
        state = self._optimizer.state.values() if self._optimizer else ()
        bill = {
            Account.WEIGHTS.value: _size((parameters, list(self._model.buffers()))),
            Account.GRADIENTS.value: _size([each.grad for each in parameters]),
            Account.OPTIMIZER.value: _size([list(each.values()) for each in state]),
        }
        device = device_of(self._model)
        if device.type == "cuda":
            bill[THE_REST] = torch.cuda.memory_allocated(device) - sum(bill.values())
        return bill


def longest_first(samples: Sequence[_Sample], length: Callable[[Any], int] = len, count: int = 1) -> list[_Sample]:
    """The ``count`` longest samples (a batch of them), then all others in order: what will not fit dies at once."""
    order = sorted(range(len(samples)), key=lambda place: -length(samples[place]))[:count]
    return [samples[place] for place in order] + [each for place, each in enumerate(samples) if place not in set(order)]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that memory ran out, on a card or on the host."""
    text = str(error).lower()
    return (
        isinstance(error, torch.OutOfMemoryError | MemoryError) or "out of memory" in text or "allocate memory" in text
    )


def _moment_of(error: BaseException) -> str:
    """By the files that the traceback goes through."""
    files = [Path(frame.f_code.co_filename).as_posix() for frame, _line in walk_tb(error.__traceback__)]
    if any("/torch/optim/" in file for file in files):
        return Moment.OPTIMIZER_STEP.value
    if any(file.endswith(("/torch/_tensor.py", "/torch/autograd/__init__.py")) for file in files):
        return Moment.BACKWARD.value
    return Moment.FORWARD.value


def _shapes(batch: Any) -> dict[str, tuple[int, ...]]:
    leaves, _tree = tree_flatten_with_path(batch)
    names = {id(leaf): "".join(map(str, path)).replace("'", "") or "batch" for path, leaf in leaves}
    return {names[id(leaf)]: tuple(leaf.shape) for _path, leaf in leaves if isinstance(leaf, Tensor)}


def _size(tree: Any) -> int:
    """Bytes of the tensors in ``tree``, each storage once; Adam's step counters stay on the host and do not count."""
    storages = {
        leaf.untyped_storage()._cdata: leaf.untyped_storage()
        for leaf in tree_iter(tree) if isinstance(leaf, Tensor) and leaf.dim() > 0
    }  # fmt: skip
    return sum(storage.nbytes() for storage in storages.values())
