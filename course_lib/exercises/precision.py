"""Exercise 1, is the peak halved by BF16: what each function promises, and how that is seen.

The names of mistakes are in :mod:`course_lib.exercises.precision_mistakes`.
"""

import gc
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from course_lib.accounts import Moment
from course_lib.exercises import peak_mistakes
from course_lib.exercises import precision_mistakes as mistakes
from course_lib.exercises.bench import RECIPES, Reading, Size, on_pretend_card, peak_of, trace_of, wide_and_long
from course_lib.exercises.judge import Broken, Near, Promise, Raised, judge, observe, refuse_stubs, same
from course_lib.exercises.pretend_card import pretend_card
from course_lib.exercises.witness import MeasurePeak, Seen, Witness
from course_lib.i18n import N_, _
from course_lib.models import GPT, GPTConfig
from course_lib.units import GIB

AS_ON_CPU = "as on the CPU"
ROOM = 0.02  #: by which a measured peak may differ: what a step holds besides can be held a little longer
BYTES = {"fp32": (4, 4, 8), "amp-bf16": (4, 4, 8), "bf16": (2, 2, 4)}
ACCOUNTS = ("weights", "gradients", "optimizer")
#: The example in the exercise's text, which is nobody's own configuration.
EXAMPLE = GPTConfig(vocab=4096, layers=4, heads=8, width=512, block_size=256)


def some_sizes(seed: int) -> tuple[int, ...]:
    """Numbers of parameters: one, GPT-2's, and two drawn up to ten billion."""
    draw = torch.Generator().manual_seed(seed)
    return 1, 124_439_808, *(int(each) for each in torch.randint(10**6, 10**10, (2,), generator=draw))


def some_numbers(seed: int) -> tuple[int, int, int, int]:
    """For :func:`check_verdict`: parameters, and the peaks of fp32, autocast and BF16."""
    draw = torch.Generator().manual_seed(seed)
    count, thousand, more = (int(each) for each in torch.randint(100, 1000, (3,), generator=draw))
    fp32 = 100 * thousand
    return 10_007 * count, fp32, fp32 * 3 // 4 + more, fp32 * 21 // 40 + more


def check_static(
    static_bytes: Callable[[int, str], Any], asked: tuple[str, ...], sizes: tuple[int, ...] = (1000,)
) -> None:
    """``static_bytes`` for the recipes in ``asked``, and that it refuses an unknown one."""
    right: dict[str, Any] = {}
    came: dict[str, Any] = {}
    for count in sizes:
        for recipe in RECIPES:
            fact = f'static_bytes({count}, "{recipe}")'
            right[fact] = {name: each * count for name, each in zip(ACCOUNTS, BYTES[recipe], strict=True)}
            came[fact] = observe(static_bytes, count, recipe)
    refusal = 'static_bytes(1000, "int3")'
    right[refusal], came[refusal] = Raised("ValueError"), observe(static_bytes, 1000, "int3")
    promise = Promise(
        f"static_bytes, {', '.join(asked)}",
        lambda fact: fact.rpartition(", ")[2].strip('")') in asked or (fact == refusal and "fp32" in asked),
        N_("a missing account. Write down for one parameter: its weight, its gradient, and what Adam keeps of it "
           "(two moments, in the weight's type); then multiply by the number of parameters"),
        "01_ledger",
    )  # fmt: skip
    judge(promise, came, right, mistakes.STATIC, (sizes, ACCOUNTS))


def check_peak(measure_peak: MeasurePeak, seed: int = 0, model: type[nn.Module] = GPT) -> None:
    """The peak of an fp32 step: at the optimizer's step for one model, in the backward pass for the other."""
    wide, long = wide_and_long(seed, model)
    case = peak_mistakes.Asked({f"fp32, {device}, {size}": (size, device) for size, device in
                           ((wide, "cpu"), (long, "cpu"), (wide, "meta"))}, {})  # fmt: skip
    right: dict[str, Any] = {peak_mistakes.OPTIMIZER: peak_mistakes.ADAMW}
    for fact, (size, device) in case.facts.items():
        witness = Witness(size, device)
        case.came[fact] = witness.ask(measure_peak, "fp32")
        case.came[peak_mistakes.OPTIMIZER] = witness.optimizer
        right[fact] = Near(peak_of(size, "fp32", device), ROOM, "B")
    promise = Promise(
        "measure_peak, fp32", lambda fact: True,
        N_("a step that is not whole, or not the second one. In this order: make the model and a foreach AdamW; run "
           "one step, which creates Adam's state; zero_grad(); then measure forward, backward and step() together"),
        "01_ledger",
    )  # fmt: skip
    judge(promise, case.came, right, peak_mistakes.PEAK, case)


