"""The interview's questions: schema, where they are shown, how they are found; their figures against outside truth."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from course_lib.accounts import Account, Moment
from course_lib.cards import CARDS
from course_lib.dryrun import dry_run_config
from course_lib.errors import CourseError
from course_lib.flops import step_flops
from course_lib.hf_config import read_config
from course_lib.i18n import LANGUAGES, set_language
from course_lib.interview import figures
from course_lib.interview.answers import all_html, answer_html, found_html, marked
from course_lib.interview.figures import NAMES, evaluate, expressions, fill
from course_lib.interview.questions import (
    DIFFICULTIES,
    TEXTS,
    TOPICS,
    chosen,
    find,
    question,
    questions,
    read_questions,
)
from course_lib.pipeline.repository import Repository
from course_lib.recipe import Recipe
from course_lib.trace import Trace

REPOSITORY = Repository.find(Path(__file__).parent)
N = 6_738_415_616  # parameters of Llama-2-7B: "6738.415616 Million params", llama-cookbook#413
ALL = [(each, language) for each in questions() for language in LANGUAGES]


# -- the questions


def test_there_are_enough_of_every_kind() -> None:
    assert len(questions()) >= 40
    topics = Counter(each.topic for each in questions())
    assert topics.keys() == TOPICS.keys()
    assert min(topics.values()) >= 3
    assert {each.difficulty for each in questions()} == DIFFICULTIES.keys()
    three_of_the_article = {"fp16-or-bf16", "why-lora-saves", "checkpointing"}
    assert three_of_the_article <= {each.id for each in chosen(difficulty=1)}


def test_every_question_is_shown_where_it_says() -> None:
    """The English and the Chinese heading are one heading of the unit's source."""
    headings = {}
    for unit in {each.unit for each in questions()}:
        cells = re.split(r"^# %%", REPOSITORY.source_of(unit).read_text(encoding="utf-8"), flags=re.MULTILINE)
        en, zh = (
            [line for cell in cells if cell.startswith(f' [markdown] lang="{lang}"')
             for line in re.findall(r"^# #+ (.+)$", cell, re.MULTILINE)]
            for lang in LANGUAGES
        )  # fmt: skip
        headings[unit] = set(zip(en, zh, strict=True))
    for each in questions():
        assert (each.heading["en"], each.heading["zh"]) in headings[each.unit], each.id


def test_every_text_is_written_in_its_language() -> None:
    for each in questions():
        for part in TEXTS:
            en, zh = (re.sub(r"\{[^{}]*\}", "0", getattr(each, part)[lang]) for lang in LANGUAGES)
            assert not re.search("[\u3000-\u9fff\uff00-\uffef]", en), (each.id, part)
            assert re.search("[\u4e00-\u9fff]", zh), (each.id, part)
            assert not re.search("[\u4e00-\u9fff][,:;?!]", zh), (each.id, part)
            assert 0.15 < len(zh) / len(en) < 1.2, (each.id, part, "one of the two says more than the other")


def test_both_languages_have_the_same_figures() -> None:
    """But for millions, which Chinese counts in units of 10^4 and 10^8."""

    def shown(text: str) -> Counter[tuple[str, str]]:
        found = figures.PLACEHOLDER.findall(text)
        return Counter((re.sub(r" / 1e[468]$", "", one), "" if " / 1e" in one else form) for one, form in found)

    for each in questions():
        for part in TEXTS:
            en, zh = (getattr(each, part)[lang] for lang in LANGUAGES)
            assert shown(en) == shown(zh), (each.id, part)
            assert " / 1e6" not in zh, (each.id, part)


#: Numbers that a text quotes as somebody's words, takes from the question, or cites; all else is computed.
QUOTED = {
    "lora-still-oom": {"14"}, "checkpointing": {"20", "30", "60", "80"}, "sixty-five-b-in-48-gb": {"0.5", "33"},
    "cuda-context": {"300", "11.7", "900"}, "gb-and-gib": {"0.3", "0.9", "1"}, "fragmentation": {"200"},
    "recipe-for-24-gb": {"50"}, "type-for-a-card": {"7.0", "7.5", "8.0"}, "price-of-pure-bf16": {"1.0"},
    "slower-with-autocast": {"7.0"}, "master-weights": {"0.02"}, "zero-stages": {"7.5"},
}  # fmt: skip


