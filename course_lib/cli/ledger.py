"""``course ledger``: the memory bill of a training step in closed form."""

import argparse
from typing import Any

from course_lib.cli import flags
from course_lib.hf_config import read_model


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "ledger",
        usage="course ledger MODEL [recipe flags] [--gpu NAME | --budget-gib X] [--json]",
        description="Predict a training step's peak memory in closed form, account by account.",
        epilog="example: course ledger llama-7b --lora-rank 16 --checkpoint block --budget-gib 24",
    )
    flags.add_model(parser)
    flags.add_recipe_flags(parser)
    flags.add_card_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the bill as JSON, sizes in bytes")


def run(args: argparse.Namespace) -> int:
    shape = read_model(args.model)
    recipe, card = flags.recipe_of(args, shape), flags.card_of(args)
    from course_lib import ledger

    with flags.speaking_in_flags():
        report = ledger.report(shape, recipe, card)
    if args.json:
        import json

        print(json.dumps(report.to_dict(), indent=2))
    else:
        from course_lib.cli.show import show_report

        show_report(report)
    return report.exit_code
