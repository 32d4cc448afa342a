"""The flags that ledger, dry run and planner share, made from the fields of :class:`Recipe`."""

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from course_lib.device import Budget, Capacity
from course_lib.errors import CourseError
from course_lib.recipe import LOSSES, Recipe, flag
from course_lib.shape import ModelShape

_FIELDS = {each.name: each for each in fields(Recipe)}
#: How the values of a field begin, where it has no closed list of choices.
_BEGINNINGS = {"checkpoint": ("none", "block", "every:"), "loss": (*LOSSES, "chunked:", "logits:")}


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a preset such as llama-7b, or a Hugging Face config.json")


def add_recipe_flags(parser: argparse.ArgumentParser) -> None:
    """One flag a field of Recipe. A flag that is not given leaves no trace in the parsed arguments."""
    group = parser.add_argument_group("recipe flags")
    for name, each in _FIELDS.items():
        help_text = each.metadata["help"]
        if type(each.default) is bool:
            group.add_argument(flag(name), action="store_true", default=argparse.SUPPRESS, help=help_text)
            continue
        choices = each.metadata.get("choices")
        listed = f"{', '.join(choices)}; " if choices else ""
        group.add_argument(
            flag(name),
            metavar=each.metadata.get("metavar", "NAME"),
            type={int: _whole_number, float: _number}.get(type(each.default), str),
            default=argparse.SUPPRESS,
            help=f"{listed}{help_text} (default: {each.default})",
        )


def recipe_of(args: argparse.Namespace, shape: ModelShape | None) -> Recipe:
    """The recipe that the flags describe, checked against the model where its shape is known.

    Raises:
        CourseError: a value or combination that no run can have; a sequence longer than the model's
            learned positions; a LoRA target that the model does not have.
    """
    given = {name: getattr(args, name) for name in given_in(args)}
    positions = shape.learned_positions if shape else 0
    if positions and "seq" not in given:
        given["seq"] = min(Recipe.seq, positions)
    with speaking_in_flags():
        recipe = Recipe(**given)
        if shape and positions and recipe.seq > positions:
            raise CourseError(f"seq: got {recipe.seq}, but {shape.name} has learned {positions} positions; "
                              f"expected at most {positions}")  # fmt: skip
        if shape:
            shape.targets(recipe.target_names)
    return recipe


def given_in(args: argparse.Namespace) -> frozenset[str]:
    """The recipe's fields for which a flag was given."""
    return frozenset(name for name in _FIELDS if hasattr(args, name))


def add_card_flags(parser: argparse.ArgumentParser, required: bool = False) -> None:
    group = parser.add_mutually_exclusive_group(required=required)
    group.add_argument("--gpu", metavar="NAME", help="does it fit on this card? `course gpu --list` has the names")
    group.add_argument("--budget-gib", metavar="X", type=_number, help="does it fit into X GiB?")


def card_of(args: argparse.Namespace) -> Capacity | None:
    """The card or budget that the flags name, if any.

    Raises:
        CourseError: an unknown card, or a budget that no card has.
    """
    with speaking_in_flags():
        if args.budget_gib is not None:
            return Budget(args.budget_gib)
        if args.gpu is not None:
            from course_lib.cards import find_card

            return find_card(args.gpu)
    return None


@contextmanager
def speaking_in_flags() -> Iterator[None]:
    """Within it, messages about a recipe's fields speak of flags, as the user of the command line knows them."""
    try:
        yield
    except CourseError as error:
        raise CourseError(_in_flags(str(error))) from error


def _in_flags(message: str) -> str:
    """``quant nf4: ... add lora_rank`` becomes ``--quant nf4: ... add --lora-rank``.

    A name that is also an English word counts as a field's only where the message begins with it, or
    where one of the field's values follows.
    """
    message = re.sub(r"^(gpu|budget_gib)(?=:)", lambda match: flag(match[0]), message)
    for name, each in _FIELDS.items():
        if "_" in name:
            pattern = rf"\b{name}\b"
        else:
            values = each.metadata.get("choices") or _BEGINNINGS.get(name, ())
            value = "|".join([*map(re.escape, values), r"\d"])
            pattern = rf"^{name}(?=:)|(?<!-)\b{name}(?= (?:{value}))"
        message = re.sub(pattern, flag(name), message)
    return message


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number") from None