def test_no_figure_is_written_by_hand() -> None:
    """A number with a unit or a decimal stands in braces; the size on a card's box is its name."""
    boxes, quoted = {f"{card.sold_gb} GB" for card in CARDS}, {}
    for each, language in ALL:
        for part in TEXTS:
            prose = re.sub(r"\{[^{}]*\}", "", getattr(each, part)[language])
            for number, unit in re.findall(r"(?<![\w.-])(\d[\d,]*(?:\.\d+)?)( ?(?:GiB|MiB|GB|MB|%))?", prose):
                if (unit or "." in number) and f"{number} {unit.strip()}" not in boxes:
                    quoted.setdefault(each.id, set()).add(number)
    assert quoted == QUOTED


def test_the_context_is_the_one_of_the_device_range() -> None:
    from course_lib.device import CONTEXT_HIGH_BYTES, CONTEXT_LOW_BYTES

    assert (CONTEXT_LOW_BYTES, CONTEXT_HIGH_BYTES) == (300 * 2**20, 900 * 2**20)
    assert [round(size / 2**30, 1) for size in (CONTEXT_LOW_BYTES, CONTEXT_HIGH_BYTES)] == [0.3, 0.9]


def test_what_a_text_says_without_a_figure_holds() -> None:
    assert sum(len(each.holds) for each in questions()) > 30
    for each in questions():
        for comparison in each.holds:
            assert evaluate(comparison) is True, (each.id, comparison)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('id = "a"', "a: id: got one that is taken"),
        ("difficulty = 4", "difficulty: got 4, expected one of 1, 2, 3"),
        ('topic = "colour"', "topic: got 'colour', expected one of bill"),
        ('id = "A B"', "id: got 'A B', expected small letters"),
        ('say.en = ""', "b: say: got .* expected a text for each of en, zh"),
        ("difficulty = true", "difficulty: got True, expected a number"),
        ('colour = "red"', "colour: got 'red', expected keys from id"),
        ("holds = [1]", "holds: got .* expected a list of comparisons"),
        ("say = 1", "say: got 1, expected en and zh"),
        ("[[question]]\nquestion = 1", "question 3: id: got None, expected a text"),
        ("= 1", "cannot be read"),
    ],
)
def test_a_file_with_a_mistake_is_refused_in_one_line(tmp_path: Path, change: str, message: str) -> None:
    def table(name: str) -> dict[str, str]:
        texts = {f"{part}.{lang}": '"x"' for part in ("heading", *TEXTS) for lang in LANGUAGES}
        return {"id": f'"{name}"', "topic": '"bill"', "difficulty": "1", "unit": '"u"', **texts}

    second = table("b")
    key, equals, value = change.partition(" = ")
    if equals and not change.startswith("["):
        if key == "say":
            del second["say.en"], second["say.zh"]
        second[key] = value
        change = ""
    lines = ["[[question]]", *(f"{k} = {v}" for k, v in table("a").items())]
    lines += ["[[question]]", *(f"{k} = {v}" for k, v in second.items()), change]
    path = tmp_path / "questions.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(CourseError, match=rf"questions\.toml: .*{message}") as raised:
        read_questions(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"x = 1", b"question = 1", b"\xff\xfe", b"question = [1]"])
def test_a_file_that_holds_no_questions_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "questions.toml"
    path.write_bytes(content)
    with pytest.raises(CourseError, match=r"^questions\.toml: "):
        read_questions(path)
    with pytest.raises(CourseError, match="cannot be read"):
        read_questions(tmp_path / "none.toml")


# -- finding one


