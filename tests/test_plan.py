"""The planner: the cheapest cuts that fit, held against the ledger, the FLOP counter and brute force."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cli_errors import MISTAKES, refused

from course_lib import ledger
from course_lib.cards import CARDS, find_card
from course_lib.cli import main
from course_lib.device import Budget
from course_lib.errors import CourseError
from course_lib.flops import step_flops
from course_lib.hf_config import read_config, read_model
from course_lib.i18n import LANGUAGES, set_language
from course_lib.ledger.optimizer import LEAST_PAGED_ELEMENTS
from course_lib.planner import LEDGER_ERROR_PER_MILLE, Plan, Wish, ladder, plan, wish_for
from course_lib.planner.cuts import choices, merge, pays_for_nothing, with_cut
from course_lib.planner.remedies import remedies
from course_lib.planner.work import operations_per_token
from course_lib.recipe import Recipe
from course_lib.units import GB, GIB

MODELS = ("gpt2", "gpt2-xl", "qwen2.5-0.5b", "llama3.2-1b", "llama-7b", "qwen2.5-7b", "llama-70b")
NOTHING: frozenset[str] = frozenset()


def course_plan(arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    status = main(["plan", *arguments.split(), "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    return status, json.loads(out)


def planned(model: str, gib: float, recipe: Recipe | None = None, kept: frozenset[str] = NOTHING) -> Plan:
    shape, card = read_model(model), Budget(gib)
    recipe = recipe or Recipe(seq=min(2048, shape.learned_positions or 2048))
    return plan(wish_for(shape, recipe, kept, card), card)


# -- what a plan says


@pytest.mark.parametrize("card", ["3090", "t4", "h100", "rtx-2060", "p40"])
@pytest.mark.parametrize("model", ["llama-7b", "qwen2.5-0.5b"])
def test_a_plan_agrees_with_the_ledger(model: str, card: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = course_plan(f"{model} --gpu {card}", capsys)
    assert list(found) == ["gpu", "usable_bytes", "fits", "recipe", "steps", "max_batch", "max_seq"]
    assert (found["gpu"], found["usable_bytes"]) == (find_card(card).name, find_card(card).usable_bytes)
    for step in found["steps"]:
        assert list(step) == ["cut", "recipe", "peak_allocated_bytes", "device_used_high", "price"]
        bill = ledger.report(read_model(model), Recipe(**step["recipe"]))
        assert (step["peak_allocated_bytes"], step["device_used_high"]) == (
            bill.forecast.peak_bytes, bill.device.high_bytes)  # fmt: skip
        assert step["cut"].startswith("--")
        assert step["price"]
    if found["steps"]:
        assert found["recipe"] == found["steps"][-1]["recipe"]
        assert found["fits"] == (found["steps"][-1]["device_used_high"] <= found["usable_bytes"])
    command = ["ledger", model, "--gpu", card, *Recipe(**found["recipe"]).flags_beyond(Recipe()).split(), "--json"]
    assert main(command) == status
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert (verdict == "fits", verdict == "does-not-fit") == (found["fits"], status == 1)


def test_7b_on_well_known_cards(capsys: pytest.CaptureFixture[str]) -> None:
    """As lesson 05 works it out: LoRA with checkpoints on 24 GB, NF4 in FP16 on a T4; nothing on an H100."""
    status, large = course_plan("llama-7b --gpu h100", capsys)
    assert (status, large["fits"], large["steps"], large["recipe"]) == (0, True, [], Recipe().to_dict())
    _, lora = course_plan("llama-7b --gpu 3090", capsys)
    assert (lora["recipe"]["lora_rank"], lora["recipe"]["checkpoint"], lora["recipe"]["quant"]) == (16, "block", "none")
    assert "0.59% of the parameters" in lora["steps"][-1]["price"]  # 39,976,960 of 6,738,415,616
    _, small = course_plan("llama-7b --gpu t4", capsys)
    assert (small["recipe"]["precision"], small["recipe"]["quant"]) == ("amp-fp16", "nf4")


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_no_card_is_given_a_format_that_it_does_not_compute(card: Any) -> None:
    wish = wish_for(read_model("llama-7b"), Recipe(), NOTHING, card)
    precisions = {wish.recipe.precision} | _offered(wish)
    if card.native_bf16:
        assert precisions == {"bf16"}
    else:
        assert precisions <= {"fp32", "amp-fp16"}
        assert wish.recipe.precision == ("amp-fp16" if card.tensor_cores_fp16 else "fp32")
    kept = wish_for(read_model("llama-7b"), Recipe(), frozenset({"precision"}), card)
    assert (kept.recipe.precision, _offered(kept)) == ("bf16", set())


def _offered(wish: Wish) -> set[str]:
    return {level["precision"] for choice in choices(wish) for level in choice.levels if "precision" in level}


# -- properties


@settings(max_examples=25, deadline=None)
@given(model=st.sampled_from(MODELS), small=st.floats(2, 200), more=st.floats(0, 200))
def test_a_larger_card_never_needs_more_cuts_nor_dearer_ones(model: str, small: float, more: float) -> None:
    tight, roomy = planned(model, small), planned(model, small + more)
    taken = [step.recipe for step in tight.steps]
    assert [step.recipe for step in roomy.steps] == taken[: len(roomy.steps)]
    assert roomy.fits or not tight.fits


@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    gib=st.floats(2, 200),
    wished=st.fixed_dictionaries(
        {},
        optional={
            "optimizer": st.sampled_from(["adamw", "sgd-momentum", "adafactor", "adamw-8bit"]),
            "precision": st.sampled_from(["fp32", "amp-bf16", "master-bf16", "bf16"]),
            "checkpoint": st.sampled_from(["none", "block", "every:2"]),
            "attention": st.sampled_from(["sdpa", "eager"]),
            "lora_rank": st.sampled_from([0, 8]),
            "lora_targets": st.sampled_from(["attention", "all-linear"]),
            "batch": st.integers(1, 6),
            "seq": st.sampled_from([256, 512, 1000]),
            "loss": st.sampled_from(["hf", "fused-ce"]),
        },
    ),
)
def test_every_plan_keeps_wishes_and_each_step_needs_less(model: str, gib: float, wished: dict[str, Any]) -> None:
    try:
        recipe = Recipe(**({"seq": 1024} | wished))
        found = planned(model, gib, recipe, frozenset(wished))
    except CourseError:  # a wish that no run can have
        return
    sizes = [(step.peak_bytes, step.device.high_bytes) for step in (found.start, *found.steps)]
    for earlier, later in zip(sizes, sizes[1:], strict=False):
        assert later[0] < earlier[0]
        assert later[1] < earlier[1]
    verdicts = [high <= found.card.usable_bytes for _, high in sizes]
    assert verdicts[:-1] == [False] * len(found.steps)
    assert verdicts[-1] == found.fits
    for step in found.steps:
        assert {name: getattr(step.recipe, name) for name in wished} == wished
        assert step.recipe.batch * step.recipe.accum == recipe.batch * recipe.accum
        assert (step.cut, step.price) != ("", "")


def _taken_back(found: Plan) -> Iterator[Recipe]:
    """The plan's recipe with one of its cuts left out, each cut once."""
    wish, end = found.wish.recipe.to_dict(), found.end.recipe
    changed = {name for name, value in end.to_dict().items() if value != wish[name]}
    for together in ({"quant", "double_quant"}, {"lora_rank", "lora_targets"}, {"batch", "accum"}):
        if together & changed:
            changed -= together
            try:
                yield replace(end, **{name: wish[name] for name in together})
            except CourseError:
                continue  # quantised weights need adapters
    for name in changed:
        yield replace(end, **{name: wish[name]})


