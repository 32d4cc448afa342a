"""The tasks of lesson 04_accumulation: a window's loss, its scale, and a micro-batch for a card."""

from dataclasses import replace
from typing import Any

from course_lib import ledger
from course_lib.cards import find_card
from course_lib.hf_config import read_model
from course_lib.i18n import N_, _
from course_lib.recipe import Recipe
from course_lib.tasks import expect, task

#: The run of the second task, but for batch and accum, which are what is asked for.
RUN = Recipe(precision="amp-fp16", seq=1024)
SEQUENCES = 64


@task(
    N_("The big batch divides once: all losses by all tokens."),
    N_("A micro-batch does not know how many tokens the others have. You do: sum(counts)."),
    N_("In code: [total / sum(counts) for total in sums]"),
)
def window_losses(answer: Any) -> str:
    """``window_losses(sums, counts)``: what each micro-batch puts into backward()."""
    sums, counts = [6.0, 40.0, 2.0], [3, 16, 1]
    causes = {
        (2.0, 2.5, 2.0): _("each is divided by its own tokens, and the average is not there yet"),
        (2 / 3, 2.5 / 3, 2 / 3): _("a mean of means: the micro-batch of one token counts as much as that of sixteen"),
        (2.0, 40 / 3, 2 / 3): _("divided by the number of micro-batches, not by tokens"),
        (6.0, 40.0, 2.0): _("nothing is divided"),
    }
    came = answer(sums, counts)
    as_asked = isinstance(came, list | tuple) and len(came) == len(sums)
    expect(came, [6 / 20, 40 / 20, 2 / 20], "window_losses(...)", causes=causes,
           cause="" if as_asked else _("a list as long as sums: one loss for each micro-batch"))  # fmt: skip
    expect(answer([5.0], [10]), [0.5], "window_losses(...)", cause=_("a window may have a single micro-batch"))
    expect(answer([5.0, 0.0], [10, 0]), [0.5, 0.0], "window_losses(...)",
           cause=_("a micro-batch may have no token to predict"))  # fmt: skip
    return _("Their sum is the loss of the big batch, so their gradients add up to its gradient.")


@task(
    N_("Ask the ledger for batch 1, 2, 4, ... with accum = 64 // batch."),
    N_("The line above the figure is the verdict: move batch one step up and accumulation one step down."),
    N_("In code: ledger.report(gpt2, Recipe(precision='amp-fp16', batch=n, seq=1024, accum=64 // n), "
       "find_card('RTX 2070')).verdict, with find_card from course_lib.cards"),
)
def micro_batch(answer: Any) -> str:
    """The largest power of two of 64 sequences that surely fits an RTX 2070, with its number of micro-batches."""
    verdicts = {batch: _verdict(batch) for batch in (1, 2, 4, 8, 16, 32, 64)}
    right = max(batch for batch, verdict in verdicts.items() if verdict == "fits")
    causes = {
        (batch, SEQUENCES // batch): _("there is room for more")
        if batch < right
        else _("that is only tight: it runs if the allocator wastes little")
        if verdict == "tight"
        else _("that does not fit")
        for batch, verdict in verdicts.items()
        if batch != right
    }
    expect(answer, (right, SEQUENCES // right), "(batch, accum)", causes=causes, shown=_("another pair"),
           cause=_("batch x accum has to be 64"))  # fmt: skip
    return _("Smaller micro-batches would fit as well, but keep the card less busy.")


@task(
    N_("If only the printed number were wrong, what would the gradient's norm be?"),
    N_("Both are five times as large: the wrong loss went into backward()."),
)
def display_or_gradient(answer: Any) -> str:
    """Whether a release with a loss and a gradient norm five times too large only printed wrong numbers."""
    if isinstance(answer, str):
        word = answer.strip().lower()
        answer = {"梯度": "gradient", "显示": "display"}.get(word, word)
    expect(
        answer, "gradient", "display_or_gradient",
        causes={"display": _("then the norm would have been right: it is computed from the gradients")},
        shown=_('"display" or "gradient"'),
    )  # fmt: skip
    return _("The ratio of the norms is the test: 188.29 / 37.66 = 5.00, and so is 10.5949 / 2.119.")


def _verdict(batch: int) -> str | None:
    shape = read_model("gpt2")
    recipe = replace(RUN, batch=batch, accum=SEQUENCES // batch)
    return ledger.report(shape, recipe, find_card("RTX 2070")).verdict
