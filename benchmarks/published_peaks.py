"""Published peaks against the ledger and the dry run, row by row.

    python benchmarks/published_peaks.py            every row whose flags say it all
    python benchmarks/published_peaks.py --ledger   without the dry run, in a second

Writes benchmarks/results/published_peaks.md. ``data/published_peaks.jsonl`` holds what others measured, with the source
and the settings of each row; ``cli`` gives the flags. Allocated bytes are compared with allocated bytes.
"""

import argparse
import json
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from course_lib.allocator import replay
from course_lib.cli import flags
from course_lib.cli.parser import Parser
from course_lib.dryrun import dry_run_config
from course_lib.errors import CourseError
from course_lib.hf_config import read_config, read_model
from course_lib.ledger import predict
from course_lib.recipe import Recipe
from course_lib.units import MIB

HERE = Path(__file__).parent
GROUPS = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / "data/published_peaks.jsonl").read_text().splitlines()]


def recipe_of(cli: str) -> tuple[str, Recipe]:
    """The model and the recipe that a row's flags describe."""
    parser = Parser()
    flags.add_model(parser)
    flags.add_recipe_flags(parser)
    args = parser.parse_args(cli.split())
    return args.model, flags.recipe_of(args, read_model(args.model))


def difference(predicted: int, measured: int) -> float:
    """In percent of what was measured."""
    return 100 * (predicted / measured - 1)


def table(with_dry_run: bool, library: str) -> str:
    lines = [
        "| Row | Trained | GPU | measured, GB | ledger | peak in | dry run | handed out | nvidia-smi, less replayed |",
        "|---|---|---|--:|--:|---|--:|--:|--:|",
    ]
    errors: dict[str, list[float]] = {group: [] for group in GROUPS}
    for row in rows():
        if not row.get("cli") or not row.get("measured_bytes") or library not in row["library"]:
            continue
        model, recipe = recipe_of(row["cli"])
        bill, measured = predict(read_model(model), recipe), row["measured_bytes"]
        error = difference(bill.peak_bytes, measured)
        errors[row["trainable"].split()[0]].append(error)
        lines.append(
            f"| {row['id']} | {row['trainable'].split()[0]}, batch {recipe.batch}, loss {recipe.loss} | {row['gpu']} "
            f"| {measured / 1e9:.3f} | {error:+.4f} % | {bill.peak_moment} "
            f"| {_dry(model, recipe, row) if with_dry_run else '||'} |"
        )
    lines.append("")
    for group, name in GROUPS.items():
        absolute = [abs(error) for error in errors[group]]
        middle, worst = median(absolute), max(absolute)
        lines.append(f"- {name}: {len(absolute)} rows, ledger's median error {middle:.4f} %, worst {worst:.4f} %")
    for reason, names in _left_out(library).items():
        lines.append(f"- left out, {reason}: {', '.join(names)}")
    return "\n".join(lines)


def _left_out(library: str) -> dict[str, list[str]]:
    """Rows by the reason for which they cannot be compared."""
    reasons: dict[str, list[str]] = {}
    for row in rows():
        if not row.get("cli") and library in row["library"]:
            what = row["what"].partition(" ")[0]
            allocated = what in ("allocated", "active")
            reason = "a model or a loop that no flags describe" if allocated else f"what was measured is {what}"
            reasons.setdefault(reason, []).append(row["id"])
    return reasons


def _dry(model: str, recipe: Recipe, row: dict[str, Any]) -> str:
    """The tensors' peak; the same in blocks as the allocator hands them out; what the card showed beyond reserved."""
    measured = row["measured_bytes"]
    try:
        trace = dry_run_config(read_config(model), recipe)
    except CourseError:
        return "another transformers' loss | | "
    held, shown = replay(trace), row.get("nvidia_smi_mib")
    beyond = f"{shown - held.reserved_bytes / MIB:+,.0f} MiB" if shown else ""
    cells = [f"{difference(size, measured):+.4f} %" for size in (trace.peak_bytes, held.allocated_bytes)]
    return " | ".join([*cells, beyond])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger", action="store_true", help="without the dry run")
    parser.add_argument("--library", default="", help="only rows measured with it: 'transformers 4.48.1'")
    parser.add_argument("--out", type=Path, default=HERE / "results/published_peaks.md")
    args = parser.parse_args()
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    head = f"Ledger and dry run against published `max_memory_allocated` ({libraries})."
    text = f"{head}\n\n{table(not args.ledger, args.library)}\n"
    args.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
