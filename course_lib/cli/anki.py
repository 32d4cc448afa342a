"""``course anki``: the interview's questions as an Anki deck."""

import argparse
from pathlib import Path
from typing import Any

from course_lib.i18n import LANGUAGES


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "anki",
        usage="course anki [--lang en|zh] [--out FILE]",
        description="Write the interview's questions as an Anki deck. To import a newer one later updates the cards "
        "and keeps what you have learned.",
        epilog="example: course anki --lang en --out interview.apkg",
    )
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="language of the cards (default: en)")
    parser.add_argument("--out", metavar="FILE", type=Path, help="file to write (default: interview.LANG.apkg)")


def run(args: argparse.Namespace) -> int:
    from course_lib.interview.anki import write_deck

    out = args.out or Path(f"interview.{args.lang}.apkg")
    count = write_deck(out, args.lang)
    print(f"{out}: {count} cards; in Anki, File > Import takes it")
    return 0
