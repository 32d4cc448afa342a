"""The mistakes of exercise 1 outside of measuring (those are in :mod:`.peak_mistakes`), and how each of them shows.

A row says which facts would come instead of the right ones; facts that it leaves out would be right.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from course_lib.exercises.judge import Facts, Mistake, Near, Raised
from course_lib.i18n import N_
from course_lib.units import GB, GIB

ROOM = 0.02

# --- static_bytes -----------------------------------------------------------------------------------------------------


def _stored(recipes: Sequence[str], *layouts: Sequence[int]) -> Any:
    """``static_bytes`` with another number of bytes a parameter for weights, gradients and optimizer."""

    def shows(case: Any) -> Iterator[Facts]:
        sizes, accounts = case
        for layout in layouts:
            yield {
                f'static_bytes({count}, "{recipe}")': {
                    name: each * count for name, each in zip(accounts, layout, strict=True)
                }
                for count in sizes
                for recipe in recipes
            }

    return shows


STATIC = (
    Mistake("autocast-stores-16-bit",
            N_("you let autocast store 16-bit numbers. It casts copies for single operations; what is stored "
               "(weights, gradients, Adam's moments) stays FP32. Give amp-bf16 the bytes of fp32"),
            "02_mixed_precision", _stored(["amp-bf16"], (2, 2, 4), (2, 2, 8), (2, 4, 8), (2, 2, 12))),
    Mistake("cast-copies-are-stored",
            N_("you counted autocast's cast copies of the weights as stored. They are temporary: they go when the "
               "region and its backward pass end"),
            "02_mixed_precision", _stored(["amp-bf16"], (6, 4, 8), (6, 6, 8))),
    Mistake("gradients-in-16-bit",
            N_("you gave amp-bf16 16-bit gradients. A gradient has the type of its weight, and autocast leaves the "
               "weights in FP32: 4 bytes"),
            "02_mixed_precision", _stored(["amp-bf16"], (4, 2, 8), (4, 2, 4))),
    Mistake("one-moment",
            N_("Adam keeps two numbers for each parameter, the mean of its gradient and the mean of its square; you "
               "counted one. Count both"),
            "01_ledger", lambda case: ({**one, **other} for one, other in zip(
                _stored(["fp32", "amp-bf16"], (4, 4, 4))(case), _stored(["bf16"], (2, 2, 2))(case), strict=True))),
    Mistake("moments-stay-fp32",
            N_("in pure BF16 PyTorch's AdamW makes its moments like the parameters, in BF16: 2 + 2 bytes. FP32 "
               "moments or copies belong to another layout (master weights)"),
            "01_ledger", _stored(["bf16"], (2, 2, 8), (2, 4, 8), (2, 2, 12), (2, 4, 12))),
    Mistake("unknown-recipe-taken",
            N_("an unknown recipe must end in a ValueError: ask for it before anything else, and raise ValueError with "
               "a message"),
            "01_ledger", lambda case: ({'static_bytes(1000, "int3")': answer} for answer in (
                *({name: each * 1000 for name, each in zip(case[1], layout, strict=True)}
                  for layout in ((4, 4, 8), (2, 2, 4))), None, {}, Raised("KeyError"), Raised("UnboundLocalError")))),
)  # fmt: skip


# --- verdict ----------------------------------------------------------------------------------------------------------

SIXTEEN_BIT = ("amp-bf16", "bf16")
Verdict = dict[str, Any]


def verdict_fact(key: str, more: int) -> str:
    size = "half of fp32's" if not more else "a byte above half of fp32's"
    return f'verdict(…)["{key}"], static bf16 {size}'


def right_verdict(sums: Mapping[str, int], peaks: Mapping[str, int]) -> Verdict:
    return {
        "static_halves": {recipe: sums[recipe] * 2 <= sums["fp32"] for recipe in SIXTEEN_BIT},
        "peak_ratio": {recipe: Near(peaks[recipe] / peaks["fp32"]) for recipe in SIXTEEN_BIT},
    }


def _halves(rule: Any) -> Any:
    return lambda cases: ({verdict_fact("static_halves", more): {recipe: rule(recipe, sums, peaks)
                           for recipe in SIXTEEN_BIT} for more, sums, peaks in cases},)  # fmt: skip


def _ratio(rule: Any) -> Any:
    return lambda cases: ({verdict_fact("peak_ratio", more): {recipe: Near(rule(recipe, sums, peaks))
                           for recipe in SIXTEEN_BIT} for more, sums, peaks in cases},)  # fmt: skip


def _with_fp32(cases: Any) -> Iterable[Facts]:
    for ratio, halves in ((True, True), (True, False), (False, True)):
        yield {verdict_fact(key, more): {"fp32": Near(1.0) if key == "peak_ratio" else False, **value}
               for more, sums, peaks in cases for key, value in right_verdict(sums, peaks).items()
               if (ratio if key == "peak_ratio" else halves)}  # fmt: skip


VERDICT = (
    Mistake("ratio-upside-down",
            N_("the ratio is the wrong way round: divide the recipe's peak by fp32's, so that less memory is below 1"),
            "02_mixed_precision", _ratio(lambda recipe, sums, peaks: peaks["fp32"] / peaks[recipe])),
    Mistake("ratio-of-static-bytes",
            N_("this is the ratio of static bytes. The peak also holds activations and temporaries: divide peaks"),
            "02_mixed_precision", _ratio(lambda recipe, sums, peaks: sums[recipe] / sums["fp32"])),
    Mistake("saving-not-ratio",
            N_("this is the share that is saved (1 − ratio). Return what remains: the recipe's peak ÷ fp32's"),
            "02_mixed_precision", _ratio(lambda recipe, sums, peaks: 1 - peaks[recipe] / peaks["fp32"])),
    Mistake("halves-from-peaks",
            N_("static_halves was decided by the peaks. It asks what is stored: compare the sums of static bytes"),
            "02_mixed_precision", _halves(lambda recipe, sums, peaks: peaks[recipe] * 2 <= peaks["fp32"])),
    Mistake("half-is-not-enough",
            N_("exactly half counts as halved: at most half, so <= and not <"),
            "02_mixed_precision", _halves(lambda recipe, sums, peaks: sums[recipe] * 2 < sums["fp32"])),
    Mistake("about-half",
            N_("half is not about half: a byte more than half of fp32's sum is not halved"),
            "02_mixed_precision", _halves(lambda recipe, sums, peaks: sums[recipe] * 2 <= sums["fp32"] * 1.1)),
    Mistake("fp32-among-them",
            N_("the answer has an entry for fp32, too. Give the two 16-bit recipes alone: amp-bf16 and bf16"),
            "02_mixed_precision", _with_fp32),
)  # fmt: skip


# --- the student's own configuration ----------------------------------------------------------------------------------

OWN = (
    Mistake("gb-for-gib",
            N_("that is GB, of 10**9 bytes. A GiB has 2**30, 7 % more: divide by 2**30"),
            "01_ledger", lambda peaks: ({name: Near(value * GIB / GB, ROOM / 4) for name, value in peaks.items()},)),
    Mistake("mib-for-gib",
            N_("that is MiB. Divide by 2**30"),
            "01_ledger", lambda peaks: ({name: Near(value * 1024, ROOM) for name, value in peaks.items()},)),
    Mistake("autocast-halves-everything",
            N_("you took half of the fp32 peak. Measure it: autocast leaves weights, gradients and Adam's state as "
               "they are"),
            "02_mixed_precision", lambda peaks: ({"amp-bf16": Near(peaks["fp32"] / 2, ROOM)},)),
    Mistake("recipes-swapped",
            N_("the two peaks are swapped, or the recipe is not passed on to measure_peak"),
            "02_mixed_precision", lambda peaks: (
                {"fp32": Near(peaks["amp-bf16"], ROOM), "amp-bf16": Near(peaks["fp32"], ROOM)},
                {"amp-bf16": Near(peaks["fp32"], ROOM)}, {"fp32": Near(peaks["amp-bf16"], ROOM)})),
)  # fmt: skip

REASON = (
    Mistake("autocast-halves-everything",
            N_("C would be pure BF16. Under autocast what is stored stays FP32; only activations become smaller"),
            "02_mixed_precision", lambda case: ({"reason": "C"},)),
    Mistake("copies-cost-more",
            N_("D: the cast copies are there, but here they cost less than autocast saves, or are gone when the peak "
               "falls in the optimizer's step. Look at the two peaks again"),
            "02_mixed_precision", lambda case: ({"reason": "D"},)),
    Mistake("wrong-moment",
            N_("A and B differ in the moment of the fp32 peak. In the optimizer's step no activation is alive; in "
               "the forward and backward pass they are"),
            "01_ledger", lambda right: ({"reason": letter} for letter in ("A", "B") if right != "D")),
    Mistake("copies-left-out",
            N_("autocast raises this peak: with few tokens, the 16-bit copies that it makes of all weights are more "
               "than it saves. Compare your two peaks"),
            "02_mixed_precision", lambda right: ({"reason": letter} for letter in ("A", "B") if right == "D")),
)  # fmt: skip
