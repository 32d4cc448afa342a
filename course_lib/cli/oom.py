"""``course oom``: explain an out-of-memory message."""

import argparse
import sys
from pathlib import Path
from typing import Any

from course_lib.cli import flags
from course_lib.errors import CourseError
from course_lib.recipe import flag

MOST_BYTES = 2**25  #: 32 MiB: the log of a long run; more is a slip
#: What cannot be read as text may still be a log with a few broken letters.
MOST_BROKEN_SHARE = 0.1


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "oom",
        usage="course oom [FILE|-] [--model MODEL recipe flags] [--json]",
        description="Read an out-of-memory message, alone or in a traceback or log, and say why memory\n"
        "ran out and what to do next. With the model and the recipe that ran, the ledger\n"
        "says what it should have taken.",
        epilog="example: course oom train.log --model llama-7b --lora-rank 16 --batch 4",
    )
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="a file, or - for standard input")
    parser.add_argument("--model", metavar="MODEL", help="what ran: a preset such as llama-7b, or a config.json")
    flags.add_recipe_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the diagnosis as JSON, sizes in bytes")


def run(args: argparse.Namespace) -> int:
    from course_lib.oom import Run, explain

    ran = None
    if args.model is not None:
        from course_lib.hf_config import read_model

        shape = read_model(args.model)
        recipe = flags.recipe_of(args, shape)
        with flags.speaking_in_flags():
            ran = Run.of(shape, recipe)
    elif given := flags.given_in(args):
        listed = ", ".join(map(flag, sorted(given)))
        raise CourseError(f"got {listed} without a model; recipe flags describe a run of --model MODEL")
    found = explain(_read(args.file), ran)
    if args.json:
        import json

        print(json.dumps(found.to_dict(), indent=2))
    else:
        _show(found)
        if ran:
            from course_lib.cli.show import show_report

            show_report(ran.report)
    return 0


def _read(file: str) -> str:
    expected = "a text with an out-of-memory message"
    try:
        if file == "-":
            if sys.stdin.isatty():
                print("paste the message, then Ctrl-D on a line of its own", file=sys.stderr)
            content = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                content = opened.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CourseError(f"cannot read {file!r} ({reason}); expected {expected}") from None
    name = "standard input" if file == "-" else repr(file)
    if len(content) > MOST_BYTES:
        raise CourseError(f"{name} has more than {MOST_BYTES} bytes; give the part around the error, "
                          "as grep -C 50 'out of memory' prints it")  # fmt: skip
    text = _decode(content)
    if text is None:
        raise CourseError(f"{name} is no text; expected {expected}")
    if not text.strip():
        raise CourseError(f"{name} is empty; expected {expected}")
    return text


def _decode(content: bytes) -> str | None:
    """The text, also as Windows' shells write it; None where it is none."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    text = content.decode("utf-8-sig", errors="replace")
    if "\0" in text or text.count("\ufffd") > MOST_BROKEN_SHARE * len(text):
        return None
    return text


def _show(found: Any) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from course_lib.oom.words import size

    console = Console(highlight=False)
    console.print(Text.assemble("cause: ", (str(found.cause), "bold")))
    figures = {name.removesuffix("_bytes"): value for name, value in found.message.figures.items() if value is not None}
    if figures:
        console.print(Text(", ".join(f"{name} {size(value)}" for name, value in figures.items())))
    console.print(Text(f"\n{found.explanation}\n"))
    steps = Table.grid(padding=(0, 1))
    for number, step in enumerate(found.next_steps, 1):
        steps.add_row(f"{number}.", Text(step))
    console.print(steps)
