"""A timeline of live bytes by account: what a dry run predicts and what a probe measures.

A trace is a list of events. Each says in which moment of the step it happened, which operator
caused it, and by how many bytes each account grew or shrank. Everything else (the curve, the
peak, the bill at the peak) is a running sum over it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from course_lib.accounts import ACCOUNTS, STEP_MOMENTS, Account, Moment

Change = tuple[int, int, int, int, int]  #: signed bytes, one entry per account, in the order of ACCOUNTS


class Tensor(NamedTuple):
    """One tensor's memory, as far as the allocator cares."""

    account: int  #: index into ACCOUNTS
    size_bytes: int  #: as asked for, not rounded
    operator: str  #: that made it


class Event(NamedTuple):
    """Memory changed hands: ``change[i]`` bytes more (or less) in ``ACCOUNTS[i]``, in blocks."""

    moment: Moment
    operator: str  #: the operator that allocated, or "free"
    change: Change
    born: tuple[Tensor, ...] = ()
    died: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Trace:
    """One training step, event by event.

    ``static_bytes`` are tensor bytes as they are (no rounding to blocks) of what stays from step to
    step; the events count blocks of 512 bytes, as the caching allocator does.
    """

    events: tuple[Event, ...]
    static_bytes: dict[Account, int] = field(default_factory=dict)

    @cached_property
    def live(self) -> list[Change]:
        """Live bytes by account after each event."""
        start: Change = (0, 0, 0, 0, 0)
        sums = accumulate(
            (event.change for event in self.events),
            lambda total, change: tuple(a + b for a, b in zip(total, change, strict=True)),  # type: ignore[arg-type,return-value]
            initial=start,
        )
        return list(sums)[1:]

    @cached_property
    def live_total(self) -> list[int]:
        """Live bytes in all accounts together after each event."""
        return [sum(live) for live in self.live]

    @cached_property
    def peak_index(self) -> int:
        """The first event after which the most bytes are live."""
        if not self.events:
            return -1
        return max(range(len(self.events)), key=lambda i: (self.live_total[i], -i))

    @property
    def peak_bytes(self) -> int:
        return self.live_total[self.peak_index] if self.events else 0

    @property
    def peak_moment(self) -> Moment:
        return self.events[self.peak_index].moment if self.events else Moment.LOAD

    @property
    def at_peak(self) -> dict[Account, int]:
        """The bill at the peak, in blocks."""
        return self.bill_at(self.peak_index)

    @property
    def moment_peaks(self) -> dict[Moment, int]:
        """The most bytes live at once within each moment of the step (0 where nothing happened)."""
        peaks = dict.fromkeys(STEP_MOMENTS, 0)
        before = 0
        for event, total in zip(self.events, self.live_total, strict=True):
            if event.moment in peaks:  # a moment starts with what the one before left
                peaks[event.moment] = max(peaks[event.moment], total, before)
            before = total
        return peaks

    def bill_at(self, index: int) -> dict[Account, int]:
        """Live bytes by account after event ``index``."""
        live = self.live[index] if self.events else (0,) * len(ACCOUNTS)
        return dict(zip(ACCOUNTS, live, strict=True))

    def end_of(self, moment: Moment) -> dict[Account, int]:
        """The bill after the last event of ``moment``; with accumulation, its last micro-batch."""
        last = max((i for i, event in enumerate(self.events) if event.moment is moment), default=-1)
        return self.bill_at(last) if last >= 0 else dict.fromkeys(ACCOUNTS, 0)

    def account(self, account: Account) -> Iterator[int]:
        """The curve of one account."""
        column = ACCOUNTS.index(account)
        return (live[column] for live in self.live)
