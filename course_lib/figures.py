"""Show a figure with the words for those who cannot see it."""

import os
from base64 import b64encode
from html import escape
from io import BytesIO

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_SHOWN_DPI, _DRAWN_DPI = 80, 160  #: drawn finer than shown, for sharp screens


def show(picture: Axes | Figure, alt: str) -> None:
    """Display a figure in a notebook as an image with alternative text, and close it.

    Jupyter's own display of a figure has no place for such a text. While nbgrader grades a notebook, the words
    alone are left there: drawing takes longer than most tests.

    Args:
        picture: the figure, or any axes of it.
        alt: what it shows, in the reader's language; :func:`course_lib.plots.alt_text` makes one.
    """
    import matplotlib.pyplot as plt
    from IPython.display import HTML, display

    if os.environ.get("NBGRADER_EXECUTION"):
        plt.close(_figure_of(picture))
        print(alt)
    else:
        display(HTML(as_html(picture, alt)))


def as_html(picture: Axes | Figure, alt: str) -> str:
    """The ``<img>`` of a figure, its picture inside; closes the figure. Arguments as in :func:`show`."""
    import matplotlib.pyplot as plt

    figure = _figure_of(picture)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=_DRAWN_DPI)
    plt.close(figure)  # else the notebook would show it again, without the text
    width = round(figure.get_figwidth() * _SHOWN_DPI)
    data = b64encode(buffer.getvalue()).decode()
    return f'<img alt="{escape(alt)}" width="{width}" src="data:image/png;base64,{data}">'


def _figure_of(picture: Axes | Figure) -> Figure:
    figure = picture if isinstance(picture, Figure) else picture.get_figure(root=True)
    assert isinstance(figure, Figure)
    return figure
