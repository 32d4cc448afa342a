"""The questions as an Anki deck.

Notes, deck and note types keep their ids for ever, so a new edition updates the cards that somebody has already learned
and doubles none. The two languages are two decks.
"""

import os
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError
from course_lib.i18n import Language, _, get_language, set_language
from course_lib.interview.answers import PARTS, marked
from course_lib.interview.questions import Question, questions

#: Of deck and note type. Drawn once; they never change.
IDS: dict[Language, tuple[int, int]] = {"en": (1_764_412_801, 1_764_412_803), "zh": (1_764_412_805, 1_764_412_807)}
NAMES: dict[Language, str] = {"en": "Big Models, Small GPUs", "zh": "大模型，小显卡"}
STYLE = """
.card { font-family: sans-serif; font-size: 18px; line-height: 1.5; text-align: left; max-width: 42em; margin: auto; }
.ask { font-size: 120%; font-weight: bold; }
.label { color: #777; margin: 0.8em 0 0; font-size: 80%; }
.where { color: #777; font-size: 80%; margin-top: 1.2em; }
"""


def write_deck(path: Path, language: Language = "en", timestamp: float | None = None) -> int:
    """Write all questions in one language as an ``.apkg`` file.

    Args:
        path: the file; one that is there is replaced when the new one is whole.
        language: of the cards.
        timestamp: when the notes were changed, in seconds since 1970; now without it.

    Returns:
        How many notes there are.

    Raises:
        CourseError: the file cannot be written.
    """
    from genanki import Package

    before = get_language()
    set_language(language)
    try:
        deck = _deck(language)
    finally:
        set_language(before)
    whole = BytesIO()
    Package(deck).write_to_file(whole, timestamp)
    beside = path.parent / f".{path.name}.part"
    try:
        beside.write_bytes(whole.getvalue())
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise CourseError(
            f"out: cannot write {str(path)!r}: {error.strerror}; name a file in a folder that is there"
        ) from error
    return len(deck.notes)


def _deck(language: Language) -> Any:
    from genanki import Deck, Model, Note, guid_for

    deck_id, model_id = IDS[language]
    names = ["Question", *(part.capitalize() for part in PARTS), "Shown"]
    answer = "".join(
        f'<p class="label">{_(title)}</p><div>{{{{{part.capitalize()}}}}}</div>' for part, title in PARTS.items()
    )
    template = {
        "name": "Interview",
        "qfmt": '<div class="ask">{{Question}}</div>',
        "afmt": f'{{{{FrontSide}}}}<hr id="answer">{answer}<div class="where">{{{{Shown}}}}</div>',
    }
    model = Model(model_id, NAMES[language], [{"name": name} for name in names], [template], STYLE)
    deck = Deck(deck_id, NAMES[language], _("Interview questions on the memory that training takes"))
    for each in questions():
        fields = [marked(each.said(part)) for part in ("ask", *PARTS)]
        tags = [each.topic, f"difficulty-{each.difficulty}"]
        deck.add_note(Note(model, [*fields, _shown(each)], tags=tags, guid=guid_for("interview", language, each.id)))
    return deck


def _shown(each: Question) -> str:
    return marked(_("Shown in {where}").format(where=f"{each.unit} · {each.heading[get_language()]}"))
