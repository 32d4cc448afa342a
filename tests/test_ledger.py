"""The ledger against published peaks, against figures worked out by hand, and against its own rules."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from course_lib.accounts import STEP_MOMENTS, Account, Moment
from course_lib.errors import CourseError
from course_lib.hf_config import read_config, read_model
from course_lib.ledger import Bill, Instant, predict
from course_lib.ledger.block import Block
from course_lib.presets import PRESETS
from course_lib.recipe import Recipe
from course_lib.units import MIB

#: Parameters as the models' cards and papers count them (a tied head once).
PARAMETERS = {
    "llama-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "gpt2": 124_439_808,
}

#: torch.cuda.max_memory_allocated of Mistral-7B on an A100, byte by byte. foundation-model-stack/fms-acceleration,
#: scripts/benchmarks/refs/a100_80gb.csv, lines 10, 12 (full), 34, 36 (LoRA); transformers 4.48.1, AdamW foreach,
#: flash attention, packed to 4096 tokens.
_FMS = Recipe(loss="hf-4.48", checkpoint="block", attention="flash", seq=4096)
_FMS_LORA = replace(_FMS, lora_rank=16, lora_targets="q_proj,k_proj,v_proj,o_proj")
PUBLISHED = [
    pytest.param(replace(_FMS, batch=4), 72_434_837_504, 0.003, id="fms-a100-010"),
    pytest.param(replace(_FMS, batch=8), 72_435_230_720, 0.003, id="fms-a100-012"),
    pytest.param(replace(_FMS_LORA, batch=4), 26_704_571_904, 0.01, id="fms-a100-034"),
    pytest.param(replace(_FMS_LORA, batch=8), 38_742_912_512, 0.01, id="fms-a100-036"),
]

#: torch.cuda.max_memory_allocated of Qwen2.5-0.5B in fp32, 768 tokens, on an RTX 5070 Ti Laptop GPU, in MiB.
#: datawhalechina/llm-algo-leetcode, benchmarks/results/76_real_gpu_memory.json: the candidates "offload",
#: "checkpoint" and "hybrid", whose peak is the update's, and "baseline", which does not recompute.
QWEN_CHECKPOINTED_MIB = (9448.33, 9450.76, 9454.64)
QWEN_BASELINE_MIB = 9782.74
QWEN = Recipe(precision="fp32", checkpoint="block", seq=768)


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_parameters_from_shape_and_from_a_dry_run(name: str, parameters: int) -> None:
    from course_lib.dryrun import dry_run_config
    from course_lib.dryrun.hf_model import build_model, depth_of

    config, recipe = read_config(name), Recipe(checkpoint="block", seq=64)
    built = build_model(config, recipe, depth_of(config))
    in_two_depths = dry_run_config(config, recipe).static_bytes[Account.GRADIENTS] // recipe.weight_bytes
    assert read_model(name).params == parameters
    assert sum(parameter.numel() for parameter in built.parameters()) == parameters
    assert in_two_depths == parameters


@pytest.mark.parametrize(("recipe", "measured_bytes", "tolerance"), PUBLISHED)
def test_published_peaks(recipe: Recipe, measured_bytes: int, tolerance: float) -> None:
    bill = predict(read_model("mistral-7b"), recipe)
    assert bill.peak_bytes == pytest.approx(measured_bytes, rel=tolerance)
    assert bill.peak_moment is (Moment.FORWARD if recipe.lora_rank else Moment.OPTIMIZER_STEP)


@pytest.mark.parametrize("batch", [4, 8])
def test_published_full_fine_tuning_by_dry_run(batch: int) -> None:
    from course_lib.dryrun import dry_run_config

    # The peak is the update's, so the loss of today's transformers does as well as that of 4.48.
    trace = dry_run_config(read_config("mistral-7b"), replace(_FMS, loss="hf", batch=batch))
    assert trace.peak_bytes == pytest.approx({4: 72_434_837_504, 8: 72_435_230_720}[batch], rel=0.003)
    assert trace.peak_moment is Moment.OPTIMIZER_STEP


def test_published_small_model_whose_peak_is_in_the_update() -> None:
    from course_lib.dryrun import dry_run_config

    for forecast in (predict(read_model("qwen2.5-0.5b"), QWEN), dry_run_config(read_config("qwen2.5-0.5b"), QWEN)):
        assert forecast.peak_moment is Moment.OPTIMIZER_STEP
        for measured_mib in QWEN_CHECKPOINTED_MIB:
            assert forecast.peak_bytes / MIB == pytest.approx(measured_mib, rel=0.005)


def test_published_small_model_whose_peak_is_in_the_backward_pass() -> None:
    bill = predict(read_model("qwen2.5-0.5b"), replace(QWEN, checkpoint="none"))
    assert bill.peak_moment is Moment.BACKWARD
    assert bill.peak_bytes / MIB == pytest.approx(QWEN_BASELINE_MIB, rel=0.005)


# What stays, and what is there at the update, in bytes a parameter. All tensors of Llama-2-7B fill whole
# blocks of the allocator, so the figures are exact.
_LLAMA = read_model("llama-7b")
_LARGEST = 32000 * 4096  # the embedding, and the head
_TENSORS = 32 * 9 + 3
_CUBLAS = 2 * (2 * 4096 + 8 * 16) * 1024
_BATCH = 3 * 8  # one token, its mask and its label in int64


@pytest.mark.parametrize(
    ("recipe", "resident", "at_step", "beside"),
    [
        # weights + gradients + two moments; the update's denominator, one tensor for each parameter
        (Recipe("bf16"), 2 + 2 + 4, 10, 0),
        (Recipe("fp32"), 4 + 4 + 8, 20, 0),
        (Recipe("amp-bf16"), 4 + 4 + 8, 20, 0),
        (Recipe("amp-fp16"), 4 + 4 + 8, 20, 0),
        (Recipe("amp-bf16-over-bf16"), 2 + 2 + 4, 10, 0),
        # weights, gradients, fp32 masters with two fp32 moments; at the update gradients in fp32, too
        (Recipe("master-bf16"), 2 + 2 + 12, 16 + 4 + 4, 0),
        # fused: nothing beside, but a step counter (one block) for each tensor
        (Recipe("bf16", optimizer_impl="fused"), 8, 8, 512 * _TENSORS),
        (Recipe("fp32", optimizer_impl="fused"), 16, 16, 512 * _TENSORS),
        (Recipe("master-bf16", optimizer_impl="fused"), 16, 16, 512 * _TENSORS),
        # one tensor after the other: square root and denominator of the largest
        (Recipe("bf16", optimizer_impl="forloop"), 8, 8, 2 * 2 * _LARGEST),
        (Recipe("fp32", optimizer_impl="forloop"), 16, 16, 2 * 4 * _LARGEST),
        (Recipe("master-bf16", optimizer_impl="forloop"), 16, 16, 3 * 4 * _LARGEST),
        (Recipe("bf16", optimizer="sgd"), 2 + 2, 4, 0),
        (Recipe("fp32", optimizer="sgd-momentum"), 4 + 4 + 4, 12, 0),
    ],
    ids=lambda each: f"{each.precision} {each.optimizer} {each.optimizer_impl}" if isinstance(each, Recipe) else "",
)
def test_bytes_a_parameter(recipe: Recipe, resident: int, at_step: int, beside: int) -> None:
    bill = predict(_LLAMA, replace(recipe, seq=1))
    counters = 4 * _TENSORS if recipe.optimizer_impl == "fused" else 0
    assert sum(bill.static_bytes.values()) == resident * PARAMETERS["llama-7b"] + counters
    assert bill.totals[Instant.OPTIMIZER_STEP] == at_step * PARAMETERS["llama-7b"] + beside + _CUBLAS + _BATCH


@pytest.mark.parametrize(
    ("precision", "loss", "at_end", "at_gradient"),
    [
        # logits + their fp32 copy + log-softmax | log-softmax + the loss's gradient + log-softmax's gradient
        ("bf16", "hf", 2 + 4 + 4, 4 + 4 + 4),
        ("amp-bf16", "hf", 2 + 4 + 4, 4 + 4 + 4),
        ("fp32", "hf", 4 + 4, 4 + 4 + 4),
        # transformers 4.48 shifts the logits, not the labels: one more copy in fp32
        ("bf16", "hf-4.48", 2 + 4 + 4 + 4, 4 + 4 + 4),
        ("fp32", "hf-4.48", 4 + 4 + 4, 4 + 4 + 4),
        # Liger: the logits, and a copy that becomes their gradient
        ("bf16", "fused-ce", 2 + 2, 2 + 2),
        ("bf16", "fused-linear-ce", 0, 0),
        ("bf16", "logits:8", 8, 8),
    ],
)
def test_bytes_a_logit(precision: str, loss: str, at_end: int, at_gradient: int) -> None:
    """By differences: what grows with tokens times vocabulary, and with nothing else."""

    def live(instant: Instant, vocab: int, seq: int) -> int:
        shape = replace(read_model("llama3.2-1b"), vocab=vocab)
        return predict(shape, Recipe(precision, loss=loss, seq=seq)).totals[instant]

    for instant, expected in ((Instant.FORWARD_END, at_end), (Instant.BACKWARD_HEAD, at_gradient)):
        grown = live(instant, 64000, 4096) - live(instant, 32000, 4096)
        grown -= live(instant, 64000, 2048) - live(instant, 32000, 2048)
        assert grown == expected * 32000 * 2048


def test_a_gpt2_block_as_the_literature_counts_it() -> None:
    """Korthikanti et al. 2022, Reducing Activation Recomputation, section 4.1: s b h (34 + 5 a s / h) bytes.

    transformers' gelu_new runs as four operators that each keep 2 x 4 h bytes, where the paper counts one;
    each of two layer norms keeps two fp32 numbers a token, which the paper neglects.
    """
    shape, seq = read_model("gpt2"), 1024
    kept = Block(shape, Recipe(attention="eager", seq=seq)).kept_bytes
    assert kept == (34 + 3 * 2 * 4) * shape.hidden + 5 * shape.heads * seq + 2 * 8


def test_a_llama_block_by_hand() -> None:
    """Operator by operator in bf16, with h = 4096, f = 11008, 32 heads and FlashAttention."""
    h, f, heads = 4096, 11008, 32
    norm = 4 * h + 4 + 2 * h  # its input in fp32, one number a row, the normalised input
    attention = 2 * 3 * h + 2 * h + 4 * heads  # q, k, v; the output; the log of each row's sum
    mlp = 3 * 2 * f + 2 * f  # gate, silu(gate), up; their product
    by_hand = 2 * norm + 2 * 2 * h + attention + mlp  # and the two norms' outputs, for the matrices that read them
    assert Block(_LLAMA, Recipe()).kept_bytes == by_hand


def test_checkpoints_are_linear_in_depth() -> None:
    recipe = Recipe(checkpoint="block", seq=1024)
    bills = [predict(replace(_LLAMA, layers=layers), recipe) for layers in (8, 16, 32)]
    kept = [bill.at(Instant.FORWARD_END)[Account.ACTIVATIONS] for bill in bills]
    assert kept[2] - kept[1] == 2 * (kept[1] - kept[0]) == 16 * 1024 * 4096 * 2


def test_frozen_weights_have_no_gradient_and_no_state() -> None:
    bill = predict(_LLAMA, Recipe(lora_rank=16, lora_targets="q_proj,v_proj"))
    adapters = 32 * 2 * 16 * (4096 + 4096)
    assert bill.static_bytes == {
        Account.WEIGHTS: 2 * PARAMETERS["llama-7b"] + 4 * adapters,
        Account.GRADIENTS: 4 * adapters,
        Account.OPTIMIZER: 8 * adapters,
    }


SETTINGS = st.fixed_dictionaries(
    {
        "precision": st.sampled_from(["bf16", "fp32", "amp-fp16", "amp-bf16", "amp-bf16-over-bf16", "master-bf16"]),
        "optimizer": st.sampled_from(["adamw", "sgd", "sgd-momentum"]),
        "optimizer_impl": st.sampled_from(["foreach", "fused", "forloop"]),
        "lora_rank": st.sampled_from([0, 8]),
        "lora_targets": st.sampled_from(["attention", "all-linear"]),
        "adapter_dtype": st.sampled_from(["fp32", "bf16"]),
        "checkpoint": st.sampled_from(["none", "block", "every:2", "every:5", "every:100"]),
        "attention": st.sampled_from(["sdpa", "eager"]),
        "loss": st.sampled_from(["hf", "hf-4.48", "fused-ce", "fused-linear-ce", "logits:8"]),
        "kernels": st.sampled_from(["stock", "fused"]),
        "batch": st.integers(1, 64),
        "seq": st.integers(1, 1023),
        "accum": st.integers(1, 3),
    }
)


def predicted(name: str, settings: dict[str, Any]) -> Bill:
    try:
        return predict(read_model(name), Recipe(**settings))
    except CourseError:
        reject()  # no such combination


@given(st.sampled_from(sorted(PRESETS)), SETTINGS)
def test_a_bill_adds_up(name: str, settings: dict[str, Any]) -> None:
    bill = predicted(name, settings)
    for entry in bill.entries:
        assert entry.size_bytes > 0
        assert entry.instants
        assert entry.formula
        assert entry.source
    for instant in Instant:
        alive = [entry for entry in bill.entries if instant in entry.instants]
        assert bill.totals[instant] == sum(entry.size_bytes for entry in alive) == sum(bill.at(instant).values())
    assert bill.peak_bytes == max(bill.totals.values()) == sum(bill.at_peak.values()) == max(bill.moment_peaks.values())
    assert bill.moment_peaks[bill.peak_moment] == bill.peak_bytes
    assert set(bill.moment_peaks) == set(STEP_MOMENTS)


@given(st.sampled_from(sorted(PRESETS)), SETTINGS, st.sampled_from(["batch", "seq", "accum"]))
def test_more_work_never_takes_less(name: str, settings: dict[str, Any], what: str) -> None:
    more = predicted(name, settings | {what: settings[what] + 1})
    assert more.peak_bytes >= predicted(name, settings).peak_bytes


def test_what_the_model_cannot_do_is_refused() -> None:
    with pytest.raises(CourseError, match="quant nf4.*gpt2"):
        predict(read_model("gpt2"), Recipe(seq=64, lora_rank=8, quant="nf4"))
    with pytest.raises(CourseError, match="1025.*1024 learned positions"):
        predict(read_model("gpt2"), Recipe(seq=1025))
    with pytest.raises(CourseError, match="lora_targets.*'q_proj'.*c_attn"):
        predict(read_model("gpt2"), Recipe(seq=64, lora_rank=8, lora_targets="q_proj"))


def test_the_ledger_needs_no_torch() -> None:
    code = (
        "import sys; from course_lib.ledger import predict; from course_lib.recipe import Recipe;"
        "from course_lib.hf_config import read_model; predict(read_model('llama-7b'), Recipe());"
        "sys.exit(bool({'torch', 'numpy', 'matplotlib', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
