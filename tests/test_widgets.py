"""The interactive bill without a browser: what it says, and that it follows its controls."""

import inspect
import re
from typing import Any

import ipywidgets
import pytest

from course_lib import widgets
from course_lib.cards import find_card
from course_lib.errors import CourseError
from course_lib.i18n import set_language
from course_lib.widgets import bill_explorer, explain

BEGIN: dict[str, Any] = {
    "model": "llama-7b", "card": "A100 80GB", "precision": "amp-bf16", "optimizer_impl": "foreach", "lora_rank": 0,
    "checkpoint": "none", "batch": 1, "seq": 2048,
}  # fmt: skip


def said(**change: Any) -> str:
    """The verdict in words."""
    found = re.search(r'<p role="status">(?:<b>)?(.*?)(?:</b>)?</p>', explain(**{**BEGIN, **change}))
    assert found is not None
    return found[1]


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    return shown


def test_the_three_verdicts() -> None:
    assert said() == "A100 80GB: does not fit, at least 46.68 GiB are missing"
    assert said(precision="bf16").startswith("A100 80GB: fits, with at least ")
    tight = {"card": "RTX 3090", "precision": "bf16", "lora_rank": 16, "checkpoint": "block", "batch": 8}
    assert said(**tight).startswith("RTX 3090: tight; it runs if the allocator wastes less than ")


def test_as_the_lesson_says_two_controls_alone_bring_7b_onto_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widgets, "bill_waterfall", lambda *_: None)  # the words are enough
    monkeypatch.setattr(widgets, "as_html", lambda *_: "")
    helpful = {
        name
        for name in widgets.VARY
        for choice in widgets._choices(name)
        if choice != BEGIN[name] and ": fits" in said(**{name: choice})
    }
    assert helpful == {"precision", "lora_rank"}


def test_as_the_lesson_says_a_batch_of_2_costs_nothing_in_bf16() -> None:
    def peak(batch: int) -> str:
        found = re.search(r"together ([0-9.]+) GiB", explain(**{**BEGIN, "precision": "bf16", "batch": batch}))
        assert found is not None
        return found[1]

    assert peak(1) == peak(2) != peak(4)


def test_the_picture_has_a_text() -> None:
    alt = re.search(r'<img alt="([^"]+)"', explain(**BEGIN))
    assert alt is not None
    assert alt[1].startswith("Waterfall of the bill at the peak: weights 25.10 GiB")


def test_what_cannot_be_is_answered_by_the_reason() -> None:
    assert said(model="gpt2") == "seq 2048: gpt2 has 1024 learned positions; choose seq 1024 or less"
    assert "master-bf16 copies trained weights" in said(precision="master-bf16", lora_rank=8)


def test_it_speaks_chinese(displayed: list[Any]) -> None:
    set_language("zh")
    assert said() == "A100 80GB：装不下，至少还差 46.68 GiB"
    bill_explorer()
    assert [each.description for each in controls(displayed)][:3] == ["模型", "显卡", "精度"]


def controls(displayed: list[Any]) -> tuple[Any, ...]:
    return tuple(displayed[0].children[0].children)


def test_the_figure_follows_each_control(displayed: list[Any]) -> None:
    bill_explorer(model="llama-7b", card="A100 80GB", precision="amp-bf16", batch=1, seq=2048)
    shown = displayed[0].children[1]
    by_label = {each.description: each for each in controls(displayed)}
    assert list(by_label) == [
        "model", "card", "precision", "optimizer code", "LoRA rank", "checkpointing", "batch", "length in tokens",
    ]  # fmt: skip
    assert "does not fit" in shown.value
    by_label["precision"].value = "bf16"
    assert "A100 80GB: fits" in shown.value
    by_label["batch"].value = 4
    assert "does not fit" in shown.value
    by_label["card"].value = "H200"
    assert "H200: " in shown.value
    assert "A100" not in shown.value


def test_a_copy_stays_as_plain_output(displayed: list[Any]) -> None:
    bill_explorer(card="RTX 3090")
    copy = displayed[1].data
    assert copy.startswith("<details><summary>")
    assert displayed[0].children[1].value in copy


def test_all_controls_are_sliders_in_a_sensible_order(displayed: list[Any]) -> None:
    bill_explorer(batch=3, seq=2048)
    sliders = controls(displayed)
    assert {type(each) for each in sliders} == {ipywidgets.SelectionSlider}, "JupyterLab keeps arrow keys from lists"
    assert not any(each.continuous_update for each in sliders), "a figure for each step of a drag would lag behind"
    values = {each.description: [value for _, value in each.options] for each in sliders}
    assert values["batch"][:5] == [1, 2, 3, 4, 8]
    assert "2,048" in [label for label, _ in sliders[-1].options]
    sizes = [find_card(name).usable_bytes for name in values["card"]]
    assert sizes == sorted(sizes)
    assert [name for name in values["model"] if name in ("gpt2", "llama-7b", "llama-70b")] == [
        "gpt2", "llama-7b", "llama-70b",
    ]  # fmt: skip


def test_fixed_fields_stay_as_given(displayed: list[Any]) -> None:
    bill_explorer(vary=("batch",), precision="bf16", lora_rank=16, checkpoint="block", card="RTX 3090")
    assert [each.description for each in controls(displayed)] == ["model", "card", "batch"]
    assert "RTX 3090: fits" in displayed[0].children[1].value


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"vary": ("colour",)}, "vary: got 'colour', expected some of "),
        ({"vary": ("double_quant",)}, "vary: got 'double_quant'"),
        ({"card": "RTX 9999"}, "a card that is not in the table"),
        ({"precision": "fp8"}, "precision: got 'fp8'"),
    ],
)
def test_a_wrong_call_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(CourseError, match=message):
        bill_explorer(**wrong)


def test_only_what_ipywidgets_7_has_is_used() -> None:
    """7.7.1 has no ``tooltip`` argument, no TagsInput, no Stack."""
    source = inspect.getsource(widgets)
    used = set(re.findall(r"ipywidgets\.([A-Z]\w+)", source))
    assert used == {"HTML", "Layout", "VBox", "HBox", "SelectionSlider"}
    assert "tooltip" not in source