@pytest.mark.parametrize(
    ("language", "words", "wanted"),
    [
        ("en", "where do the 120 GB of a 7B go", "full-finetune-memory"),
        ("en", "can I fine-tune 13B with LoRA on a 24GB card", "recipe-for-24-gb"),
        ("en", "why is my GPU memory not halved with mixed precision", "what-amp-saves"),
        ("en", "GPU out of memory during evaluation but not training", "oom-in-validation"),
        ("en", "gradient accumulation same as large batch?", "accumulation-equivalence"),
        ("en", "difference between ZeRO-2 and ZeRO-3", "zero-stages"),
        ("en", "how long context affects memory", "how-activations-grow"),
        ("en", "my loss is NaN after step 34", "nan-in-fp16"),
        ("en", "cuda out of memory after 1000 steps", "oom-at-a-later-step"),
        ("en", "is torch.cuda.empty_cache useful", "allocated-reserved-used"),
        ("en", "how does Adafactor save memory", "without-lora"),
        ("en", "why is my loss 8 times too large", "missing-one-over-n"),
        ("zh", "Adam 占多少显存", "adam-or-sgd"),
        ("zh", "混合精度到底省不省显存", "what-amp-saves"),
        ("zh", "梯度累积等价于大 batch 吗", "accumulation-equivalence"),
        ("zh", "ZeRO 三个阶段的区别", "zero-stages"),
        ("zh", "上下文变长显存怎么变", "how-activations-grow"),
        ("zh", "一张 8G 卡能做什么", "plan-for-8-gb"),
        ("en", "why does LoRA save memory", "why-lora-saves"),
        ("en", "fp16 vs bf16", "fp16-or-bf16"),
        ("en", "logits", "logits"),
        ("en", "cost of gradient checkpointing", "checkpointing"),
        ("en", "7B 24GB", "recipe-for-24-gb"),
        ("en", "nvidia-smi", "allocated-reserved-used"),
        ("en", "OOM in optimizer step", "oom-in-optimizer-step"),
        ("en", "divide by N", "missing-one-over-n"),
        ("en", "ZeRO stage 2", "zero-stages"),
        ("en", "does AMP halve memory", "what-amp-saves"),
        ("en", "8bit adam", "eight-bit-adam"),
        ("en", "zero-stages", "zero-stages"),
        ("zh", "LoRA 为什么省显存", "why-lora-saves"),
        ("zh", "FP16 和 BF16 的区别", "fp16-or-bf16"),
        ("zh", "梯度检查点的原理和代价", "checkpointing"),
        ("zh", "推理要多少显存", "inference-memory"),
        ("zh", "忘了除", "missing-one-over-n"),
        ("zh", "碎片", "fragmentation"),
        ("zh", "单卡 24GB", "recipe-for-24-gb"),
        ("zh", "显存不足怎么办", "order-of-remedies"),
        ("zh", "V100", "type-for-a-card"),
    ],
)
def test_the_words_of_a_question_find_it_first(language: str, words: str, wanted: str) -> None:
    set_language(language)
    assert find(words)[0].id == wanted
    assert marked(question(wanted).said("ask")) in found_html(words)


def test_every_question_finds_itself_first() -> None:
    for each, language in ALL:
        set_language(language)
        assert find(each.said("ask"))[0] is each, (each.id, language)


def test_what_finds_nothing_shows_everything() -> None:
    assert find("") == find("zzz") == []
    assert all_html() in found_html("zzz")
    assert "Nothing found for &#x27;zzz&#x27;" in found_html("zzz")
    assert found_html("  ").count("<details>") == len(questions()) + sum(bool(each.figures()) for each in questions())


def test_texts_are_shown_as_text() -> None:
    assert marked("a < b & `c`") == "a &lt; b &amp; <code>c</code>"
    assert "<script" not in found_html("<script>alert(1)</script>")
    shown = answer_html(question("full-finetune-memory"))
    assert "Then they ask" in shown
    assert "01_ledger · A maximum over moments, not a sum" in shown
    assert re.search(r'stays\(&quot;llama-7b&quot;, precision=&quot;fp32&quot;\) / GB</code> = 107.815', shown)


# -- the figures


def truth_by_hand() -> dict[str, Callable[..., Any]]:
    """What can be said of Llama-2-7B with a pencil: bytes a parameter."""
    adapters = 32 * 4 * 2 * 16 * 4096

    def stays(_model: str, **recipe: Any) -> float:
        if recipe.get("lora_rank"):
            return 2 * N + 16 * adapters
        each = {"fp32": 16, "amp-bf16": 16, "master-bf16": 16}.get(recipe.get("precision", "bf16"), 8)
        return N * {"sgd": 4, "sgd-momentum": 6}.get(recipe.get("optimizer", "adamw"), each)

    return {
        "stays": stays,
        "params": lambda _model: N,
        "lora_params": lambda _model, rank, _targets="attention": 32 * 4 * 2 * rank * 4096,
        "kv_cache": lambda _model, batch, seq: 2 * 32 * 32 * 128 * 2 * batch * seq,
        "scores": lambda _model, seq: 32 * seq * seq * 2,
        "block_params": lambda _model: 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096,
        "logits": lambda _model, batch=1, seq=2048: 12 * 32000 * batch * seq,
    }


