"""The Chinese message catalogue: collected from the code, translated by hand, compiled by Babel.

The ``.po`` file is what a translator edits, the ``.mo`` beside it what gettext reads. Both are committed.
"""

import io
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from course_lib.i18n import DOMAIN, LANGUAGES, LOCALE


class _Plain(Catalog):
    """A catalogue whose header has neither dates nor tool versions: the same messages make the same bytes."""

    @property  # type: ignore[misc]
    def mime_headers(self) -> list[tuple[str, str]]:
        return [
            ("Language", str(self.locale)),
            ("MIME-Version", "1.0"),
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Transfer-Encoding", "8bit"),
        ]


def catalogue_of(language: str) -> Path:
    return LOCALE / language / "LC_MESSAGES" / f"{DOMAIN}.po"


def translations(language: str) -> dict[str, str]:
    """The catalogue as translators left it: message to translation, empty where there is none."""
    with catalogue_of(language).open("rb") as file:
        return {str(each.id): str(each.string) for each in read_po(file, locale=language) if each.id}


def compiled_catalogues() -> Iterator[tuple[Path, bytes]]:
    """Each ``.mo`` file and the bytes that its ``.po`` compiles to."""
    for language in LANGUAGES[1:]:  # English is the language of the messages themselves
        catalogue, buffer = _Plain(locale=language, fuzzy=False), io.BytesIO()
        for message, translation in translations(language).items():
            catalogue.add(message, translation)
        write_mo(buffer, catalogue)
        yield catalogue_of(language).with_suffix(".mo"), buffer.getvalue()


def messages_in_code() -> Catalog:
    """Every message that the package marks with ``_`` or ``N_``, and where."""
    catalogue = Catalog()
    found = extract_from_dir(LOCALE.parent, [("**.py", "python")], keywords={"_": None, "N_": None})
    for filename, line, message, comments, _context in found:
        catalogue.add(message, locations=[(filename, line)], auto_comments=comments)
    return catalogue


def collect() -> list[str]:
    """Bring the ``.po`` files up to date with the code; returns what is left to translate.

    Translations of messages that stayed are kept, new ones are empty, those no longer used go.
    """
    left = []
    for language in LANGUAGES[1:]:
        known = translations(language)
        catalogue, buffer = _Plain(locale=language, fuzzy=False), io.BytesIO()
        catalogue.header_comment = "# What code says to the reader. Bring it up to date with `make messages`."
        for message in messages_in_code():
            if message.id:
                translation = known.get(str(message.id), "")
                catalogue.add(message.id, translation, locations=message.locations)
                left += [] if translation else [str(message.id)]
        # Line numbers would make every change of the code a change of the catalogue.
        write_po(buffer, catalogue, width=110, sort_by_file=True, include_lineno=False)
        catalogue_of(language).write_bytes(buffer.getvalue())
    return left
