"""The drill against FSRS, what a damaged log costs, the widgets, the mock interview."""

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fsrs import Card, Rating, Scheduler

from course_lib.errors import CourseError
from course_lib.i18n import set_language
from course_lib.interview import progress
from course_lib.interview.answers import marked
from course_lib.interview.cards_widget import Cards
from course_lib.interview.mock import LIMIT_SECONDS, Answered, draw, score
from course_lib.interview.questions import TOPICS, chosen, question, questions
from course_lib.interview.room import Drill, Mock, drill, mock, set_interview
from course_lib.interview.schedule import midnight, queue, readiness, standings

NOW = datetime(2026, 5, 4, 10, tzinfo=UTC)


# -- the drill


def reviewed(name: str, *ratings_at: tuple[int, datetime]) -> list[progress.Review]:
    return [progress.Review(name, rating, at) for rating, at in ratings_at]


ID = "logits"


def test_standings_are_those_of_fsrs() -> None:
    times = [NOW, NOW + timedelta(minutes=11), NOW + timedelta(days=3), NOW + timedelta(days=9)]
    card, scheduler = Card(), Scheduler(enable_fuzzing=False)
    for rating, at in zip((3, 3, 1, 2), times, strict=True):
        card, _ = scheduler.review_card(card, Rating(rating), at)
    found = standings([question(ID)], reviewed(ID, *zip((3, 3, 1, 2), times, strict=True)))[ID]
    assert found.card
    assert (found.due, found.card.stability) == (card.due, card.stability)
    assert found.recall(NOW + timedelta(days=20)) == scheduler.get_card_retrievability(card, NOW + timedelta(days=20))


def test_what_was_weak_comes_back_sooner() -> None:
    due = [standings([question(ID)], reviewed(ID, (rating, NOW)))[ID].due for rating in (1, 2, 3, 4)]
    assert due == sorted(set(due))  # type: ignore[type-var]
    assert due[0] is not None
    assert due[0] <= NOW + timedelta(minutes=1)


def test_all_comes_back_once_on_the_day_before_and_nothing_after() -> None:
    interview = date(2026, 5, 10)
    eve, day = midnight(date(2026, 5, 9)), midnight(interview)
    easy = standings([question(ID)], reviewed(ID, (4, NOW)))[ID].due
    assert easy is not None
    assert easy > eve, "FSRS alone would bring it back later"
    assert standings([question(ID)], reviewed(ID, (4, NOW)), interview)[ID].due == eve
    on_the_eve = [(4, NOW), (4, eve + timedelta(hours=9))]
    assert standings([question(ID)], reviewed(ID, *on_the_eve), interview)[ID].due is None
    weak = standings([question(ID)], reviewed(ID, (1, eve + timedelta(hours=9))), interview)[ID]
    assert weak.due is not None, "what was weak on the last day comes back on it"
    assert weak.due < day
    assert queue([weak], day + timedelta(seconds=1), interview) == []
    for rating in (1, 2, 3, 4):
        for hours in range(0, 150, 7):
            due = standings([question(ID)], reviewed(ID, (rating, NOW + timedelta(hours=hours))), interview)[ID].due
            assert due is None or due < day


