"""``course build``: the notebooks from their sources, or which of them are stale."""

import argparse
import os
import sys
from typing import Any


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "build",
        description="Write notebooks/, the solved notebooks and nbgrader's source folder from solutions/UNIT/UNIT.py. "
        "A notebook that someone edited is kept beside the new one as UNIT.edited.ipynb.",
        epilog="example: course build --check",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; name what is stale and exit with 1")
    parser.add_argument("--force", action="store_true", help="overwrite edited notebooks without keeping them")
    parser.add_argument("--messages", action="store_true", help="first collect new messages into the catalogues")


def run(args: argparse.Namespace) -> int:
    from course_lib.pipeline.build import build, stale
    from course_lib.pipeline.catalogues import collect
    from course_lib.pipeline.repository import Repository

    repository = Repository.find()
    if args.check:
        wrong = stale(repository)
        for path in wrong:
            print(f"stale   {os.path.relpath(path, repository.top)}", file=sys.stderr)
        return 1 if wrong else 0
    if args.messages:
        for line in collect():
            print(f"to translate: {line}")
    for line in build(repository, force=args.force):
        print(line, file=sys.stderr if line.startswith("kept") else sys.stdout)
    return 0
