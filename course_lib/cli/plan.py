"""``course plan``: the cheapest cuts with which a model's training fits a card."""

import argparse
from typing import Any

from course_lib.cards import Card
from course_lib.cli import flags
from course_lib.hf_config import read_model
from course_lib.planner import Plan, plan, wish_for


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plan",
        usage="course plan MODEL --gpu NAME | --budget-gib X [recipe flags as wishes] [--json]",
        description="Find the cheapest cuts that fit. A recipe flag is a wish: no cut touches what it says.\n"
        "Prices, from the cheapest: nothing but another kernel; smaller micro-batches;\n"
        "operations; precision of numbers and optimizer; how much is trained;\n"
        "how exactly frozen weights are kept; how long the sequences are.",
        epilog="example: course plan llama-7b --gpu rtx-3090 --seq 4096",
    )
    flags.add_model(parser)
    flags.add_card_flags(parser, required=True)
    flags.add_recipe_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON, sizes in bytes")


def run(args: argparse.Namespace) -> int:
    shape, card = read_model(args.model), flags.card_of(args)
    assert card is not None  # the parser requires one
    recipe = flags.recipe_of(args, shape)
    with flags.speaking_in_flags():
        found = plan(wish_for(shape, recipe, flags.given_in(args), card), card)
    if args.json:
        import json

        print(json.dumps(found.to_dict(), indent=2))
    else:
        _show(found, args.model, args.budget_gib)
    return found.exit_code


def _show(found: Plan, model: str, budget_gib: float | None) -> None:
    import shlex
    from dataclasses import replace

    from rich.console import Console
    from rich.text import Text

    from course_lib.cli.show import card_sentences, in_words, number, plain_table, unit_of
    from course_lib.planner.remedies import remedies
    from course_lib.recipe import Recipe

    console, unit = Console(highlight=False), unit_of(found.start.peak_bytes)
    report = found.start.report
    console.print(Text.assemble((report.model, "bold"), f": {report.params:,} parameters\n{in_words(report.recipe)}"))
    table = plain_table("from the cheapest cut to the dearest, and its price", f"{unit} peak", f"{unit} on the card")
    for step in (found.start, *found.steps):
        style = "bold" if step is found.end else ""
        what = Text(step.cut or "the wish, without a cut", style=style)
        what.append(f"\n{step.price}" if step.price else "", style="italic")
        table.add_row(what, number(step.peak_bytes, unit), f"up to {number(step.device.high_bytes, unit)}")
    console.print(table)
    console.print(card_sentences(replace(found.end.report, card=found.card)))
    if isinstance(found.card, Card) and not found.card.native_bf16 and "bf16" in found.wish.recipe.precision:
        console.print(f"{found.card.name} only emulates bfloat16: {found.card.training_type().reason}.")
    if found.fits:
        context = found.wish.shape.max_positions
        made_for = f" (the model was made for {context:,})" if 0 < context < found.max_seq else ""
        console.print(f"With all else as here, the largest micro-batch that fits is {found.max_batch:,}, "
                      f"the longest sequence {found.max_seq:,} tokens{made_for}.")  # fmt: skip
    else:
        for remedy in remedies(found):
            console.print(Text(f"- {remedy}"))
    card = f"--gpu {shlex.quote(found.card.name)}" if isinstance(found.card, Card) else f"--budget-gib {budget_gib:g}"
    words = ("course ledger", shlex.quote(model), found.end.recipe.flags_beyond(Recipe()), card)
    console.print(Text(f"The bill: {' '.join(filter(None, words))}"), soft_wrap=True)
