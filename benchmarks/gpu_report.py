"""Prediction and measurement on a CUDA card, recipe by recipe, within a cap: the whole loop of this course in a table.

    python benchmarks/gpu_report.py --cap-gib 24        writes results/gpu_CARD.md

Models are built from configs, with whatever numbers lie in memory: no download, and the loss means nothing. PyTorch may
take no more than the cap, so that an 80 GB card answers for a 24 GB one. The first line is the article's headline: 7B,
LoRA, BF16, checkpointing, accumulation over 8. A recipe that the ledger sees above the cap is not run, and said so.
"""

import argparse
import gc
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")  # of the size that the predictions count, on any card
import torch

from course_lib.allocator import replay
from course_lib.device import DeviceRange, replayed_range
from course_lib.dryrun import dry_run_config
from course_lib.dryrun.hf_model import batch_of, build_model, depth_of
from course_lib.dryrun.losses import loss_of
from course_lib.gpu import DeviceMemory
from course_lib.hf_config import read_config, read_model
from course_lib.ledger import predict
from course_lib.probe import probe
from course_lib.recipe import Recipe
from course_lib.training import autocast_of, make_optimizer, train_step
from course_lib.units import GIB, in_unit

HERE = Path(__file__).parent
WARM_UP = 2  #: steps before the one that is measured
_LORA = {"lora_rank": 16, "checkpoint": "block"}

#: From the headline on, each changes what the others leave alone.
GRID: tuple[tuple[str, Recipe], ...] = (
    ("llama-7b", Recipe(**_LORA, accum=8)),
    ("llama-7b", Recipe(**_LORA, attention="eager")),
    ("mistral-7b", Recipe(precision="amp-bf16-over-bf16", quant="nf4", double_quant=True, kbit_prepare=True, **_LORA)),
    ("qwen2.5-7b", Recipe(**_LORA, seq=1024)),
    ("llama3.2-3b", Recipe(**_LORA, loss="chunked:8", seq=4096)),
    ("llama3.2-1b", Recipe(checkpoint="block")),
    ("llama3.2-1b", Recipe(lora_rank=16, lora_targets="all-linear")),
    ("qwen2.5-0.5b", Recipe(precision="fp32", seq=768)),
    ("qwen2.5-0.5b", Recipe(precision="amp-bf16", seq=768)),
    ("qwen2.5-0.5b", Recipe(optimizer_impl="fused")),
    ("qwen2.5-0.5b", Recipe(optimizer="adamw-8bit")),
    ("qwen2.5-0.5b", Recipe(optimizer="adafactor", checkpoint="every:4")),
    ("gpt2-medium", Recipe(batch=4, seq=1024)),
    ("gpt2-medium", Recipe(precision="amp-fp16", batch=4, seq=1024, attention="eager", checkpoint="block")),
)


@dataclass(frozen=True)
class Row:
    """One recipe: predicted, and measured or the reason why not."""

    model: str
    recipe: Recipe
    ledger_bytes: int
    dry_run_bytes: int = 0
    reserved_bytes: int = 0
    device: DeviceRange | None = None
    measured: DeviceMemory | None = None
    why_not: str = ""


def report(grid: Iterable[tuple[str, Recipe]], cap_bytes: int, device: str, seconds: float) -> Iterator[Row]:
    """Row by row; those that come after ``seconds`` have passed are named, not run."""
    start = time.perf_counter()
    for model, recipe in grid:
        row = Row(model, recipe, predict(read_model(model), recipe).peak_bytes)
        if row.ledger_bytes > cap_bytes:
            yield replace(row, why_not="predicted above the cap")
        elif time.perf_counter() - start > seconds:
            yield replace(row, why_not="no time left")
        else:
            yield _measured(row, device)


def _measured(row: Row, device: str) -> Row:
    trace = dry_run_config(read_config(row.model), row.recipe)
    held = replay(trace)
    row = replace(row, dry_run_bytes=held.allocated_bytes, reserved_bytes=held.reserved_bytes,
                  device=replayed_range(trace.peak_bytes, held.reserved_bytes))  # fmt: skip
    try:
        return replace(row, measured=measure(row.model, row.recipe, device))
    except torch.OutOfMemoryError as error:
        return replace(row, why_not=f"out of memory: {str(error).partition('.')[0]}")
    finally:
        give_back(device)


