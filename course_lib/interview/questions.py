"""The interview's questions, read from ``questions.toml`` and checked.

>>> find("why does LoRA save")[0].id
'why-lora-saves'
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path
from typing import Any, NoReturn

from course_lib.errors import CourseError
from course_lib.i18n import LANGUAGES, N_, Language, get_language
from course_lib.interview.figures import expressions, fill

PATH = Path(__file__).with_name("questions.toml")
TOPICS: Mapping[str, str] = {
    "bill": N_("the memory bill"),
    "precision": N_("number formats"),
    "activations": N_("activations and checkpointing"),
    "accumulation": N_("gradient accumulation"),
    "adapters": N_("LoRA and QLoRA"),
    "optimizers": N_("optimizers"),
    "cards": N_("several cards, offloading"),
    "practice": N_("in practice"),
}
DIFFICULTIES: Mapping[int, str] = {1: N_("asked first"), 2: N_("usual"), 3: N_("deep")}

Text = Mapping[str, str]  #: by language


@dataclass(frozen=True)
class Question:
    """One question. All texts hold figures as expressions; :meth:`said` evaluates them."""

    id: str  #: stays for ever: progress and decks refer to it
    topic: str  #: a key of :data:`TOPICS`
    difficulty: int  #: a key of :data:`DIFFICULTIES`
    unit: str  #: where the course shows it
    heading: Text  #: under which heading there
    ask: Text
    say: Text  #: the short answer, as one would say it aloud
    more: Text  #: the longer one
    next: Text  #: what the interviewer asks then
    reply: Text  #: the answer to that
    beware: Text  #: the misconception to avoid
    words: str = ""  #: more words by which it can be found, in any language
    holds: tuple[str, ...] = ()  #: comparisons that must be true for the text to be right

    def said(self, part: str, language: Language | None = None) -> str:
        """One text, such as ``"say"``, with its figures, in ``language`` or the reader's."""
        text: Text = getattr(self, part)
        return fill(text[language or get_language()])

    def figures(self, language: Language | None = None) -> list[str]:
        """The expressions in the answer, each once."""
        chosen = language or get_language()
        found = (each for part in TEXTS for each in expressions(getattr(self, part)[chosen]))
        return list(dict.fromkeys(found))


TEXTS = ("ask", "say", "more", "next", "reply", "beware")
_KEYS = {"id": str, "topic": str, "difficulty": int, "unit": str, "heading": dict, **dict.fromkeys(TEXTS, dict)}


@cache
def questions() -> tuple[Question, ...]:
    """All questions, in the order of the file."""
    return read_questions(PATH)


def question(wanted: str) -> Question:
    """The question of this id.

    Raises:
        CourseError: there is none.
    """
    for each in questions():
        if each.id == wanted:
            return each
    raise CourseError(f"question: got {wanted!r}, expected an id such as {questions()[0].id!r}; find() lists them")


def chosen(topic: str = "", difficulty: int = 0) -> list[Question]:
    """The questions of a topic and a difficulty; an empty word and 0 mean all.

    Raises:
        CourseError: no such topic or difficulty.
    """
    if topic and topic not in TOPICS:
        raise CourseError(f"topic: got {topic!r}, expected one of {', '.join(TOPICS)}")
    if difficulty and difficulty not in DIFFICULTIES:
        raise CourseError(f"difficulty: got {difficulty!r}, expected one of {', '.join(map(str, DIFFICULTIES))}")
    return [each for each in questions() if topic in ("", each.topic) and difficulty in (0, each.difficulty)]


def find(words: str, language: Language | None = None) -> list[Question]:
    """The questions that ``words`` point to, the best first; also by id.

    A word counts the more the rarer it is, and more as a keyword or in the question than in an answer.
    """
    asked = _words(words)
    pages = {each: _page(each, language or get_language()) for each in questions()}
    rarity = {word: log(1 + len(pages) / (1 + sum(word in page for page in pages.values()))) for word in asked}
    scores = {each: sum(rarity[word] * page.get(word, 0) for word in asked) for each, page in pages.items()}
    hits = [each for each in questions() if scores[each] > max(scores.values()) / 3]
    return sorted(hits, key=lambda each: (each.id != words.strip(), -scores[each]))


