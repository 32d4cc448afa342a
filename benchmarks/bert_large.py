"""BERT-large on a V100, early in 2022: what nvidia-smi showed, and a dry run of the same recipe.

    python benchmarks/bert_large.py

A classifier is no causal model, so this is :func:`course_lib.dryrun.dry_run` on a module of one's own. The page that
published the figures gives the context, too: 1343 MiB, before CUDA loaded kernels only when they are used. Two habits
of that time count: the Trainer set gradients to zero and kept them, and PyTorch's softmax, up to 1.10, kept its input
beside its result (derivatives.yaml: ``_softmax_backward_data(grad, result, dim, self)``, where later versions ask for
the input's type alone). Writes results/bert_large.md.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from published_peaks import difference, rows

from course_lib.allocator import replay
from course_lib.device import REPLAY_PERCENT
from course_lib.dryrun import dry_run, with_cublas
from course_lib.eight_bit import adamw_8bit
from course_lib.recipe import Recipe
from course_lib.training import autocast_of
from course_lib.units import GIB, MIB

RESULT = Path(__file__).parent / "results/bert_large.md"
CONTEXT_BYTES, LENGTH = 1343 * MIB, 512
SIZES = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
Make = Callable[[Any], torch.optim.Optimizer]
_ADAMW: Make = lambda trained: torch.optim.AdamW(trained, foreach=False)  # noqa: E731
#: transformers' own, which makes more tensors in an update than torch's does.
_ADAFACTOR: Make = lambda trained: transformers.optimization.Adafactor(  # noqa: E731
    list(trained), lr=1e-3, scale_parameter=False, relative_step=False
)
#: Batch, micro-batches, checkpointing, autocast, optimizer.
ROWS: dict[str, tuple[int, int, bool, bool, Make]] = {
    "hf-perf-01": (4, 1, False, False, _ADAMW),
    "hf-perf-03": (1, 4, True, False, _ADAMW),
    "hf-perf-05": (1, 4, True, True, _ADAMW),
    "hf-perf-07": (1, 4, True, True, _ADAFACTOR),
    "hf-perf-09": (1, 4, True, True, lambda trained: adamw_8bit(list(trained), paged=False)),
}


class OldSoftmax(torch.autograd.Function):
    """Keeps its input for the backward pass, and makes no use of it."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        result = torch.softmax(scores, dim=-1)
        ctx.save_for_backward(scores, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        _scores, result = ctx.saved_tensors
        return torch._softmax_backward_data(grad, result, -1, result.dtype)


def old_softmax(scores: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    return OldSoftmax.apply(scores.float())  # as autocast does; in fp32 it is there already


def replayed(batch: int, accum: int, checkpointed: bool, autocast: bool, make: Make) -> tuple[int, int]:
    """Bytes that PyTorch allocates, and that it holds for them."""
    with torch.device("meta"):
        config = transformers.BertConfig(**SIZES)
        model = transformers.BertForSequenceClassification._from_config(config, attn_implementation="eager")
        tokens, label = torch.zeros((batch, LENGTH), dtype=torch.long), torch.zeros(batch, dtype=torch.long)
    model.train()
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    optimizer = make(model.parameters())
    region = autocast_of(Recipe(precision="amp-fp16" if autocast else "fp32"))

    def step() -> None:
        for _ in range(accum):
            with region(), patch("torch.nn.functional.softmax", old_softmax):
                loss = model(input_ids=tokens, labels=label).loss / accum
            loss.backward()
            del loss
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    trace = with_cublas(dry_run(model, step, optimizer))
    return trace.peak_bytes, replay(trace).reserved_bytes


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    measured = {row["id"]: row for row in rows() if row["id"] in ROWS}
    lines = [
        "| Row | What is new | nvidia-smi, GiB | replayed and context | difference | our range |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for name, recipe in ROWS.items():
        shown, (allocated, reserved) = measured[name]["measured_gb"], replayed(*recipe)
        most = reserved * (100 + REPLAY_PERCENT) // 100
        low, here, high = (size + CONTEXT_BYTES for size in (allocated, reserved, most))
        news, error = measured[name]["note"].partition(";")[0], difference(here, round(shown * GIB))
        figures = f"{shown:.2f} | {here / GIB:.2f} | {error:+.1f} % | {low / GIB:.2f} to {high / GIB:.2f}"
        lines.append(f"| {name} | {news} | {figures} |")
        print(lines[-1], flush=True)
    RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
