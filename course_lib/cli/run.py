"""``course run``: execute every unit with its solutions, and show what each took."""

import argparse
from typing import TYPE_CHECKING, Any

from course_lib.i18n import LANGUAGES
from course_lib.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from course_lib.pipeline.run import Outcome


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        description="Execute the solved notebooks, each in a fresh kernel and an empty folder. "
        "Exits with 1 when one fails.",
        epilog="example: course run 01_ledger --lang zh",
    )
    parser.add_argument("unit", nargs="*", metavar="UNIT", help="units to run (all of them where none is named)")
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="the edition; the code is the same in both")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from course_lib.pipeline.repository import Repository
    from course_lib.pipeline.run import execute
    from course_lib.pipeline.sources import read_source

    repository = Repository.find()
    console = Console(highlight=False)
    outcomes = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        for name in repository.units(args.unit):
            cells = sum(cell.kind == "code" for cell in read_source(repository, name).cells)
            task = progress.add_task(name, total=cells)
            outcome, _ = execute(repository, name, args.lang, on_cell=lambda task=task: progress.advance(task))  # type: ignore[misc]
            outcomes.append(outcome)
    _show(console, outcomes)
    return 1 if any(outcome.failure for outcome in outcomes) else 0


def _show(console: "Console", outcomes: "list[Outcome]") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("unit")
    for header in ("cells", "seconds", "peak host memory"):
        table.add_column(header, justify="right")
    for outcome in outcomes:
        name = Text(outcome.unit, style="bold red" if outcome.failure else "")
        table.add_row(name, str(outcome.cells), f"{outcome.seconds:.1f}", format_bytes(outcome.peak_host_bytes))
    console.print(table)
    for outcome in outcomes:
        if outcome.failure:
            console.print(Text("failed ", style="bold red") + Text(outcome.failure), soft_wrap=True)
        for complaint in outcome.complaints:
            console.print(Text("stderr ", style="yellow") + Text(complaint), soft_wrap=True)
