"""The Chinese message catalogues: collected from the code, translated by hand, compiled by Babel.

A ``.po`` file is what a translator edits, the ``.mo`` beside it what gettext reads. Both are committed.
"""

import io
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from course_lib.i18n import DOMAIN, LANGUAGES, LOCALE

_PACKAGE = LOCALE.parent


def catalogue_of(language: str) -> Path:
    return LOCALE / language / "LC_MESSAGES" / f"{DOMAIN}.po"


def read_catalogue(language: str) -> Catalog:
    with catalogue_of(language).open("rb") as file:
        return read_po(file, locale=language, domain=DOMAIN)


def compiled_catalogues() -> Iterator[tuple[Path, bytes]]:
    """Each ``.mo`` file and the bytes that its ``.po`` compiles to."""
    for language in LANGUAGES[1:]:  # English is the language of the messages themselves
        buffer = io.BytesIO()
        write_mo(buffer, read_catalogue(language))
        yield catalogue_of(language).with_suffix(".mo"), buffer.getvalue()


def messages_in_code() -> Catalog:
    """Every message that the package marks with ``_`` or ``N_``."""
    catalogue = Catalog(domain=DOMAIN)
    keywords = {"_": None, "N_": None}
    for filename, line, message, comments, context in extract_from_dir(
        _PACKAGE, [("**.py", "python")], keywords=keywords, comment_tags=("translators:",)
    ):
        catalogue.add(message, locations=[(filename, line)], auto_comments=comments, context=context)
    return catalogue


def collect() -> list[str]:
    """Bring the ``.po`` files up to date with the code; returns what is left to translate.

    Translations of messages that stayed are kept, new ones are empty, those no longer used go.
    """
    left = []
    for language in LANGUAGES[1:]:
        catalogue, path = read_catalogue(language), catalogue_of(language)
        catalogue.update(messages_in_code(), no_fuzzy_matching=True, update_header_comment=False)
        catalogue.obsolete.clear()
        buffer = io.BytesIO()
        # Line numbers would make every change of the code a change of the catalogue.
        write_po(buffer, catalogue, width=110, sort_output=True, include_lineno=False, omit_header=False)
        path.write_bytes(buffer.getvalue())
        left += [f"{path.name}: {message.id}" for message in catalogue if message.id and not message.string]
    return left