@settings(max_examples=25, deadline=None)
@given(model=st.sampled_from(MODELS), gib=st.floats(2, 100))
def test_no_cut_of_a_plan_could_be_left_out(model: str, gib: float) -> None:
    found = planned(model, gib)
    if found.fits:
        for recipe in _taken_back(found):
            high = ledger.report(found.wish.shape, recipe).device.high_bytes
            assert 1000 * high > (1000 - LEDGER_ERROR_PER_MILLE) * found.card.usable_bytes, recipe


@pytest.mark.parametrize(
    ("model", "recipe", "dtype"),
    [
        ("llama-7b", {}, "bf16"),
        ("llama-7b", {"precision": "amp-fp16"}, "fp16"),
        ("gpt2", {"seq": 1024, "batch": 2, "precision": "fp32", "optimizer": "adafactor"}, "bf16"),
        ("qwen2.5-0.5b", {"precision": "master-bf16", "accum": 3}, "bf16"),
    ],
)
def test_no_combination_of_cuts_is_passed_over(model: str, recipe: dict[str, Any], dtype: str) -> None:
    """Each combination measured, none skipped: those that need less than all before them are the ladder."""
    wish = Wish(read_model(model), Recipe(**recipe), dtype=dtype)
    found, least = [wish.recipe], ledger.report(wish.shape, wish.recipe)
    for changes in product(*(choice.levels for choice in choices(wish))):
        cut = merge(*changes)
        asked = None if pays_for_nothing(cut) else with_cut(wish, cut)
        try:
            report = asked and ledger.report(wish.shape, asked)
        except CourseError:
            continue
        if asked and report and all(
            new <= old * (1 - LEDGER_ERROR_PER_MILLE / 1000)
            for new, old in (
                (report.forecast.peak_bytes, least.forecast.peak_bytes),
                (report.device.high_bytes, least.device.high_bytes),
            )
        ):
            found, least = [*found, asked], report
    assert [step.recipe for step in ladder(wish)] == found


