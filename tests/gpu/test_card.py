"""On a CUDA card: the allocator's model beside PyTorch's statistics, and a dry run beside PyTorch's counters."""

import importlib
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from course_lib.allocator import CachingAllocator, replay
from course_lib.dryrun import dry_run_config
from course_lib.hf_config import read_config
from course_lib.recipe import Recipe
from course_lib.units import KIB, MIB

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA card here"),
]


@pytest.fixture
def gpu_report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    module = importlib.import_module("gpu_report")
    module.give_back("cuda")
    return module


def test_the_allocator_keeps_pytorchs_books(gpu_report: Any) -> None:
    """A thousand tensors that come and go: allocated and reserved are PyTorch's own after each."""
    chance, ours, taken = random.Random(0), CachingAllocator(), []
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(1000):
        if taken and chance.random() < 0.45:
            tensor, block = taken.pop(chance.randrange(len(taken)))
            del tensor
            ours.free(block)
        else:
            size = chance.choice((700, 100 * KIB, 3 * MIB, 11 * MIB, 40 * MIB)) + chance.randrange(2 * MIB)
            taken.append((torch.empty(size, dtype=torch.uint8, device="cuda"), ours.allocate(size)))
        now = torch.cuda.memory_allocated() - before[0], torch.cuda.memory_reserved() - before[1]
        assert (ours.allocated_bytes, ours.reserved_bytes) == now


@pytest.mark.parametrize(
    "settings", [{}, {"checkpoint": "block", "lora_rank": 8}, {"precision": "fp32", "optimizer_impl": "fused"}]
)
def test_a_step_takes_what_the_dry_run_said(gpu_report: Any, settings: dict[str, Any]) -> None:
    recipe = Recipe(seq=512, batch=2, **settings)
    held = replay(dry_run_config(read_config("qwen2.5-0.5b"), recipe))
    measured = gpu_report.measure("qwen2.5-0.5b", recipe, "cuda")
    assert measured.allocated_bytes == pytest.approx(held.allocated_bytes, rel=0.01)
    assert measured.reserved_bytes == pytest.approx(held.reserved_bytes, rel=0.05)
