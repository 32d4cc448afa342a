"""What other tools say of the rows that they can express. Runs in the peers' environment; see peers.py.

Reads a list of ``{"id", "config", "recipe"}`` from standard input, writes ``{"tool": {"id": bytes}}``. Each tool gets
the settings that describe the row best. Of fitcheck the parts that are tensors are taken, without its overhead for
context and allocator, since what was measured are tensors.
"""

import contextlib
import io
import json
import sys
from typing import Any

Row = dict[str, Any]
MIB = 2**20


def fitcheck(row: Row) -> float:
    from fitcheck import config_parser, estimator

    fields, recipe = config_parser._parse_fields(row["config"]), row["recipe"]
    names = ("hidden_size", "num_layers", "num_attention_heads", "num_kv_heads", "intermediate_size", "vocab_size",
             "head_dim", "tie_word_embeddings")  # fmt: skip
    sizes = {name: getattr(fields, name) for name in names}
    model = config_parser.ModelConfig(name=row["id"], num_params=config_parser._count_params(fields), **sizes)
    lora = {"lora_rank": recipe["lora_rank"] or None}
    if recipe["lora_rank"]:
        lora["lora_targets"] = recipe["lora_targets"].split(",")
    training = estimator.TrainingConfig(
        precision="bf16", quantization=recipe["quant"], double_quant=recipe["double_quant"], optimizer="adamw",
        optimizer_dtype="fp32" if recipe["lora_rank"] else "bf16", batch_size=recipe["batch"], seq_len=recipe["seq"],
        grad_checkpoint=recipe["checkpoint"] == "block", flash_attn=recipe["attention"] == "flash", **lora,
    )  # fmt: skip
    parts = estimator._compute_components(model, training, None)
    return (parts.total_mib - parts.overhead_mib) * MIB


def accelerate(row: Row) -> float:
    """``accelerate estimate-memory``: training with Adam, without activations."""
    only_whole(row)
    from accelerate.commands.estimate import estimate_training_usage

    return estimate_training_usage(4 * row["params"], "bfloat16")["step"]


def deepspeed(row: Row) -> float:
    """Model states under ZeRO-2 on one card, nothing offloaded: 16-bit weights and gradients, fp32 states."""
    only_whole(row)
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    _, on_card = estimate_zero2_model_states_mem_needs(row["params"], 1, 1, cpu_offload=False)
    return on_card


def llm_analysis(row: Row) -> float:
    only_whole(row)
    from llm_analysis.analysis import ActivationRecomputation, LLMAnalysis
    from llm_analysis.config import ModelConfig, get_dtype_config_by_name, get_gpu_config_by_name

    config, recipe = row["config"], row["recipe"]
    model = ModelConfig(
        name=row["id"], num_layers=config["num_hidden_layers"], n_head=config["num_attention_heads"],
        hidden_dim=config["hidden_size"], vocab_size=config["vocab_size"],
        max_seq_len=config["max_position_embeddings"], num_key_value_heads=config["num_key_value_heads"],
        ffn_embed_dim=config["intermediate_size"], expansion_ratio=config["intermediate_size"] / config["hidden_size"],
        model_type=config["model_type"],
    )  # fmt: skip
    analysis = LLMAnalysis(model, get_gpu_config_by_name("a100-sxm-80gb"), get_dtype_config_by_name("w16a16e16"))
    recompute = ActivationRecomputation.FULL if recipe["checkpoint"] == "block" else ActivationRecomputation.NONE
    summary = analysis.training(
        batch_size_per_gpu=recipe["batch"], seq_len=recipe["seq"], activation_recomputation=recompute,
        master_weights_dtype_bytes=0, other_op_bytes=4, flash_attn=True, mlp_gated_linear_units=True,
    )  # fmt: skip
    names = ("weight", "gradient", "optimizer_state", "activation")
    return sum(summary[f"{name}_memory_per_gpu"] for name in names)


def only_whole(row: Row) -> None:
    if row["recipe"]["lora_rank"]:
        raise ValueError("trains the whole model")


def main() -> None:
    rows, answers = json.load(sys.stdin), {}
    for tool in (fitcheck, accelerate, deepspeed, llm_analysis):
        answers[tool.__name__] = {}
        for row in rows:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    answers[tool.__name__][row["id"]] = round(tool(row))
            except ValueError:  # a row that the tool cannot express
                continue
            except Exception as error:
                print(f"{tool.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
                break
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
