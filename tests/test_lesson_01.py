"""01_ledger: what its prose says, held against hand formulas, published figures and PyTorch's profiler; its tasks."""

import re
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from lesson_notebooks import core_cells, deeper_sections, printed
from torch import nn
from torch.profiler import ProfilerActivity, profile

from course_lib import ledger
from course_lib.accounts import Account, Moment
from course_lib.dryrun import dry_run_config
from course_lib.hf_config import read_config, read_model
from course_lib.ledger import Instant
from course_lib.pipeline.repository import Repository
from course_lib.pipeline.run import execute
from course_lib.pipeline.sources import read_source
from course_lib.recipe import Recipe
from course_lib.tasks import Unsolved, check
from course_lib.units import GB, GIB, MIB

LAYERS, HIDDEN, FFN, VOCAB = 32, 4096, 11008, 32000
#: Embedding and head, then per layer four attention and three MLP matrices and two norms, then the last norm.
LLAMA_2_7B = 2 * VOCAB * HIDDEN + LAYERS * (4 * HIDDEN**2 + 3 * HIDDEN * FFN + 2 * HIDDEN) + HIDDEN
FP32 = Recipe(precision="fp32", batch=1, seq=2048)
REPOSITORY = Repository.find(Path(__file__).parent)


def peak_by_profiler(run: Callable[[], Any]) -> int:
    """The most bytes that ``run`` has allocated at once, as PyTorch's profiler counts them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    events = [each for each in recorded.profiler.kineto_results.events() if each.name() == "[memory]"]
    events.sort(key=lambda each: each.start_ns())
    return max(accumulate((each.nbytes() for each in events), initial=0))


# -- the four bills and the fifth


def test_the_sizes_are_those_that_others_publish() -> None:
    llama = read_model("llama-7b")
    assert llama.params == LLAMA_2_7B == 6_738_415_616  # "6738.415616 Million params": llama-cookbook#413
    assert llama.hidden * llama.ffn * 2 == 86 * MIB  # "Tried to allocate 86.00 MiB": stanford_alpaca#221
    assert round(16 * llama.params / GB) == 108
    assert 2 * llama.params < 14 * GB < 24 * GB


def test_the_fifth_bill_is_one_copy_of_the_weights_with_foreach_and_none_with_fused() -> None:
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8)))
    weights = sum(parameter.nbytes for parameter in model.parameters())
    for implementation, copies in (("foreach", 1.0), ("fused", 0.0)):
        optimizer = torch.optim.AdamW(model.parameters(), **{implementation: True})
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        state = sum(value.nbytes for each in optimizer.state.values() for name, value in each.items() if name != "step")
        assert state == 2 * weights
        assert peak_by_profiler(optimizer.step) / weights == pytest.approx(copies, abs=1e-4)


@pytest.mark.parametrize(
    ("change", "bytes_a_parameter", "moment"),
    [
        ({}, 20, Moment.OPTIMIZER_STEP),
        ({"seq": 512}, 20, Moment.OPTIMIZER_STEP),
        ({"optimizer_impl": "fused"}, 16, Moment.BACKWARD),
    ],
)
def test_the_peaks_of_7b_in_fp32(change: dict[str, Any], bytes_a_parameter: int, moment: Moment) -> None:
    trace = dry_run_config(read_config("llama-7b"), Recipe(**{**FP32.to_dict(), **change}))
    assert trace.peak_bytes == pytest.approx(bytes_a_parameter * LLAMA_2_7B, rel=1e-3)
    assert trace.peak_moment is moment


def test_activations_are_between_10_and_40_gb_and_gone_at_the_peak() -> None:
    bill = ledger.predict(read_model("llama-7b"), FP32)
    assert 10 * GB < bill.at(Instant.FORWARD_END)[Account.ACTIVATIONS] < 40 * GB
    assert bill.at_peak[Account.ACTIVATIONS] < MIB
    assert bill.at(Instant.FORWARD_END)[Account.GRADIENTS] == 0


@pytest.mark.parametrize(
    ("recipe", "stays", "peak"),
    [
        ({"precision": "fp32"}, 16, 20),
        ({"precision": "amp-bf16"}, 16, 20),
        ({"precision": "bf16"}, 8, 10),
        ({"precision": "master-bf16"}, 16, 24),  # 16, gradients once more in FP32, and the foreach temporary
    ],
)
def test_bytes_a_parameter_of_each_recipe(recipe: dict[str, Any], stays: int, peak: int) -> None:
    bill = ledger.predict(read_model("llama-7b"), Recipe(**recipe, batch=1, seq=2048))
    assert sum(bill.static_bytes.values()) == stays * LLAMA_2_7B
    assert bill.peak_bytes == pytest.approx(peak * LLAMA_2_7B, rel=1e-3)


def test_lora_leaves_about_one_file() -> None:
    bill = ledger.predict(read_model("llama-7b"), Recipe(precision="bf16", lora_rank=16, seq=2048))
    adapters = LAYERS * 4 * 16 * 2 * HIDDEN  # four projections of attention, A and B
    assert sum(bill.static_bytes.values()) == 2 * LLAMA_2_7B + 16 * adapters
    assert bill.peak_bytes > 24 * GB


# -- the peak moves

#: torch.cuda.max_memory_allocated, foundation-model-stack/fms-acceleration, a100_80gb.csv lines 10 and 12.
PUBLISHED = {4: 72_434_837_504, 8: 72_435_230_720}
MISTRAL_RUN = Recipe(precision="bf16", checkpoint="block", attention="flash", loss="hf-4.48", seq=4096)


def test_the_published_peaks_of_batch_4_and_8() -> None:
    bills = {n: ledger.predict(read_model("mistral-7b"), with_batch(n)) for n in range(1, 17)}
    for batch, measured in PUBLISHED.items():
        assert bills[batch].peak_bytes == pytest.approx(measured, rel=1e-5)
        assert bills[batch].peak_moment is Moment.OPTIMIZER_STEP
    token_mask_label = 3 * 8
    assert PUBLISHED[8] - PUBLISHED[4] == 4 * 4096 * token_mask_label == bills[8].peak_bytes - bills[4].peak_bytes
    assert [n for n in bills if bills[n].peak_moment is not Moment.OPTIMIZER_STEP] == list(range(10, 17))


def with_batch(batch: int) -> Recipe:
    return Recipe(**{**MISTRAL_RUN.to_dict(), "batch": batch})


# -- logits, activations, inference


def test_the_loss_has_12_bytes_a_logit_alive() -> None:
    from transformers.loss.loss_utils import ForCausalLMLoss

    tokens, vocab = 64, 2048
    head = nn.Linear(16, vocab, bias=False, dtype=torch.bfloat16)
    hidden = torch.randn(1, tokens, 16, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, vocab, (1, tokens))

    def step() -> None:
        ForCausalLMLoss(head(hidden), labels, vocab).backward()

    step()
    assert peak_by_profiler(step) / (tokens * vocab) == pytest.approx(12, abs=0.05)


@pytest.mark.slow
def test_logits_are_four_fifths_of_a_small_model_with_a_large_vocabulary() -> None:
    recipe = Recipe(precision="bf16", checkpoint="block", optimizer_impl="fused", batch=4, seq=2048)
    trace = dry_run_config(read_config("qwen2.5-0.5b"), recipe)
    assert 12 * recipe.tokens * 151_936 / trace.peak_bytes == pytest.approx(0.815, abs=0.005)


def tiny_llama(attention: str) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "vocab_size": 64}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, attn_implementation=attention)
    return LlamaForCausalLM(config).train()


def saved_bytes(model: nn.Module, batch: int, length: int) -> int:
    """What autograd keeps for the backward pass, parameters aside."""
    parameters = {each.untyped_storage().data_ptr() for each in model.parameters()}
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = torch.ones(batch, length, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        _loss = model(tokens, labels=tokens, use_cache=False).loss  # holds the graph while bytes are counted
        return sum(saved.values())


def test_activations_double_with_batch_and_length_unless_attention_is_eager() -> None:
    flash, eager = tiny_llama("sdpa"), tiny_llama("eager")
    base = saved_bytes(flash, 2, 512)
    assert saved_bytes(flash, 4, 512) / base == pytest.approx(2, abs=0.05)
    assert saved_bytes(flash, 2, 1024) / base == pytest.approx(2, abs=0.05)
    assert saved_bytes(eager, 2, 1024) / saved_bytes(eager, 2, 512) > 3


@pytest.mark.slow
def test_share_of_activations_a_quarter_for_7b_and_nearly_all_for_a_small_model() -> None:
    for model, recipe, low, high in (
        ("llama-7b", Recipe(precision="bf16", seq=2048), 0.2, 0.3),
        ("smollm2-135m", Recipe(precision="fp32", batch=8, seq=1024), 0.9, 0.96),
    ):
        at_end = dry_run_config(read_config(model), recipe).end_of(Moment.FORWARD)
        assert low < at_end[Account.ACTIVATIONS] / sum(at_end.values()) < high


def test_the_cache_task_counts_what_a_real_cache_holds() -> None:
    model = tiny_llama("sdpa").to(torch.bfloat16).eval()
    with torch.no_grad():
        cache = model(torch.ones(3, 10, dtype=torch.long), use_cache=True).past_key_values
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    assert sum(tensor.nbytes for tensor in tensors) == 2 * 4 * 2 * 8 * 3 * 10 * 2  # K and V, layers, heads, width
    assert kv_cache_bytes(read_model("llama-7b"), 8, 2048) == 8 * GIB


# -- tasks


def kv_cache_bytes(shape: Any, batch: int, seq: int) -> int:
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * batch * seq * 2


def peak_of(events: list[tuple[str, int]]) -> tuple[int, str]:
    total = highest = 0
    when = ""
    for moment, change in events:
        total += change
        if total > highest:
            highest, when = total, moment
    return highest, when


def last_moment(events: list[tuple[str, int]]) -> tuple[int, str]:
    totals = list(accumulate(change for _, change in events))
    return max(totals), [events[i][0] for i, total in enumerate(totals) if total == max(totals)][-1]


P, E = 610.85e6, 250027 * 1024  # fairseq#1936: parameters of mBART-large, elements of its embedding
MBART = {"weights": 2 * P / GIB, "gradients": 2 * P / GIB, "optimizer": 8 * P / GIB, "temporary": 8 * E / GIB}


def test_the_bill_by_hand_meets_the_message() -> None:
    assert f"{sum(MBART.values()):.2f}" == "8.73"  # "8.73 GiB already allocated"
    assert -(-4 * E // (2 * MIB)) * 2 == 978  # "Tried to allocate 978 MiB": in steps of 2 MiB
    assert MBART["optimizer"] / sum(MBART.values()) == pytest.approx(0.52, abs=0.01)


@pytest.mark.parametrize(
    ("task", "answer"),
    [("largest_batch", 4), ("peak_of", peak_of), ("mbart_bill", MBART), ("kv_cache_bytes", kv_cache_bytes)],
)
def test_right_answers_pass(task: str, answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    check(f"ledger.{task}", answer)
    assert capsys.readouterr().out.startswith(f"✓ ledger.{task}\n  ")


WRONG = [
    ("largest_batch", 2, "there is room for more"),
    ("largest_batch", 8, "only tight"),
    ("largest_batch", 16, "does not fit"),
    ("largest_batch", 5, "another power of two"),
    ("peak_of", lambda events: (sum(c for _, c in events if c > 0), events[-1][0]), "freed counts, too"),
    ("peak_of", lambda events: (sum(c for _, c in events), events[-1][0]), "left at the end"),
    ("peak_of", lambda events: max((c, m) for m, c in events), "largest single event"),
    ("peak_of", lambda events: peak_of(events[1:]), "loaded before the step"),
    ("peak_of", lambda events: peak_of(events)[0], "return two things"),
    ("peak_of", last_moment, "first"),
    ("mbart_bill", 8.73, "a dict with the keys weights"),
    ("mbart_bill", {"weights": MBART["weights"]}, "a dict with the keys weights"),
    ("mbart_bill", {**MBART, "weights": 4 * P / GIB}, "weights in FP16"),
    ("mbart_bill", {**MBART, "gradients": 4 * P / GIB}, "gradients in FP16"),
    ("mbart_bill", {**MBART, "gradients": 2 * P / 1e9}, r"10\*\*9"),
    ("mbart_bill", {**MBART, "optimizer": 4 * P / GIB}, "two moments"),
    ("mbart_bill", {**MBART, "optimizer": 12 * P / GIB}, "no FP32 copy"),
    ("mbart_bill", {**MBART, "temporary": 4 * E / GIB}, "two such tensors"),
    ("mbart_bill", {**MBART, "temporary": 12 * E / GIB}, "never allocated"),
    ("mbart_bill", {**MBART, "temporary": 4 * P / GIB}, "foreach"),
    ("mbart_bill", {**MBART, "weights": 2 * P}, "in bytes"),
    ("kv_cache_bytes", lambda s, b, n: kv_cache_bytes(s, b, n) // 2, "both K and V"),
    ("kv_cache_bytes", lambda s, b, n: kv_cache_bytes(s, b, n) * 2, "not 4"),
    ("kv_cache_bytes", lambda s, b, n: kv_cache_bytes(s, b, n) // s.layers, "every layer"),
    ("kv_cache_bytes", lambda s, b, n: kv_cache_bytes(s, 1, n), "every sequence"),
    ("kv_cache_bytes", lambda s, b, n: kv_cache_bytes(s, b, n) * s.heads // s.kv_heads, "kv_heads, not heads"),
]


@pytest.mark.parametrize(("task", "answer", "message"), WRONG)
def test_wrong_answers_hear_the_usual_cause(task: str, answer: Any, message: str) -> None:
    with pytest.raises(Unsolved, match=message):
        check(f"ledger.{task}", answer)


@pytest.mark.parametrize(("task", "answer"), [(task, answer) for task, answer, _ in WRONG])
def test_no_wrong_answer_is_told_the_right_number(task: str, answer: Any) -> None:
    if task == "peak_of":  # the data are the test's own, so the result gives nothing away
        return
    with pytest.raises(Unsolved) as refused:
        check(f"ledger.{task}", answer)
    expected = re.search(r"expected (.*)", str(refused.value))
    assert expected is not None
    if task != "kv_cache_bytes":
        assert not re.search(r"\d\.\d|\b4\b", expected[1])


# -- the notebook as a whole


def test_the_core_is_short_and_the_first_cells_stand_as_in_every_lesson() -> None:
    unit = read_source(REPOSITORY, "01_ledger")
    assert core_cells(unit) <= 20
    assert deeper_sections(unit) == {"en": 7, "zh": 7}


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_figure_in_the_prose_is_printed_by_a_cell(language: str) -> None:
    outcome, notebook = execute(REPOSITORY, "01_ledger", language)
    assert outcome.failure is None
    assert outcome.complaints == []
    said = printed(notebook)
    for figure in ("86.00 MiB", "107.8", "134.8 GB", "107.9 GB in backward", "13.5", "10.0", "67.46 GiB", "393,216 B",
                   "at batch 10", "12 B x", "13.91 GiB of 17.07 GiB", "24%", "93%", "KV cache 8.00", "8.73 GiB",
                   "nvidia-smi 75.4 GiB", "nvidia-smi 71.3 GiB"):  # fmt: skip
        assert figure in said, figure
    pictures = re.findall(r"<img [^>]*>", said)
    assert len(pictures) == 7
    assert all(re.search(r'alt="[^"]{40,}"', picture) for picture in pictures)
    assert re.findall(r"^(?:claim|论断) (C\d+)[:：]", said, re.MULTILINE) == ["C1", "C2", "C10", "C17"]
    verdicts = re.findall(r"^(?:verdict: holds only|结论：只在)", said, re.MULTILINE)
    assert len(verdicts) == 4
