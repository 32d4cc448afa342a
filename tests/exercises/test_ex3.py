"""Exercise 3: right answers, wrong answers, the release, and the contract of its functions."""

import math
from typing import Any

import pytest
import torch
from answers_ex3 import RIGHT, WRONG
from exercise_tests import (
    check_answer,
    check_cells,
    check_messages,
    check_points_in_prose,
    check_release,
    check_student_code_is_shared,
    reference,
)
from harness import Answer
from torch import nn

from course_lib.exercises.accumulation import even_bench, uneven_bench
from course_lib.exercises.watched_training import watch
from course_lib.models import GPT, GPTConfig

NAME = "ex3_accumulation"


@pytest.mark.parametrize("answer", [*RIGHT, *WRONG], ids=lambda answer: answer.name)
def test_each_answer_loses_what_it_should_and_is_named_right(answer: Answer) -> None:
    check_answer(NAME, answer)


def test_the_release_earns_nothing() -> None:
    check_release(NAME)


def test_messages_say_what_to_do() -> None:
    check_messages(NAME, WRONG[::7])


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


def test_train_is_the_big_batch_by_pytorchs_own_mean(functions: dict[str, Any]) -> None:
    """Weights and losses after three updates, against F.cross_entropy over one big batch of each window."""
    draw = torch.Generator().manual_seed(3)
    config = GPTConfig(vocab=20, layers=1, heads=2, width=16, block_size=8)
    pairs = [torch.randint(20, (2, rows, 8), generator=draw) for rows in (1, 3, 2, 2, 4)]
    pieces = [(pair[0], pair[1]) for pair in pairs]
    for _tokens, targets in pieces[::2]:
        targets[0, :6] = -100
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(GPT(config))
    ours = functions["train"](
        models[0], pieces, accum_steps=2, optimizer=torch.optim.SGD(models[0].parameters(), lr=0.5), max_grad_norm=0.3
    )
    optimizer, theirs = torch.optim.SGD(models[1].parameters(), lr=0.5), []
    for start in range(0, 5, 2):
        tokens, targets = (torch.cat(each) for each in zip(*pieces[start : start + 2], strict=True))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(models[1](tokens).flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        nn.utils.clip_grad_norm_(models[1].parameters(), 0.3)
        optimizer.step()
        theirs.append(loss.item())
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert functions["same_curve"](ours, theirs)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_window_without_targets_leaves_adam_alone(functions: dict[str, Any]) -> None:
    model = GPT(GPTConfig(vocab=20, layers=1, heads=2, width=16, block_size=8))
    tokens = torch.randint(20, (2, 8))
    nothing = torch.full((2, 8), -100)
    optimizer = torch.optim.AdamW(model.parameters())
    pieces = [(tokens, tokens), (tokens, nothing), (tokens, nothing)]
    losses = functions["train"](model, pieces, accum_steps=1, optimizer=optimizer)
    assert [math.isnan(loss) for loss in losses] == [False, True, True]
    assert {state["step"].item() for state in optimizer.state.values()} == {1}


def test_any_iterable_will_do(functions: dict[str, Any]) -> None:
    bench = even_bench()
    lazily = watch(lambda model, pairs, **more: functions["train"](model, iter(pairs), **more), bench)
    assert lazily.returned == watch(functions["train"], bench).returned


def test_what_the_bench_calls_right_is_what_one_big_batch_gives() -> None:
    """The judge's own truth, from summed gradients, against autograd on the joined window."""
    bench = uneven_bench(5)
    for window in bench.windows:
        model = bench.make_model()
        tokens, targets = (torch.cat(each) for each in zip(*(bench.batches[place] for place in window), strict=True))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        together = [each.grad.flatten().double() for each in model.parameters() if each.grad is not None]
        torch.testing.assert_close(bench.gradient(window), torch.cat(together), rtol=1e-3, atol=1e-6)
        assert bench.loss(window) == pytest.approx(loss.item(), rel=1e-5)


def test_the_text_says_what_is_measured(functions: dict[str, Any]) -> None:
    """1.57 and 0.40 GiB of the model answer; 2 micro-batches take what 8 take."""
    peaks = {
        (batch, steps): functions["trace_of"](functions["example"], batch, 256, steps).peak_bytes
        for batch, steps in ((32, 1), (4, 8), (4, 2))
    }
    assert [round(peak / 2**30, 2) for peak in peaks.values()] == [1.57, 0.40, 0.40]
    assert math.isclose(peaks[4, 8], peaks[4, 2], rel_tol=1e-3)
    with torch.device("meta"):
        count = sum(each.numel() for each in GPT(functions["example"]).parameters())
    assert round(count / 1e6) == 15


def test_the_experiment_comes_out_as_the_text_says(functions: dict[str, Any]) -> None:
    same = {case: functions["same_curve"](*pair) for case, pair in functions["pairs"].items()}
    assert same == {
        "your loop": True,
        "batch norm": False,
        "short answers, your loop": True,
        "short answers, mean of means": False,
    }
