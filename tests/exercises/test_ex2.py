"""Exercise 2: right answers, wrong answers, the release, and the contract of its functions."""

import copy
import math
from typing import Any

import pytest
import torch
from answers_ex2 import RIGHT, WRONG
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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from course_lib.exercises.segments import alive_after_forward
from course_lib.models import GPT, GPTConfig, next_token_loss

NAME = "ex2_checkpointing"


@pytest.mark.parametrize("answer", [*RIGHT, *WRONG], ids=lambda answer: answer.name)
def test_each_answer_loses_what_it_should_and_is_named_right(answer: Answer) -> None:
    check_answer(NAME, answer)


def test_messages_say_what_was_expected_what_came_and_what_to_do() -> None:
    check_messages(NAME, WRONG)


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


CONFIG = GPTConfig(vocab=40, layers=5, heads=4, width=32, block_size=24, tied_head=False)
TOKENS, TARGETS = torch.randint(40, (2, 3, 24), generator=torch.Generator().manual_seed(4))


def model_of(**changes: Any) -> GPT:
    torch.manual_seed(2)
    return GPT(GPTConfig(**{**vars(CONFIG), **changes}))


def gradients(model: nn.Module) -> list[Any]:
    torch.manual_seed(3)
    next_token_loss(model(TOKENS), TARGETS).backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("every", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("changes", [{}, {"dropout": 0.3}, {"tied_head": True}])
def test_gradients_are_bitwise_those_of_the_plain_model(
    functions: dict[str, Any], every: int, changes: dict[str, Any]
) -> None:
    plain, model = model_of(**changes), model_of(**changes)
    assert functions["checkpoint_blocks"](model, every) is model
    for right, came in zip(gradients(plain), gradients(model), strict=True):
        assert torch.equal(right, came)
    assert plain.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("every", [1, 2, 3, 5, 8])
def test_each_segment_keeps_one_input(functions: dict[str, Any], every: int) -> None:
    """Segments cost one [B, T, H] tensor each: counted by the difference between two segment lengths."""
    boundary_bytes = 3 * 24 * 32 * 4
    kept = [
        alive_after_forward(functions["checkpoint_blocks"](model_of(), k), (TOKENS, TARGETS)) for k in (every, 5)
    ]
    assert kept[0] - kept[1] == (math.ceil(5 / every) - 1) * boundary_bytes


def test_a_copy_of_a_checkpointed_model_is_a_model_of_its_own(functions: dict[str, Any]) -> None:
    model = functions["checkpoint_blocks"](model_of(), 2)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert twin(TOKENS).abs().sum() > 0
    assert all(grad is not None for grad in gradients(twin))


def test_blocks_that_take_more_than_one_argument(functions: dict[str, Any]) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, scale: float, *, shift: float = 0.0) -> torch.Tensor:
            return torch.tanh(self.layer(x)) * scale + shift

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Scaled() for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i in range(len(self.blocks)):
                x = self.blocks[i](x, 0.5, shift=1.0)
            return x

    torch.manual_seed(0)
    plain = Stack()
    model, x = copy.deepcopy(plain), torch.randn(2, 4)
    functions["checkpoint_blocks"](model, 2)
    for each in (plain, model):
        each(x).sum().backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(plain.parameters(), model.parameters(), strict=True))


def test_extra_flops_are_those_of_the_formula(functions: dict[str, Any]) -> None:
    """By hand, per token: a block's four matrix products take 24 H², of which the last one (8 H²) is not run again
    without dropout; the head takes 2 H V. Attention's products are in no CPU counter. Backward is twice the forward."""
    n, width, vocab = 5, 32, 40
    forward = n * 24 * width**2 + 2 * width * vocab
    found = functions["compare"](model_of, (TOKENS, TARGETS), 1)
    assert math.isclose(found["extra_flops"], n * 16 * width**2 / (3 * forward), rel_tol=1e-6)
    with_dropout = functions["compare"](lambda: model_of(dropout=0.1), (TOKENS, TARGETS), 1)["extra_flops"]
    assert found["extra_flops"] < with_dropout <= 1 / 3


def test_the_saving_is_that_of_memory(functions: dict[str, Any]) -> None:
    """Against what a probe finds alive at the end of the forward pass."""
    plain, model = model_of(), functions["checkpoint_blocks"](model_of(), 2)
    alive = [alive_after_forward(each, (TOKENS, TARGETS)) for each in (plain, model)]
    found = functions["compare"](model_of, (TOKENS, TARGETS), 2)
    assert math.isclose(found["activation_saving"], 1 - alive[1] / alive[0], abs_tol=0.02)
    assert found.keys() == {"activation_saving", "extra_flops", "time_ratio"}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 200), st.integers(1, 10**9), st.integers(1, 10**9))
def test_best_every_is_the_first_of_the_cheapest(functions: dict[str, Any], n: int, boundary: int, inside: int) -> None:
    best = functions["best_every"](n, boundary, inside)
    costs = {k: -(-n // k) * boundary + k * inside for k in range(1, n + 1)}
    assert costs[best] == min(costs.values())
    assert all(costs[k] > costs[best] for k in range(1, best))
