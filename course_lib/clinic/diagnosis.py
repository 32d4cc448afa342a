"""From a reading to a name: which signs are there, how sure that is, and what is missing where there is none."""

from functools import cache
from typing import NamedTuple

from course_lib.clinic.case import Case
from course_lib.clinic.cases import CASES
from course_lib.clinic.reading import Reading
from course_lib.errors import CourseError
from course_lib.html_table import html_table
from course_lib.i18n import N_, _


class Diagnosis(NamedTuple):
    """One case whose sign is in the reading."""

    case: Case
    evidence: str  #: in the reader's language

    @property
    def name(self) -> str:
        return self.case.name


class Opinion:
    """Everything that a reading gives away; shows itself as a table. It may be empty: then it says what is missing."""

    def __init__(self, reading: Reading, found: tuple[Diagnosis, ...]) -> None:
        self.reading, self.found = reading, found

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.found)

    @property
    def missing(self) -> str:
        """What to bring where nothing was found."""
        reading = self.reading
        if self.found:
            return ""
        if not reading.error and all(each.finite_after for each in reading.updates):
            return _("nothing found: the run ended, no number was infinite, and no sign of the clinic is in it")
        if "OutOfMemory" in reading.error and not reading.deaths:
            return _(
                "cannot tell: memory ended, and that alone has many causes. Bring the figures of the whole message, "
                "the step, the batch's shape at that step and the largest before it"
            )
        if "OutOfMemory" in reading.error:
            return _(
                "cannot tell: the bill is simply larger than the card. Look at its largest account, and at the ledger"
            )
        return _("cannot tell: {error}: {message}. Search for the message, and run the loop under the probe").format(
            error=reading.error or "nan", message=reading.message
        )

    def __str__(self) -> str:
        return "\n".join(f"{label}: {text}" for each in self.found for label, text in _rows(each)) or self.missing

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self.found:
            return f"<p>{self.missing}</p>"
        return "".join(html_table(("", ""), _rows(each), left=(0, 1)) for each in self.found)


@cache
def all_cases() -> dict[str, Case]:
    """Every case by name."""
    return {case.name: case for case in CASES}


def find_case(name: str) -> Case:
    """The case of that name."""
    if name not in all_cases():
        raise CourseError(f"no case {name!r}; expected one of {', '.join(all_cases())}")
    return all_cases()[name]


def diagnose(reading: Reading) -> Opinion:
    """Name what a reading shows, from the evidence in it alone; nothing where no sign is there."""
    found = [(case, case.sign(reading)) for case in all_cases().values()]
    return Opinion(reading, tuple(Diagnosis(case, evidence) for case, evidence in found if evidence))


#: Certain: the sign has no other cause. Likely: it is inferred from sizes and order.
SURE = {
    "certain": N_("certain"),
    "likely": N_("likely"),
}


def _rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    case = diagnosis.case
    return [
        (_("diagnosis"), f"{case.name}: {_(case.cause)}"),
        (_("what the probe saw"), diagnosis.evidence),
        (_("how sure"), _(SURE[case.sure])),
        (_("to be surer"), _(case.surer)),
        (_("next change"), _(case.change)),
        (_("explained in"), case.unit),
    ]
