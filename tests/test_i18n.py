"""What code says is said in both languages: nothing is left untranslated, no placeholder gets lost."""

import string

import pytest

from course_lib.errors import CourseError
from course_lib.i18n import N_, _, get_language, set_language
from course_lib.pipeline.catalogues import compiled_catalogues, messages_in_code, translations

MESSAGES = sorted(str(message.id) for message in messages_in_code() if message.id)


def placeholders(text: str) -> list[str]:
    return sorted(f"{name}!{conversion}:{spec}" for _, name, spec, conversion in string.Formatter().parse(text) if name)


def test_every_message_in_the_code_is_translated_and_no_other() -> None:
    chinese = translations("zh")
    assert sorted(chinese) == MESSAGES, "run `make messages`, then translate in course_lib/locale"
    assert [message for message in MESSAGES if not chinese[message].strip()] == []


def test_translations_keep_the_placeholders() -> None:
    for message, translation in translations("zh").items():
        assert placeholders(message) == placeholders(translation), message


def test_translations_are_chinese_with_chinese_punctuation() -> None:
    for message, translation in translations("zh").items():
        assert any("\u4e00" <= letter <= "\u9fff" for letter in translation), message
        for left, right in zip(translation, translation[1:], strict=False):
            assert not ("\u4e00" <= left <= "\u9fff" and right in ",:;?!"), translation


def test_what_is_compiled_is_what_is_translated() -> None:
    for path, content in compiled_catalogues():
        assert path.read_bytes() == content, "run `course build`"


def test_the_language_is_looked_up_when_a_message_is_said() -> None:
    kept = N_("Right.")
    assert (_(kept), get_language()) == ("Right.", "en")
    set_language("zh")
    assert (_(kept), get_language()) == ("猜对了。", "zh")
    assert _("no message of ours") == "no message of ours"
    set_language("en")
    assert _(kept) == "Right."


@pytest.mark.parametrize("language", ["de", "", "EN", "../zh"])
def test_another_language_is_refused_and_changes_nothing(language: str) -> None:
    set_language("zh")
    with pytest.raises(CourseError, match="expected one of en, zh"):
        set_language(language)
    assert get_language() == "zh"
