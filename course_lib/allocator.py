"""PyTorch's caching allocator in small: from a step's allocations to the memory that PyTorch holds for them.

``torch.cuda.memory_reserved`` is more than what tensors take. Memory comes from the driver in segments, a freed block
stays in its segment until something of the right size wants it, and two neighbours that are free become one. This
module follows c10/cuda/CUDACachingAllocator.cpp (malloc, get_free_block, should_split, free_block,
release_cached_blocks) with its default settings, on one stream:

* a size is rounded up to 512 bytes; up to 1 MiB it goes to the small pool, else to the large one
* the smallest free block that is large enough is taken, of equal ones the lowest
* the rest of it becomes a block of its own where it has at least 512 bytes (small), more than 1 MiB (large)
* a new segment has 2 MiB in the small pool; in the large 20 MiB for sizes below 10 MiB, else the size, rounded up
  to 2 MiB
* segments go back to the driver only when it has no more, those that are free as a whole
"""

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from course_lib.accounts import ACCOUNTS, Account, Moment
from course_lib.trace import Event, Tensor, Trace
from course_lib.units import BLOCK_BYTES, MIB, round_to_block

SMALL_BYTES, SMALL_SEGMENT_BYTES = 1 * MIB, 2 * MIB
MIDDLE_BYTES, MIDDLE_SEGMENT_BYTES, LARGE_STEP_BYTES = 10 * MIB, 20 * MIB, 2 * MIB


class OutOfMemory(Exception):
    """The driver has no more, even after the allocator gave back what it held in vain."""


@dataclass(eq=False, slots=True)
class Block:
    """A stretch of a segment, free or handed out; ``before`` and ``after`` are its neighbours there."""

    address: int
    size_bytes: int
    small: bool
    free: bool = False
    before: "Block | None" = None
    after: "Block | None" = None

    @property
    def is_whole_segment(self) -> bool:
        return self.before is None and self.after is None

    def __lt__(self, other: "Block") -> bool:
        return (self.size_bytes, self.address) < (other.size_bytes, other.address)


@dataclass
class CachingAllocator:
    """``allocate`` and ``free`` blocks; four counters say what PyTorch's own would say.

    Args:
        capacity_bytes: what the driver can give; None for as much as is wanted.
    """

    capacity_bytes: int | None = None
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    _free: dict[bool, list[Block]] = field(default_factory=lambda: {True: [], False: []})
    _next_address: int = 0

    def allocate(self, size_bytes: int) -> Block:
        """A block of at least ``size_bytes``.

        Raises:
            OutOfMemory: the capacity does not allow another segment.
        """
        size = max(BLOCK_BYTES, round_to_block(size_bytes))
        block = self._best_fit(size) or self._new_segment(size)
        rest = block.size_bytes - size
        if rest >= BLOCK_BYTES if block.small else rest > SMALL_BYTES:
            self._split(block, size)
        block.free = False
        self.allocated_bytes += block.size_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Give ``block`` back to its pool, joined with its neighbours where these are free."""
        self.allocated_bytes -= block.size_bytes
        block.free = True
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._take(other)
                block = _joined(block, other)
        insort(self._free[block.small], block)

    def _best_fit(self, size: int) -> Block | None:
        pool = self._free[size <= SMALL_BYTES]
        index = bisect_left(pool, Block(-1, size, False))
        return pool.pop(index) if index < len(pool) else None

    def _take(self, block: Block) -> None:
        pool = self._free[block.small]
        del pool[bisect_left(pool, block)]

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size_bytes - size, block.small, True, block, block.after)
        if block.after is not None:
            block.after.before = rest
        block.size_bytes, block.after = size, rest
        insort(self._free[rest.small], rest)

    def _new_segment(self, size: int) -> Block:
        bytes_ = segment_bytes(size)
        if self.capacity_bytes is not None and self.reserved_bytes + bytes_ > self.capacity_bytes:
            self._release_free_segments()
            if self.reserved_bytes + bytes_ > self.capacity_bytes:
                raise OutOfMemory
        self.reserved_bytes += bytes_
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        self._next_address += bytes_
        return Block(self._next_address - bytes_, bytes_, size <= SMALL_BYTES)

    def _release_free_segments(self) -> None:
        for small, pool in self._free.items():
            self.reserved_bytes -= sum(block.size_bytes for block in pool if block.is_whole_segment)
            self._free[small] = [block for block in pool if not block.is_whole_segment]


def segment_bytes(size_bytes: int) -> int:
    """What is asked of the driver for a block of ``size_bytes`` (get_allocation_size)."""
    if size_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size_bytes < MIDDLE_BYTES:
        return MIDDLE_SEGMENT_BYTES
    return -(-size_bytes // LARGE_STEP_BYTES) * LARGE_STEP_BYTES


def _joined(block: Block, other: Block) -> Block:
    """Two neighbours as one block, which keeps the lower address."""
    low, high = (other, block) if other.address < block.address else (block, other)
    low.size_bytes += high.size_bytes
    low.after, low.free = high.after, True
    if high.after is not None:
        high.after.before = low
    return low


class Held(NamedTuple):
    """Peaks of a replayed training run, in bytes."""

    allocated_bytes: int  #: blocks as they were handed out, up to 1 MiB larger than what was asked for
    reserved_bytes: int  #: segments


def replay(trace: Trace, steps: int = 3, capacity_bytes: int | None = None) -> Held:
    """What PyTorch holds while the step of ``trace`` is run ``steps`` times, from loading the model on.

    The optimizer's state, which the trace finds in place, comes into being in the first update: it settles in blocks
    that the first step's activations left behind, and what comes after finds these taken.

    Raises:
        OutOfMemory: ``capacity_bytes`` do not suffice.
    """
    run = _Run(CachingAllocator(capacity_bytes))
    load = [event for event in trace.events if event.moment is Moment.LOAD]
    left_over = Counter(tensor for event in load for tensor in event.died)  # by the step before: its gradients
    state: list[Tensor] = []
    for tensor in (tensor for event in load for tensor in event.born):
        if left_over[tensor]:
            left_over[tensor] -= 1
        elif tensor.account == ACCOUNTS.index(Account.OPTIMIZER):
            state.append(tensor)
        else:
            run.bear([tensor])
    for _ in range(steps):
        for event in trace.events:
            if event.moment is Moment.OPTIMIZER_STEP and state:
                run.bear(state)
                state = []
            run.follow(event._replace(born=()) if event.moment is Moment.LOAD else event)
    return Held(run.allocator.peak_allocated_bytes, run.allocator.peak_reserved_bytes)


@dataclass
class _Run:
    """Which block each living tensor has. Of tensors alike the youngest dies first, as in a backward pass."""

    allocator: CachingAllocator
    blocks: dict[tuple[int, int], list[Block]] = field(default_factory=lambda: defaultdict(list))

    def bear(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self.blocks[tensor.account, tensor.size_bytes].append(self.allocator.allocate(tensor.size_bytes))

    def follow(self, event: Event) -> None:
        self.bear(event.born)
        for tensor in event.died:
            if alike := self.blocks[tensor.account, tensor.size_bytes]:
                self.allocator.free(alike.pop())
