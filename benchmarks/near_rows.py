"""Published peaks of code that flags describe nearly: other libraries' models, as transformers' of the same sizes.

    python benchmarks/near_rows.py

The recipe is the row's; the modelling code is not: litgpt and torchtune write their own. Each row says what differs.
GPT-2 from scratch, whose code is too far from transformers' for that, is in gpt_from_scratch.py. Writes
results/near_rows.md.
"""

from pathlib import Path
from typing import Any

from published_peaks import difference, rows

from course_lib.allocator import replay
from course_lib.dryrun import dry_run_config
from course_lib.hf_config import read_config, shape_from_config, why_not_covered
from course_lib.ledger import predict
from course_lib.recipe import Recipe
from course_lib.units import GB, GIB

HERE = Path(__file__).parent
#: Facts of microsoft/phi-1_5 and stabilityai/stablelm-base-alpha-3b.
PHI = {
    "model_type": "phi", "vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
    "num_attention_heads": 32, "max_position_embeddings": 2048, "partial_rotary_factor": 0.5,
    "tie_word_embeddings": False, "hidden_act": "gelu",  # one operator, as litgpt has it
}  # fmt: skip
STABLELM = {
    "model_type": "gpt_neox", "vocab_size": 50688, "hidden_size": 4096, "intermediate_size": 16384,
    "num_hidden_layers": 16, "num_attention_heads": 32, "max_position_embeddings": 4096, "rotary_pct": 0.25,
    "use_parallel_residual": True, "tie_word_embeddings": False,
}  # fmt: skip


def _litgpt(seq: int, batch: int = 1, targets: str = "q_proj,v_proj", **more: Any) -> Recipe:
    """Chunks of 128 tokens, LoRA of rank 8 on queries and values, in the weights' type."""
    return Recipe(lora_rank=8, lora_targets=targets, adapter_dtype="bf16", loss=f"chunked:{-(-seq // 128)}", seq=seq,
                  batch=batch, **more)  # fmt: skip


_NF4 = {"quant": "nf4", "double_quant": True}
_TUNE = {"batch": 2, "seq": 4096}
OLD_4_BIT = "bitsandbytes 0.41 kept every product's input; the head was quantised, too"
NEAR: dict[str, tuple[Any, Recipe, str]] = {
    "litgpt-res-01": (PHI, _litgpt(1044), ""),
    "litgpt-res-03": (PHI, _litgpt(1044, **_NF4), OLD_4_BIT),
    "litgpt-res-05": (PHI, _litgpt(1044, 4), ""),
    "litgpt-res-07": (STABLELM, _litgpt(1034, 1, "query_key_value", quant="nf4"), OLD_4_BIT),
    "litgpt-res-09": (STABLELM, _litgpt(1034, 2, "query_key_value"), ""),
    "litgpt-res-11": ("llama-7b", _litgpt(1304), ""),
    "litgpt-res-13": ("llama-7b", _litgpt(1304, **_NF4), OLD_4_BIT),
    "litgpt-res-15": ("llama-13b", _litgpt(1304), ""),
    "litgpt-res-17": ("llama-13b", _litgpt(1304, **_NF4), OLD_4_BIT),
    "tt-flags-03": ("llama3.2-3b", Recipe(**_TUNE), "torch.compile fuses what eager code keeps"),
    "tt-flags-05": (
        "llama3.2-3b", Recipe(checkpoint="block", loss="chunked:8", optimizer_impl="fused", **_TUNE),
        "compiled; that AdamW was fused is an assumption",
    ),
}  # fmt: skip


def main() -> None:
    lines = ["| Row | measured | ledger | dry run | dry run's reserved | what differs |", "|---|--:|--:|--:|--:|---|"]
    published = {row["id"]: row for row in rows()}
    for name, (model, recipe, note) in NEAR.items():
        row = published[name]
        measured = row["measured_gb"] * (GB if row["unit"] == "GB" else GIB)
        config = read_config(model) if isinstance(model, str) else model
        trace = dry_run_config(config, recipe)
        covered = not why_not_covered(config)
        closed = _off(predict(shape_from_config(config, name), recipe).peak_bytes, measured) if covered else ""
        head = f"{name}, {row['model']}, {row['trainable'].split()[0]} | {row['measured_gb']} {row['unit']}"
        dry, held = (_off(size, measured) for size in (trace.peak_bytes, replay(trace).reserved_bytes))
        lines.append(f"| {head} | {closed} | {dry} | {held} | {note} |")
        print(lines[-1], flush=True)
    (HERE / "results/near_rows.md").write_text("\n".join(lines) + "\n")


def _off(predicted: int, measured: float) -> str:
    return f"{difference(predicted, round(measured)):+.1f} %"


if __name__ == "__main__":
    main()
