"""Predict before you measure, and see afterwards how good your guesses are.

>>> predict("weights-7b", 28, unit="GB")        # kept with its time, across restarts  # doctest: +SKIP
>>> settle("weights-7b", 26.95)                 # after the measurement: how far off    # doctest: +SKIP
>>> calibration()                               # all guesses so far, as a chart        # doctest: +SKIP

The first guess stays: a guess that may be mended after the measurement teaches nothing. Names are
shared by both editions of the course.
"""

from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from numbers import Number
from typing import TYPE_CHECKING, Any

from course_lib.errors import CourseError
from course_lib.i18n import _
from course_lib.reader_log import ReaderLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Value = float | int | str
CLOSE = 0.10  #: a guess this near (as a fraction of the measurement) counts as close
_log = ReaderLog("predictions")


@dataclass(frozen=True)
class Prediction:
    """A guess and, once it is settled, the truth."""

    name: str
    value: Value | None  #: None: measured without a guess
    unit: str = ""
    at: str = ""  #: when the guess was made (ISO 8601, UTC)
    late: bool = False  #: made, or replaced, after the measurement
    measured: Value | None = None

    @property
    def ratio(self) -> float | None:
        """Predicted ÷ measured; None where that says nothing (text, zero, opposite signs, not settled)."""
        if not isinstance(self.value, int | float) or not isinstance(self.measured, int | float) or not self.measured:
            return None
        ratio = self.value / self.measured
        return ratio if ratio > 0 else None

    @property
    def close(self) -> bool:
        return self.value == self.measured or (self.ratio is not None and abs(self.ratio - 1) <= CLOSE)


def predict(name: str, value: Any, unit: str = "", *, replace: bool = False) -> None:
    """Commit to a guess before the measurement.

    Args:
        name: the same in :func:`settle`.
        value: a number, or a word such as ``"backward"``; ``...`` is no guess yet.
        unit: what the number counts, such as ``"GB"``.
        replace: take this guess instead of the first one; after the measurement it counts as late.

    Raises:
        CourseError: the value is neither a number nor a text.
    """
    known = predictions().get(name)
    first = known if known and known.value is not None else None
    if value is None or value is ...:
        if not first:
            print(_("No guess yet: write yours in place of the dots, then run this cell again."))
            return
        guess = first.value
    else:
        guess = _plain(name, value)
    if first and (guess == first.value or not replace):
        print(_("You predicted {value} on {day}.").format(value=_said(first.value, first.unit), day=_day(first.at)))
        if guess != first.value:
            print(
                _("The first guess stays. To replace it: predict({name!r}, {value!r}, replace=True)").format(
                    name=name, value=guess
                )
            )
        return
    _log.append(event="predict", name=name, value=guess, unit=unit)
    print(_("Your prediction: {value}. It is kept.").format(value=_said(guess, unit)))
    if known and known.measured is not None:
        print(_("It was measured before, so this guess counts as late."))


def settle(name: str, measured: Any, unit: str = "") -> None:
    """Record what was measured, and set it against the guess.

    Args:
        name: as in :func:`predict`.
        measured: in the unit of the guess.
        unit: needed only where there may be no guess.

    Raises:
        CourseError: not a number or a text, or in another unit than the guess.
    """
    truth = _plain(name, measured)
    known = predictions().get(name)
    if known and known.unit and unit and known.unit != unit:
        raise CourseError(f"settle: {name!r} was predicted in {known.unit}, measured in {unit}; use one unit")
    if not known or known.measured != truth:
        _log.append(event="settle", name=name, value=truth, unit=unit)
    settled = predictions()[name]
    if settled.value is None:
        print(_("measured   {value}").format(value=_said(truth, settled.unit)))
        print(_("You made no prediction here. Next time, guess first: it is the guess that teaches."))
        return
    print(_("predicted  {value}").format(value=_said(settled.value, settled.unit)))
    print(_("measured   {value}").format(value=_said(truth, settled.unit)))
    print(_verdict(settled))