def check_recipes(measure_peak: MeasurePeak, seed: int = 0, model: type[nn.Module] = GPT) -> None:
    """What the model sees in the two 16-bit recipes; their peaks, too, where the fp32 peak was right."""
    long = wide_and_long(seed, model)[1]
    fp32 = Witness(long, "cpu").ask(measure_peak, "fp32")
    case = peak_mistakes.Asked({}, {})
    right: dict[str, Any] = {}
    for recipe, device in (("amp-bf16", "cpu"), ("bf16", "cpu"), ("amp-bf16", "meta")):
        witness, fact = Witness(long, device), f"{recipe}, {device}, {long}"
        peak = witness.ask(measure_peak, recipe)
        if same(fp32, Near(peak_of(long, "fp32", "cpu"), ROOM)):  # what went wrong before is not to be paid twice
            case.facts[fact] = (long, device)
            case.came[fact], right[fact] = peak, Near(peak_of(long, recipe, device), ROOM, "B")
        seen = witness.seen or Seen("none", "none", 0)
        right[peak_mistakes.weights_in(recipe, device)] = "torch.bfloat16" if recipe == "bf16" else "torch.float32"
        case.came[peak_mistakes.weights_in(recipe, device)] = seen.weights
        if recipe != "bf16":
            right[peak_mistakes.autocast_in(recipe, device)] = "torch.bfloat16"
            case.came[peak_mistakes.autocast_in(recipe, device)] = seen.autocast
        if isinstance(peak, Raised):
            right[f"{recipe}, {device}"], case.came[f"{recipe}, {device}"] = "a number of bytes", peak
    promise = Promise(
        "measure_peak, amp-bf16, bf16", lambda fact: True,
        N_("a recipe that is not what it says. amp-bf16: forward and loss inside torch.autocast(device type, "
           "dtype=torch.bfloat16), the model as it is. bf16: model.bfloat16(), no autocast"),
        "02_mixed_precision",
    )  # fmt: skip
    judge(promise, case.came, right, peak_mistakes.RECIPE, case)


def check_released(measure_peak: MeasurePeak, seed: int = 0, model: type[nn.Module] = GPT) -> None:
    """A second measurement knows nothing of the first: on the CPU, and on a pretend card with CUDA's counters."""
    wide = wide_and_long(seed, model)[0]
    smaller = wide._replace(name="smaller", config=GPTConfig(vocab=8, layers=1, width=48, heads=4, block_size=16))
    right: dict[str, Any] = {peak_mistakes.OTHERS: 0}
    case = peak_mistakes.Asked({}, {})
    sizes = {"first": wide, "then": smaller}
    gc.collect()
    gc.freeze()  # what is there now need not be looked at again and again
    try:
        own = {before: Witness(size, "cpu").ask(measure_peak, "fp32") for before, size in reversed(sizes.items())}
        witness = Witness(wide, "cpu")
        for recipe in ("fp32", "bf16"):
            gc.collect()  # a model in a reference cycle is no one's fault
            witness.ask(measure_peak, recipe)
        case.came[peak_mistakes.OTHERS] = witness.seen.others_alive if witness.seen else _("not measured")
        with pretend_card():
            for before, size in sizes.items():
                fact = f"{before} fp32, {peak_mistakes.ON_CARD}, {size}"
                gc.collect()
                peak = Witness(size, "cuda").ask(measure_peak, "fp32")
                if isinstance(peak, Raised) and "cuda" in peak.text.lower():
                    continue  # it asks the card for what the pretend one has not
                as_on_cpu = _alike(peak, own[before]) and not _alike(own["first"], own["then"])
                case.facts[fact] = (size, "cuda")
                case.came[fact] = AS_ON_CPU if as_on_cpu else peak  # what is wrong with both was judged there
    finally:
        gc.unfreeze()
    for fact, (size, _device) in case.facts.items():
        right[fact] = Near(on_pretend_card(size, "fp32")[0], ROOM, "B")
        if case.came[fact] == AS_ON_CPU:
            case.came[fact] = right[fact]
    promise = Promise(
        _("measure_peak, called again, and on a card"), lambda fact: True,
        N_("something older that is still there. On CUDA: reset_peak_memory_stats() just before the step, "
           "max_memory_allocated() just after it; no model, list or global keeps what an earlier call made"),
        "01_ledger",
    )  # fmt: skip
    judge(promise, case.came, right, peak_mistakes.RELEASED, case)


def _alike(one: Any, other: Any) -> bool:
    return isinstance(one, int | float) and isinstance(other, int | float) and same(one, Near(other, ROOM))


