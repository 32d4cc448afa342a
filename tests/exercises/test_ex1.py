"""Exercise 1: right answers, wrong answers, the release, and the contract of its functions."""

import math
from typing import Any

import pytest
import torch
from answers_ex1 import RIGHT, WRONG
from exercise_tests import (
    check_answer,
    check_cells,
    check_points_in_prose,
    check_release,
    check_student_code_is_shared,
    reference,
)
from harness import Answer

from course_lib.exercises.bench import Size, peak_of, wide_and_long
from course_lib.exercises.judge import Mistake, Near, Raised, diagnose, same
from course_lib.exercises.pretend_card import pretend_card
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.probe import probe

NAME = "ex1_precision"


@pytest.mark.parametrize("answer", [*RIGHT, *WRONG], ids=lambda answer: answer.name)
def test_each_answer_loses_what_it_should_and_is_named_right(answer: Answer) -> None:
    check_answer(NAME, answer)


def test_the_release_earns_nothing() -> None:
    check_release(NAME)


def test_cells_points_and_editions_agree() -> None:
    check_cells(NAME)
    check_points_in_prose(NAME)
    check_student_code_is_shared(NAME)


def test_enough_answers_of_both_kinds() -> None:
    assert len(RIGHT) >= 4
    assert len([answer for answer in WRONG if any(answer.loses.values())]) >= 12
    assert any(None in answer.loses.values() for answer in WRONG), "some answers fit no mistake, or two"


@pytest.fixture(scope="module")
def functions() -> dict[str, Any]:
    return reference(NAME)


def test_static_bytes_is_what_a_real_step_leaves(functions: dict[str, Any]) -> None:
    """Against sizes read off the tensors of a model and its AdamW after a step."""
    for recipe in ("fp32", "bf16"):
        model = GPT(GPTConfig(vocab=50, layers=2, width=24, heads=2))
        if recipe == "bf16":
            model.bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        tokens = torch.randint(50, (2, 8))
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
        weights = sum(each.nbytes for each in model.parameters())
        gradients = sum(each.grad.nbytes for each in model.parameters() if each.grad is not None)
        moments = sum(state[name].nbytes for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))
        count = sum(each.numel() for each in model.parameters())
        expected = {"weights": weights, "gradients": gradients, "optimizer": moments}
        assert functions["static_bytes"](count, recipe) == expected


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("recipe", ["fp32", "amp-bf16", "bf16"])
def test_measure_peak_counts_what_a_probe_of_everything_counts(
    functions: dict[str, Any], recipe: str, device: str
) -> None:
    """Also with another, larger model alive beside it."""
    larger = GPT(GPTConfig(layers=3, width=96))
    for size in wide_and_long(99):
        peak = functions["measure_peak"](
            lambda size=size: size.make_model(device), lambda size=size: size.make_batch(device), recipe, device
        )
        assert type(peak) is int
        assert math.isclose(peak, peak_of(size, recipe, device), rel_tol=1e-3)
    assert larger is not None


def test_the_pretend_card_counts_what_the_probe_counts() -> None:
    size = wide_and_long(5)[1]
    with pretend_card():
        model, (tokens, targets) = size.make_model("cuda"), size.make_batch("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

        def step() -> None:
            next_token_loss(model(tokens), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        torch.cuda.reset_peak_memory_stats("cuda")
        resting = torch.cuda.memory_allocated()
        step()
        assert torch.cuda.memory_allocated() == resting
        peak = torch.cuda.max_memory_allocated()
        assert torch.zeros(3, device="cuda:0").device.type == "meta"
        with probe(model, optimizer) as measured:
            step()
    assert math.isclose(peak, measured.peak_bytes, rel_tol=2e-3)
    assert not torch.cuda.is_available() or torch.cuda.get_device_name() != "pretend card"


@pytest.mark.slow
def test_the_figures_for_a_t4_are_what_plain_bf16_attention_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prose says 3.9 and 2.5 GiB where the dry run has 3.2 and 1.8: BF16 attention by the plain formula."""
    import course_lib.dryrun.cuda_kernels as kernels

    size = Size("gpt2", GPTConfig(vocab=50257, layers=12, heads=12, width=768, block_size=512), 4, 512)
    as_on_ampere = [round(peak_of(size, recipe, "meta") / 2**30, 1) for recipe in ("amp-bf16", "bf16")]
    plain = torch.ops.aten._scaled_dot_product_attention_math
    chosen = kernels._cuda_attention

    def on_a_t4(
        query: Any, key: Any, value: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False, **more: Any
    ) -> Any:
        if query.dtype is torch.float32:
            return chosen(query, key, value, mask, dropout, causal, **more)
        return plain(query, key, value, mask, dropout, causal)[0]

    monkeypatch.setattr(kernels, "_cuda_attention", on_a_t4)
    size = size._replace(name="gpt2 on a t4")  # which no cache has seen
    on_t4 = [round(peak_of(size, recipe, "meta") / 2**30, 1) for recipe in ("amp-bf16", "bf16")]
    assert (as_on_ampere, on_t4) == ([3.2, 1.8], [3.9, 2.5])


# --- the judge --------------------------------------------------------------------------------------------------------


def mistake(name: str, *shown: dict[str, Any]) -> Mistake:
    return Mistake(name, "says", "01_ledger", lambda case: shown)


def test_a_mistake_is_named_only_when_it_alone_explains_everything() -> None:
    right = {"a": 1, "b": Near(2.0, 0.01)}
    double, half, both = (
        mistake("double", {"a": 2}),
        mistake("half", {"b": Near(1.0, 0.01)}),
        mistake("both", {"a": 2}, {"a": 3}),
    )
    assert diagnose({"a": 2, "b": 2.0}, right, [double, half]) == double
    assert diagnose({"a": 2, "b": 2.0}, right, [double, both]) is None, "two fit"
    assert diagnose({"a": 3, "b": 2.0}, right, [double, both]) == both
    assert diagnose({"a": 2, "b": 1.0}, right, [double, half]) is None, "two mistakes at once"
    assert diagnose({"a": 9, "b": 2.0}, right, [double, half]) is None, "none fits"


def test_values_that_are_the_same() -> None:
    assert same(1.001, Near(1.0, 0.01))
    assert not same(1.02, Near(1.0, 0.01))
    assert same(float("nan"), Near(float("nan")))
    assert not same(True, 1)
    assert not same(1.0, 1), "whole numbers of bytes are whole"
    assert same({"a": [1, Near(2.0)]}, {"a": [1, Near(2.0)]})
    assert not same({"a": 1, "b": 2}, {"a": 1})
    assert same(Raised("ValueError", "one text"), Raised("ValueError"))
    assert not same(Raised("KeyError"), Raised("ValueError"))
    assert not same("12", Near(12.0))


@pytest.mark.parametrize("recipe", ["fp32", "amp-bf16"])
def test_a_deep_model_is_read_off_shallow_ones(functions: dict[str, Any], recipe: str) -> None:
    """What a student measures through all layers is what the check grows from two depths."""
    deep = Size("deep", GPTConfig(vocab=512, layers=7, heads=4, width=64, block_size=32), 2, 32)
    peak = functions["measure_peak"](lambda: deep.make_model("meta"), lambda: deep.make_batch("meta"), recipe, "meta")
    assert math.isclose(peak_of(deep, recipe, "meta"), peak, rel_tol=1e-3)