def predictions() -> dict[str, Prediction]:
    """All predictions by name, in the order in which they were first made or settled."""
    found: dict[str, Prediction] = {}
    for record in _log.read():
        name, value, unit = record.get("name"), record.get("value"), record.get("unit", "")
        if not isinstance(name, str) or value is None:
            continue
        before = found.get(name, Prediction(name, None))
        if record.get("event") == "predict":
            late = before.measured is not None
            found[name] = Prediction(name, value, unit or before.unit, record["at"], late, before.measured)
        else:
            found[name] = Prediction(name, before.value, before.unit or unit, before.at, before.late, value)
    return found


def calibration(ax: "Axes | None" = None) -> "Axes":
    """Every settled number, predicted ÷ measured on a logarithmic axis; late guesses are hollow.

    Raises:
        CourseError: nothing is settled yet.
    """
    settled = [each for each in predictions().values() if each.ratio is not None]
    if not settled:
        raise CourseError(_("calibration: no numeric prediction is settled yet; predict() and settle() one first"))
    if ax is None:
        import matplotlib.pyplot as plt

        _figure, ax = plt.subplots(figsize=(7, 1.2 + 0.32 * len(settled)), layout="constrained")
    ratios = [each.ratio or 1.0 for each in settled]
    reach = max(2.2, *(max(ratio, 1 / ratio) for ratio in ratios)) * 1.1
    ax.axvspan(1 - CLOSE, 1 + CLOSE, color="0.88", label="_close")
    ax.axvline(1, color="0.3", linewidth=1)
    for row, (each, ratio) in enumerate(zip(settled, ratios, strict=True)):
        ax.plot([1, ratio], [row, row], color="0.7", linewidth=1, zorder=1)
        ax.plot(ratio, row, "o", color="#0072B2", markerfacecolor="white" if each.late else "#0072B2", zorder=2)
    ticks = [tick for tick in (0.01, 0.1, 0.25, 0.5, 1, 2, 4, 10, 100) if 1 / reach <= tick <= reach]
    ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    ax.minorticks_off()
    ax.set(xlim=(1 / reach, reach), xlabel="predicted ÷ measured (hollow: guessed after measuring)")
    ax.set_yticks(range(len(settled)), [each.name for each in settled])
    ax.set_ylim(len(settled) - 0.4, -0.6)  # the first guess on top
    ax.spines[["top", "right"]].set_visible(False)
    close = sum(each.close for each in settled if not each.late)
    in_time = sum(not each.late for each in settled)
    ax.set_title(f"{close} of {in_time} guesses within {CLOSE:.0%}", loc="left", fontsize="medium")
    return ax


def calibration_text() -> str:
    """What :func:`calibration` shows, in the reader's language."""
    settled = [each for each in predictions().values() if each.ratio is not None]
    guesses = ", ".join(f"{each.name} {each.ratio:.2f}" for each in settled)
    return _("Predicted ÷ measured, in the order of the guesses: {guesses}.").format(guesses=guesses)


def _verdict(settled: Prediction) -> str:
    if settled.value == settled.measured:
        text = _("Right.")
    elif settled.ratio is None:
        text = _("Not this time: the next paragraphs say why.")
    elif settled.close:
        text = _("predicted ÷ measured = {ratio:.2f}: close.").format(ratio=settled.ratio)
    elif settled.ratio > 1:
        text = _("predicted ÷ measured = {ratio:.2f}: too much. What did you count that is not there?").format(
            ratio=settled.ratio
        )
    else:
        text = _("predicted ÷ measured = {ratio:.2f}: too little. Which bytes did you not think of?").format(
            ratio=settled.ratio
        )
    return f"{text} {_('(Guessed after measuring.)')}" if settled.late else text


def _plain(name: str, value: Any) -> Value:
    """A value that JSON can hold: NumPy's and torch's scalars become Python's, an enum its text."""
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "item"):
        with suppress(ValueError, RuntimeError):  # NumPy's and torch's word for more than one number
            value = value.item()
    if isinstance(value, bool) or not isinstance(value, Number) or isinstance(value, complex):
        raise CourseError(f"{name}: got {value!r}, expected a number or a text")
    number: float | int = int(value) if isinstance(value, int) else float(value)  # type: ignore[arg-type]
    if not isfinite(number):
        raise CourseError(f"{name}: got {number}, expected a finite number")
    return number


def _said(value: Value | None, unit: str) -> str:
    number = f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    return f"{number} {unit}".strip()


def _day(at: str) -> str:
    return at[:10]
