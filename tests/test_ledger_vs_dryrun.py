"""Closed form against executed code: the ledger's bill and the dry run's trace of the same recipe."""

from itertools import product
from typing import Any

import pytest

from course_lib.accounts import Account
from course_lib.dryrun import dry_run_config
from course_lib.dryrun.hf_model import build_model
from course_lib.hf_config import read_config, shape_from_config
from course_lib.ledger import Instant, predict
from course_lib.presets import Config
from course_lib.recipe import Recipe

MODELS = ("qwen2.5-0.5b", "llama3.2-1b", "gpt2-medium", "mistral-7b")
PRECISIONS = ("bf16", "fp32", "amp-bf16", "amp-bf16-over-bf16", "master-bf16")
CHECKPOINTS = ("none", "block", "every:3")
LORA: list[dict[str, Any]] = [{}, {"lora_rank": 8}]
WORK: list[dict[str, Any]] = [{"batch": 1, "seq": 512, "accum": 1}, {"batch": 4, "seq": 1024, "accum": 2}]
GRID = [
    (model, {"precision": precision, "checkpoint": checkpoint, **lora, **work})
    for model, precision, checkpoint, lora, work in product(MODELS, PRECISIONS, CHECKPOINTS, LORA, WORK)
    if not (precision == "master-bf16" and lora)  # no such combination
]
#: Every so many cases, the sample meets every value of every setting; the whole grid is slow.
SAMPLE = 21

#: What the grid leaves out, one or two at a time.
FURTHER: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {"attention": "eager", "batch": 8, "seq": 1024}),
    ("gpt2", {"optimizer": "sgd", "optimizer_impl": "forloop", "batch": 2, "seq": 256}),
    ("qwen2.5-0.5b", {"optimizer_impl": "fused", "checkpoint": "block", "seq": 512}),
    ("llama3.2-1b", {"optimizer": "sgd-momentum", "precision": "fp32", "checkpoint": "block", "seq": 512}),
    ("llama3.2-1b", {"attention": "flash", "lora_rank": 16, "adapter_dtype": "bf16", "batch": 2, "seq": 1024}),
    ("qwen2.5-0.5b", {"lora_rank": 4, "lora_targets": "q_proj,down_proj", "checkpoint": "block", "seq": 512}),
    ("llama3.2-1b", {"lora_rank": 8, "lora_dropout": 0.0, "checkpoint": "block", "seq": 512}),
    ("mistral-7b", {"precision": "amp-fp16", "checkpoint": "block", "optimizer_impl": "forloop", "seq": 512}),
]
_ATTENTION, _EVERYWHERE = {"lora_rank": 16}, {"lora_rank": 16, "lora_targets": "all-linear"}
#: Losses, fused kernels, optimizers and quantised weights: a grid that is slow, and a sample of it that is not.
RECIPES: list[tuple[str, dict[str, Any]]] = [
    *(
        ("qwen2.5-0.5b", {"loss": loss, "precision": precision, "checkpoint": "block", "batch": 4, "seq": 1024, **lora})
        for loss, precision, lora in product(
            ("fused-ce", "fused-linear-ce", "chunked:8", "logits:8"), ("bf16", "amp-bf16", "fp32"), ({}, _ATTENTION)
        )
    ),
    *(
        ("mistral-7b", {"kernels": "fused", "attention": "flash", "checkpoint": checkpoint, "loss": "fused-linear-ce",
                        "precision": precision, "batch": 4, "seq": 1024, **lora})
        for precision, checkpoint, lora in product(
            ("bf16", "amp-bf16-over-bf16"), ("none", "block"), ({}, _ATTENTION, _EVERYWHERE | {"lora_dropout": 0.0})
        )
    ),
    *(
        ("mistral-7b", {"quant": quant, "kbit_prepare": prepared, "precision": precision, "checkpoint": checkpoint,
                        "batch": 4, "seq": 1024, **lora})
        for quant, prepared, precision, checkpoint, lora in product(
            ("nf4", "int8"), (False, True), ("bf16", "amp-fp16", "amp-bf16-over-bf16", "fp32"),
            ("none", "block"), (_ATTENTION, _EVERYWHERE),
        )
    ),
    *(
        ("llama3.2-1b", {"optimizer": optimizer, "optimizer_impl": implementation, "checkpoint": "block", "seq": 256,
                         **lora})
        for optimizer, implementation, lora in product(
            ("adamw-8bit", "paged-adamw-8bit", "adafactor"), ("foreach", "forloop"), ({}, _ATTENTION)
        )
    ),
]  # fmt: skip
RECIPE_SAMPLE = 11


def name_of(case: tuple[str, dict[str, Any]]) -> str:
    model, settings = case
    return " ".join([model, *map(str, settings.values())])


