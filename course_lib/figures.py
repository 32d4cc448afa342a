"""Show a figure with the words for those who cannot see it."""

import os
from base64 import b64encode
from collections.abc import Callable
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN_DPI, _DRAWN_DPI = 80, 160  #: drawn finer than shown, for sharp screens


def show(picture: "Axes | Figure | Callable[[], Axes | Figure]", alt: str) -> None:
    """Display a figure in a notebook as an image with alternative text, and close it.

    Jupyter's own display of a figure has no place for such a text. While nbgrader grades a notebook, the words
    alone are left there: drawing, and loading what draws, take longer than most tests.

    Args:
        picture: the figure, any axes of it, or a function that draws it and is not called while grading.
        alt: what it shows, in the reader's language; :func:`course_lib.plots.alt_text` makes one.
    """
    from IPython.display import HTML, display

    if not os.environ.get("NBGRADER_EXECUTION"):
        display(HTML(as_html(picture() if callable(picture) else picture, alt)))
        return
    if not callable(picture):
        import matplotlib.pyplot as plt

        plt.close(_figure_of(picture))
    print(alt)


def as_html(picture: "Axes | Figure", alt: str) -> str:
    """The ``<img>`` of a figure, its picture inside; closes the figure. Arguments as in :func:`show`."""
    import matplotlib.pyplot as plt

    figure = _figure_of(picture)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=_DRAWN_DPI)
    plt.close(figure)  # else the notebook would show it again, without the text
    width = round(figure.get_figwidth() * _SHOWN_DPI)
    data = b64encode(buffer.getvalue()).decode()
    return f'<img alt="{escape(alt)}" width="{width}" src="data:image/png;base64,{data}">'


def _figure_of(picture: "Axes | Figure") -> "Figure":
    from matplotlib.figure import Figure

    figure = picture if isinstance(picture, Figure) else picture.get_figure(root=True)
    assert isinstance(figure, Figure)
    return figure