def test_new_questions_are_spread_over_the_days_that_are_left() -> None:
    asked = list(questions())
    for left in (1, 3, 10):
        interview = NOW.astimezone().date() + timedelta(days=left)
        shown: set[str] = set()
        log: list[progress.Review] = []
        for offset in range(left):
            at = NOW + timedelta(days=offset)
            today = 0
            while new := [each for each in queue(standings(asked, log, interview).values(), at, interview)
                          if each.id not in shown]:  # fmt: skip
                shown.add(new[0].id)
                log.append(progress.Review(new[0].id, 4, at))
                today += 1
            assert today <= -(-len(asked) // left)
        assert len(shown) == len(asked), "all were seen before the day"


def test_the_queue_begins_with_what_is_weakest_and_ends_with_what_comes_soon() -> None:
    asked = [question(name) for name in ("logits", "tf32", "qlora", "fsdp")]
    log = reviewed("logits", (1, NOW), (3, NOW + timedelta(minutes=2)), (3, NOW + timedelta(minutes=20)))
    log += reviewed("tf32", (4, NOW)) + reviewed("qlora", (3, NOW + timedelta(days=30)))
    order = queue(standings(asked, log).values(), NOW + timedelta(days=30))
    assert [each.id for each in order][-2:] == ["fsdp", "qlora"], "new, then what comes back in ten minutes"
    assert {each.id for each in order[:2]} == {"logits", "tf32"}
    known = standings(asked, log)
    at = NOW + timedelta(days=30)
    assert known[order[0].id].recall(at) <= known[order[1].id].recall(at)


def test_readiness_is_the_mean_recall() -> None:
    asked = [question("logits"), question("tf32")]
    known = list(standings(asked, reviewed("logits", (4, NOW))).values())
    assert readiness(known, NOW) == 0.5
    assert readiness(known, NOW + timedelta(days=60)) < 0.5
    assert readiness([], NOW) == 0.0


def test_filters() -> None:
    assert {each.topic for each in chosen("precision")} == {"precision"}
    assert {(each.topic, each.difficulty) for each in chosen("adapters", 2)} == {("adapters", 2)}
    with pytest.raises(CourseError, match="topic: got 'colour'"):
        chosen("colour")
    with pytest.raises(CourseError, match="difficulty: got 9"):
        chosen(difficulty=9)
    with pytest.raises(CourseError, match="got 'no-such'"):
        question("no-such")


# -- progress


def test_a_damaged_log_costs_what_is_damaged_and_says_so(
    state_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress.set_interview("2026-12-05")
    progress.grade("logits", 3)
    path = state_folder / "interview.jsonl"
    with open(path, "ab") as file:
        file.write(b'\n{"event": "graded", "question": "tf32", "rat')  # the machine went down here
    progress.grade("qlora", 1)
    with open(path, "ab") as file:
        file.write(b"\n\x00\xff garbage\n[]\n")
    capsys.readouterr()
    assert [(each.question, each.rating) for each in progress.reviews()] == [("logits", 3), ("qlora", 1)]
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "interview.jsonl" in said
    assert (state_folder / "interview.damaged.jsonl").exists()
    assert progress.interview_day() == date(2026, 12, 5)
    assert capsys.readouterr().out == "", "it is said once"
    Cards(Drill())


@pytest.mark.parametrize(
    "record",
    [{"event": "graded", "question": "logits", "rating": 9}, {"event": "graded", "question": 1, "rating": 3},
     {"event": "graded", "question": "logits", "rating": [3]}, {"event": "graded"}, {"event": "interview"},
     {"event": "interview", "day": "tomorrow"}, {"event": "mock", "score": "x"}, {"event": "graded", "rating": True}],
)  # fmt: skip
def test_records_that_make_no_sense_are_passed_over(record: dict[str, Any]) -> None:
    progress._log.append(**record)
    progress.grade("logits", 3)
    assert [each.question for each in progress.reviews()] == ["logits"]
    assert progress.interview_day() is None
    assert progress.mocks() == []
    assert Drill().next() is not None


def test_a_question_that_is_no_longer_asked_harms_nobody() -> None:
    progress._log.append(event="graded", question="of-an-older-edition", rating=3)
    drilled = Drill()
    assert "seen: 0" in drilled.status()


def test_the_day_of_the_interview(capsys: pytest.CaptureFixture[str]) -> None:
    assert progress.interview_day() is None
    set_interview("2026-12-05")
    set_interview(date(2026, 12, 5))
    assert progress.interview_day() == date(2026, 12, 5)
    set_interview(None)
    assert progress.interview_day() is None
    assert "no day is set" in capsys.readouterr().out
    for wrong in ("soon", "2026-13-01", 5):
        with pytest.raises(CourseError, match="expected a day such as 2026-12-05"):
            set_interview(wrong)  # type: ignore[arg-type]
    for wrong in (0, 5, "3", None, True):
        with pytest.raises(CourseError, match="grade: got"):
            progress.grade("logits", wrong)  # type: ignore[arg-type]
    with pytest.raises(CourseError, match="no-such"):
        progress.grade("no-such", 3)


# -- the widget


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def test_a_card_is_shown_graded_and_kept() -> None:
    clock = Hand()
    cards = Cards(Drill(clock=lambda: NOW), clock=clock)
    first = cards.question
    assert first
    assert marked(first.said("ask")) in cards.card.value
    assert cards.answer.value == ""
    clock.time = 42.0
    cards.show.click()
    assert marked(first.said("say")) in cards.answer.value
    assert "You took 42 s." in cards.answer.value
    cards.grades[2].click()
    assert cards.answer.value == ""
    assert [(each.question, each.rating) for each in progress.reviews()] == [(first.id, 2)]
    assert cards.question is not first
    assert "seen: 1 of" in cards.status.value


def test_a_grade_before_the_answer_shows_the_answer() -> None:
    cards = Cards(Drill())
    first = cards.question
    cards.grades[4].click()
    assert first
    assert marked(first.said("say")) in cards.answer.value
    assert progress.reviews() == []
    cards.show.click()
    cards.grades[4].click()
    assert [each.rating for each in progress.reviews()] == [4]


def test_a_drill_goes_on_where_it_was_left() -> None:
    cards = Cards(Drill())
    answered = []
    for rating in (4, 4, 4, 1, 4):
        assert cards.question
        answered.append(cards.question.id)
        cards.show.click()
        cards.grades[rating].click()
    later = Drill()
    assert [each.question for each in progress.reviews()] == answered
    assert sum(each.card is not None for each in later.known) == len(set(answered))
    assert later.next() == cards.question


def test_the_end_of_a_drill_says_when_it_goes_on() -> None:
    today = datetime.now(UTC)
    drilled = Drill("cards", clock=lambda: today)
    cards = Cards(drilled)
    for _each in range(len(chosen("cards"))):
        cards.show.click()
        cards.grades[4].click()
    assert cards.question is None
    assert "Nothing more for now. The next question comes back on 20" in cards.card.value
    assert cards._buttons.layout.display == "none"
    cards.show.click()
    cards.grades[1].click()
    assert len(progress.reviews()) == len(chosen("cards"))
    progress.set_interview(today.astimezone().date())
    assert "The day of the interview has come" in drilled.end()
    assert drilled.next() is None


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    return shown


def test_the_drill_follows_its_filters(displayed: list[Any]) -> None:
    drill()
    box, copy = displayed
    topics, difficulties, day = box.children[0].children
    status, card, _buttons, _answer = box.children[1].children
    topics.value = "cards"
    assert "of 4" in status.value
    assert "several cards" in card.value
    difficulties.value = 2
    assert "of 1" in status.value
    day.value = date.today() + timedelta(days=1)
    assert "interview tomorrow" in status.value
    assert progress.interview_day() == day.value
    assert copy.data.startswith("<details><summary>The questions without the drill")
    for each in questions():
        assert marked(each.said("ask")) in copy.data


def test_a_filter_that_leaves_nothing_says_so(displayed: list[Any]) -> None:
    mock("cards")
    topics, difficulties, again = displayed[0].children[0].children
    status, card, _buttons, _answer = displayed[0].children[1].children
    difficulties.value = 1  # no such question on several cards
    assert "question 1 of 4" in status.value
    topics.value = ""
    assert "question 1 of 10" in status.value
    before = card.value
    for _attempt in range(20):
        again.click()
        if card.value != before:
            break
    assert card.value != before
    drill("cards", 1)
    assert "Nothing more for now." in displayed[2].children[1].children[1].value


def test_it_speaks_chinese(displayed: list[Any]) -> None:
    set_language("zh")
    drill("bill")
    status, card, buttons, _answer = displayed[0].children[1].children
    assert "现在要答" in status.value
    assert "显存账单" in card.value
    labels = [each.description for each in buttons.children]
    assert labels == ["看答案", "1 · 不会", "2 · 有漏洞", "3 · 还行", "4 · 脱口而出"]


def test_only_what_ipywidgets_7_has_is_used() -> None:
    folder = Path(progress.__file__).parent
    used = set(re.findall(r"ipywidgets\.([A-Z]\w+)", "".join(path.read_text() for path in folder.glob("*.py"))))
    assert used == {"HTML", "Layout", "VBox", "HBox", "SelectionSlider", "Button", "DatePicker", "Text"}


# -- the mock interview


def test_ten_questions_across_the_topics() -> None:
    for seed in range(20):
        drawn = draw(questions(), seed)
        assert len(drawn) == len({each.id for each in drawn}) == 10
        assert {each.topic for each in drawn} == TOPICS.keys()
        assert [each.difficulty for each in drawn] == sorted(each.difficulty for each in drawn)
    assert draw(questions(), 1) == draw(questions(), 1)
    assert len({tuple(each.id for each in draw(questions(), seed)) for seed in range(20)}) == 20
    assert len(draw(chosen("cards"), 1)) == 4
    with pytest.raises(CourseError, match="mock: got no questions"):
        draw(chosen("cards", 1))


def test_the_score_by_hand() -> None:
    one, late = question("logits"), LIMIT_SECONDS + 1
    given = ((1, 5), (2, 5), (3, 5), (4, 5), (4, late), (2, late), (1, late))
    answers = [Answered(one, rating, seconds) for rating, seconds in given]
    assert [each.worth for each in answers] == [0, 0.5, 1, 1, 0.5, 0.5, 0]
    assert score(answers) == round(100 * 3.5 / 7)
    assert score([]) == 0


def test_a_mock_interview_from_the_first_question_to_the_score() -> None:
    clock = Hand()
    cards = Cards(Mock(seed=3), LIMIT_SECONDS, clock)
    assert f"animation:interview-timer {LIMIT_SECONDS}s" in cards.card.value
    for number in range(10):
        assert f"question {number + 1} of 10" in cards.status.value
        clock.time += 30 if number < 8 else 200
        cards.show.click()
        cards.grades[3 if number else 1].click()
    assert cards.question is None
    assert "The interview is over." in cards.status.value
    assert "Readiness score: 80 of 100." in cards.card.value  # 0 + 7 x 1 + 2 x 0.5
    assert cards.card.value.count("<details><summary><b>") == 0
    assert len(progress.reviews()) == 10
    assert [(each.score, each.asked) for each in progress.mocks()] == [(80, 10)]
    again = Cards(Mock(seed=4), LIMIT_SECONDS, clock)
    for _number in range(10):
        again.show.click()
        again.grades[4].click()
    assert "Readiness score: 100 of 100. Before: 80." in again.card.value
    assert "No gaps" in again.card.value
