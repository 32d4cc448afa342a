"""What the article that this course follows claims, with the evidence for each verdict, computed.

Each module of this package computes some claims; :func:`claims_page` puts all of them on one page. A function
registers itself::

    @finding("C2")
    def file_times_six_to_eight() -> Finding:
        return Finding({"fp32": True, "bf16": False}, _("fp32 8.0, bf16 4.0 times the file"))
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import NamedTuple

from course_lib.claims import CLAIMS, judge, verdict_of
from course_lib.html_table import html_table
from course_lib.i18n import _


class Finding(NamedTuple):
    """What the code found about one claim."""

    cases: Mapping[str, bool]  #: whether it came out true, by case; named as in code
    evidence: str  #: the figures, in the reader's language


_FINDERS: dict[str, Callable[[], Finding]] = {}


def finding(claim: str) -> Callable[[Callable[[], Finding]], Callable[[], Finding]]:
    """Register a function as the one that computes ``claim``."""

    def register(find: Callable[[], Finding]) -> Callable[[], Finding]:
        assert claim in CLAIMS, claim
        assert claim not in _FINDERS, claim
        _FINDERS[claim] = find
        return find

    return register


@cache
def finders() -> Mapping[str, Callable[[], Finding]]:
    """The functions that compute each claim, in the order of the claims' numbers."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return dict(sorted(_FINDERS.items(), key=lambda item: int(item[0][1:])))


def tell(claim: str) -> None:
    """Compute one claim, and print its verdict."""
    judge(claim, finders()[claim]().cases)


class Page:
    """All claims, their verdicts and the evidence; shows itself as a table in a terminal and in a notebook."""

    def __init__(self, found: Mapping[str, Finding]) -> None:
        self.found = found

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        return [
            (claim, _(CLAIMS[claim]), verdict_of(each.cases), each.evidence) for claim, each in self.found.items()
        ]

    def __str__(self) -> str:
        return "\n".join(f"{claim} {text}\n    {verdict}\n    {why}" for claim, text, verdict, why in self.rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = ("", _("claim"), _("verdict"), _("computed"))
        return html_table(head, self.rows, left=(0, 1, 2, 3))


def claims_page() -> Page:
    """Compute every claim, which takes some seconds."""
    return Page({claim: find() for claim, find in finders().items()})
