"""The bill: a list of entries, each with what it is for, when it lives, its bytes, and why.

A step's peak is a **maximum over moments, not a sum**: gradients are not there in the forward pass,
activations are gone when the optimizer steps. Within the backward pass the live bytes change from block
to block, but they do so evenly, so looking at its ends is enough. An entry therefore says at which
*instants* it lives; the bill adds up each instant and the largest sum is the peak.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from course_lib.accounts import ACCOUNTS, STEP_MOMENTS, Account, Moment
from course_lib.html_table import html_table
from course_lib.units import GIB, Unit, format_bytes


class Instant(Enum):
    """A point of the step at which live bytes can be at their highest; in the order in which they come."""

    FORWARD_TOP = (Moment.FORWARD, "inside the last block")
    FORWARD_END = (Moment.FORWARD, "the loss has been computed")
    BACKWARD_HEAD = (Moment.BACKWARD, "gradient of the logits")
    BACKWARD_TOP = (Moment.BACKWARD, "inside the last block, the first to be reached")
    BACKWARD_BOTTOM = (Moment.BACKWARD, "inside the first block, the last to be reached")
    BACKWARD_END = (Moment.BACKWARD, "gradient of the embedding")
    OPTIMIZER_STEP = (Moment.OPTIMIZER_STEP, "the update")

    @property
    def moment(self) -> Moment:
        return self.value[0]


ALWAYS = tuple(Instant)
BACKWARD = tuple(instant for instant in Instant if instant.moment is Moment.BACKWARD)


@dataclass(frozen=True)
class Entry:
    """One line of a bill."""

    account: Account
    label: str
    instants: tuple[Instant, ...]
    size_bytes: int
    formula: str  #: in words and symbols, with the bytes per element
    source: str  #: where it comes from: a PyTorch source file, a paper, a module's forward

    @property
    def moments(self) -> tuple[Moment, ...]:
        """The moments in which it lives."""
        return tuple(dict.fromkeys(instant.moment for instant in self.instants))


@dataclass(frozen=True)
class Bill:
    """What one training step needs; answers the same questions as a measured Trace."""

    entries: tuple[Entry, ...]
    static_bytes: dict[Account, int]  #: tensor bytes of weights, gradients, optimizer state, not rounded to blocks

    @cached_property
    def totals(self) -> dict[Instant, int]:
        """Live bytes at each instant."""
        return {instant: sum(self.at(instant).values()) for instant in Instant}

    @property
    def peak_instant(self) -> Instant:
        return max(Instant, key=lambda instant: self.totals[instant])

    @property
    def peak_bytes(self) -> int:
        return self.totals[self.peak_instant]

    @property
    def peak_moment(self) -> Moment:
        return self.peak_instant.moment

    @property
    def at_peak(self) -> dict[Account, int]:
        return self.at(self.peak_instant)

    @property
    def moment_peaks(self) -> dict[Moment, int]:
        """The most bytes live at once within each moment of the step."""
        return {
            moment: max(total for instant, total in self.totals.items() if instant.moment is moment)
            for moment in STEP_MOMENTS
        }

    def at(self, instant: Instant) -> dict[Account, int]:
        """Live bytes by account at ``instant``."""
        bill = dict.fromkeys(ACCOUNTS, 0)
        for entry in self.entries_at(instant):
            bill[entry.account] += entry.size_bytes
        return bill

    def entries_at(self, instant: Instant) -> Iterable[Entry]:
        return (entry for entry in self.entries if instant in entry.instants)

    def _repr_html_(self) -> str:
        unit: Unit = "GiB" if self.peak_bytes >= GIB else "MiB"
        entries = sorted(self.entries_at(self.peak_instant), key=lambda entry: -entry.size_bytes)
        rows = [
            (entry.account.value, entry.label, format_bytes(entry.size_bytes, unit), entry.formula, entry.source)
            for entry in entries
        ]
        where = f"peak, in {self.peak_moment} ({self.peak_instant.value[1]})"
        rows.append(("", where, format_bytes(self.peak_bytes, unit), "", ""))
        return html_table(("account", "what", "bytes", "formula", "source"), rows, left=(0, 1, 3, 4), last_bold=True)
