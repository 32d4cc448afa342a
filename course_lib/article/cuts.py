"""The 24 GB recipe, LoRA, and other ways: C14, C15, C21, C22. Lesson 05 shows the same runs."""

from dataclasses import replace
from functools import cache

import torch

from course_lib.accounts import Account, Moment
from course_lib.article import Finding, finding
from course_lib.article.bills import bill_of
from course_lib.cards import find_card
from course_lib.device import device_range
from course_lib.dryrun import dry_run, dry_run_config
from course_lib.dryrun.grow import at_depth
from course_lib.dryrun.hf_model import batch_of, build_model
from course_lib.hf_config import read_config, read_model
from course_lib.i18n import _
from course_lib.ledger import Instant
from course_lib.recipe import Recipe
from course_lib.trace import Trace
from course_lib.training import make_optimizer
from course_lib.units import GB, GIB

_BACKWARD = {Moment.OPTIMIZER_STEP: Moment.BACKWARD}
MODEL = "llama-7b"
ONE = Recipe(batch=1, seq=2048)
WITHOUT_LORA = {
    "AdamW, foreach": {},
    "8-bit AdamW": {"optimizer": "adamw-8bit"},
    "8-bit AdamW, paged": {"optimizer": "paged-adamw-8bit"},
    "Adafactor": {"optimizer": "adafactor", "optimizer_impl": "forloop"},
}


@finding("C14")
def the_recipe_as_told() -> Finding:
    before = replace(ONE, precision="bf16", batch=4, accum=8)
    lora = replace(before, lora_rank=16)
    whole = replace(lora, checkpoint="block")
    precisions = ("fp32", "bf16", "amp-bf16")
    static = {each: sum(bill_of(MODEL, replace(ONE, precision=each)).static_bytes.values()) for each in precisions}
    lora_saves = bill_of(MODEL, before).peak_bytes - bill_of(MODEL, lora).peak_bytes
    kept = [bill_of(MODEL, each).at(Instant.FORWARD_END)[Account.ACTIVATIONS] for each in (lora, whole)]
    bill = bill_of(MODEL, whole)
    used = device_range(bill.peak_bytes, bill.static_bytes[Account.WEIGHTS] + bill.static_bytes[Account.OPTIMIZER])
    low, high = (size / GB for size in used)
    as_told = 56 - 50 + 6
    cases = {
        "bf16 halves what stays": static["bf16"] * 2 == static["fp32"],
        "amp-bf16 halves what stays": static["amp-bf16"] * 2 <= static["fp32"],
        "LoRA saves 50 GB": lora_saves >= 45 * GB,
        "checkpointing saves 70 %": kept[1] <= 0.3 * kept[0],
        "the parts add up": abs(as_told - 21) < 1,
        "21 GB in use on the card, 4 x 2048": low <= 21 <= high,
    }
    said = _("as told 56 - 50 + 6 = {told}; LoRA saves {lora:.1f} GB; activations {one:.1f} to {two:.1f} GB; in the "
             "end {tensors:.1f} GB of tensors, {low:.1f} to {high:.1f} on the card")  # fmt: skip
    return Finding(cases, said.format(
        told=as_told, lora=lora_saves / GB, one=kept[0] / GB, two=kept[1] / GB, tensors=bill.peak_bytes / GB,
        low=low, high=high,
    ))  # fmt: skip


@finding("C15")
def adam_for_half_a_per_cent() -> Finding:
    shape = read_model(MODEL)
    counts = {
        f"rank {rank}, {names}": shape.lora_params(rank, (names,))
        for rank, names in ((16, "attention"), (16, "all-linear"), (64, "attention"))
    }
    figures = "; ".join(f"{name}: {n / shape.params:.2%}, Adam {8 * n / 1e6:.0f} MB" for name, n in counts.items())
    return Finding({name: 8 * count < GB for name, count in counts.items()}, figures)


@cache
def all_weights_in_backward() -> Trace:
    """A step of Llama-2-7B that updates each weight, with Adafactor, as soon as its gradient is there."""

    def run(layers: int) -> Trace:
        recipe = replace(ONE, checkpoint="block")
        model, batch = build_model(read_config(MODEL), recipe, layers), batch_of(recipe)
        optimizers = {each: torch.optim.Adafactor([each], lr=1e-3, foreach=False) for each in model.parameters()}

        def update(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()  # type: ignore[index]
            optimizers[parameter].zero_grad()  # type: ignore[index]

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        trace = dry_run(model, lambda: model(**batch).loss.backward())
        # Here an update is a part of the backward pass, not a moment of its own.
        events = (event._replace(moment=_BACKWARD.get(event.moment, event.moment)) for event in trace.events)
        return Trace(tuple(events), trace.static_bytes)

    return at_depth(run, read_model(MODEL).layers)


@finding("C21")
def lora_as_a_precondition() -> Finding:
    card, run = find_card("RTX 3090"), replace(ONE, checkpoint="block")
    peaks = {name: bill_of(MODEL, replace(run, **change)).peak_bytes for name, change in WITHOUT_LORA.items()}  # type: ignore[arg-type]
    peaks["Adafactor in the backward pass"] = all_weights_in_backward().peak_bytes
    figures = ", ".join(f"{name} {size / GIB:.1f}" for name, size in peaks.items())
    said = _("all weights of Llama-2-7B in BF16, peak in GiB: {figures}; {card} has {usable:.1f}")
    return Finding(
        {name: size > card.usable_bytes for name, size in peaks.items()},
        said.format(figures=figures, card=card.name, usable=card.usable_bytes / GIB),
    )


@cache
def last_blocks_trained(top: int) -> Trace:
    """A step of Llama-2-7B that trains its last ``top`` blocks and freezes the rest, without adapters."""
    model, batch = build_model(read_config(MODEL), ONE, read_model(MODEL).layers), batch_of(ONE)
    model.requires_grad_(False)
    for block in model.model.layers[-top:]:  # type: ignore[index,union-attr]
        block.requires_grad_(True)
    optimizer = make_optimizer(model, ONE)

    def step() -> None:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return dry_run(model, step, optimizer)


@cache
def adapters_trained() -> Trace:
    """A step of Llama-2-7B with adapters of rank 16 in the attention of every block."""
    return dry_run_config(read_config(MODEL), replace(ONE, lora_rank=16))


@finding("C22")
def freezing_and_lora() -> Finding:
    frozen, lora = last_blocks_trained(2).end_of(Moment.FORWARD), adapters_trained().end_of(Moment.FORWARD)
    accounts = (Account.WEIGHTS, Account.OPTIMIZER, Account.ACTIVATIONS)
    cases = {f"the same {account}": abs(frozen[account] / lora[account] - 1) < 0.1 for account in accounts}
    said = _("last 2 blocks alone: optimizer {a:.2f}, activations {b:.2f} GB; LoRA in all: {c:.2f}, {d:.2f} GB")
    sizes = [each[account] / GB for each in (frozen, lora) for account in accounts[1:]]
    return Finding(cases, said.format(**dict(zip("abcd", sizes, strict=True))))
