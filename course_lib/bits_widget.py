"""A number's bits to play with: type a number, multiply it by powers of two, see what each type makes of it."""

from html import escape

from course_lib.figures import as_html
from course_lib.float_plots import bits, bits_text
from course_lib.floats import FLOAT_TYPES
from course_lib.i18n import _
from course_lib.widgets import explore


def bits_explorer(number: float = 1.0) -> None:
    """Show the bits of ``number`` in each type, with a field for another number and a slider for powers of two."""
    import ipywidgets

    style = {"description_width": "11em"}
    layout = ipywidgets.Layout(width="30em")
    explore(
        {
            "number": ipywidgets.Text(
                f"{number}", description=_("number"), continuous_update=False, style=style, layout=layout
            ),
            "power": ipywidgets.IntSlider(
                0, -40, 40, description=_("times 2 to the power"), continuous_update=False, style=style, layout=layout
            ),
        },
        explain_bits,
    )


def explain_bits(number: str, power: int) -> str:
    """Picture and words as HTML; what is no number is answered by the reason."""
    try:
        value = float(number) * 2.0**power
    except (ValueError, OverflowError):
        said = _("{number!r} is no number; write one such as 1e-8").format(number=number)
        return f'<p role="status">{escape(said)}</p>'
    said = ", ".join(f"{kind.name} {_verdict(value, kind.stored(value))}" for kind in FLOAT_TYPES)
    return f'<p role="status"><b>{value:.9g}</b>: {escape(said)}</p>{as_html(bits(value), bits_text(value))}'


def _verdict(value: float, stored: float) -> str:
    if stored == value or stored != stored:
        return _("exact")
    if stored == 0:
        return _("becomes 0")
    if abs(stored) == float("inf"):
        return _("becomes infinite")
    return _("off by {error:.2g}").format(error=abs(stored / value - 1))