def compare(config: Config, name: str, settings: dict[str, Any]) -> Instant:
    """Asserts that both say the same; returns the instant of the ledger's peak."""
    recipe = Recipe(**settings)
    bill, trace = predict(shape_from_config(config, name), recipe), dry_run_config(config, recipe)
    static = bill.static_bytes | {Account.WEIGHTS: bill.static_bytes[Account.WEIGHTS] + buffer_bytes(config, recipe)}
    assert static == trace.static_bytes
    assert bill.static_bytes == pytest.approx(trace.static_bytes, rel=1e-4)
    assert bill.peak_bytes == pytest.approx(trace.peak_bytes, rel=0.03)
    assert bill.peak_moment is trace.peak_moment
    return bill.peak_instant


def buffer_bytes(config: Config, recipe: Recipe) -> int:
    """All that the ledger leaves out of the weights: Llama's table of rotary frequencies, some hundred bytes."""
    named = build_model(config, recipe, layers=1).named_buffers()
    buffers = [buffer for name, buffer in named if "quantisation" not in name]
    sizes = {id(buffer): buffer.untyped_storage().nbytes() for buffer in buffers}
    assert sum(sizes.values()) < 1024
    return sum(sizes.values())


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name_of(case), marks=[pytest.mark.slow] if i % SAMPLE else [])
        for i, case in enumerate(GRID)
    ],
)
def test_the_grid(case: tuple[str, dict[str, Any]]) -> None:
    model, settings = case
    compare(read_config(model), model, settings)


def test_the_grid_is_large_and_its_sample_meets_everything() -> None:
    assert len(GRID) >= 60
    sample = GRID[::SAMPLE]
    met = {str(value) for model, settings in sample for value in (model, *settings.items())}
    assert met == {str(value) for model, settings in GRID for value in (model, *settings.items())}


@pytest.mark.parametrize("case", FURTHER, ids=name_of)
def test_beside_the_grid(case: tuple[str, dict[str, Any]]) -> None:
    model, settings = case
    compare(read_config(model), model, settings)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name_of(case), marks=[pytest.mark.slow] if i % RECIPE_SAMPLE else [])
        for i, case in enumerate(RECIPES)
    ],
)
def test_losses_kernels_and_types(case: tuple[str, dict[str, Any]]) -> None:
    model, settings = case
    compare(read_config(model), model, settings)


# With a tiny vocabulary neither logits nor the embedding decide: the peak falls inside a block.
_LLAMA = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12,
    "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
_GPT2 = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 1024, "n_layer": 12, "n_head": 16, "n_positions": 1024}
_ALL_LINEAR = {"lora_rank": 8, "lora_targets": "all-linear"}
TOP, BOTTOM, FORWARD = Instant.BACKWARD_TOP, Instant.BACKWARD_BOTTOM, Instant.FORWARD_TOP
STRESS: list[tuple[Config, dict[str, Any], Instant]] = [
    (_LLAMA, {"precision": "bf16", "seq": 512}, TOP),
    (_LLAMA, {"precision": "fp32", "seq": 512, "accum": 2}, TOP),
    (_LLAMA, {"precision": "bf16", "checkpoint": "block", "lora_rank": 8, "seq": 512}, TOP),
    (_LLAMA, {"precision": "bf16", "checkpoint": "block", "attention": "eager", "lora_rank": 8, "seq": 1024}, TOP),
    (_LLAMA, {"precision": "bf16", "checkpoint": "every:5", "seq": 512}, BOTTOM),
    (_LLAMA, {"precision": "amp-bf16", "checkpoint": "every:4", "seq": 1024}, BOTTOM),
    (_GPT2, {"precision": "bf16", "seq": 1024, **_ALL_LINEAR}, FORWARD),
    (_GPT2, {"precision": "fp32", "checkpoint": "every:5", "seq": 1024}, BOTTOM),
    (_GPT2 | {"attn_pdrop": 0.0}, {"precision": "amp-bf16", "attention": "eager", "seq": 1024}, TOP),
    (_GPT2, {"precision": "bf16", "attention": "eager", "checkpoint": "block", "seq": 1024}, BOTTOM),
]


@pytest.mark.parametrize(
    ("config", "settings", "instant"), STRESS, ids=[name_of((each[0]["model_type"], each[1])) for each in STRESS]
)
def test_inside_a_block(config: Config, settings: dict[str, Any], instant: Instant) -> None:
    assert compare(config, "stress", {"batch": 8, **settings}) is instant


@pytest.mark.parametrize(
    ("precision", "at_end", "at_gradient"), [("bf16", 10, 12), ("amp-bf16", 10, 12), ("fp32", 8, 12)]
)
def test_bytes_a_logit(precision: str, at_end: int, at_gradient: int) -> None:
    """The constants of transformers 5 as its code, executed, has them: by differences in tokens and vocabulary."""

    def moments(vocab: int, seq: int) -> list[int]:
        config = _LLAMA | {"vocab_size": vocab, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
        peaks = dry_run_config(config, Recipe(precision, seq=seq)).moment_peaks
        return list(peaks.values())[:2]

    corners = [moments(vocab, seq) for vocab, seq in ((64000, 512), (32000, 512), (64000, 256), (32000, 256))]
    grown = [(a - b) - (c - d) for a, b, c, d in zip(*corners, strict=True)]
    assert grown == [at_end * 32000 * 256, at_gradient * 32000 * 256]
