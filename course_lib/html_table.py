"""The one HTML table that results show themselves with in a notebook."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[int] = (0,), last_bold: bool = False
) -> str:
    """``rows`` of text under ``head``; columns in ``left`` align left, the others right."""
    rows = list(rows)

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f'<{tag} style="text-align:{"left" if column in left else "right"}">{escape(text)}</{tag}>'
            for column, text in enumerate(row)
        )

    bold = ' style="font-weight:bold"'
    body = "".join(f"<tr{bold if last_bold and row is rows[-1] else ''}>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{cells(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"