def calls(expression: str) -> list[str]:
    """The calls in an expression, as they are written."""
    return re.findall(r"[a-z_]+\([^()]*\)", expression)


USED = sorted({call for each in questions() for text in [*(getattr(each, part)["en"] for part in TEXTS),
               *(f"{{{one}}}" for one in each.holds)] for one in expressions(text) for call in calls(one)})  # fmt: skip


def test_figures_are_used_in_number() -> None:
    assert len(USED) > 60
    assert {re.match(r"\w+", call)[0] for call in USED} == {n for n, each in NAMES.items() if callable(each)}  # type: ignore[index]


def test_figures_that_a_pencil_gives() -> None:
    by_hand = truth_by_hand()
    easy = [call for call in USED if '"llama-7b"' in call and call.partition("(")[0] in by_hand and "8bit" not in call]
    assert len(easy) >= 15
    for call in easy:
        assert evaluate(call) == pytest.approx(evaluate(call, {**NAMES, **by_hand}), rel=1e-9), call


def test_types_are_those_of_torch() -> None:
    for exponent, mantissa, dtype in ((5, 10, torch.float16), (8, 7, torch.bfloat16), (8, 23, torch.float32)):
        info = torch.finfo(dtype)
        assert figures.largest(exponent, mantissa) == info.max
        assert figures.smallest_normal(exponent) == info.smallest_normal
        tiny = torch.tensor(figures.smallest(exponent, mantissa), dtype=torch.float64)
        assert tiny.to(dtype) > 0 == (tiny / 2.1).to(dtype)
        for at in (0, -6):
            gap = figures.gap(at, mantissa)
            number = torch.tensor(2.0**at, dtype=dtype)
            assert torch.nextafter(number, 2 * number).double() - number.double() == gap
    scaler = torch.amp.GradScaler("cpu")
    assert (scaler.get_scale(), scaler.get_growth_interval()) == (figures.FIRST_SCALE, figures.GROWTH_INTERVAL)


def test_zero_is_that_of_the_paper() -> None:
    """Rajbhandari et al. 2020, figure 1: 7.5B parameters, 64 cards; 120, 31.4, 16.6 and 1.9 GB."""
    assert [round(figures.zero(7.5e9, stage, 64) / 1e9, 1) for stage in range(4)] == [120.0, 31.4, 16.6, 1.9]


def test_selective_recomputation_is_that_of_the_paper() -> None:
    """Korthikanti et al. 2022, section 5: GPT-3 saves 70 % of activations; heads 96, length 2048, hidden 12288."""
    shown = [one for one in question("selective-recomputation").figures("en") if "/ (" in one]
    assert round(evaluate(shown[0]), 2) == 0.70


def test_operations_of_a_small_model_are_those_of_the_counter() -> None:
    config = {**read_config("llama-7b"), "num_hidden_layers": 2}
    counted = {how: step_flops(config, Recipe(seq=256, **OPERATIONS[how])) for how in ("full", "lora, checkpoints")}
    shape = figures.read_model("llama-7b")
    two = type(shape)(**{**shape.__dict__, "layers": 2})
    figures_for_two = pytest.MonkeyPatch()
    figures_for_two.setattr(figures, "read_model", lambda _name: two)
    try:
        for how, count in counted.items():
            said = 256 * figures.operations("two layers", seq=256, **OPERATIONS[how])
            # the first block's frozen q, k and v are the only ones whose input needs no gradient
            assert said == pytest.approx(count, rel=0.05 if how.startswith("lora") else 1e-3), how
    finally:
        figures_for_two.undo()


OPERATIONS: Mapping[str, dict[str, Any]] = {
    "full": {}, "full, checkpoints": {"checkpoint": "block"}, "lora": {"lora_rank": 16},
    "lora, checkpoints": {"lora_rank": 16, "checkpoint": "block"},
}  # fmt: skip


def test_the_published_byte_count_of_a_7b() -> None:
    """foundation-model-stack/fms-acceleration, a100_80gb.csv: Mistral-7B, full fine-tuning, max_memory_allocated."""
    recipe = {"checkpoint": "block", "attention": "flash", "loss": "hf-4.48", "seq": 4096, "batch": 4}
    assert figures.peak("mistral-7b", **recipe) == pytest.approx(72_434_837_504, rel=3e-4)


