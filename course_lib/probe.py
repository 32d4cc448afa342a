"""Measures a real training step: the same trace as a dry run, from tensors that have memory.

One line::

    with probe(model, optimizer) as measured:
        step()
    measured.trace.peak_bytes, measured.trace.at_peak

The device is the model's. On the CPU the trace is the whole truth. On a CUDA card PyTorch's own
counters are read as well: ``allocated`` is what tensors took at their most, ``reserved`` what the
caching allocator held for them, ``device_used`` what the driver reports, other processes included. On the
meta device the step is a dry run, and behaves as on a card.

To measure the step that a long run repeats, run it once before: Adam's state appears in the first.
"""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from course_lib.errors import CourseError
from course_lib.gpu import DeviceMemory, device_memory
from course_lib.meter import Meter
from course_lib.trace import Trace


@dataclass
class Measured:
    """What :func:`probe` hands out; filled when its block ends, however it ends."""

    trace: Trace = Trace(())
    #: PyTorch's and the driver's counters; None away from CUDA. Allocated and reserved are peaks since the block began.
    cuda: DeviceMemory | None = None

    @property
    def peak_bytes(self) -> int:
        """The most bytes allocated at once: the card's own counter, or the trace's peak where there is no card."""
        return self.cuda.allocated_bytes if self.cuda else self.trace.peak_bytes


@contextmanager
def probe(model: nn.Module, optimizer: Any = None, *, everything: bool = False) -> Iterator[Measured]:
    """Measure what runs inside the block (or, as a decorator, inside the function).

    Args:
        model: its parameters and buffers are the weights, and say which device is measured.
        optimizer: the optimizer that trains it, where one does.
        everything: count all other tensors that are alive on the device, too, as a card's counter would. Off, what
            no operator of the step touches is left out, so that a notebook's other models do not disturb.

    Raises:
        CourseError: the model has no parameter, or parameters on several devices.
    """
    device = device_of(model)
    measured = Measured()
    with ExitStack() as stack:
        stack.enter_context(as_on_a_card(device))
        meter = Meter(device, model, optimizer, scratch_of(device))
        if everything:
            meter.count_residents(_alive_on(device))
        if device.type == "cuda":
            gc.collect()  # what only a reference cycle keeps alive is not part of the step
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        try:
            with meter:
                yield measured
        finally:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
                measured.cuda = _peaks(device)
            measured.trace = meter.trace()


def device_of(model: nn.Module) -> torch.device:
    """The one device on which ``model`` lives."""
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1:
        found = ", ".join(sorted(map(str, devices))) or "no parameter"
        raise CourseError(f"probe: got a model with {found}, expected all parameters on one device")
    return devices.pop()


def as_on_a_card(device: torch.device) -> AbstractContextManager[Any]:
    """On the meta device the kernels and the autocast of a card; elsewhere nothing."""
    if device.type != "meta":
        return ExitStack()
    from course_lib.dryrun import on_meta

    return on_meta()


def scratch_of(device: torch.device) -> Any:
    """For the meter: what kernels that only pretend to run would take inside themselves; None where they run."""
    if device.type != "meta":
        return None
    from course_lib.dryrun.cuda_kernels import scratch_bytes

    return scratch_bytes


def _alive_on(device: torch.device) -> list[torch.Tensor]:
    # type() rather than isinstance(), which asks lazy proxies for their class and so wakes them
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    return [each for each in tensors if each.device.type == device.type]


def _peaks(device: torch.device) -> DeviceMemory:
    now = device_memory(device)
    return DeviceMemory(
        torch.cuda.max_memory_allocated(device),
        torch.cuda.max_memory_reserved(device),
        now.device_used_bytes,
        now.total_bytes,
    )
