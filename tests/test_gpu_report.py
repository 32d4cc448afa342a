"""The GPU report as far as a CPU goes: its plan, its loop with a small model, its table. A card fills it in earnest."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from course_lib.gpu import DeviceMemory
from course_lib.hf_config import read_model
from course_lib.ledger import predict
from course_lib.presets import PRESETS
from course_lib.recipe import Recipe
from course_lib.units import GIB

SMALL = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture
def gpu_report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    monkeypatch.setitem(PRESETS, "small", SMALL)
    return importlib.import_module("gpu_report")


def test_the_plan(gpu_report: Any) -> None:
    """The headline comes first and is predicted to fit into 24 GB; what the grid holds exists and fits, or is said."""
    peaks = [predict(read_model(model), recipe).peak_bytes for model, recipe in gpu_report.GRID]
    model, recipe = gpu_report.GRID[0]
    assert (model, recipe.precision, recipe.checkpoint, recipe.accum) == ("llama-7b", "bf16", "block", 8)
    assert recipe.lora_rank
    assert peaks[0] < 24e9 - GIB
    assert sum(peak < 23 * GIB for peak in peaks) >= 12
    rows = list(gpu_report.report(gpu_report.GRID, GIB, "cpu", 0))
    assert [row.why_not for row in rows] == ["predicted above the cap"] * len(rows)
    assert {row.why_not for row in gpu_report.report(gpu_report.GRID, 2**50, "cpu", 0)} == {"no time left"}


@pytest.mark.parametrize(
    "settings",
    [{}, {"lora_rank": 4, "checkpoint": "block", "accum": 2}, {"loss": "chunked:2", "optimizer": "adafactor"}],
)
def test_the_loop_with_a_small_model(gpu_report: Any, settings: dict[str, Any]) -> None:
    """A CPU has other kernels than a card, so what is measured is near what is predicted for one, not equal to it."""
    recipe = Recipe(precision="fp32", seq=64, **settings)
    (row,) = gpu_report.report([("small", recipe)], GIB, "cpu", 60)
    assert row.why_not == ""
    workspaces = 2 * (2 * 4096 + 8 * 16) * 1024
    assert row.measured.allocated_bytes == pytest.approx(row.dry_run_bytes - workspaces, rel=0.25)
    assert "small" in gpu_report.table([row], "a CPU", 1)


def test_four_bits_that_are_there(gpu_report: Any) -> None:
    """bitsandbytes quantises on the CPU as on a card; the layout is the one that the dry run has on meta."""
    from course_lib.dryrun.hf_model import build_model

    recipe = Recipe(quant="nf4", lora_rank=4, lora_dropout=0.0)
    real, meta = (build_model(SMALL, recipe, 1, device) for device in ("cpu", "meta"))
    sizes = [
        sorted((name, each.dtype, each.numel()) for name, each in model.named_parameters()) for model in (real, meta)
    ]
    assert sizes[0] == sizes[1]


def test_the_table_by_hand(gpu_report: Any) -> None:
    row = gpu_report.Row(
        "llama-7b", Recipe(lora_rank=16), 10 * GIB, 11 * GIB, 12 * GIB, gpu_report.DeviceRange(11 * GIB, 14 * GIB),
        DeviceMemory(10 * GIB, 10 * GIB, 13 * GIB, 80 * GIB),
    )  # fmt: skip
    lines = gpu_report.table([row], "a card", 24).splitlines()
    assert lines[0] == "a card; PyTorch may take 24 GiB. Sizes in GiB."
    assert lines[-1] == (
        "| llama-7b | precision bf16, lora-rank 16 | 10.00 | 10.00 (+0.00 %) | 11.00 (+10.00 %) | 10.00 "
        "| 12.00 (+20.00 %) | 13.00 | 11.00–14.00 |"
    )