@cache
def dry_run_of(model: str, recipe: Recipe) -> Trace:
    return dry_run_config(read_config(model), recipe)


def dry(call: str) -> Any:
    """The same figure, from a dry run of transformers' own code on the meta device."""
    name, arguments = re.match(r"(\w+)\((.*)\)$", call).groups()  # type: ignore[union-attr]
    model, recipe = eval(f"(lambda model, **recipe: (model, recipe))({arguments})")  # our own file's text
    if "accum" in recipe:
        recipe["accum"] = min(recipe["accum"], 2)  # from the second micro-batch on they are all alike
    trace = dry_run_of(model, Recipe(**recipe))
    at_end, static = trace.end_of(Moment.FORWARD), trace.static_bytes
    return {
        "peak": lambda: trace.peak_bytes,
        "moment": lambda: trace.peak_moment.value,
        "activations": lambda: at_end[Account.ACTIVATIONS],
        "activation_share": lambda: at_end[Account.ACTIVATIONS] / (sum(at_end.values()) - at_end[Account.TEMPORARY]),
        "stays": lambda: sum(static.values()),
        "weights": lambda: static[Account.WEIGHTS],
        "gradients": lambda: static[Account.GRADIENTS],
        "optimizer": lambda: static[Account.OPTIMIZER],
    }[name]()


MEASURED = ("peak", "moment", "activations", "activation_share", "stays", "weights", "gradients", "optimizer")
#: Seconds in the dry run, so one of each kind is among the quick tests; the rest takes minutes.
QUICK = (
    'peak("llama-7b", lora_rank=16, checkpoint="block")',
    'peak("llama-7b", precision="amp-bf16", optimizer_impl="fused")',
    'activations("llama-7b", attention="eager")',
    'weights("llama-7b", quant="nf4", double_quant=True, lora_rank=16)',
)


def agrees(call: str) -> None:
    said, measured = evaluate(call), dry(call)
    close = 0.015 if "every:" in call else 0.01  # a remainder of blocks costs the ledger a per cent
    assert said == (measured if isinstance(said, str) else pytest.approx(measured, rel=close)), call


@pytest.mark.parametrize("call", QUICK)
def test_figures_by_dry_run(call: str) -> None:
    assert call in USED
    agrees(call)


@pytest.mark.slow
@pytest.mark.parametrize("call", [each for each in USED if each.partition("(")[0] in MEASURED and each not in QUICK])
def test_all_other_figures_by_dry_run(call: str) -> None:
    if "fused-linear-ce" in call:
        pytest.skip("not in the dry run; published rows of it are in test_published_peaks")
    agrees(call)


@pytest.mark.slow
def test_operations_of_the_7b_are_those_of_the_counter() -> None:
    config = read_config("llama-7b")
    for how in OPERATIONS.values():
        said = 2048 * figures.operations("llama-7b", **how)
        assert said == pytest.approx(step_flops(config, Recipe(seq=2048, **how)), rel=0.01)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{2 * 7e9 / GB:.0f} GB", "14 GB"),
        ("{-2 + 3}", "1"),
        ('{peak("llama-7b", checkpoint="every:2") / GB:.1f} and {2**16:,}', "67.4 and 65,536"),
        ("none", "none"),
        ("{1 < 2}", "True"),
    ],
)
def test_expressions_are_filled_in(text: str, filled: str) -> None:
    assert fill(text) == filled


@pytest.mark.parametrize(
    "wrong",
    ["open('x')", "__import__('os')", "peak.__class__", "[1]", "lambda: 1", "GB.real", "1 if 1 else 2", "unknown",
     "1 +", "peak('no-such-model')", "peak('llama-7b', precision='fp8')", "peak('llama-7b', colour=1)", "1 / 0",
     "1 < 2 < 3", "peak(**{})", "GB()", "'a' * 3 - 1"],
)  # fmt: skip
def test_an_expression_does_nothing_but_arithmetic(wrong: str) -> None:
    with pytest.raises(CourseError):
        evaluate(wrong)


def test_answers_come_without_torch() -> None:
    import subprocess
    import sys

    code = ("import sys; from course_lib.interview.answers import all_html; assert len(all_html()) > 50_000; "
            "assert 'torch' not in sys.modules")  # fmt: skip
    subprocess.run([sys.executable, "-c", code], check=True)
