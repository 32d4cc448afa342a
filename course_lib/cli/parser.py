"""argparse, with mistakes told in one line."""

import argparse
import textwrap
from typing import Any, NoReturn

from course_lib.errors import CourseError


class Parser(argparse.ArgumentParser):
    """Raises :class:`CourseError` where argparse prints its usage and exits; flags are never abbreviated."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", _HelpFormatter)
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise CourseError(f"{message.removeprefix('argument ')}; see `{self.prog} --help`")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Leaves an epilog's example as it is written, and breaks no word at its hyphens."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)
