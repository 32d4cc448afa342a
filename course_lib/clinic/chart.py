"""The patient's chart: what the probe took down, without a name for it."""

import math
from collections.abc import Iterable

from course_lib.accounts import ACCOUNTS, Moment
from course_lib.cards import dotted
from course_lib.clinic.reading import Pass, Reading, total
from course_lib.html_table import html_table
from course_lib.i18n import _
from course_lib.units import format_bytes, unit_for


class Chart:
    """Shows itself as a table, in a terminal and in a notebook."""

    def __init__(self, reading: Reading) -> None:
        self.rows = [(label, text) for label, text in _rows(reading) if text]

    def __str__(self) -> str:
        width = max(len(label) for label, _text in self.rows)
        return "\n".join(f"{label:{width}}  {text}" for label, text in self.rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(("", ""), self.rows, left=(0, 1))


def _rows(reading: Reading) -> Iterable[tuple[str, str]]:
    yield _("ended with"), f"{reading.error}: {reading.message}" if reading.error else _("its last line; no error")
    trained = [each for each in reading.passes if each.grad and each.training]
    others = [each for each in reading.passes if each not in trained]
    yield _("passes with gradients, in training mode"), _sizes(trained)
    yield _("other passes"), _sizes(others) + _modes(others)
    yield _("backward passes, updates"), f"{len(reading.backwards)}, {len(reading.updates)}"
    yield _("losses given to backward()"), _series(each.value for each in reading.backwards)
    found = [largest for each in reading.backwards for largest in each.found if not math.isnan(largest)]
    yield _("gradients found before backward()"), _series(found)
    yield from _of_updates(reading)
    yield _("autocast"), ", ".join(sorted({str(each.autocast) for each in reading.passes if each.autocast}))
    yield _("scaler calls"), " · ".join(reading.scaler_calls[:8])
    yield _("targets of each cross-entropy"), _series((each.targets for each in reading.means), "{:.0f}")
    yield _("first number that is not finite"), "".join(
        f"{each.operator} ({each.dtype}; {_at(each.moment, each.update)})"
        for each in reading.nonfinite[:1]
    )
    yield _("layers computed again at once"), ", ".join(
        f"{each.layers} / {each.of}" for each in sorted(reading.recomputed, key=lambda each: -each.layers)[:1]
    )
    if any(each.dead_switch for each in reading.passes):
        yield "gradient_checkpointing", _("on in some layers that are not in training mode")
    yield from _of_memory(reading)
    yield _("card's capability"), dotted(reading.capability) if reading.capability else ""
    yield _("warnings"), "; ".join(dict.fromkeys(reading.warnings))[:200]


def _of_updates(reading: Reading) -> Iterable[tuple[str, str]]:
    updates = reading.updates
    yield _("parameters with a gradient"), ", ".join(
        dict.fromkeys(f"{each.with_gradient} / {each.parameters}" for each in updates)
    )
    yield _("types of weights"), ", ".join(sorted({str(dtype) for each in updates for dtype in each.weight_dtypes}))
    yield _("gradient's length at the update"), _series(each.norm for each in updates)
    yield _("scale"), _series((each.scale for each in updates if each.scale > 1), "{:.0f}")
    yield _("gradients that are exactly 0"), _series((each.zeros for each in updates), "{:.0%}")
    yield _("weights that changed"), _series((each.moved for each in updates), "{:.0%}")


def _of_memory(reading: Reading) -> Iterable[tuple[str, str]]:
    begun = [total(reading.before(each.at)) for each in reading.passes]
    if any(begun):
        unit = unit_for(max(begun))
        yield _("alive when each pass begins"), ", ".join(format_bytes(each, unit) for each in begun[:12])
    if reading.death:
        bill = {account: reading.took(account) for account in ACCOUNTS}
        unit = unit_for(sum(bill.values()))
        yield _("died in"), _at(reading.death.moment, reading.death.update)
        yield _("bill then"), ", ".join(f"{_(account)} {format_bytes(size, unit)}" for account, size in bill.items())
        pieces = sorted(reading.at_death, key=lambda each: -each.size_bytes)[:3]
        yield _("largest pieces then"), ", ".join(f"{list(each.shape)} {each.dtype}" for each in pieces)
    if reading.counters:
        yield _("the card's figures"), ", ".join(
            f"{name.removesuffix('_bytes')} {format_bytes(size)}"
            for name, size in reading.counters.figures.items() if size is not None
        )


def _at(moment: Moment, update: int) -> str:
    return _("step {step}, {moment}").format(step=update + 1, moment=_(moment))


def _sizes(passes: list[Pass]) -> str:
    """How many, and the size of each that differs from the one before."""
    if not passes:
        return "0"
    sizes = [f"{each.rows} × {each.length}" for each in passes]
    changes = [size for before, size in zip(["", *sizes], sizes, strict=False) if size != before]
    return f"{len(passes)}: {', '.join(changes)}"


def _modes(passes: list[Pass]) -> str:
    return "".join(f"; training={each.training}, grad={each.grad}" for each in {p[2:4]: p for p in passes}.values())


def _series(values: Iterable[float], form: str = "{:.3g}") -> str:
    known = list(values)
    return ", ".join(form.format(each) for each in known[:10]) + (" …" if len(known) > 10 else "")
