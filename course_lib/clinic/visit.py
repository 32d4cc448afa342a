"""A visit to the clinic: see the symptom, take a probe, name it, mend it, see it gone."""

import inspect
from difflib import unified_diff
from types import FunctionType

from course_lib.clinic.case import Case, Loop
from course_lib.clinic.chart import Chart
from course_lib.clinic.diagnosis import Opinion, diagnose, find_case
from course_lib.i18n import _


def chart(name: str, mended: bool = False) -> Chart:
    """Run a case, and show what the probe took down."""
    return Chart(find_case(name).read(mended))


def opinion(name: str, mended: bool = False) -> Opinion:
    """Run a case, and name what its reading gives away."""
    return diagnose(find_case(name).read(mended))


def visit(name: str) -> None:
    """Run a case through: the symptom, the chart, the diagnosis, what is changed, and the mended loop's chart."""
    from IPython.display import display

    case = find_case(name)
    print(_(case.symptom))
    if case.recorded is not None:
        print(_("A processor cannot have this: the figures were recorded or are described."))
    reading = case.read()
    display(Chart(reading), diagnose(reading))
    print(what_changes(case))
    healed = case.read(mended=True)
    print(_("mended: {end}; {said}").format(
        end=f"{healed.error}: {healed.message}" if healed.error else _("runs to its end"), said=diagnose(healed)
    ))  # fmt: skip


def what_changes(case: Case | str) -> str:
    """The loop's source, lines of the broken one marked by -, of the mended one by +; then the helpers they call."""
    case = find_case(case) if isinstance(case, str) else case
    if case.broken is None or case.mended is None:
        return _("next change: {change}").format(change=_(case.change))
    broken, mended = (_body(loop) for loop in (case.broken, case.mended))
    lines = [line for line in unified_diff(broken, mended, n=20, lineterm="") if line[:2] not in ("--", "++", "@@")]
    helpers = [
        inspect.getsource(each).rstrip() for each in dict.fromkeys((*_helpers(case.broken), *_helpers(case.mended)))
    ]
    return "\n".join([*lines, *(f"\n{helper}" for helper in helpers)])


def _body(loop: Loop) -> list[str]:
    return inspect.getsource(loop).splitlines()[1:]


def _helpers(loop: Loop) -> list[FunctionType | type]:
    """Functions and classes of the loop's own module that it uses."""
    assert isinstance(loop, FunctionType)
    found = [loop.__globals__.get(name) for name in loop.__code__.co_names]
    return [each for each in found if isinstance(each, FunctionType | type) and each.__module__ == loop.__module__]
