"""Whether two markdown cells say the same in two languages, as far as structure shows it."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


def difference(english: str, chinese: str) -> str | None:
    """What one text has and the other has not, in words; None where they match.

    Compared are heading levels in their order, and how often each formula, link, picture and code
    block occurs, and the number of rows of tables. Words inside ``\\text{…}`` may differ.
    """
    en, zh = _structure(english), _structure(chinese)
    for text, language in ((en, "English"), (zh, "Chinese")):
        if loose := text.pop("loose **"):  # next to Chinese punctuation, ** does not always open or close
            return f"** that is not shown as bold in {language}: {loose[0][:40]!r}; put a space outside it"
    if en["heading"] != zh["heading"]:
        return f"headings differ: {_levels(en['heading'])} in English, {_levels(zh['heading'])} in Chinese"
    for what in en:
        ours, theirs = Counter(en[what]), Counter(zh[what])
        for only, where in ((ours - theirs, "in English only"), (theirs - ours, "in Chinese only")):
            if only:
                return f"{what} {where}: {next(iter(only))}"
    return None


def _levels(headings: list[str]) -> str:
    return " ".join(headings) or "none"


def _structure(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {
        kind: [] for kind in ("heading", "formula", "link", "picture", "code block", "table row", "loose **")
    }
    for token in _walk(_parser().parse(text)):
        if token.type == "heading_open":
            found["heading"].append(token.tag)
        elif token.type.startswith("math_"):
            formula = re.sub(r"\\(text|mathrm)\{[^}]*\}", r"\\\1{}", token.content)
            found["formula"].append("".join(formula.split()))
        elif token.type == "link_open":
            found["link"].append(str(token.attrs["href"]))
        elif token.type == "image":
            found["picture"].append(str(token.attrs["src"]))
        elif token.type in ("fence", "code_block"):
            found["code block"].append(token.info or "plain")
        elif token.type == "tr_open":
            found["table row"].append("row")
        elif token.type == "text" and "**" in token.content:
            found["loose **"].append(token.content)
    return found


def _walk(tokens: "list[Token]") -> "Iterator[Token]":
    for token in tokens:
        yield token
        yield from _walk(token.children or [])


@cache
def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin

    return MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, allow_space=True, double_inline=True)
