"""Out of memory because something is kept: it grows with every step, or stays one step or one exception too long."""

from typing import Any

import torch
from torch import Tensor, nn

from course_lib.accounts import Account
from course_lib.clinic.case import Case
from course_lib.clinic.patients import Batch, adamw, batches, gpt, labels, loss_of, mlp, sgd, vectors
from course_lib.clinic.reading import Pass, Piece, Reading, total
from course_lib.i18n import N_, _
from course_lib.models import next_token_loss
from course_lib.units import KIB, MIB, format_bytes


def keeps_what_came_out() -> None:
    model, history = gpt(layers=1), []
    optimizer = sgd(model)
    for tokens, targets in batches(8):
        logits = model(tokens)
        loss = next_token_loss(logits, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append((loss, logits))


def keeps_numbers() -> None:
    model, history = gpt(layers=1), []
    optimizer = sgd(model)
    for tokens, targets in batches(8):
        loss = next_token_loss(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss.item())


def keeps_more_each_step(reading: Reading) -> str | None:
    if not reading.death:
        return None
    trained = _trained_passes(reading)
    grown = reading.grown(trained)[1:]  # the first step makes the optimizer's state
    left = _left_by_passes(reading, trained[:-2])
    if len(grown) < 3 or min(grown) <= 0 or reading.share(left) < 0.2:
        return None
    return _(
        "{growth} more are alive at the beginning of each step; of what was alive at the end, {share:.0%} was made "
        "by steps long over"
    ).format(
        growth=format_bytes(min(grown), "MiB"), share=reading.share(left)
    )  # fmt: skip


def _one_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> tuple[Tensor, Tensor]:
    logits = model(batch[0])
    loss = next_token_loss(logits, batch[1])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss, logits


def holds_the_last_step() -> None:
    model, curve = gpt(layers=1), []
    optimizer = sgd(model)
    for batch in batches(3):
        loss, logits = _one_step(model, optimizer, batch)  # the last ones live until these are there
        curve.append(loss.item())


def lets_go_of_the_last_step() -> None:
    model, curve = gpt(layers=1), []
    optimizer = sgd(model)
    for batch in batches(3):
        curve.append(_one_step(model, optimizer, batch)[0].item())


def still_holds_the_last_step(reading: Reading) -> str | None:
    trained = _trained_passes(reading)
    if not reading.death or reading.death.update != 1 or len(trained) < 2:
        return None
    held = _left_by_passes(reading, trained[:-1])
    if reading.share(held) < 0.05:
        return None
    return _("step 2 began with {held} of step 1 still alive, largest {shape}").format(
        held=format_bytes(total(held), "MiB"), shape=list(max(held).shape)
    )


def tries_again_inside_the_handler() -> None:
    model = gpt(layers=1)
    optimizer = sgd(model)
    for tokens, targets in batches(2, rows=16):
        try:
            loss_of(model, (tokens, targets)).backward()
        except torch.OutOfMemoryError:
            for half in zip(tokens.chunk(2), targets.chunk(2), strict=True):
                (loss_of(model, half) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def tries_again_after_the_handler() -> None:
    model = gpt(layers=1)
    optimizer = sgd(model)
    for tokens, targets in batches(2, rows=16):
        pieces: list[Batch] = [(tokens, targets)]
        try:
            loss_of(model, (tokens, targets)).backward()
            pieces = []
        except torch.OutOfMemoryError:
            optimizer.zero_grad()
            pieces = list(zip(tokens.chunk(2), targets.chunk(2), strict=True))
        for half in pieces:
            (loss_of(model, half) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def inside_the_handler(reading: Reading) -> str | None:
    last = reading.last_pass
    if not reading.death or not last or "OutOfMemory" not in last.handling:
        return None
    return _(
        "the pass that died began while {error} was being handled; {held} of the failed step were still alive then"
    ).format(
        error=last.handling, held=format_bytes(total(reading.before(last.at)), "MiB")
    )  # fmt: skip


def keeps_every_model() -> None:
    results: list[Any] = []
    for rate in (1e-2, 1e-3, 1e-4):
        model = mlp(depth=6, width=128)
        optimizer = adamw(model, rate)
        for x in vectors(2, rows=512):
            nn.functional.cross_entropy(model(x), labels(x)).backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append((rate, model, optimizer))


def keeps_each_result() -> None:
    results: list[Any] = []
    for rate in (1e-2, 1e-3, 1e-4):
        model = mlp(depth=6, width=128)
        optimizer = adamw(model, rate)
        for x in vectors(2, rows=512):
            loss = nn.functional.cross_entropy(model(x), labels(x))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append((rate, loss.item()))
        del model, optimizer


def several_models_are_alive(reading: Reading) -> str | None:
    if not reading.death:
        return None
    first_of = {each.model: each.at for each in reversed(reading.passes)}
    if len(first_of) < 2:
        return None
    latest = max(first_of.values())
    old = [
        each for each in reading.at_death
        if each.born < latest and each.account in (Account.WEIGHTS, Account.GRADIENTS, Account.OPTIMIZER)
    ]  # fmt: skip
    if reading.share(old) < 0.3:
        return None
    return _("{count} models were trained one after the other, and {old} of the earlier ones are still alive").format(
        count=len(first_of), old=format_bytes(total(old), "MiB")
    )


def _trained_passes(reading: Reading) -> list[Pass]:
    return [each for each in reading.passes if each.grad and each.training]


def _left_by_passes(reading: Reading, passes: list[Pass]) -> list[Piece]:
    """What earlier passes, their losses included, made that was still alive when the run died."""
    spans = [
        (each.at, next((back.at for back in reading.backwards if back.at >= each.at), each.at)) for each in passes
    ]  # fmt: skip
    return [
        each for each in reading.at_death
        if each.account in (Account.ACTIVATIONS, Account.TEMPORARY) and each.size_bytes > KIB
        and any(begin <= each.born < end for begin, end in spans)
    ]  # fmt: skip


CASES = (
    Case(
        name="kept-outputs",
        branch=("out of memory", "in a training step"),
        symptom=N_("Memory grows with every training step until none is left"),
        words=N_(
            "memory leak; memory grows; increasing memory usage; losses.append(loss); list of outputs; total_loss += "
            "loss"
        ),
        cause=N_("a list, a sum or a logger holds tensors of every step, and each tensor holds its graph"),
        change=N_("keep loss.item() or loss.detach(), never the tensor that came out of the model"),
        surer=N_("torch.cuda.memory_allocated() at the beginning of each step: it rises by the same amount each time"),
        unit="06_troubleshooting",
        sign=keeps_more_each_step,
        broken=keeps_what_came_out,
        mended=keeps_numbers,
        card_bytes=7 * MIB // 2,
    ),
    Case(
        name="held-one-step",
        branch=("out of memory", "in a training step"),
        symptom=N_("The peak is higher than the bill, by the size of the logits; memory does not grow"),
        words=N_("outputs still alive in the next iteration; del outputs; logits held; constant extra memory"),
        cause=N_("a variable such as outputs keeps the last step's logits alive through the next step"),
        change=N_("del outputs, loss after backward(), or compute both in a function that returns only the number"),
        surer=N_("memory_allocated() just before the forward pass: more than weights, gradients and optimizer state"),
        unit="01_ledger",
        sign=still_holds_the_last_step,
        broken=holds_the_last_step,
        mended=lets_go_of_the_last_step,
        card_bytes=27 * MIB // 10,
    ),
    Case(
        name="caught-exception",
        branch=("out of memory", "in a training step"),
        symptom=N_("After an out-of-memory error was caught, even a smaller batch does not fit"),
        words=N_(
            "memory not freed after OOM; retry with a smaller batch fails; except RuntimeError; empty_cache does not "
            "help; notebook"
        ),
        cause=N_("inside the except block the exception's traceback keeps every tensor of the failed step alive"),
        change=N_("leave the except block first, then try again; in a notebook clear the last traceback or restart"),
        surer=N_("memory_allocated() inside the except block and after it"),
        unit="06_troubleshooting",
        sign=inside_the_handler,
        broken=tries_again_inside_the_handler,
        mended=tries_again_after_the_handler,
        sure="certain",
        card_bytes=5 * MIB,
    ),
    Case(
        name="old-models",
        branch=("out of memory", "in a training step"),
        symptom=N_("The second or third run in the same process runs out of memory; each alone would fit"),
        words=N_(
            "hyperparameter search; re-running the notebook cell in Jupyter; the second time; memory grows per run; "
            "sweep; trainer kept; cross-validation folds"
        ),
        cause=N_("earlier models, their gradients and Adam's state are still referenced"),
        change=N_("keep results, not models: del model, optimizer before the next run, or a process for each"),
        surer=N_("memory_allocated() before each run: it rises by weights, gradients and state of one model"),
        unit="06_troubleshooting",
        sign=several_models_are_alive,
        broken=keeps_every_model,
        mended=keeps_each_result,
        card_bytes=7 * MIB // 2,
    ),
)
