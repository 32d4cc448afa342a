"""The tasks of lesson 05_recipe_24gb_7b: merging an adapter, and cuts for a given card and price."""

from dataclasses import replace
from typing import Any

from course_lib import ledger
from course_lib.cards import Card, find_card
from course_lib.hf_config import read_config, read_model
from course_lib.i18n import N_, _
from course_lib.recipe import Recipe
from course_lib.tasks import Unsolved, expect, task
from course_lib.units import format_bytes

MODEL = "llama-7b"
TOKENS = 32 * 2048  #: of one update
#: The price limit of the first choice: operations, as a multiple of LoRA without checkpointing.
PRICE_LIMIT = 1.1


@task(
    N_("What y comes from one matrix M? Write the adapter's y as (W + something) x."),
    N_("B A has the shape of W. How large is r, seen from A?"),
    N_("W + alpha / r * B @ A, with r = A.shape[0]"),
)
def merged(answer: Any) -> str:
    """``merged(W, A, B, alpha)`` gives the same y as the adapter, for a shape that is not square."""
    import torch

    draw = torch.Generator().manual_seed(5)
    outputs, inputs, rank, alpha = 3, 5, 2, 8
    W, A, B = (torch.randn(size, generator=draw) for size in ((outputs, inputs), (rank, inputs), (outputs, rank)))
    x = torch.randn(4, inputs, generator=draw)
    came = _called(answer, W, A, B, alpha)
    expect(
        tuple(came.shape), (outputs, inputs), "merged(...).shape", cause=_("W is [out, in], A [r, in], B [out, r]")
    )
    right = x @ W.T + alpha / rank * (x @ A.T @ B.T)
    causes = {
        "scale": _("the path is scaled by alpha / r"),
        "alpha": _("divide alpha by r, the number of rows of A"),
        "base": _("the frozen weight is still there"),
    }
    wrong = {
        "scale": x @ (W + B @ A).T,
        "alpha": x @ (W + alpha * B @ A).T,
        "base": x @ (alpha / rank * B @ A).T,
    }
    said = next((causes[name] for name, each in wrong.items() if torch.allclose(x @ came.T, each, atol=1e-5)), "")
    expect(bool(torch.allclose(x @ came.T, right, atol=1e-5)), True, _("the same y as with the adapter"), cause=said)
    return _("That is why a merged model is not slower: the path has become part of the weight.")


@task(
    N_("Without checkpointing activations are the largest account. What makes them smaller without computing again?"),
    N_("One sequence at a time. Each adapter keeps its input: adapters on q_proj and v_proj alone keep half as much. "
       "And the frozen weights are the other account."),
    N_("batch 1, accum 32, quant nf4 with double_quant, and lora_targets q_proj,v_proj"),
)
def cuts_for_a_3090(answer: Any) -> str:
    """A recipe for 32 x 2048 tokens an update that surely fits an RTX 3090 and computes nothing twice."""
    from course_lib.flops import step_flops

    _expect_recipe(answer)
    expect(
        answer.seq * answer.batch * answer.accum, TOKENS, _("tokens in an update: seq x batch x accum"),
        cause=_("fewer sequences at once need more micro-batches"),
    )  # fmt: skip
    expect(answer.seq, 2048, "seq", cause=_("shorter sequences are another job"))
    expect(answer.lora_rank > 0, True, "lora_rank > 0", cause=_("the price limit is for LoRA"))
    config = read_config(MODEL)
    limit = step_flops(config, Recipe(lora_rank=16, seq=2048, accum=32))
    price = step_flops(config, replace(answer, kernels="stock", loss="hf")) / limit
    expect(
        price <= PRICE_LIMIT, True, _("operations {price:.2f} times the limit's, at most {most}").format(
            price=price, most=PRICE_LIMIT),
        cause=_("checkpointing computes the forward pass again"),
    )  # fmt: skip
    _expect_fit(answer, find_card("RTX 3090"))
    return _("Weights in 4 bits pay for the activations: another account, another price.")


@task(
    N_("Which type does a T4 compute in? `course gpu --list` says it, and so does find_card('T4').training_type()."),
    N_("Sixteen-bit weights alone nearly fill a T4. They have to be quantised, and then adapters are needed."),
    N_("In code: Recipe(precision='amp-fp16', quant='nf4', lora_rank=16, checkpoint='block', batch=2, seq=1024)"),
)
def on_a_t4(answer: Any) -> str:
    """A recipe for Llama-2-7B that surely fits a T4, in FP16, with micro-batches of 2 x 1024 or more."""
    _expect_recipe(answer)
    expect(
        answer.precision, "amp-fp16", "precision",
        cause=_("a T4 only emulates BF16; it computes FP16, under autocast and with loss scaling"),
    )  # fmt: skip
    expect(answer.seq >= 1024 and answer.batch >= 2, True, _("at least 2 sequences of at least 1024 tokens"))
    _expect_fit(answer, find_card("T4"))
    return _("That is QLoRA as it runs on Colab's free card.")


def _expect_recipe(answer: Any) -> None:
    expect(type(answer).__name__, "Recipe", _("what came"), cause=_("write Recipe(...), or replace(another, ...)"))


def _expect_fit(recipe: Recipe, card: Card) -> None:
    report = ledger.report(read_model(MODEL), recipe, card)
    account, size, moment = report.largest
    cause = _("{low} to {high} in use on the card, {usable} usable; the largest account is {account}, {size}, in "
              "{moment}").format(
        low=format_bytes(report.device.low_bytes), high=format_bytes(report.device.high_bytes),
        usable=format_bytes(card.usable_bytes), account=_(account), size=format_bytes(size), moment=_(moment),
    )  # fmt: skip
    expect(report.verdict, "fits", card.name, cause=cause)


def _called(answer: Any, *arguments: Any) -> Any:
    came = answer(*arguments)
    if came is None or came is ...:
        raise Unsolved(_("nothing to test yet: write your answer in place of the dots"))
    return came
