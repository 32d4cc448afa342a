"""How long a forecast takes, beside PyTorch's own MemTracker under FakeTensor, on this machine in one run.

    python benchmarks/speed.py

Two training steps of Llama-2-7B, bf16, AdamW foreach, batch 1, length 2048, the same transformers model and the same
attention for both. Writes benchmarks/results/speed.md.
"""

import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from course_lib.dryrun import dry_run_config
from course_lib.dryrun.hf_model import default_dtype
from course_lib.hf_config import read_config, read_model
from course_lib.ledger import predict
from course_lib.recipe import Recipe

RESULT = Path(__file__).parent / "results/speed.md"
MODEL, RECIPE = "llama-7b", Recipe()


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def mem_tracker() -> int:
    """The peak that MemTracker reports for the second step, in bytes."""
    import transformers

    config = transformers.AutoConfig.for_model(**{**read_config(MODEL), "use_cache": False})
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cpu"), default_dtype(torch.bfloat16):
            model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        tokens = torch.ones((RECIPE.batch, RECIPE.seq), dtype=torch.long)
        position_ids = torch.arange(RECIPE.seq).unsqueeze(0)
        causal = torch.ones((1, 1, RECIPE.seq, RECIPE.seq), dtype=torch.bool).tril()
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for step in range(2):
                loss = model(input_ids=tokens, labels=tokens, position_ids=position_ids, attention_mask=causal).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == 0:
                    tracker.reset_mod_stats()
        snapshot = tracker.get_tracker_snapshot("peak")
    return max(sum(kinds.values()) // 2 for kinds in snapshot.values())  # a total stands beside its parts


def main() -> None:
    warnings.simplefilter("ignore")
    import transformers

    transformers.logging.set_verbosity_error()
    config, shape = read_config(MODEL), read_model(MODEL)
    dry_run_config(config, RECIPE)  # what is imported and compiled once is not what is compared
    runs: list[tuple[str, float, int | None]] = []
    for name, work in (
        ("ledger", lambda: predict(shape, RECIPE).peak_bytes),
        ("dry run, two depths", lambda: dry_run_config(config, RECIPE).peak_bytes),
        ("dry run, all 32 blocks", lambda: dry_run_config(config, RECIPE, all_layers=True).peak_bytes),
        ("MemTracker under FakeTensor, all 32 blocks", mem_tracker),
    ):
        runs.append((name, *seconds(work)))
    command = [sys.executable, "-m", "course_lib", "ledger", MODEL, "--json"]
    took, _ = seconds(lambda: subprocess.run(command, capture_output=True))
    runs.append(("`course ledger llama-7b`, the whole command", took, None))
    slowest = next(time_ for name, time_, _ in runs if name.startswith("MemTracker"))
    lines = [f"torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}, "
             f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}.", "",
             "| What | seconds | MemTracker takes | peak, GiB |", "|---|--:|--:|--:|"]  # fmt: skip
    for name, took, peak in runs:
        ratio = f"{slowest / took:,.0f} times as long" if not name.startswith(("MemTracker", "`")) else ""
        lines.append(f"| {name} | {took:.4f} | {ratio} | {'' if peak is None else f'{peak / 2**30:.2f}'} |")
    RESULT.write_text("\n".join(lines) + "\n")
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
