"""Questions and answers as they are read: HTML for a notebook, and a search field over all of them."""

import re
from collections.abc import Iterable
from html import escape

from course_lib.i18n import N_, _, get_language
from course_lib.interview.figures import evaluate
from course_lib.interview.questions import DIFFICULTIES, TOPICS, Question, chosen, find
from course_lib.widgets import explore

#: What each part of an answer is called.
PARTS = {
    "say": N_("Say"),
    "more": N_("If there is time"),
    "next": N_("Then they ask"),
    "reply": N_("And you say"),
    "beware": N_("Do not say"),
}
MOST_HITS = 6


def finder(words: str = "") -> None:
    """Show a field to search all questions, and below it the answer; without words, all questions by topic."""
    import ipywidgets

    field = ipywidgets.Text(
        words,
        description=_("search"),
        placeholder=_("such as: why LoRA saves"),
        layout=ipywidgets.Layout(width="36em"),
    )
    explore({"words": field}, found_html, _("All questions, without the search"))


def found_html(words: str) -> str:
    """What a search finds: the best hit in full, the others to unfold."""
    if not words.strip():
        return all_html()
    hits = find(words)[:MOST_HITS]
    if not hits:
        said = _("Nothing found for {words!r}. All questions:").format(words=words)
        return f'<p role="status">{escape(said)}</p>{all_html()}'
    return f'<div role="status">{answer_html(hits[0])}</div>{folded_html(hits[1:])}'


def all_html() -> str:
    """All questions by topic, each to unfold."""
    return "".join(f"<h4>{escape(_(name))}</h4>{folded_html(chosen(topic))}" for topic, name in TOPICS.items())


def folded_html(listed: Iterable[Question]) -> str:
    """Questions of which each unfolds to its answer."""
    return "".join(
        f"<details><summary>{marked(each.said('ask'))}</summary>{parts_html(each)}</details>" for each in listed
    )


def question_html(each: Question) -> str:
    """The question alone, with its topic and difficulty."""
    kind = f"{_(TOPICS[each.topic])} · {_(DIFFICULTIES[each.difficulty])}"
    return f'<p><small>{escape(kind)}</small></p><p style="font-size:120%"><b>{marked(each.said("ask"))}</b></p>'


def answer_html(each: Question) -> str:
    """Question and answer in full."""
    return question_html(each) + parts_html(each)


def parts_html(each: Question) -> str:
    """The answer, part by part, where the course shows it, and how its figures come about."""
    larger = {"say": "font-size:115%"}
    rows = "".join(
        f'<div><b>{escape(_(name))}</b></div><div style="{larger.get(part, "")}">{marked(each.said(part))}</div>'
        for part, name in PARTS.items()
    )
    grid = "display:grid;grid-template-columns:8em 1fr;gap:0.6em 1em;max-width:56em;line-height:1.5"
    shown = f"{each.unit} · {each.heading[get_language()]}"
    where = f"<p><small>{escape(_('Shown in {where}').format(where=shown))}</small></p>"
    return f'<div style="{grid}">{rows}</div>{where}{_figures_html(each)}'


def marked(text: str) -> str:
    """Text as HTML; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _figures_html(each: Question) -> str:
    found = each.figures()
    if not found:
        return ""
    rows = "".join(f"<li><code>{escape(one)}</code> = {evaluate(one):,.6g}</li>" for one in found)
    title = _("How the figures are computed")
    return f"<details><summary><small>{escape(title)}</small></summary><ul>{rows}</ul></details>"
