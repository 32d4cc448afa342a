"""The deck, opened by Anki's own importer: complete, in both languages, never doubled, and brought up to date."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from anki.collection import Collection, ImportAnkiPackageOptions, ImportAnkiPackageRequest

from course_lib.cli import main
from course_lib.i18n import LANGUAGES, get_language
from course_lib.interview import anki as deck
from course_lib.interview.answers import marked
from course_lib.interview.questions import questions

Capture = pytest.CaptureFixture[str]
COUNT = len(questions())


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    opened = Collection(str(tmp_path / "collection.anki2"))
    yield opened
    opened.close()


def bring_in(collection: Collection, path: Path) -> tuple[int, int]:
    """What Anki's importer says: notes that are new, notes that were updated."""
    options = ImportAnkiPackageOptions(merge_notetypes=True)
    log = collection.import_anki_package(ImportAnkiPackageRequest(package_path=str(path), options=options)).log
    return len(log.new), len(log.updated)


def test_it_opens_in_anki_and_a_second_import_adds_nothing(collection: Collection, tmp_path: Path) -> None:
    for language in LANGUAGES:
        path = tmp_path / f"{language}.apkg"
        assert deck.write_deck(path, language, timestamp=1_800_000_000) == COUNT
        assert bring_in(collection, path) == (COUNT, 0)
        assert bring_in(collection, path) == (0, 0)
    assert collection.note_count() == collection.card_count() == 2 * COUNT
    assert get_language() == "en"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_card_has_the_whole_answer(collection: Collection, tmp_path: Path, language: str) -> None:
    path = tmp_path / "deck.apkg"
    deck.write_deck(path, language)  # type: ignore[arg-type]
    bring_in(collection, path)
    (deck_id,) = [each.id for each in collection.decks.all_names_and_ids() if each.name == deck.NAMES[language]]  # type: ignore[index]
    assert len(collection.decks.cids(deck_id)) == COUNT
    for each in questions():
        asked = marked(each.said("ask", language))  # type: ignore[arg-type]
        (note,) = [n for n in map(collection.get_note, collection.find_notes("")) if n["Question"] == asked]
        front, back = note.cards()[0].question(), note.cards()[0].answer()
        assert asked in front
        assert marked(each.said("say", language)) not in front  # type: ignore[arg-type]
        for part in ("say", "more", "next", "reply", "beware"):
            assert marked(each.said(part, language)) in back  # type: ignore[arg-type]
        assert each.heading[language] in back
        assert set(note.tags) == {each.topic, f"difficulty-{each.difficulty}"}


def test_a_new_edition_updates_and_keeps_what_was_learned(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old.apkg", tmp_path / "new.apkg"
    deck.write_deck(old, timestamp=1_800_000_000)
    bring_in(collection, old)
    collection.decks.select(collection.decks.id_for_name(deck.NAMES["en"]))  # type: ignore[arg-type]
    card = collection.sched.getCard()
    assert card
    collection.sched.answerCard(card, 3)
    learned = (card.id, collection.get_card(card.id).reps, collection.get_card(card.id).due)
    first, *others = questions()
    fresh = replace(first, id="a-new-question")
    changed = replace(first, ask={**first.ask, "en": "Another wording?"})
    monkeypatch.setattr(deck, "questions", lambda: (changed, *others, fresh))
    deck.write_deck(new, timestamp=1_800_000_100)
    added, updated = bring_in(collection, new)
    assert (added, updated) == (1, COUNT)
    assert collection.note_count() == COUNT + 1
    texts = [collection.get_note(each)["Question"] for each in collection.find_notes("")]
    assert "Another wording?" in texts
    assert texts.count(marked(first.said("ask"))) == 1, "the new question, not the old wording"
    now = collection.get_card(learned[0])
    assert (now.id, now.reps, now.due) == learned


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, collection: Collection) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["anki"]) == 0
    assert capsys.readouterr().out.startswith(f"interview.en.apkg: {COUNT} cards")
    assert main(["anki", "--lang", "zh", "--out", "here.apkg"]) == 0
    assert bring_in(collection, tmp_path / "interview.en.apkg") == (COUNT, 0)
    assert bring_in(collection, tmp_path / "here.apkg") == (COUNT, 0)
    assert main(["anki", "--out", "here.apkg"]) == 0, "a file that is there is replaced"
    assert sorted(each.name for each in tmp_path.glob("*.part")) == []
    capsys.readouterr()
    assert main(["anki", "--help"]) == 0
    assert "example: course anki" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--lang", "de"], "'de'"),
        (["--lang"], "--lang"),
        (["--out"], "--out"),
        (["--out", "no/such/folder/x.apkg"], "no/such/folder/x.apkg"),
        (["--out", "."], "'.'"),
        (["--colour"], "--colour"),
        (["deck"], "deck"),
    ],
)
def test_what_cannot_be_written_is_one_line(
    arguments: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["anki", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("course anki: ")
    assert err.count("\n") == 1
    assert named in err
    assert list(tmp_path.glob("*apkg*")) == []


def test_without_genanki_it_says_so(tmp_path: Path) -> None:
    code = "import sys; sys.modules['genanki'] = None; from course_lib.cli import main; sys.exit(main(['anki']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "course anki: needs genanki, which is not installed here; run make setup\n"
