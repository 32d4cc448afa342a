"""Recipe refuses what no training run can be, and nothing else."""

from dataclasses import fields
from typing import Any

import pytest

from course_lib.errors import CourseError
from course_lib.recipe import LOSSES, MOST, PRECISIONS, Recipe

#: A combination that cannot exist, what the message must name, and the nearest one that can.
IMPOSSIBLE = [
    ({"attention": "flash", "precision": "fp32"}, "flash", {"attention": "flash", "precision": "amp-fp16"}),
    ({"double_quant": True, "quant": "int8", "lora_rank": 8}, "double_quant",
     {"double_quant": True, "quant": "nf4", "lora_rank": 8}),
    ({"double_quant": True}, "double_quant", {"double_quant": False}),
    ({"kbit_prepare": True}, "kbit_prepare", {"kbit_prepare": True, "quant": "int8", "lora_rank": 8}),
    ({"quant": "nf4"}, "lora_rank", {"quant": "nf4", "lora_rank": 1}),
    ({"precision": "master-bf16", "lora_rank": 8}, "LoRA", {"precision": "bf16", "lora_rank": 8}),
    ({"precision": "master-bf16", "optimizer": "adamw-8bit"}, "adamw-8bit",
     {"precision": "master-bf16", "optimizer": "adamw"}),
    ({"precision": "master-bf16", "optimizer": "paged-adamw-8bit"}, "paged", {"optimizer": "paged-adamw-8bit"}),
    ({"precision": "master-bf16", "optimizer": "adafactor"}, "adafactor",
     {"precision": "master-bf16", "optimizer": "sgd"}),
    ({"adapter_dtype": "bf16", "precision": "fp32", "lora_rank": 8}, "adapter_dtype",
     {"adapter_dtype": "bf16", "precision": "amp-bf16-over-bf16", "lora_rank": 8}),
    ({"optimizer": "adafactor", "optimizer_impl": "fused"}, "adafactor",
     {"optimizer": "adafactor", "optimizer_impl": "forloop"}),
    ({"lora_targets": " , "}, "lora_targets", {"lora_targets": "q_proj, v_proj", "lora_rank": 8}),
    ({"batch": 2**16, "seq": 2**13}, "tokens", {"batch": 2**15, "seq": 2**13}),
]  # fmt: skip

BAD_VALUES = [
    *(({name: value}, name) for name in ("batch", "seq", "accum") for value in (0, -1, MOST[name] + 1, 10**30)),
    *(({"lora_rank": value}, "lora_rank") for value in (-1, MOST["lora_rank"] + 1)),
    *(({"batch": value}, "batch") for value in (True, 1.0, "1", None, float("nan"))),
    *(({"checkpoint": text}, "checkpoint") for text in
      ("", "every", "every:", "every:0", "every:-1", "every:1.5", "every:007", "every:99999", "Block", "every:2 ")),
    *(({"loss": text}, "loss") for text in
      ("", "HF", "hf-5", "chunked", "chunked:0", "logits:", "logits:-4", "logits:1000", "chunked:8 ")),
    *(({name: "something-else"}, name) for name in
      ("precision", "optimizer", "optimizer_impl", "adapter_dtype", "quant", "attention", "kernels")),
    ({"double_quant": 1}, "double_quant"),
    ({"kbit_prepare": "yes"}, "kbit_prepare"),
]  # fmt: skip


@pytest.mark.parametrize(("impossible", "named", "possible"), IMPOSSIBLE)
def test_an_impossible_combination_is_refused_and_its_neighbour_is_not(
    impossible: dict[str, Any], named: str, possible: dict[str, Any]
) -> None:
    with pytest.raises(CourseError, match=named):
        Recipe(**impossible)
    Recipe(**possible)


@pytest.mark.parametrize(("values", "named"), BAD_VALUES)
def test_a_bad_value_is_refused_by_its_fields_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(CourseError, match=named) as caught:
        Recipe(**values)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize("name", ["batch", "seq", "accum", "lora_rank"])
def test_the_bounds_themselves_are_allowed(name: str) -> None:
    least = 0 if name == "lora_rank" else 1
    for value in (least, MOST[name]):
        assert getattr(Recipe(**{"seq": 1, name: value}), name) == value


def test_the_defaults_are_those_of_the_command_lines_contract() -> None:
    assert Recipe().to_dict() == {
        "precision": "bf16", "optimizer": "adamw", "optimizer_impl": "foreach", "lora_rank": 0,
        "lora_targets": "attention", "adapter_dtype": "fp32", "lora_dropout": 0.05, "quant": "none",
        "double_quant": False, "kbit_prepare": False, "checkpoint": "none", "attention": "sdpa", "loss": "hf",
        "kernels": "stock", "batch": 1, "seq": 2048, "accum": 1,
    }  # fmt: skip


def test_every_choice_of_every_field_belongs_to_some_recipe() -> None:
    for each in fields(Recipe):
        for choice in each.metadata.get("choices", ()):
            company = {"lora_rank": 8} if each.name == "quant" else {}
            assert getattr(Recipe(**{each.name: choice}, **company), each.name) == choice
    assert all(Recipe(loss=loss).loss_number is None for loss in LOSSES)


def test_numbers_within_texts_are_read() -> None:
    assert [Recipe(checkpoint=text).checkpoint_every for text in ("none", "block", "every:3")] == [0, 1, 3]
    assert [Recipe(loss=text).loss_number for text in ("chunked:1024", "logits:14")] == [1024, 14]
    assert Recipe(lora_targets="q_proj, v_proj,").target_names == ("q_proj", "v_proj")


def test_bytes_follow_from_the_layout() -> None:
    # precision: (a stored weight, a number in a matrix product, autocast), by what each layout is
    layouts = {
        "bf16": (2, 2, False), "fp32": (4, 4, False), "amp-fp16": (4, 2, True), "amp-bf16": (4, 2, True),
        "amp-bf16-over-bf16": (2, 2, True), "master-bf16": (2, 2, False),
    }  # fmt: skip
    assert set(layouts) == set(PRECISIONS)
    for precision, expected in layouts.items():
        recipe = Recipe(precision=precision)
        assert (recipe.weight_bytes, recipe.compute_bytes, recipe.autocast) == expected
        assert recipe.trained_bytes == recipe.weight_bytes
    assert Recipe(lora_rank=8).trained_bytes == 4
    assert Recipe(lora_rank=8, adapter_dtype="bf16").trained_bytes == 2