@cache
def _page(each: Question, language: Language) -> dict[str, int]:
    """The words of a question and its answer, and what each counts."""
    weighed = {1: [each.said(part, language) for part in TEXTS], 4: [each.ask[language]], 6: [each.words, each.id]}
    return {word: weight for weight, texts in weighed.items() for text in texts for word in _words(text)}


#: Words of every question, which say nothing about which one it is.
_TOO_COMMON = """a an and are as at be between but can difference do does explain for from get good go has have how i if
in instead is it its many much my not of on or out people please so than that the then there this to use used useful
was what when where which why with work you your 什么 怎么 多少 区别 为什 哪个 哪些 可以 是什"""


def _words(text: str) -> set[str]:
    """Words in small letters without endings, numbers without their units, and pairs of Chinese characters."""
    found = re.findall(r"[a-z_√]+|\d+b?(?![a-z])|\d+", text.lower())
    latin = [re.sub(r"(?<=...)(ing|ed|es|s|e)$", "", word) for word in found if word not in _TOO_COMMON.split()]
    chinese = [run[i : i + 2] for run in re.findall(r"[\u4e00-\u9fff]+", text) for i in range(max(1, len(run) - 1))]
    return {word.strip("_") for word in latin + chinese} - {"", *_TOO_COMMON.split()}


def read_questions(path: Path) -> tuple[Question, ...]:
    """Read and check a file of questions.

    Raises:
        CourseError: the file, the question and the key, what is there, and what was expected.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CourseError(f"{path.name}: cannot be read: {error}") from error
    if data.keys() != {"question"} or not isinstance(data["question"], list):
        raise CourseError(f"{path.name}: got {', '.join(data) or 'nothing'}, expected [[question]] tables alone")
    found: dict[str, Question] = {}
    for number, table in enumerate(data["question"], 1):
        each = _question(path, number, table)
        if each.id in found:
            _refuse(path, each.id, "id", "one that is taken", "an id of its own")
        found[each.id] = each
    return tuple(found.values())


def _question(path: Path, number: int, table: Any) -> Question:
    name = table.get("id", f"question {number}") if isinstance(table, dict) else f"question {number}"
    if not isinstance(table, dict):
        _refuse(path, name, "it", repr(table), "a table")
    for key, kind in _KEYS.items():
        if type(table.get(key)) is not kind:
            _refuse(path, name, key, repr(table.get(key)), {str: "a text", int: "a number", dict: "en and zh"}[kind])
    for key in table.keys() - _KEYS.keys() - {"words", "holds"}:
        _refuse(path, name, key, repr(table[key])[:60], f"keys from {', '.join(_KEYS)}, words, holds")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", table["id"]):
        _refuse(path, name, "id", repr(table["id"]), "small letters, digits and hyphens")
    for key, known in (("topic", TOPICS), ("difficulty", DIFFICULTIES)):
        if table[key] not in known:
            _refuse(path, name, key, repr(table[key]), f"one of {', '.join(map(str, known))}")
    for key in ("heading", *TEXTS):
        texts = table[key]
        if texts.keys() != set(LANGUAGES) or not all(isinstance(text, str) and text.strip() for text in texts.values()):
            _refuse(path, name, key, repr(texts)[:60], f"a text for each of {', '.join(LANGUAGES)}")
    if not isinstance(table.get("words", ""), str):
        _refuse(path, name, "words", repr(table["words"])[:60], "a text")
    holds = table.get("holds", [])
    if not isinstance(holds, list) or not all(isinstance(each, str) for each in holds):
        _refuse(path, name, "holds", repr(holds)[:60], "a list of comparisons")
    # frozen and hashable, so that answers can be cached by question
    texts = {key: _Texts(table[key]) for key in ("heading", *TEXTS)}
    return Question(**{**table, **texts, "holds": tuple(holds)})


class _Texts(dict[str, str]):
    """A text by language, which can be a part of what is hashed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self.items())))


def _refuse(path: Path, name: str, key: str, came: str, expected: str) -> NoReturn:
    raise CourseError(f"{path.name}: {name}: {key}: got {came}, expected {expected}")