def check_verdict(verdict: Callable[..., Any], numbers: tuple[int, ...] = (1000, 3000, 2400, 1400)) -> None:
    """``verdict`` on made-up peaks: fp32, autocast and BF16 ones; the fourth is an autocast peak below a half."""
    count, fp32, amp, bf16 = numbers[0], *numbers[1:]
    right: dict[str, Any] = {}
    came: dict[str, Any] = {}
    cases = []
    for more in (0, 1):  # exactly half of fp32's static bytes, and a byte more
        static = {recipe: {name: each * count for name, each in zip(ACCOUNTS, BYTES[recipe], strict=True)}
                  for recipe in RECIPES}  # fmt: skip
        static["bf16"]["optimizer"] += more
        peaks = {"fp32": fp32, "amp-bf16": amp if more else fp32 * 2 // 5, "bf16": fp32 * 3 // 5 if more else bf16}
        sums = {recipe: sum(static[recipe].values()) for recipe in RECIPES}
        cases.append((more, sums, peaks))
        said = observe(verdict, static, peaks)
        for key, value in mistakes.right_verdict(sums, peaks).items():
            fact = mistakes.verdict_fact(key, more)
            right[fact] = value
            came[fact] = said.get(key, "nothing") if isinstance(said, Mapping) else said
    promise = Promise(
        "verdict", lambda fact: True,
        N_("a division the wrong way round, or a comparison with the wrong sum. static_halves compares sums of static "
           "bytes, peak_ratio divides peaks by fp32's peak; both have the keys amp-bf16 and bf16"),
        "02_mixed_precision",
    )  # fmt: skip
    judge(promise, came, right, mistakes.VERDICT, cases)


def check_own_peaks(config: Any, batch: Any, length: Any, fp32_gib: Any, amp_gib: Any) -> None:
    """The two peaks of the student's own configuration, in GiB."""
    size = _own_size(config, batch, length)
    came = {"fp32": fp32_gib, "amp-bf16": amp_gib}
    refuse_stubs(_("your configuration"), *came.values())
    right = _own_peaks(size, Reading())
    if not same(came, right):  # whether a step keeps a name on its logits is the student's choice
        held = _own_peaks(size, Reading(logits_held=True), ROOM / 2)  # GB for GiB may come near
        right = held if same(came, held) else right
    promise = Promise(
        _("your configuration"), lambda fact: True,
        N_('other sizes than those in the cell, or another unit. Measure your configuration on "meta" with your own '
           "measure_peak, and divide the bytes by 2**30"),
        "02_mixed_precision", tells=False,
    )  # fmt: skip
    judge(
        promise,
        came,
        right,
        mistakes.OWN,
        {name: near.value for name, near in right.items()},
    )


def _own_peaks(size: Size, reading: Reading, room: float = ROOM) -> dict[str, Near]:
    return {recipe: Near(peak_of(size, recipe, "meta", reading) / GIB, room, "GiB") for recipe in ("fp32", "amp-bf16")}


def check_own_reason(config: Any, batch: Any, length: Any, reason: Any) -> None:
    """Why autocast lowers that peak, or does not: by the two peaks, and the moments in which they fall."""
    size = _own_size(config, batch, length)
    traces = {recipe: trace_of(size, recipe, "meta") for recipe in ("fp32", "amp-bf16")}
    right = "A" if traces["fp32"].peak_moment is Moment.OPTIMIZER_STEP else "B"
    if traces["amp-bf16"].peak_bytes > 1.005 * traces["fp32"].peak_bytes:  # not a scalar more or less
        right = "D"
    promise = Promise(
        _("your reason (fp32 peak in {one}, amp-bf16 peak in {other})").format(
            one=traces["fp32"].peak_moment, other=traces["amp-bf16"].peak_moment
        ),
        lambda fact: True,
        N_("a reason that belongs to another moment of the step. Ask which accounts are alive at the fp32 peak, and "
           "which of them autocast makes smaller"),
        "02_mixed_precision", tells=False,
    )  # fmt: skip
    judge(promise, {"reason": reason}, {"reason": right}, mistakes.REASON, right)


def _own_size(config: Any, batch: Any, length: Any) -> Size:
    """The student's configuration, if it is one.

    Raises:
        Broken: it is not, is the example's, or too large to be measured quickly.
    """

    def refuse(what: str) -> None:
        raise Broken(f"✗ {what}")

    refuse_stubs(_("your configuration"), config, batch, length)
    if not isinstance(config, GPTConfig) or not all(type(each) is int and each > 0 for each in (batch, length)):
        refuse(_("expected my_config = GPTConfig(...), my_batch and my_length whole numbers from 1; got {came}").format(
            came=(config, batch, length)))  # fmt: skip
    if config == EXAMPLE:
        refuse(_("this is the example's configuration: change at least the number of layers or the width"))
    if config.layers > 24 or length > config.block_size or batch * length > 2**17:
        refuse(_("expected at most 24 layers, 131,072 tokens in a batch, and my_length at most block_size; got "
                 "{layers} layers, {tokens:,} tokens, my_length {length} with block_size {block}").format(
            layers=config.layers, tokens=batch * length, length=length, block=config.block_size))  # fmt: skip
    size = Size("yours", config, batch, length)
    if not 10**6 <= size.parameters <= 10**10:
        refuse(_("expected between a million and ten billion parameters, got {count:,}").format(count=size.parameters))
    return size
