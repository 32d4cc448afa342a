"""The caching allocator in small: PyTorch's documented rounding by hand, and what published runs held in all."""

import importlib
import json
import random
from pathlib import Path

import pytest
from test_published_peaks import ROWS

from course_lib.accounts import Moment
from course_lib.allocator import CachingAllocator, OutOfMemory, replay, segment_bytes
from course_lib.device import replayed_range
from course_lib.dryrun import dry_run_config
from course_lib.hf_config import read_config
from course_lib.recipe import Recipe
from course_lib.trace import Event, Tensor, Trace
from course_lib.units import GIB, KIB, MIB

CHANGE = (0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("asked", "segment"),
    [
        (1, 2 * MIB), (1 * MIB, 2 * MIB),  # kSmallSize, kSmallBuffer
        (1 * MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB),  # kMinLargeAlloc, kLargeBuffer
        (10 * MIB, 10 * MIB), (10 * MIB + 1, 12 * MIB), (33 * MIB, 34 * MIB),  # kRoundLarge
    ],
)  # fmt: skip
def test_what_is_asked_of_the_driver(asked: int, segment: int) -> None:
    assert segment_bytes(asked) == segment
    allocator = CachingAllocator()
    allocator.allocate(asked)
    assert allocator.reserved_bytes == segment


def test_a_list_by_hand() -> None:
    """Small pool, large pool, rest split off or handed out with it, best fit, neighbours joined."""
    allocator = CachingAllocator()
    small = [allocator.allocate(size) for size in (1, 512, 513, MIB)]
    assert [block.size_bytes for block in small] == [512, 512, 1024, MIB]
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (MIB + 2048, 2 * MIB)
    allocator.allocate(MIB)  # 1 MiB less 2048 B are left: a second segment
    assert allocator.reserved_bytes == 4 * MIB

    allocator = CachingAllocator()
    six, ten = allocator.allocate(6 * MIB), allocator.allocate(10 * MIB)  # 20 MiB with 14 left: 10 fit in
    assert allocator.reserved_bytes == 20 * MIB
    allocator.free(six)
    five = allocator.allocate(5 * MIB + 512 * KIB)
    assert five.size_bytes == 6 * MIB  # what would be left is half a MiB, too little for a block
    assert allocator.allocated_bytes == 16 * MIB
    allocator.free(five)
    allocator.free(ten)
    assert allocator.allocated_bytes == 0
    twenty = allocator.allocate(19 * MIB + 1)  # all joined again; less than 1 MiB would be left, and goes with it
    assert twenty.size_bytes == 20 * MIB
    assert allocator.reserved_bytes == 20 * MIB


def test_the_smallest_block_that_fits() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size * MIB) for size in (40, 12, 30)]
    for block in blocks:
        allocator.free(block)
    assert allocator.allocate(11 * MIB).size_bytes == 12 * MIB  # no more than 1 MiB would be left: not split
    assert allocator.allocate(14 * MIB).size_bytes == 14 * MIB  # of the 30, not of the 40
    assert allocator.allocate(40 * MIB).size_bytes == 40 * MIB
    assert allocator.reserved_bytes == allocator.peak_reserved_bytes == 82 * MIB


def test_segments_go_back_when_the_driver_has_no_more() -> None:
    allocator = CachingAllocator(capacity_bytes=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(70 * MIB)
    assert allocator.reserved_bytes == 70 * MIB
    with pytest.raises(OutOfMemory):
        allocator.allocate(40 * MIB)


def test_any_list_keeps_its_books() -> None:
    """Whatever comes and goes: no block lies over another, and what is free and what is taken make up the segments."""
    chance, allocator, taken = random.Random(0), CachingAllocator(), []
    for _ in range(3000):
        if taken and chance.random() < 0.5:
            allocator.free(taken.pop(chance.randrange(len(taken))))
        else:
            taken.append(allocator.allocate(chance.choice((300, 70_000, 3 * MIB, 15 * MIB)) + chance.randrange(4096)))
        free = [block for pool in allocator._free.values() for block in pool]
        assert sum(block.size_bytes for block in taken) == allocator.allocated_bytes
        assert allocator.allocated_bytes + sum(block.size_bytes for block in free) == allocator.reserved_bytes
        if not _ % 100:
            ends = sorted((block.address, block.address + block.size_bytes) for block in taken + free)
            assert all(a[1] <= b[0] for a, b in zip(ends, ends[1:], strict=False))


def test_state_that_settles_in_what_activations_left() -> None:
    """Adam's state comes in the first update, into the freed activation's segment; the next step needs a new one."""
    state, activation = Tensor(2, 30 * MIB, "resident"), Tensor(3, 40 * MIB, "mm")
    trace = Trace((
        Event(Moment.LOAD, "resident", CHANGE, born=(state,)),
        Event(Moment.FORWARD, "mm", CHANGE, born=(activation,)),
        Event(Moment.BACKWARD, "free", CHANGE, died=(activation,)),
        Event(Moment.OPTIMIZER_STEP, "sqrt", CHANGE),
    ))  # fmt: skip
    assert replay(trace, steps=1).reserved_bytes == 40 * MIB
    held = replay(trace)
    assert (held.allocated_bytes, held.reserved_bytes) == (70 * MIB, 80 * MIB)


#: Published runs of which every tensor is known: what their card showed, in all.
WHOLE = [name for name, row in ROWS.items() if "fused-linear-ce" in row["cli"]]
QUICK = ("fms-a100_liger-102", "fms-a100_liger-112", "fms-a100_liger-119")


def recipe_of(name: str) -> Recipe:
    words = ROWS[name]["cli"].split()[1:]
    flags = {}
    for i, word in enumerate(words):
        if word.startswith("--"):
            value = words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("--") else True
            field = word[2:].replace("-", "_")
            flags[field] = int(value) if field in ("batch", "seq", "lora_rank") else value
    return Recipe(**flags)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in WHOLE])
def test_what_nvidia_smi_showed(name: str) -> None:
    """Within the range; and where 80 GB did not press, replayed reserved and a context are it, to 3 %."""
    trace = dry_run_config(read_config("mistral-7b"), recipe_of(name))
    held, shown = replay(trace), ROWS[name]["nvidia_smi_mib"] * MIB
    low, high = replayed_range(trace.peak_bytes, held.reserved_bytes)
    assert low <= shown <= high
    if held.reserved_bytes < 75 * GIB:
        assert held.reserved_bytes + 400 * MIB == pytest.approx(shown, rel=0.03)
    replay(trace, capacity_bytes=79 * GIB)  # it did run on that card


@pytest.mark.parametrize(
    "name",
    [pytest.param(f"rasbt-0{i}", marks=[] if i == 7 else [pytest.mark.slow]) for i in (1, 3, 5, 7, 9)],
)
def test_what_was_reserved_for_a_gpt_from_scratch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published figures of memory_reserved, and a model that no flags describe (benchmarks/gpt_from_scratch.py)."""
    folder = Path(__file__).parents[1] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    script = importlib.import_module("gpt_from_scratch")
    rows = map(json.loads, (folder / "data/published_peaks.jsonl").read_text().splitlines())
    measured = next(row["measured_gb"] for row in rows if row["id"] == name)
    assert script.held_bytes(script.ROWS[name]) / GIB == pytest.approx(measured, rel=0.005)
