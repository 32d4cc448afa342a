"""From an error message, or from words, to the cases that they may mean.

Both languages are searched whatever the notebook's: messages are English everywhere, and people ask in their own.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache

from course_lib.clinic.case import BRANCHES, Case
from course_lib.clinic.diagnosis import SURE, all_cases
from course_lib.html_table import html_table
from course_lib.i18n import LANGUAGES, _, in_language
from course_lib.oom import Cause, explain

_WEIGHTS = {"symptom": 3.0, "words": 2.0, "cause": 1.0, "name": 3.0}
_OF_A_MESSAGE = 100.0  #: a known message outweighs any words
_WORD = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+)*|[\u4e00-\u9fff]+")
#: What every out-of-memory message says, whatever the cause.
_BOILERPLATE = re.compile(
    r"if reserved but unallocated memory is large.*?(?:\)|$)"
    r"|(?:torch\.)?(?:cuda\.)?OutOfMemoryError:?|(?:CUDA )?out of memory\.?"
    r"|\(gpu \d+;[^)]*\)"
    r"|tried to allocate [\d.]+ \w+\.?|gpu \d+ has a total capacity.*?unallocated\.?",
    re.DOTALL | re.IGNORECASE,
)
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|\bOOM\b|显存不足|爆显存", re.IGNORECASE)
#: Where a message's own figures name the cause.
_BY_FIGURES = {
    Cause.IMPOSSIBLE_REQUEST: "impossible-request",
    Cause.FRAGMENTATION: "fragmentation",
    Cause.ELSEWHERE: "elsewhere",
}
_LEAST = 4.0  #: a score below this rests on words that half the cases have
_IDLE = frozenset(re.findall(
    r"\w+", "a an the of in on at to is it and or my i with for by be not no but so as was has have than that this does"
))  # fmt: skip


class Found:
    """Cases for a question, the likeliest first; shows itself as a table."""

    def __init__(self, question: str, cases: list[Case], note: str = "") -> None:
        self.question, self.cases, self.note = question, cases, note

    @property
    def names(self) -> list[str]:
        return [case.name for case in self.cases]

    def __str__(self) -> str:
        head = _head()
        lines = [self.note] if self.note else []
        for case in self.cases:
            lines += [f"{label}: {text}" for label, text in zip(head, _row(case), strict=True)] + [""]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        note = f"<p><b>{self.note}</b></p>" if self.note else ""
        table = html_table(_head(), map(_row, self.cases), left=range(len(_head())))
        return note + (table if self.cases else "")


def search(question: str, most: int = 4) -> Found:
    """The cases that an error message or a description may mean.

    Args:
        question: words in either language, or a message as it was printed, its traceback included.
        most: how many at most.
    """
    told, asked = explain(question), _BOILERPLATE.sub(" ", question)
    scores = {name: _score(asked, name) for name in all_cases()}
    by_figures = [all_cases()[_BY_FIGURES[told.cause]]] if told.cause in _BY_FIGURES else []
    telling = max(scores.values()) >= _LEAST
    if not telling and not by_figures and _OUT_OF_MEMORY.search(question):
        cases = [case for case in table_of_cases().cases if case.branch[0] == "out of memory"]
        when = _(
            "That memory ended does not say why. When did it: in a training step, in evaluation, at loading? "
            "Take what fits from these, or add the traceback's last lines."
        )
        return Found(question, cases, f"{told.explanation} {when}" if told.message.tried_bytes else when)
    least = max(0.3 * max(scores.values()), _LEAST if by_figures else 1.0)
    ranked = sorted((name for name in scores if scores[name] > least), key=lambda name: -scores[name])
    cases = [*by_figures, *(all_cases()[name] for name in ranked if all_cases()[name] not in by_figures)][:most]
    if not cases:
        return Found(question, cases, _("Nothing by these words. Try others, or the table of all cases."))
    lead = _("{name}: {change}").format(name=cases[0].name, change=_(cases[0].change))
    return Found(question, cases, f"{told.explanation} {lead}" if by_figures else lead)


def table_of_cases() -> Found:
    """Every case in the order of the decision tree."""
    order = [(first, second) for first, seconds in BRANCHES.items() for second in seconds]
    return Found("", sorted(all_cases().values(), key=lambda case: order.index(case.branch)))


def search_box(first: str = "") -> None:
    """A field for a message or words, and what it finds; begins with ``first``."""
    import ipywidgets

    from course_lib.widgets import explore

    field = ipywidgets.Textarea(
        first, description=_("message or words"), placeholder=_("paste the error here, or describe what you see"),
        rows=3, continuous_update=True, style={"description_width": "10em"},
        layout=ipywidgets.Layout(width="60em"),
    )  # fmt: skip
    explore({"question": field}, lambda question: f'<div role="status">{search(question)._repr_html_()}</div>')


def _head() -> tuple[str, ...]:
    return _("what you see"), _("cause, and the next change"), _("how sure, and what to look at"), _("case, lesson")


def _row(case: Case) -> tuple[str, ...]:
    sure = _("{sure}: {look}").format(sure=_(SURE[case.sure]), look=_(case.surer))
    return _(case.symptom), f"{_(case.cause)} → {_(case.change)}", sure, f"{case.name}, {case.unit[:2]}"


def _score(asked: str, name: str) -> float:
    said = " ".join(asked.casefold().split())
    index, seldom = _index()
    score = sum(index[name][word] * seldom[word] for word in set(_words(asked)) if word in index[name])
    known = any(" ".join(message.casefold().split()) in said for message in all_cases()[name].messages)
    return score + _OF_A_MESSAGE * known


@cache
def _index() -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Weights of words by case, and of each word by how few cases have it."""
    index: dict[str, dict[str, float]] = {}
    for name, case in all_cases().items():
        weights: dict[str, float] = defaultdict(float)
        for language in LANGUAGES:
            for field, weight in _WEIGHTS.items():
                text = in_language(getattr(case, field), language)
                for word in set(_words(text)):
                    weights[word] = max(weights[word], weight)
        for message in case.messages:
            for word in _words(message):
                weights[word] = max(weights[word], 2.0)
        index[name] = weights
    found_in = Counter(word for weights in index.values() for word in weights)
    return index, {word: math.log(1 + len(index) / count) for word, count in found_in.items()}


def _words(text: str) -> Iterable[str]:
    """Words in small letters; of a name its parts, too; of Chinese each pair of characters."""
    for word in _WORD.findall(text.casefold()):
        if "\u4e00" <= word[0] <= "\u9fff":
            yield from (word[i : i + 2] for i in range(len(word) - 1)) if len(word) > 1 else (word,)
        elif word not in _IDLE:
            yield word
            yield from (part for part in re.split(r"[._]", word) if part != word and len(part) > 1)
