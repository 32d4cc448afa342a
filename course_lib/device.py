"""From what PyTorch allocates to what the card has in use, and whether that fits.

`torch.cuda.max_memory_allocated` counts tensors. The card (`nvidia-smi`) also holds the CUDA
context and what the caching allocator has set aside but cannot use at the moment. Neither follows
from the model, so device use is a range, drawn so that two causes are visible:

* **context**: driver state and loaded kernels. About 300 MiB since CUDA 11.7 loads kernels when they
  are first used (pytorch/pytorch#107667); up to about 900 MiB with every kernel loaded, as in the
  out-of-memory messages of a T4 and an 11 GB card (total - reserved - free = 877 and 921 MiB).
* **slack**: memory that is set once (weights, optimizer state) is packed well. What comes and goes
  (activations, gradients, temporaries) leaves gaps of the wrong size behind. In 33 published runs of
  Mistral-7B on an A100 for which both figures are known (foundation-model-stack/fms-acceleration),
  the slack was 0 to 66 % of the coming and going part; 55 % covers 29 of them.

A dry run knows which tensors come and go, and when. What PyTorch holds for them is then no guess:
:mod:`~course_lib.allocator` replays them, and the high end is what it holds, 2 % for what the replay
leaves out (kernels' own scratch, an order of events that differs), and the context. That slack above is the
ledger's.

The low end has no slack at all: when the card is full, the allocator gives its cached blocks back
and tries again (``release_cached_blocks`` in PyTorch's CUDACachingAllocator.cpp), so a run may
live between the two ends. One model on one card: other setups may fall outside.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Literal, NamedTuple, Protocol

from course_lib.errors import CourseError
from course_lib.units import GIB, MIB

CONTEXT_LOW_BYTES, CONTEXT_HIGH_BYTES = 300 * MIB, 900 * MIB
SLACK_PERCENT = 55
REPLAY_PERCENT = 2
MOST_BUDGET_GIB = 2**20

Verdict = Literal["fits", "tight", "does-not-fit"]


class DeviceRange(NamedTuple):
    """Bytes in use on the card, at least and at most."""

    low_bytes: int
    high_bytes: int

    def verdict(self, usable_bytes: int) -> Verdict:
        """Whether a card with ``usable_bytes`` takes it: surely, perhaps, or not."""
        if self.high_bytes <= usable_bytes:
            return "fits"
        return "tight" if self.low_bytes <= usable_bytes else "does-not-fit"


def device_range(allocated_bytes: int, resident_bytes: int) -> DeviceRange:
    """What the card has in use at the peak.

    Args:
        allocated_bytes: the peak of allocated memory.
        resident_bytes: the part of it that stays from step to step (weights and optimizer state).
    """
    coming_and_going_bytes = max(0, allocated_bytes - resident_bytes)
    slack_bytes = coming_and_going_bytes * SLACK_PERCENT // 100
    return DeviceRange(allocated_bytes + CONTEXT_LOW_BYTES, allocated_bytes + CONTEXT_HIGH_BYTES + slack_bytes)


def replayed_range(allocated_bytes: int, reserved_bytes: int) -> DeviceRange:
    """What the card has in use at the peak of a step whose tensors have been replayed.

    Args:
        allocated_bytes: the peak of allocated memory.
        reserved_bytes: what the caching allocator holds at its most, where nothing presses.
    """
    margin_bytes = reserved_bytes * REPLAY_PERCENT // 100
    return DeviceRange(allocated_bytes + CONTEXT_LOW_BYTES, reserved_bytes + margin_bytes + CONTEXT_HIGH_BYTES)


class Capacity(Protocol):
    """Anything with a name and memory to fill: a card, or a budget."""

    @property
    def name(self) -> str: ...

    @property
    def usable_bytes(self) -> int: ...


@dataclass(frozen=True)
class Budget:
    """A number of GiB that takes a card's place."""

    gib: float

    def __post_init__(self) -> None:
        if not (isfinite(self.gib) and 0 < self.gib <= MOST_BUDGET_GIB):
            raise CourseError(
                f"budget_gib: got {self.gib:g}, expected a number of GiB above 0 and up to {MOST_BUDGET_GIB}"
            )

    @property
    def name(self) -> str:
        return f"{self.gib:g} GiB budget"

    @property
    def usable_bytes(self) -> int:
        return int(self.gib * GIB)
