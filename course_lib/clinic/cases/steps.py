"""Out of memory in a training step: at the update, at the second step, at the longest batch."""

import torch

from course_lib.accounts import Account, Moment
from course_lib.clinic.case import Case
from course_lib.clinic.patients import adamw, batches, gpt, loss_of, sgd
from course_lib.clinic.reading import Reading, total
from course_lib.i18n import N_, _
from course_lib.units import MIB, format_bytes


def dies_at_the_update() -> None:
    model = gpt(width=128)
    optimizer = adamw(model)
    for batch in batches(3):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def updates_with_a_small_state() -> None:
    model = gpt(width=128)
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3, foreach=False)
    for batch in batches(3):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def at_the_update(reading: Reading) -> str | None:
    if not reading.death or reading.death.moment is not Moment.OPTIMIZER_STEP:
        return None
    return _(
        "memory ended inside optimizer.step(); of what was alive, optimizer state had {state}, temporaries "
        "{temporary}"
    ).format(
        state=format_bytes(reading.took(Account.OPTIMIZER), "MiB"),
        temporary=format_bytes(reading.took(Account.TEMPORARY), "MiB"),
    )  # fmt: skip


def second_step_on_top_of_the_state() -> None:
    model = gpt(width=128)
    optimizer = adamw(model)
    for batch in batches(3, rows=8):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def the_same_batch_in_two_pieces() -> None:
    model = gpt(width=128)
    optimizer = adamw(model)
    for tokens, targets in batches(3, rows=8):
        for piece in zip(tokens.chunk(2), targets.chunk(2), strict=True):
            (loss_of(model, piece) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def at_the_second_step(reading: Reading) -> str | None:
    death, last = reading.death, reading.last_pass
    if not death or not last or death.update != 1 or death.moment is Moment.OPTIMIZER_STEP or last.autocast:
        return None
    first = reading.passes[0]
    state = reading.took(Account.OPTIMIZER)
    if last.tokens > first.tokens or not last.training or state < 0.15 * total(reading.at_death):
        return None
    return _("step 1 passed and step 2 died with a batch no larger; new since then: {state} of optimizer state").format(
        state=format_bytes(state, "MiB")
    )


def one_long_batch_among_short_ones() -> None:
    model = gpt(length=256)
    optimizer = sgd(model)
    for batch in [*batches(5, length=32), *batches(1, length=256)]:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def long_batches_in_pieces() -> None:
    model = gpt(length=256)
    optimizer = sgd(model)
    for tokens, targets in [*batches(1, length=256), *batches(5, length=32)]:  # the longest first
        pieces = -(-tokens.numel() // 256)  # no more than 256 tokens at once
        for piece in zip(tokens.chunk(pieces), targets.chunk(pieces), strict=True):
            (loss_of(model, piece) / pieces).backward()
        optimizer.step()
        optimizer.zero_grad()


def at_the_longest_batch(reading: Reading) -> str | None:
    death, last = reading.death, reading.last_pass
    if not death or not last or not last.training or death.update < 1:
        return None
    earlier = max((each.tokens for each in reading.passes[:-1] if each.training), default=0)
    if last.tokens < 1.2 * earlier:
        return None
    return _("step {step} died on {rows} × {length} tokens; no batch before it had more than {earlier} tokens").format(
        step=death.update + 1, rows=last.rows, length=last.length, earlier=earlier
    )


CASES = (
    Case(
        name="update",
        branch=("out of memory", "in a training step"),
        symptom=N_("Out of memory at optimizer.step(), while forward and backward passed"),
        words=N_("optimizer step OOM; out of memory in Adam; exp_avg_sq; foreach; first step dies after backward"),
        cause=N_(
            "Adam makes its two moments in the first step, and the foreach update adds a temporary as large as the "
            "weights"
        ),
        change=N_(
            "8-bit or paged Adam, or Adafactor; fused=True removes the temporary; LoRA removes most of the state"
        ),
        surer=N_("the traceback ends in torch/optim; ledger.predict(...).peak_moment is optimizer_step"),
        unit="01_ledger",
        sign=at_the_update,
        broken=dies_at_the_update,
        mended=updates_with_a_small_state,
        sure="certain",
        card_bytes=7 * MIB,
    ),
    Case(
        name="second-step",
        branch=("out of memory", "in a training step"),
        symptom=N_("The first step passes, the second runs out of memory with the same batch"),
        words=N_("OOM at step 2; second iteration; smoke test of one step passed"),
        cause=N_(
            "Adam's state did not exist during the first forward and backward pass; from the second on they run on "
            "top of it"
        ),
        change=N_("a smaller micro-batch, checkpointing, or 8-bit Adam; always try two steps"),
        surer=N_(
            "torch.cuda.memory_allocated() before step 1 and before step 2: the difference is the optimizer's state"
        ),
        unit="01_ledger",
        sign=at_the_second_step,
        broken=second_step_on_top_of_the_state,
        mended=the_same_batch_in_two_pieces,
        card_bytes=25 * MIB // 2,
    ),
    Case(
        name="longest-batch",
        branch=("out of memory", "in a training step"),
        symptom=N_("Training runs for hundreds of steps, then one step runs out of memory"),
        words=N_("OOM at a later step; random out of memory; step 5906; dynamic padding; long sample; variable length"),
        cause=N_("a batch with a longer sequence than all before it"),
        change=N_("put the longest batch first, so that it dies in minute one; then cut, split or pack by tokens"),
        surer=N_("print batch['input_ids'].shape at the step that died, and the largest before it"),
        unit="01_ledger",
        sign=at_the_longest_batch,
        broken=one_long_batch_among_short_ones,
        mended=long_batches_in_pieces,
        card_bytes=9 * MIB // 2,
    ),
)
