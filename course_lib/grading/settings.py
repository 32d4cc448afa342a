"""``class.toml``: an instructor's own edition, kept outside of the repository.

seed = "anything that nobody guesses"      # of the fresh inputs of hidden tests
language = "zh"                            # of the feedback; otherwise that of each submission
pseudonyms = true                          # rows and files by pseudonym; the key is OUT/pseudonyms.csv
cell_seconds = 60                          # time for one cell; notebook_seconds for all of them, twice
memory_gib = 4

[deadlines]
ex1_precision = 2026-10-01T23:59:00+08:00

[late]                                     # off, where it is left out
grace_minutes = 15
percent_per_day = 10                       # of what was earned, for each day begun
most_percent = 50

[points.ex1_precision]
measure-peak-fp32 = 5

[hidden.ex1_precision]                     # added to the hidden tests of the repository, which are for practice
static-bytes-stored = '''
assert static_bytes(10, "fp32")["weights"] == 40
'''
"""

import tomllib
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError
from course_lib.grading.execute import Budget
from course_lib.grading.namespaces import Limits
from course_lib.i18n import LANGUAGES

_KNOWN: dict[str, Any] = {"seed": (str, int), "language": str, "pseudonyms": bool, "cell_seconds": (int, float),
          "notebook_seconds": (int, float), "memory_gib": (int, float), "deadlines": dict, "late": dict,
          "points": dict, "hidden": dict}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Defaults are those of the repository."""

    seed: str | None = None
    language: str | None = None
    pseudonyms: bool = False
    deadlines: dict[str, datetime] = field(default_factory=dict)
    late: dict[str, float] = field(default_factory=dict)
    points: dict[str, dict[str, float]] = field(default_factory=dict)
    hidden: dict[str, dict[str, str]] = field(default_factory=dict)
    budget: Budget = Budget()

    @classmethod
    def read(cls, path: Path) -> "Settings":
        """
        Raises:
            CourseError: it is no TOML, or says what it cannot say.
        """
        try:
            said = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise CourseError(f"--class: {path} cannot be read: {error}") from error
        for name, value in said.items():
            if name not in _KNOWN:
                raise CourseError(f"{path}: unknown key {name!r}, expected some of {', '.join(_KNOWN)}")
            if not isinstance(value, _KNOWN[name]):
                raise CourseError(f"{path}: {name}: got {value!r}, which is not of the right type")
        if said.get("language", "en") not in LANGUAGES:
            raise CourseError(f"{path}: language: got {said['language']!r}, expected one of {', '.join(LANGUAGES)}")
        deadlines = said.get("deadlines", {})
        for name, when in deadlines.items():
            if not isinstance(when, datetime) or when.tzinfo is None:
                raise CourseError(f"{path}: deadlines.{name}: got {when!r}, expected a date and time with its offset, "
                                  "such as 2026-10-01T23:59:00+08:00")  # fmt: skip
        plain = Budget()
        limits = Limits(memory_bytes=int(said.get("memory_gib", 4) * 2**30))
        budget = Budget(said.get("cell_seconds", plain.cell_seconds),
                        said.get("notebook_seconds", plain.notebook_seconds), limits)  # fmt: skip
        return cls(str(said["seed"]) if "seed" in said else None, said.get("language"), said.get("pseudonyms", False),
                   deadlines, said.get("late", {}), said.get("points", {}), said.get("hidden", {}), budget)  # fmt: skip

    def own(self, assignment: str) -> dict[str, Any]:
        """What :class:`~course_lib.grading.assignment.Assignment` takes of it."""
        own: dict[str, Any] = {}
        if assignment in self.points:
            own["own_points"] = self.points[assignment]
        if assignment in self.hidden:
            own["extra_hidden"] = self.hidden[assignment]
        return own

    def penalty(self, assignment: str, handed_in: datetime | None, earned: float) -> tuple[float, str]:
        """Points that lateness costs, and why."""
        deadline = self.deadlines.get(assignment)
        if not self.late or deadline is None or handed_in is None:
            return 0.0, ""
        late_seconds = (handed_in - deadline).total_seconds() - 60 * self.late.get("grace_minutes", 0)
        if late_seconds <= 0:
            return 0.0, ""
        days = int(late_seconds // 86400) + 1
        percent = min(days * self.late.get("percent_per_day", 0), self.late.get("most_percent", 100))
        return round(earned * percent / 100, 2), f"late by {days} day{'s' * (days > 1)} begun: −{percent:g} %"
