"""``course lab``: JupyterLab at the course's top, showing notebooks/."""

import argparse
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "lab",
        description="Start JupyterLab in the course's folder, showing notebooks/. What follows is passed on to it.",
        epilog="example: course lab --no-browser --port 8931",
        usage="%(prog)s [--help] [JUPYTERLAB ARGUMENT ...]",
        # JupyterLab's flags are its own: nothing that begins with a dash is a flag of this command.
        prefix_chars="+",
        add_help=False,
    )
    parser.add_argument("jupyter", nargs="*", metavar="ARGUMENT", help="for JupyterLab, such as --no-browser")
    parser.set_defaults(show_help=parser.print_help)


def run(args: argparse.Namespace) -> int:
    import course_lib.pipeline
    from course_lib.pipeline.repository import Repository

    if args.jupyter[:1] in (["--help"], ["-h"]):
        args.show_help()
        return 0
    if not find_spec("jupyterlab"):
        raise CourseError("JupyterLab is not installed in this environment; run make setup, then make lab")
    top = Repository.find().top
    quiet = Path(course_lib.pipeline.__file__).with_name("lab")  # no question about news over the first notebook
    settings = [f"--ServerApp.root_dir={top}", "--LabApp.default_url=/lab/tree/notebooks"]
    settings += [f"--LabApp.app_settings_dir={quiet}"]
    command = [sys.executable, "-m", "jupyterlab", *settings, *args.jupyter]
    if os.name == "posix":
        os.execv(sys.executable, command)  # so that signals reach JupyterLab itself
    return subprocess.call(command)
