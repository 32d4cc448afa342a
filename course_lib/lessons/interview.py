"""The tasks of lesson 07_interview: what one answers on the back of an envelope."""

from typing import Any

from course_lib import ledger
from course_lib.accounts import Account
from course_lib.hf_config import read_model
from course_lib.i18n import N_, _
from course_lib.interview.figures import zero
from course_lib.recipe import Recipe
from course_lib.tasks import expect, task
from course_lib.units import GB

RECIPES = {
    "fp32": Recipe(precision="fp32"),
    "amp-bf16": Recipe(precision="amp-bf16"),
    "bf16": Recipe(precision="bf16"),
    "lora": Recipe(precision="bf16", lora_rank=16),
}
#: Runs of which the reader names the account that is largest at the peak.
RUNS = {
    "A": ("llama-7b", Recipe(precision="bf16", seq=2048)),
    "B": ("gpt2", Recipe(precision="fp32", batch=32, seq=1024)),
    "C": ("qwen2.5-0.5b", Recipe(precision="bf16", optimizer_impl="fused", checkpoint="block", batch=4, seq=2048)),
    "D": ("llama-7b", Recipe(precision="bf16", lora_rank=16, checkpoint="block", seq=2048)),
}


@task(
    N_("How many bytes does one parameter take for its weight, its gradient and Adam's two moments?"),
    N_("A billion parameters of one byte are one GB: bytes a parameter times billions is the answer in GB."),
    N_("16, 16 and 8 times the billions; with LoRA the frozen weights alone, 2 times."),
)
def stays_gb(answer: Any) -> str:
    """``stays_gb(billions, recipe)`` is within 5 % of the ledger, for 7B, 13B and 70B."""
    for model in ("llama-7b", "llama-13b", "llama-70b"):
        shape = read_model(model)
        for name, recipe in RECIPES.items():
            right = sum(ledger.predict(shape, recipe).static_bytes.values()) / GB
            billions = shape.params / 1e9
            causes = {
                8 * billions: _("autocast keeps FP32: 4 bytes each for weight, gradient and both moments"),
                12 * billions: _("one bill is missing: weight, gradient, and two moments"),
                2 * billions: _("that is the weights alone; gradients and Adam's moments stay as well"),
            }
            expect(
                answer(billions, name), right, f"stays_gb({billions:.1f}, {name!r})", "GB", rel=0.05,
                causes={wrong: why for wrong, why in causes.items() if abs(wrong / right - 1) > 0.05},
                shown=_("another number"),
            )  # fmt: skip
    return _("Said aloud in three seconds, and within five per cent of the ledger.")


@task(
    N_("In which moment is each peak: the optimizer step, or the backward pass? What is alive there?"),
    N_("A: the step. B: many tokens through a small model. C: 152,000 words. D: what LoRA leaves alone."),
    N_("ledger.predict(read_model(...), Recipe(...)).at_peak says it for each."),
)
def owner_of_the_peak(answer: Any) -> str:
    """The largest account at the peak of four runs."""
    for name, (model, recipe) in RUNS.items():
        at_peak = ledger.predict(read_model(model), recipe).at_peak
        right = max(at_peak, key=lambda account: at_peak[account])
        causes = {
            Account.ACTIVATIONS.value: _("they are gone in the optimizer step, and checkpointing leaves few of them"),
            Account.GRADIENTS.value: _("they are never more than weights of the same type"),
            Account.WEIGHTS.value: _("look at what stands beside them at that moment"),
        }
        came = answer.get(name) if isinstance(answer, dict) else answer
        expect(came, right.value, name, causes=causes, shown=_("another account"))
    return _("Four runs, four owners, four remedies: that is why the bill comes before the remedy.")


@task(
    N_("Of the 16 bytes a parameter, which are shared out: 12 of the optimizer, 2 of the gradients, 2 of the weights?"),
    N_("Stage 1 divides 12 by the cards, stage 2 divides 14, stage 3 all 16. What is not divided stays whole."),
    N_("Stage 1 is params * (2 + 2 + 12 / cards); each further stage moves one more term under the division."),
)
def zero_bytes(answer: Any) -> str:
    """``zero_bytes(params, stage, cards)`` gives the figures of the ZeRO paper, stages 0 to 3."""
    for params, cards in ((7.5e9, 64), (1e9, 4)):
        for stage in range(4):
            expect(
                answer(params, stage, cards) / GB, zero(params, stage, cards) / GB,
                f"zero_bytes({params:g}, {stage}, {cards})", "GB", rel=1e-3,
                causes={params * 16 / cards / GB: _("that divides everything, as stage 3 does")} if stage < 3 else None,
                shown=_("another size"),
            )  # fmt: skip
    return _("7.5B on 64 cards: 120, 31.4, 16.6 and 1.9 GB, as in the paper's first figure.")
