"""Families that the closed form does not cover: transformers' own code runs dry, and two depths are all layers."""

from typing import Any

import pytest
import torch
from test_grow import is_same

from course_lib.accounts import Account
from course_lib.dryrun import dry_run_config, on_meta
from course_lib.dryrun.hf_model import pattern_of
from course_lib.hf_config import why_not_covered
from course_lib.recipe import Recipe

_SIZES = {
    "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 14,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 1024, "tie_word_embeddings": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}
#: A family's configuration; how many blocks come before it repeats itself, and after how many it does.
FAMILIES: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "mixtral": ({"num_local_experts": 4, **_EXPERTS}, (0, 1)),
    "qwen3": ({"head_dim": 64}, (0, 1)),
    "qwen3_moe": ({"num_experts": 4, "decoder_sparse_step": 2, **_EXPERTS}, (0, 2)),
    "gemma2": ({"head_dim": 32, "sliding_window": 128}, (0, 2)),
    "gemma3_text": ({"head_dim": 32, "sliding_window": 128}, (0, 6)),
    "phi3": ({}, (0, 1)),
    "olmo2": ({}, (0, 1)),
    "gpt_neox": ({}, (0, 1)),
    "gpt_oss": ({"num_local_experts": 4, "head_dim": 64, "sliding_window": 128, **_EXPERTS}, (0, 2)),
    "deepseek_v3": (
        {"num_key_value_heads": 8, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 3,
         "n_shared_experts": 1, **_EXPERTS},
        (3, 1),
    ),
}  # fmt: skip
RECIPES: dict[str, dict[str, Any]] = {
    "all trained": {"checkpoint": "block"},
    "LoRA": {"lora_rank": 4},
    "segments": {"checkpoint": "every:2", "loss": "fused-linear-ce", "kernels": "fused"},
}
QUICK = (("mixtral", "LoRA"), ("gemma2", "all trained"), ("deepseek_v3", "segments"))
CASES = [
    pytest.param(name, recipe, marks=[] if (name, recipe) in QUICK else [pytest.mark.slow])
    for name in FAMILIES
    for recipe in RECIPES
]


@pytest.mark.parametrize(("name", "recipe"), CASES)
def test_two_depths_are_all_layers(name: str, recipe: str) -> None:
    config = {"model_type": name, **_SIZES, **FAMILIES[name][0]}
    settings = Recipe(seq=256, **RECIPES[recipe])
    assert is_same(dry_run_config(config, settings), dry_run_config(config, settings, all_layers=True))
    assert "closed form covers" in str(why_not_covered(config))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_pattern(name: str) -> None:
    settings, pattern = FAMILIES[name]
    assert pattern_of({"model_type": name, **_SIZES, **settings}, Recipe()) == pattern
    first, period = pattern_of({"model_type": name, **_SIZES, **settings}, Recipe(checkpoint="every:4"))
    assert first % 4 == period % 4 == 0
    assert first >= pattern[0]


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16", "amp-fp16"])
def test_experts_in_other_types_than_bf16(precision: str) -> None:
    config = {"model_type": "mixtral", **_SIZES, **FAMILIES["mixtral"][0]}
    trace = dry_run_config(config, Recipe(precision=precision, seq=256))
    cosines = 1024  # buffers have no gradients
    assert 0 <= trace.static_bytes[Account.WEIGHTS] - trace.static_bytes[Account.GRADIENTS] < cosines


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("one", "other"), [((32, 16), (3, 16, 10)), ((3, 8, 16), (16, 32)), ((16, 32), (32, 10))])
def test_products_of_experts_have_the_sizes_of_real_ones(
    dtype: torch.dtype, one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("this version of PyTorch has no grouped product")
    offsets = torch.tensor([8, 16, 32], dtype=torch.int32)
    a = torch.zeros(one, dtype=dtype)
    b = torch.zeros((*other[:-2], other[-1], other[-2]), dtype=dtype).transpose(-1, -2)  # as weights come
    real = torch._grouped_mm(a, b, offs=offsets)
    with on_meta():
        dry = torch._grouped_mm(a.to("meta"), b.to("meta"), offs=offsets.to("meta"))
    assert (dry.shape, dry.stride(), dry.dtype) == (real.shape, real.stride(), real.dtype)
