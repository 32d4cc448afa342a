"""Every mistake that the exercises' tests can name, by its name."""

from functools import cache
from types import ModuleType

from course_lib.exercises import (
    accumulation_mistakes,
    checkpointing_mistakes,
    curves,
    gradient_mistakes,
    own_segments,
    own_update,
    peak_mistakes,
    precision_mistakes,
    saving_mistakes,
    update_mistakes,
)
from course_lib.exercises.judge import Mistake

_MODULES: tuple[ModuleType, ...] = (
    accumulation_mistakes, checkpointing_mistakes, curves, gradient_mistakes, own_segments, own_update, peak_mistakes,
    precision_mistakes, saving_mistakes, update_mistakes,
)  # fmt: skip


@cache
def all_mistakes() -> dict[str, Mistake]:
    """By name; where several functions share a name, the first one's words."""
    found: dict[str, Mistake] = {}
    for module in _MODULES:
        for value in vars(module).values():
            if isinstance(value, tuple):
                for each in value:
                    if isinstance(each, Mistake):
                        found.setdefault(each.name, each)
    return found
