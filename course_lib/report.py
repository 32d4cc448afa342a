"""What ledger and dry run both answer: the peak, who owns it, and whether a card takes it."""

from dataclasses import dataclass
from typing import Any, Protocol

from course_lib.accounts import ACCOUNTS, STEP_MOMENTS, Account, Moment
from course_lib.device import Capacity, DeviceRange, Verdict, device_range, replayed_range
from course_lib.recipe import Recipe

STATIC_ACCOUNTS = (Account.WEIGHTS, Account.GRADIENTS, Account.OPTIMIZER)


class Forecast(Protocol):
    """What a bill (predicted) and a trace (measured) have in common."""

    @property
    def peak_bytes(self) -> int: ...

    @property
    def peak_moment(self) -> Moment: ...

    @property
    def at_peak(self) -> dict[Account, int]: ...

    @property
    def moment_peaks(self) -> dict[Moment, int]: ...

    @property
    def static_bytes(self) -> dict[Account, int]: ...


@dataclass(frozen=True)
class Report:
    """A forecast for one model and recipe, held against a card where one is named.

    ``params`` counts the base model, ``trainable`` what is trained; ``reserved_bytes`` is what PyTorch holds for the
    tensors, where they have been replayed.
    """

    model: str
    params: int
    trainable: int
    recipe: Recipe
    forecast: Forecast
    card: Capacity | None = None
    reserved_bytes: int | None = None

    @property
    def device(self) -> DeviceRange:
        if self.reserved_bytes is not None:
            return replayed_range(self.forecast.peak_bytes, self.reserved_bytes)
        static = self.forecast.static_bytes
        return device_range(self.forecast.peak_bytes, static[Account.WEIGHTS] + static[Account.OPTIMIZER])

    @property
    def verdict(self) -> Verdict | None:
        return self.device.verdict(self.card.usable_bytes) if self.card else None

    @property
    def largest(self) -> tuple[Account, int, Moment]:
        """The account that owns most of the peak, its bytes there, and when that is."""
        at_peak = self.forecast.at_peak
        account = max(at_peak, key=lambda each: at_peak[each])
        return account, at_peak[account], self.forecast.peak_moment

    @property
    def exit_code(self) -> int:
        """1 where the card is too small, else 0."""
        return int(self.verdict == "does-not-fit")

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON holds it; every size in bytes."""
        forecast, device = self.forecast, self.device
        held = {} if self.reserved_bytes is None else {"reserved_bytes": self.reserved_bytes}
        return {
            "model": {"name": self.model, "params": self.params, "trainable": self.trainable},
            "recipe": self.recipe.to_dict(),
            "peak_allocated_bytes": forecast.peak_bytes,
            "peak_moment": str(forecast.peak_moment),
            "accounts_at_peak": {str(account): forecast.at_peak[account] for account in ACCOUNTS},
            "moments": {str(moment): forecast.moment_peaks[moment] for moment in STEP_MOMENTS},
            "static_bytes": {str(account): forecast.static_bytes[account] for account in STATIC_ACCOUNTS},
            **held,
            "device_used_bytes": {"low": device.low_bytes, "high": device.high_bytes},
            "gpu": {"name": self.card.name, "usable_bytes": self.card.usable_bytes} if self.card else None,
            "verdict": self.verdict,
        }