@settings(max_examples=12, deadline=None)
@given(model=st.sampled_from(("gpt2-xl", "llama3.2-1b", "llama-7b")), gib=st.floats(3, 90))
def test_the_largest_batch_and_length_fit_and_one_more_does_not(model: str, gib: float) -> None:
    found = planned(model, gib)
    shape, recipe = found.wish.shape, found.end.recipe

    def fits(**change: int) -> bool:
        return ledger.report(shape, replace(recipe, **change)).device.high_bytes <= found.card.usable_bytes  # type: ignore[arg-type]

    assert (found.max_batch >= recipe.batch) == found.fits == (found.max_seq >= recipe.seq)
    assert found.max_batch == 0 or fits(batch=found.max_batch)
    assert not fits(batch=found.max_batch + 1)
    assert found.max_seq == 0 or fits(seq=found.max_seq)
    assert found.max_seq == shape.learned_positions or not fits(seq=found.max_seq + 1)


# -- prices


@pytest.mark.parametrize(
    ("model", "recipe"),
    [
        ("smollm2-135m", {}),
        ("smollm2-135m", {"lora_rank": 16, "lora_targets": "all-linear", "checkpoint": "block"}),
        ("gpt2", {"checkpoint": "every:3"}),
        ("gpt2", {"lora_rank": 16, "checkpoint": "block"}),
    ],
)
def test_operations_are_those_that_pytorch_counts(model: str, recipe: dict[str, Any]) -> None:
    asked = Recipe(seq=256, **recipe)
    counted = step_flops(read_config(model), asked) / 256
    # Under LoRA the first block's inputs need no gradient, which the closed form does not know: an n-th of it.
    assert operations_per_token(read_model(model), asked) == pytest.approx(counted, rel=0.01)


def test_prices_have_their_numbers() -> None:
    shape = read_model("llama-7b")
    steps = {step.cut: step.price for step in ladder(Wish(shape, Recipe(batch=4)))}
    price = next(text for cut, text in steps.items() if "nf4" in cut)
    stored = ledger.predict(shape, Recipe(quant="nf4", double_quant=True, lora_rank=16)).static_bytes
    adapters = 4 * shape.lora_params(16, ("attention",))
    bits = 8 * (next(iter(stored.values())) - adapters) / shape.params
    assert f"{bits:.1f} bits on average instead of 16.0" in price
    assert any("micro-batches of 2 instead of 4" in text for text in steps.values())
    paged = next(text for cut, text in steps.items() if "paged" in cut)
    large = sum(size for size in shape.parameter_sizes() if size >= LEAST_PAGED_ELEMENTS)
    assert f"up to {4 * large / GB:.1f} GB" in paged  # two moments of a byte each, there and back
    # One more forward pass of the blocks, but for their last product: 26 % at 2048 tokens.
    old = operations_per_token(shape, Recipe())
    extra = operations_per_token(shape, Recipe(checkpoint="block")) / old - 1
    assert extra == pytest.approx(0.26, abs=0.005)


