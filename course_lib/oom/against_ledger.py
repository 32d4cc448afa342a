"""A failed run beside the ledger: what it should have taken, and the next cheaper change."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from course_lib import ledger
from course_lib.device import Budget
from course_lib.i18n import _
from course_lib.oom.message import OomMessage
from course_lib.planner import Step, Wish, ladder, plan
from course_lib.recipe import Recipe
from course_lib.report import Report
from course_lib.shape import ModelShape
from course_lib.units import GIB, format_bytes

#: Tensors beyond the ledger's peak by more than this, in per cent, are of something that the recipe does not say.
_UNEXPLAINED_PERCENT = 110


@dataclass(frozen=True)
class Run:
    """What ran when memory ended.

    Raises:
        CourseError: the ledger does not cover it.
    """

    report: Report
    wish: Wish

    @property
    def model(self) -> str:
        """As the command line takes it."""
        return shlex.quote(self.report.model)

    @property
    def in_flags(self) -> str:
        """Model and recipe, as the command line takes them."""
        return f"{self.model} {self.report.recipe.flags_beyond(Recipe())}".rstrip()

    @classmethod
    def of(cls, shape: ModelShape, recipe: Recipe) -> "Run":
        dtype = "fp16" if recipe.precision == "amp-fp16" else "bf16"
        return cls(ledger.report(shape, recipe), Wish(shape, recipe, dtype=dtype))


def beside_the_ledger(message: OomMessage, run: Run) -> list[str]:
    """Sentences: the ledger's peak, and whether the message agrees with it."""
    report = run.report
    account, size, moment = report.largest
    peak_bytes = report.forecast.peak_bytes
    said = [
        _("By the ledger this run peaks at {peak} in tensors, in {moment}; the largest account is {account}, {size}. "
          "The card then has {low} to {high} in use.").format(
            peak=format_bytes(peak_bytes), moment=_(moment), account=_(account), size=format_bytes(size),
            low=format_bytes(report.device.low_bytes), high=format_bytes(report.device.high_bytes),
        )
    ]  # fmt: skip
    if message.allocated_bytes and 100 * message.allocated_bytes > _UNEXPLAINED_PERCENT * peak_bytes:
        said.append(
            _("The message has {allocated} in tensors, {more} more than the recipe explains: the flags are not those "
              "of the run, or something is kept that should be gone (a caller's outputs, a summed loss, an older "
              "model).").format(allocated=format_bytes(message.allocated_bytes),
                       more=format_bytes(message.allocated_bytes - peak_bytes))
        )  # fmt: skip
    return said


def next_changes(message: OomMessage, run: Run) -> Iterator[str]:
    """The next cheaper recipe, and the cheapest that fits the card of the message."""
    first = next(islice(ladder(run.wish), 1, None), None)
    if first:
        yield _("the cheapest change that saves memory: {change}").format(change=_told(first))
    if message.usable_bytes:
        found = plan(run.wish, Budget(message.usable_bytes / GIB))
        if found.fits and found.steps and found.end != first:
            yield _("the cheapest that surely fits {size}: {change}").format(
                size=format_bytes(message.usable_bytes), change=_told(found.end)
            )


def _told(step: Step) -> str:
    return _("{cut} (peak {peak}; {price})").format(
        cut=step.cut, peak=format_bytes(step.peak_bytes), price=step.price
    )
