"""The ``course`` command: one file a command, loaded only when it is called.

A command's file has ``add_parser(subparsers)`` and ``run(args) -> int``. A :class:`CourseError` from
either ends in one line on stderr and exit status 2.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

from course_lib import __version__
from course_lib.cli.parser import Parser
from course_lib.errors import CourseError

#: What ``course --help`` lists; the command ``name`` lives in ``course_lib.cli.name``.
COMMANDS = {
    "ledger": "predict a training step's memory in closed form, at once",
    "dryrun": "run a training step on the meta device and read its memory off",
    "plan": "find the cheapest cuts with which a model fits a card",
    "oom": "explain an out-of-memory message",
    "gpu": "what this machine can train on and what to mend, or a list of cards",
    "build": "write the notebooks from their sources, or name the stale ones",
    "run": "execute every unit and show what each took",
    "grade": "grade a folder of submissions in a sandbox, with feedback and a gradebook",
    "lab": "start JupyterLab at the course's top",
    "anki": "the interview's questions as an Anki deck",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status: 2 for a mistake of the user's, 130 when interrupted."""
    argv = sys.argv[1:] if argv is None else list(argv)
    name = argv[0] if argv and argv[0] in COMMANDS else None
    if isinstance(sys.stdout, TextIOWrapper):  # a model's path may hold what this terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = _run(name, argv)
        sys.stdout.flush()  # so that a broken pipe shows here
        return status
    except CourseError as error:
        print(f"course {name}: {error}" if name else f"course: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "course_lib":
            raise
        print(f"course {name}: needs {error.name}, which is not installed here; run make setup", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Python flushes stdout once more on its way out: into nothing, instead of a second complaint.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as a shell reports SIGPIPE
    except KeyboardInterrupt:
        return 130


def _run(name: str | None, argv: list[str]) -> int:
    try:
        args, unknown = _parser(name).parse_known_args(argv)
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    if name is None:
        raise CourseError("expected a command first; see `course --help`")
    if unknown:
        raise CourseError(f"unknown arguments: {' '.join(unknown)}; see `course {name} --help`")
    status: int = import_module(f"course_lib.cli.{name}").run(args)
    return status


def _parser(name: str | None) -> Parser:
    """The parser of ``course``, in full for the command ``name``; the others are only listed."""
    parser = Parser(
        prog="course",
        description="Predict, measure and reconcile the memory that training a large model takes.",
        epilog="example: course ledger llama-7b --gpu rtx-4090",
    )
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for command, summary in COMMANDS.items():
        if command == name:
            import_module(f"course_lib.cli.{command}").add_parser(subparsers)
        else:
            subparsers.add_parser(command, help=summary)
    return parser
