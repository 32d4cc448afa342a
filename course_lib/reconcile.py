"""Holds a prediction against a measurement: account by account, moment by moment, and says why they differ."""

from dataclasses import dataclass

from course_lib.accounts import ACCOUNTS, STEP_MOMENTS, Account, Moment
from course_lib.html_table import html_table
from course_lib.report import STATIC_ACCOUNTS, Forecast
from course_lib.units import BLOCK_BYTES, Unit, in_unit

#: Differences below this share of the measured peak need no explanation.
NEGLIGIBLE = 0.001


@dataclass(frozen=True)
class Line:
    """One row: the same quantity, predicted and measured."""

    what: str
    predicted_bytes: int
    measured_bytes: int
    explanation: str = ""

    @property
    def difference_bytes(self) -> int:
        return self.predicted_bytes - self.measured_bytes

    @property
    def relative(self) -> float:
        """The difference as a share of what was measured."""
        if not self.measured_bytes:
            return 0.0 if not self.predicted_bytes else float("inf")
        return self.difference_bytes / self.measured_bytes


@dataclass(frozen=True)
class Reconciliation:
    """What :func:`reconcile` returns; shows itself as a table in a terminal and in a notebook."""

    peak: Line
    accounts: tuple[Line, ...]  #: at each side's own peak
    moments: tuple[Line, ...]
    static: tuple[Line, ...]  #: what stays from step to step
    same_moment: bool  #: both sides have their peak in the same moment of the step

    @property
    def lines(self) -> tuple[Line, ...]:
        return (*self.static, *self.accounts, *self.moments, self.peak)

    def __str__(self) -> str:
        rows = [("", "predicted", "measured", "difference", "", "")] + [_cells(line, self._unit) for line in self.lines]
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        return "\n".join(
            f"{row[0]:<{widths[0]}}  "
            + "  ".join(f"{row[i]:>{widths[i]}}" for i in range(1, 5))
            + f"  {row[5]}".rstrip()
            for row in rows
        )

    def _repr_html_(self) -> str:
        head = ("", f"predicted, {self._unit}", "measured", "difference", "", "what explains it")
        rows = [_cells(line, self._unit, with_unit=False) for line in self.lines]
        return html_table(head, rows, left=(0, 5), last_bold=True)

    @property
    def _unit(self) -> Unit:
        return "GiB" if self.peak.measured_bytes >= 2**30 else "MiB"


def reconcile(predicted: Forecast, measured: Forecast) -> Reconciliation:
    """Compare a prediction (a ledger's bill, a dry run's trace) with a measurement (a dry run's or a probe's trace).

    The accounts at the peak are compared at each side's own peak, so they differ as a whole where the
    peaks fall into different moments; that is then said once, on the line of the peak.
    """
    same_moment = predicted.peak_moment is measured.peak_moment
    enough = NEGLIGIBLE * max(1, measured.peak_bytes)

    def line(what: str, a: int, b: int, cause: str) -> Line:
        return Line(what, a, b, cause if abs(a - b) > enough else "")

    static = tuple(
        line(
            f"{account} that stay",
            predicted.static_bytes[account],
            measured.static_bytes[account],
            _static_cause(account),
        )
        for account in STATIC_ACCOUNTS
    )
    accounts = tuple(
        line(f"{account} at the peak", predicted.at_peak[account], measured.at_peak[account],
             _account_cause(account) if same_moment else "the peaks fall into different moments")
        for account in ACCOUNTS
    )  # fmt: skip
    moments = tuple(
        line(f"peak in {moment}", predicted.moment_peaks[moment], measured.moment_peaks[moment], _moment_cause(moment))
        for moment in STEP_MOMENTS
    )
    said = "" if same_moment else f"predicted in {predicted.peak_moment}, measured in {measured.peak_moment}"
    peak = Line("peak", predicted.peak_bytes, measured.peak_bytes, said)
    return Reconciliation(peak, accounts, moments, static, same_moment)


def _static_cause(account: Account) -> str:
    return {
        Account.WEIGHTS: "other parameters or types than predicted, or buffers (masks, tables) kept with the weights",
        Account.GRADIENTS: "something is trained that was predicted frozen, or the other way round",
        Account.OPTIMIZER: "another optimizer, or a step in which its state did not exist yet",
    }[account]


def _account_cause(account: Account) -> str:
    return {
        Account.WEIGHTS: "other parameters or types than predicted",
        Account.GRADIENTS: "gradients fill up during the backward pass: the peak falls at another block",
        Account.OPTIMIZER: "the state did not exist yet: measure the second step",
        Account.ACTIVATIONS: "the model's operators keep other tensors: another attention kernel, loss or dropout",
        Account.TEMPORARY: f"kernels' own workspaces, and rounding to blocks of {BLOCK_BYTES} bytes",
    }[account]


def _moment_cause(moment: Moment) -> str:
    return {
        Moment.FORWARD: "what the caller still holds, or another loss implementation",
        Moment.BACKWARD: "kernels' own workspaces, or activations that differ",
        Moment.OPTIMIZER_STEP: "another implementation: foreach holds one temporary as large as what is trained",
    }[moment]


def _cells(line: Line, unit: Unit, *, with_unit: bool = True) -> tuple[str, str, str, str, str, str]:
    suffix = f" {unit}" if with_unit else ""
    predicted, measured = (
        f"{in_unit(size, unit):,.3f}{suffix}" for size in (line.predicted_bytes, line.measured_bytes)
    )
    difference = f"{in_unit(line.difference_bytes, unit):+,.3f}{suffix}"
    return line.what, predicted, measured, difference, f"{line.relative:+.2%}", line.explanation
