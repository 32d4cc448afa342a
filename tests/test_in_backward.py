"""The optimizer in the backward pass: the same training, without all gradients at once."""

from functools import partial

import torch
from small_gpt import loss_of, small_step

from course_lib.accounts import Account, Moment
from course_lib.dryrun import dry_run
from course_lib.training import InBackward, train_step

ADAMW = partial(torch.optim.AdamW, lr=1e-3, foreach=False)


def test_trains_as_the_plain_optimizer_does() -> None:
    torch.manual_seed(0)
    plain = small_step("cpu")
    other = small_step("cpu")
    other.model.load_state_dict(plain.model.state_dict())
    plain.optimizer, other.optimizer = ADAMW(plain.model.parameters()), InBackward(other.model.parameters(), ADAMW)
    for _ in range(3):
        for each in (plain, other):
            train_step(each.model, each.optimizer, each.batches, loss_of)
    pairs = zip(plain.model.parameters(), other.model.parameters(), strict=True)
    assert all(torch.equal(one, same) for one, same in pairs)


def test_gradients_are_never_there_together() -> None:
    step = small_step("meta")
    step.optimizer = InBackward(step.model.parameters(), ADAMW)
    trace = dry_run(step.model, step, step.optimizer)
    sizes = [parameter.numel() * 4 for parameter in step.model.parameters()]
    most = max(bill[1] for bill in trace.live)  # in the order of the accounts: weights, gradients
    # One whole; a tied table waits for its second part, and the sum of both is a third.
    assert most <= 3 * max(sizes) < sum(sizes)
    assert trace.static_bytes[Account.OPTIMIZER] == 2 * sum(sizes)


def test_nothing_is_left_for_the_step() -> None:
    plain, other = small_step("meta"), small_step("meta")
    plain.optimizer, other.optimizer = ADAMW(plain.model.parameters()), InBackward(other.model.parameters(), ADAMW)
    before, after = (dry_run(each.model, each, each.optimizer) for each in (plain, other))
    kept = sum(parameter.numel() for parameter in other.model.parameters()) * 4
    assert before.moment_peaks[Moment.OPTIMIZER_STEP] - sum(after.live[-1]) > 0.9 * kept
