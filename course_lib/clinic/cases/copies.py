"""Out of memory because weights are there twice, are wider than their file, or have copies under autocast."""

import copy
import io
from collections import Counter

import torch
from torch import nn
from torch.nn import functional as F

from course_lib.accounts import Account
from course_lib.clinic.case import Case
from course_lib.clinic.patients import batches, gpt, labels, loss_of, mlp, sgd, vectors
from course_lib.clinic.reading import Reading, total
from course_lib.i18n import N_, _
from course_lib.units import MIB, format_bytes


def _saved(model: nn.Module) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return file


def keeps_what_it_loaded() -> None:
    model = mlp(width=256)
    state = torch.load(_saved(model), weights_only=True)
    model.load_state_dict(state)
    _train(model)
    assert state


def lets_go_of_what_it_loaded() -> None:
    model = mlp(width=256)
    model.load_state_dict(torch.load(_saved(model), weights_only=True))
    _train(model)


def a_copy_from_before(reading: Reading) -> str | None:
    return _second_copy(reading, early=True)


def keeps_the_best_on_the_card() -> None:
    model, best = mlp(width=256), {}
    optimizer = sgd(model)
    for x in vectors(3):
        loss = F.cross_entropy(model(x), labels(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        best = {"loss": loss.item(), "weights": copy.deepcopy(model.state_dict())}
    assert best


def writes_the_best_to_a_file() -> None:
    model = mlp(width=256)
    optimizer = sgd(model)
    for x in vectors(3):
        loss = F.cross_entropy(model(x), labels(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        _saved(model)


def a_copy_made_later(reading: Reading) -> str | None:
    return _second_copy(reading, early=False)


def _second_copy(reading: Reading, early: bool) -> str | None:
    """As many bytes again in pieces of the weights' sizes, made before the first pass, or after the first update."""
    if not reading.death or not reading.passes:
        return None
    weights = [each for each in reading.at_death if each.account is Account.WEIGHTS]
    first = reading.passes[0].at
    later = reading.updates[0].end if reading.updates else reading.death.at + 1
    others = Counter(
        each.size_bytes for each in reading.at_death
        if each.account in (Account.TEMPORARY, Account.ACTIVATIONS)
        and (each.born < first if early else each.born >= later)
    )  # fmt: skip
    copies = sum(size * count for size, count in (others & Counter(each.size_bytes for each in weights)).items())
    if copies < 0.8 * total(weights):
        return None
    return _("beside {weights} of weights there are {copies} of tensors of the same sizes, {when}").format(
        weights=format_bytes(total(weights), "MiB"), copies=format_bytes(copies, "MiB"),
        when=_("made before the first step") if early else _("made after an update"),
    )  # fmt: skip


def frozen_weights_in_fp32() -> None:
    _train(_frozen(mlp(depth=5, width=256)), rows=128)


def frozen_weights_in_bf16() -> None:
    _train(_frozen(mlp(depth=5, width=256, dtype=torch.bfloat16)), rows=128)


def _frozen(model: nn.Sequential) -> nn.Sequential:
    """Nothing but the last layer is trained."""
    model.requires_grad_(False)
    model[-1].requires_grad_(True)
    return model


def wider_than_the_file(reading: Reading) -> str | None:
    if not reading.death:
        return None
    wide = [
        each for each in reading.at_death
        if each.account is Account.WEIGHTS and not each.trained and each.dtype == torch.float32
    ]  # fmt: skip
    if reading.share(wide) < 0.5:
        return None
    return _("{share:.0%} of what was alive are frozen weights in FP32, {size}").format(
        share=reading.share(wide), size=format_bytes(total(wide), "MiB")
    )


def autocast_to_halve_everything() -> None:
    model = gpt(width=128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches(2, rows=2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def weights_in_bf16() -> None:
    model = gpt(width=128).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for batch in batches(2, rows=2):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def autocast_leaves_what_stays(reading: Reading) -> str | None:
    last = reading.last_pass
    if not reading.death or not last or last.autocast is None:
        return None
    stays = [
        each for each in reading.at_death
        if each.account in (Account.WEIGHTS, Account.GRADIENTS, Account.OPTIMIZER) and each.dtype == torch.float32
    ]  # fmt: skip
    if reading.share(stays) < 0.5:
        return None
    return _(
        "autocast to {dtype} is on, and {share:.0%} of what was alive are weights, gradients and optimizer state in "
        "FP32"
    ).format(
        dtype=str(last.autocast).removeprefix("torch."), share=reading.share(stays)
    )  # fmt: skip


def _train(model: nn.Sequential, rows: int = 32) -> None:
    optimizer = sgd(model)
    for x in vectors(3, rows):
        F.cross_entropy(model(x.to(next(model.parameters()).dtype)), labels(x)).backward()
        optimizer.step()
        optimizer.zero_grad()


CASES = (
    Case(
        name="loaded-twice",
        branch=("out of memory", "at load, resume or save"),
        symptom=N_("A run that fitted runs out of memory when it is resumed from a checkpoint"),
        words=N_(
            "resume_from_checkpoint OOM; torch.load; map_location; load_state_dict; state dict kept; resume needs "
            "more memory"
        ),
        cause=N_(
            "the checkpoint was loaded onto the card, and the variable that holds it keeps a second copy of "
            "everything"
        ),
        change=N_('torch.load(..., map_location="cpu"), and del the dictionary after load_state_dict'),
        surer=N_(
            "memory_allocated() before the first step, against the run from scratch: more by the size of the file"
        ),
        unit="04_accumulation",
        sign=a_copy_from_before,
        broken=keeps_what_it_loaded,
        mended=lets_go_of_what_it_loaded,
        card_bytes=3 * MIB // 2,
    ),
    Case(
        name="best-on-card",
        branch=("out of memory", "at load, resume or save"),
        symptom=N_("Out of memory when, or after, the best checkpoint is saved"),
        words=N_(
            "copy.deepcopy(model); best model; state_dict clone; OOM on save; early stopping; keep the best weights; "
            "EMA"
        ),
        cause=N_("a copy of the weights is made on the card, and kept there"),
        change=N_("write it to a file, or copy it to host memory: {k: v.cpu() for k, v in model.state_dict().items()}"),
        surer=N_("memory_allocated() before and after saving: more by one set of weights"),
        unit="06_troubleshooting",
        sign=a_copy_made_later,
        broken=keeps_the_best_on_the_card,
        mended=writes_the_best_to_a_file,
        card_bytes=3 * MIB // 2,
    ),
    Case(
        name="fp32-weights",
        branch=("out of memory", "at load, resume or save"),
        symptom=N_("Loading the model takes twice its file, and frozen weights fill the card"),
        words=N_(
            "from_pretrained OOM; torch_dtype; dtype; loads in float32; 7B takes 28 GB; LoRA base in FP32; out of "
            "memory while loading"
        ),
        cause=N_("the weights were loaded in FP32, although the file has 16 bits and nobody trains them"),
        change=N_(
            "from_pretrained(..., dtype=torch.bfloat16) (torch_dtype in older versions); do not call k-bit "
            "preparation on a 16-bit model"
        ),
        surer="Counter(p.dtype for p in model.parameters())",
        unit="05_recipe_24gb_7b",
        sign=wider_than_the_file,
        broken=frozen_weights_in_fp32,
        mended=frozen_weights_in_bf16,
        sure="certain",
        card_bytes=MIB,
    ),
    Case(
        name="autocast-not-half",
        branch=("out of memory", "in a training step"),
        symptom=N_("Autocast is on, and the memory has not halved"),
        words=N_(
            "AMP memory not reduced; fp16=True no saving; bf16=True same memory; mixed precision does not halve; "
            "peak did not shrink"
        ),
        cause=N_(
            "autocast leaves weights, gradients and optimizer state in FP32, and adds 16-bit copies of the weights; "
            "only activations shrink"
        ),
        change=N_(
            "16-bit weights (pure BF16, or LoRA on a BF16 base), or 8-bit Adam; see which account is large first"
        ),
        surer=N_("bytes a parameter: 16 stay under autocast, 8 in pure BF16"),
        unit="02_mixed_precision",
        sign=autocast_leaves_what_stays,
        broken=autocast_to_halve_everything,
        mended=weights_in_bf16,
        card_bytes=11 * MIB // 2,
    ),
)