@pytest.mark.parametrize("language", LANGUAGES)
def test_prices_are_said_in_both_languages(language: str) -> None:
    set_language(language)
    wishes = [Wish(read_model("gpt2"), Recipe(precision="fp32", batch=2, attention="eager", seq=512)),
              Wish(read_model("llama-7b"), Recipe(precision="amp-bf16", optimizer="adafactor"))]  # fmt: skip
    for wish in wishes:
        for step in list(ladder(wish))[1:]:
            assert any("\u4e00" <= letter <= "\u9fff" for letter in step.price) == (language == "zh"), step.price


# -- what does not fit


def test_where_nothing_fits_the_smallest_change_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama-7b", "--gpu", "t4", "--lora-rank", "0"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "does not fit" in out
    assert "short at least" in out
    assert "without the wish --lora-rank 0, these cuts fit: --lora-rank 16" in out
    shape, card = read_model("llama-7b"), find_card("t4")
    long = plan(wish_for(shape, Recipe(seq=16384), frozenset({"seq"}), card), card)
    assert not long.fits
    said = list(remedies(long))
    assert f"--seq {long.max_seq} fits instead of 16384" in said[0]
    assert 1024 < long.max_seq < 16384
    high = long.end.device.high_bytes
    smallest = min(each.usable_bytes for each in CARDS if each.usable_bytes >= high)
    assert any(each.name in said[-1] for each in CARDS if each.usable_bytes == smallest)


def test_no_single_card_is_said_so() -> None:
    shape, card = read_model("llama-70b"), find_card("b200")
    kept = frozenset({"lora_rank", "optimizer"})
    assert "no single card" in list(remedies(plan(wish_for(shape, Recipe(), kept, card), card)))[-1]


def test_what_is_tight_is_no_failure_but_does_not_count_as_fitting(capsys: pytest.CaptureFixture[str]) -> None:
    kept = [f"--{each.name.replace('_', '-')}" for each in fields(Recipe) if type(each.default) is not bool]
    flags = " ".join(f"{flag} {getattr(Recipe(), flag[2:].replace('-', '_'))}" for flag in kept if flag != "--seq")
    device = ledger.report(read_model("gpt2"), Recipe(seq=512)).device
    between = (device.low_bytes + device.high_bytes) / 2 / GIB
    status, found = course_plan(f"gpt2 --seq 512 {flags} --budget-gib {between:.6f}", capsys)
    assert (status, found["fits"], found["steps"]) == (0, False, [])
    assert found["max_seq"] < 512


# -- the command


@pytest.mark.parametrize(("arguments", "named"), MISTAKES)
def test_a_mistake_is_named_in_one_line(arguments: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with_card = arguments if "--gpu" in arguments or "--budget" in arguments else f"{arguments} --gpu a100-80gb"
    assert named in refused(["plan", *with_card.split()], capsys)


def test_a_card_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--gpu --budget-gib" in refused(["plan", "llama-7b"], capsys)


def test_a_wish_that_the_cards_format_contradicts_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--attention flash" in refused(["plan", "llama-7b", "--gpu", "p40", "--attention", "flash"], capsys)


def test_a_person_reads_cuts_prices_and_what_still_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama-7b", "--gpu", "t4", "--precision", "bf16"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "T4 only emulates bfloat16" in out
    assert "fits;" in out
    card = find_card("t4")
    found = plan(wish_for(read_model("llama-7b"), Recipe(), frozenset({"precision"}), card), card)
    assert f"micro-batch that fits is {found.max_batch}, the longest sequence {found.max_seq:,} tokens" in out
    assert "(the model was made for 4,096)" in out
    assert "The bill: course ledger llama-7b --lora-rank 16" in out
