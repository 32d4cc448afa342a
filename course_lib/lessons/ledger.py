"""The tasks of lesson 01_ledger: what a card can train, where a peak falls, bills by hand."""

from dataclasses import replace
from typing import Any

from course_lib import ledger
from course_lib.cards import find_card
from course_lib.hf_config import read_model
from course_lib.i18n import N_, _
from course_lib.recipe import Recipe
from course_lib.shape import ModelShape
from course_lib.tasks import expect, task
from course_lib.units import GIB

#: The run of the first task, but for the batch, which is what is asked for.
LORA_RUN = Recipe(precision="bf16", lora_rank=16, checkpoint="block", seq=2048)


@task(
    N_("Set the explorer to the run and move the batch until the verdict changes."),
    N_("'fits' is promised only where the high end of the range fits, allocator slack and context included."),
    N_("Or in code: ledger.predict(llama, Recipe(..., batch=n)).peak_bytes for n = 1, 2, 4, 8, 16."),
)
def largest_batch(answer: Any) -> str:
    """The largest power of two that surely fits an RTX 3090; the next one is tight."""
    verdicts = {batch: _verdict_on_3090(batch) for batch in (1, 2, 4, 8, 16, 32, 64)}
    right = max(batch for batch, verdict in verdicts.items() if verdict == "fits")
    causes = {
        batch: _("there is room for more")
        if batch < right
        else _("that is only tight: it runs if the allocator wastes little")
        if verdict == "tight"
        else _("that does not fit")
        for batch, verdict in verdicts.items()
        if batch != right
    }
    expect(answer, right, "largest_batch", causes=causes, shown=_("another power of two"))
    return _("Twice as much is 'tight': it may run for days and then fail on a fragmented card.")


@task(
    N_("Keep a running total of all changes, and look at it after each event."),
    N_("Whenever the total is higher than the highest so far, remember it together with its moment."),
    N_("total = highest = 0; for moment, change in events: total += change; if total > highest: ..."),
)
def peak_of(answer: Any) -> str:
    """``peak_of(events)`` is the highest running total and its moment."""
    small = [("load", 10), ("forward", 4), ("forward", 3), ("backward", 2), ("backward", -7), ("optimizer_step", 4)]
    causes = {
        (23, "optimizer_step"): _("what was freed counts, too: the bytes come back off"),
        (16, "optimizer_step"): _("that is what is left at the end, not the most there was"),
        (10, "load"): _("that is the largest single event; the peak is of the running total"),
        (9, "backward"): _("weights that were loaded before the step count as well"),
        19: _("return two things: the bytes and the moment"),
    }
    expect(answer(small), (19, "backward"), "peak_of(...)", causes=causes)
    twice = [("load", 5), ("forward", 2), ("backward", -2), ("backward", 2)]
    expect(answer(twice), (7, "forward"), "peak_of(...)", cause=_("the peak is where the total was that high first"))
    expect(answer([*small, ("optimizer_step", 9), ("optimizer_step", -9)]), (25, "optimizer_step"), "peak_of(...)")
    return _("That is the whole of a Trace; the rest is knowing which bytes to count.")


#: Facts of the mBART run: elements in all, and in its largest tensor, the embedding of [250027, 1024].
MBART_PARAMS, MBART_EMBEDDING = 610.85e6, 250027 * 1024


@task(
    N_("Four accounts: parameters times bytes each. FP16 has 2 bytes, FP32 has 4."),
    N_("Adam has two moments for every parameter, and here both are in FP32."),
    N_("The update was working on the embedding: two FP32 tensors of its size were alive. GiB means 2**30."),
)
def mbart_bill(answer: Any) -> str:
    """The bill of fairseq's mBART run at its death, in GiB."""
    right = {
        "weights": 2 * MBART_PARAMS / GIB,
        "gradients": 2 * MBART_PARAMS / GIB,
        "optimizer": 8 * MBART_PARAMS / GIB,
        "temporary": 2 * 4 * MBART_EMBEDDING / GIB,
    }
    if not isinstance(answer, dict) or set(answer) != set(right):
        expect(answer, right, "bill_gib", shown=_("a dict with the keys {keys}").format(keys=", ".join(right)))
    causes = {
        "weights": {4 * MBART_PARAMS / GIB: _("that is FP32; this run keeps weights in FP16")},
        "gradients": {4 * MBART_PARAMS / GIB: _("that is FP32; this run keeps gradients in FP16")},
        "optimizer": {
            4 * MBART_PARAMS / GIB: _("Adam has two moments, m and v"),
            12 * MBART_PARAMS / GIB: _("memory-efficient FP16 keeps no FP32 copy of the weights"),
        },
        "temporary": {
            4 * MBART_EMBEDDING / GIB: _("two such tensors were alive, and the third was refused"),
            12 * MBART_EMBEDDING / GIB: _("the third one was refused, so it was never allocated"),
            4 * MBART_PARAMS / GIB: _("that is a foreach temporary; this optimizer takes one tensor at a time"),
        },
    }
    for account, expected in right.items():
        more = {expected * GIB: _("that is in bytes"), expected * GIB / 1e9: _("that is GB, of 10**9 bytes")}
        expect(
            answer[account], expected, account, "GiB", rel=0.005, causes={**causes[account], **more},
            shown=_("another size"),
        )  # fmt: skip
    total = sum(right.values())
    return _("Together {total:.2f} GiB: to the second decimal what PyTorch reported as allocated.").format(total=total)


@task(
    N_("Each layer keeps two tensors, K and V, for every token of every sequence."),
    N_("Each has kv_heads x head_dim numbers a token, of 2 bytes in BF16."),
    N_("2 x layers x kv_heads x head_dim x batch x seq x 2 bytes"),
)
def kv_cache_bytes(answer: Any) -> str:
    """``kv_cache_bytes(shape, batch, seq)`` in BF16; with grouped-query attention fewer heads are kept."""
    for name, batch, seq in (("llama-7b", 1, 2048), ("llama3-8b", 8, 4096), ("qwen2.5-0.5b", 3, 100)):
        shape = read_model(name)
        right = _kv_cache(shape, batch, seq)
        causes = {
            right // 2: _("both K and V are kept, or: BF16 has 2 bytes"),
            right * 2: _("BF16 has 2 bytes, not 4"),
            right // shape.layers: _("every layer keeps its own"),
            right // batch: _("every sequence of the batch keeps its own"),
            right * shape.heads // shape.kv_heads: _("this model shares key and value heads: kv_heads, not heads"),
        }
        causes.pop(right, None)
        expect(answer(shape, batch, seq), right, f"kv_cache_bytes({name}, {batch}, {seq})", "B", causes=causes)
    return _("Grouped-query attention exists for this line: a quarter of the heads is a quarter of the cache.")


def _kv_cache(shape: ModelShape, batch: int, seq: int) -> int:
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * batch * seq * 2


def _verdict_on_3090(batch: int) -> str | None:
    return ledger.report(read_model("llama-7b"), replace(LORA_RUN, batch=batch), find_card("RTX 3090")).verdict
