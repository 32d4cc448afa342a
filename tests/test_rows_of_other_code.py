"""Figures that others published for models which no flags describe, against a dry run of the same operators."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from course_lib.device import REPLAY_PERCENT
from course_lib.dryrun.grow import at_depth
from course_lib.units import GB, GIB

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield
    for name in ("published_peaks", "litgpt", "torchtune", "bert_large"):
        sys.modules.pop(name, None)


def measured(name: str) -> float:
    rows: Any = import_module("published_peaks").rows()
    [row] = [row for row in rows if row["id"] == name]
    return float(row["measured_gb"]) * (GB if row["unit"] == "GB" else GIB)


slow = pytest.mark.slow


@pytest.mark.parametrize("name", [
    "litgpt-res-01", pytest.param("litgpt-res-03", marks=slow), pytest.param("litgpt-res-05", marks=slow),
    "litgpt-res-07", pytest.param("litgpt-res-09", marks=slow), pytest.param("litgpt-res-11", marks=slow),
    "litgpt-res-13", pytest.param("litgpt-res-15", marks=slow), pytest.param("litgpt-res-17", marks=slow),
])  # fmt: skip
def test_lora_and_qlora_in_lit_gpts_code(name: str) -> None:
    litgpt = import_module("litgpt")
    assert abs(litgpt.trace_of(litgpt.RUNS[name]).peak_bytes / measured(name) - 1) < 0.004


@pytest.mark.parametrize("name", [
    "tt-flags-03", pytest.param("tt-flags-05", marks=slow), pytest.param("tt-flags-07", marks=slow),
    pytest.param("tt-flags-09", marks=slow),
])  # fmt: skip
def test_compiled_blocks_in_torchtunes_code(name: str) -> None:
    torchtune = import_module("torchtune")
    trace = at_depth(lambda layers: torchtune.trace_of(layers, torchtune.ROWS[name]), torchtune.LAYERS)
    assert abs(trace.peak_bytes / measured(name) - 1) < (0.005 if name in ("tt-flags-03", "tt-flags-07") else 0.04)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf-perf-01", "hf-perf-03", "hf-perf-05", "hf-perf-07", "hf-perf-09"])
def test_bert_on_its_card_is_in_the_range(name: str) -> None:
    bert = import_module("bert_large")
    allocated, reserved = bert.replayed(*bert.ROWS[name])
    without_context = measured(name) - bert.CONTEXT_BYTES
    assert allocated <= without_context <= reserved * (1 + REPLAY_PERCENT / 100)