def measure(model_name: str, recipe: Recipe, device: str) -> DeviceMemory:
    """What a step of ``recipe`` takes, after two like it."""
    config = read_config(model_name)
    model = build_model(config, recipe, depth_of(config), device)
    give_back(device)  # what building took
    optimizer = make_optimizer(model, recipe)
    batches = [batch_of(recipe, device) for _ in range(recipe.accum)]

    def step() -> None:
        train_step(model, optimizer, batches, loss_of(recipe), autocast_of(recipe, torch.device(device).type))

    return _peaks(model, optimizer, step)


def _peaks(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], None]) -> DeviceMemory:
    for _ in range(WARM_UP):
        step()
    with probe(model, optimizer) as measured:
        step()
    if measured.cuda:
        return measured.cuda
    return DeviceMemory(measured.peak_bytes, 0, 0, 0)  # away from CUDA nobody reserves


def give_back(device: str) -> None:
    """What nobody holds goes back to the driver, cuBLAS's workspaces too."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def table(rows: Iterable[Row], where: str, cap_gib: float) -> str:
    """The rows as Markdown, in GiB, with the difference of each prediction from what was measured."""
    lines = [
        f"{where}; PyTorch may take {cap_gib:g} GiB. Sizes in GiB.", "",
        "| Model | Recipe | allocated | ledger | dry run | reserved | replayed | device used | range |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    for row in rows:
        head = f"| {row.model} | {in_words(row.recipe)} "
        if row.measured is None or row.device is None:
            lines.append(f"{head}| {row.why_not} | {_gib(row.ledger_bytes)} | | | | | |")
            continue
        got = row.measured
        low, high = (_gib(size) for size in row.device)
        lines.append(
            f"{head}| {_gib(got.allocated_bytes)} | {_against(row.ledger_bytes, got.allocated_bytes)} "
            f"| {_against(row.dry_run_bytes, got.allocated_bytes)} | {_gib(got.reserved_bytes)} "
            f"| {_against(row.reserved_bytes, got.reserved_bytes)} | {_gib(got.device_used_bytes)} | {low}–{high} |"
        )
    return "\n".join(lines) + "\n"


def in_words(recipe: Recipe) -> str:
    """What of ``recipe`` is not usual."""
    usual = Recipe().to_dict()
    said = [name if value is True else f"{name} {value}" for name, value in recipe.to_dict().items()
            if value != usual[name] or name == "precision"]  # fmt: skip
    return ", ".join(said).replace("_", "-")


def _gib(size_bytes: int) -> str:
    return f"{in_unit(size_bytes):.2f}"


def _against(predicted: int, measured: int) -> str:
    return f"{_gib(predicted)} ({100 * (predicted / measured - 1):+.2f} %)" if measured else _gib(predicted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cap-gib", type=float, default=24.0, help="what PyTorch may take (default: 24)")
    parser.add_argument("--minutes", type=float, default=8.0, help="start nothing new after so long (default: 8)")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("gpu_report.py: no CUDA card here; `course gpu` says what is there")
    warnings.simplefilter("ignore")
    card = torch.cuda.get_device_properties(0)
    torch.cuda.set_per_process_memory_fraction(min(1.0, args.cap_gib * GIB / card.total_memory))
    import transformers

    where = (f"{card.name}, torch {torch.__version__}, transformers {transformers.__version__}, "
             f"Python {platform.python_version()}")  # fmt: skip
    out = HERE / f"results/gpu_{card.name.replace(' ', '_')}.md"
    rows: list[Row] = []
    for row in report(GRID, int(args.cap_gib * GIB), "cuda", 60 * args.minutes):
        rows.append(row)
        out.write_text(table(rows, where, args.cap_gib))  # what is there stays, whatever comes
        print(out.read_text().splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
