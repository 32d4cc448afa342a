"""The language in which code speaks to the reader: gettext over the catalogues in ``locale/``.

Messages are written in English in the code and marked by ``_``; ``locale/zh/LC_MESSAGES`` holds the
Chinese ones. `make messages` collects new messages into the catalogue, `course build` compiles it.

>>> set_language("zh")
>>> print(_("measured"))
实测
"""

import gettext
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from course_lib.errors import CourseError

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")
DOMAIN = "course_lib"
LOCALE = Path(__file__).parent / "locale"

_catalogue = gettext.NullTranslations()
_language: Language = "en"


def set_language(language: str) -> None:
    """Speak English (``en``) or Chinese (``zh``) from now on.

    Raises:
        CourseError: the course is not written in that language.
    """
    global _catalogue, _language
    if language not in LANGUAGES:
        raise CourseError(f"language: got {language!r}, expected one of {', '.join(LANGUAGES)}")
    _language = language
    # English needs no catalogue: a message is its own translation.
    _catalogue = gettext.translation(DOMAIN, LOCALE, [language], fallback=language == "en")


def get_language() -> Language:
    return _language


def _(message: str) -> str:
    """``message`` in the reader's language, looked up when it is said."""
    return _catalogue.gettext(message)


def sentences(parts: Iterable[str]) -> str:
    """Whole sentences, one after the other."""
    return ("" if _language == "zh" else " ").join(parts)


def clauses(parts: Iterable[str]) -> str:
    """Parts of one sentence."""
    return ("；" if _language == "zh" else "; ").join(parts)


def N_(message: str) -> str:
    """Marks a message that is kept now and said later: ``_(kept)``."""
    return message


def in_language(message: str, language: Language) -> str:
    """``message`` in that language, whatever the reader's."""
    return gettext.translation(DOMAIN, LOCALE, [language], fallback=True).gettext(message)
