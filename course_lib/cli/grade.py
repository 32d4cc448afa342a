"""``course grade``: a folder of submissions in, grades, feedback and nbgrader's gradebook out."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.errors import CourseError

if TYPE_CHECKING:
    from rich.console import Console

    from course_lib.grading.rows import Row


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "grade",
        description="Grade what students handed in: each notebook runs in a sandbox, its functions are asked from "
        "outside on inputs that nobody knew before. A run that was stopped goes on. Writes OUT/grades.csv, "
        "OUT/questions.csv, OUT/feedback/STUDENT/ASSIGNMENT.html, OUT/class.html, files for Canvas and Moodle in "
        "OUT/upload, and an nbgrader course with its gradebook.",
        epilog="example: course grade ex1_precision ex2_checkpointing --submissions downloads.zip --out graded",
    )
    parser.add_argument("assignment", nargs="+", metavar="ASSIGNMENT", help="exercises, such as ex1_precision")
    parser.add_argument(
        "--submissions", required=True, type=Path, metavar="PATH", help="a folder, a .zip or a notebook"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where everything is written")
    parser.add_argument("--workers", type=_count, default=os.cpu_count() or 1, metavar="N",
                        help="submissions at a time (the number of cores)")  # fmt: skip
    parser.add_argument("--dask", metavar="ADDRESS", help="the scheduler of a dask cluster that does the work instead")
    parser.add_argument("--sandbox", choices=("bwrap", "docker", "none"), default="bwrap",
                        help="docker where user namespaces are not allowed; none runs what students wrote as you, "
                        "on this machine")  # fmt: skip
    parser.add_argument("--seed", type=int, metavar="N", help="of the fresh inputs (drawn once for each OUT)")
    parser.add_argument("--class", dest="settings", type=Path, metavar="FILE", help="your class.toml")
    parser.add_argument(
        "--roster", type=Path, metavar="CSV", help="students, in a column `student`, and their other names"
    )
    parser.add_argument("--pattern", default="", metavar="REGEX", help="finds (?P<student>…) in each path")


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number from 1")
    return int(text)


def run(args: argparse.Namespace) -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: workers are what runs at once
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from course_lib.grading.sandbox import Sandbox

    if not args.submissions.exists():
        raise CourseError(f"--submissions: {args.submissions} is not there; expected a folder, a .zip or a notebook")
    sandbox = None if args.dask else Sandbox(args.sandbox)  # it imports torch while this process does
    try:
        from course_lib.grading.job import sandboxes
        from course_lib.grading.run import Plan, grade_class
        from course_lib.grading.settings import Settings
        from course_lib.grading.workers import Dask, Here
        from course_lib.grading.zygote import warm_up

        settings = Settings.read(args.settings) if args.settings else Settings()
        plan = Plan(tuple(dict.fromkeys(args.assignment)), args.submissions, args.out, args.seed, args.sandbox,
                    args.pattern, args.roster, settings)  # fmt: skip
        if sandbox:
            sandboxes[args.sandbox] = sandbox
            workers: Dask | Here = Here(args.workers, settings.budget.notebook_seconds, (warm_up, sandbox.wait))
        else:
            workers = Dask(args.dask)
        console = Console(highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("grading", total=None)
            rows = grade_class(plan, workers, lambda done, of: progress.update(task, completed=done, total=of))
    finally:
        if sandbox:
            sandbox.close()
    _show(console, rows, plan.out)
    if sandbox:
        console.print(f"Memory and processes were limited by {sandbox.memory_limit}.")
    return 0


def _show(console: "Console", rows: "list[Row]", out: Path) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in ("student", "assignment"):
        table.add_column(header)
    table.add_column("score", justify="right")
    table.add_column("status")
    colours = {"graded": "green", "needs-human": "yellow", "failed": "red"}
    for row in rows:
        score = f"{row.score:g} / {row.graded.max_points:g}"
        table.add_row(
            Text(row.student), row.assignment.name, score, Text(row.graded.status, colours[row.graded.status])
        )
    console.print(table)
    for row in rows:
        if row.graded.status != "graded":
            console.print(Text.assemble((f"{row.student}, {row.assignment.name}", "bold"), f": {row.graded.reason}"),
                          soft_wrap=True)  # fmt: skip
    by_hand = sum(each.points is None and each.reason == "to be marked by a person" for row in rows
                  for each in row.graded.scores)  # fmt: skip
    if by_hand:
        console.print(f"{by_hand} written answers wait for a person: open formgrader in JupyterLab, started in {out}.")
    console.print(f"Everything is in {out}: grades.csv, questions.csv, feedback/, class.html, upload/, gradebook.db.")
