"""02_mixed_precision: its figures, held against NumPy, hand formulas and real CPU autocast; its tasks."""

import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lesson_notebooks import core_cells, deeper_sections, printed
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.accounts import Account, Moment
from course_lib.bits_widget import explain_bits
from course_lib.cards import CARDS
from course_lib.corpus import VOCAB, draw_batch, text
from course_lib.dryrun import dry_run_config, on_meta
from course_lib.errors import CourseError
from course_lib.float_plots import zone_shares
from course_lib.floats import BF16, FLOAT_TYPES, FP16, FP32
from course_lib.hf_config import read_config
from course_lib.i18n import set_language
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.pipeline.repository import Repository
from course_lib.pipeline.run import execute
from course_lib.pipeline.sources import read_source
from course_lib.recipe import Recipe
from course_lib.tasks import Unsolved, check

REPOSITORY = Repository.find(Path(__file__).parent)
LAYERS, HIDDEN, FFN, VOCABULARY = 32, 4096, 11008, 32000
GIB = 2**30


# -- bits


def value_of(digits: str, exponent_bits: int) -> float:
    """IEEE 754's formula, worked out by hand from the bits."""
    sign, exponent, mantissa = digits[0], digits[1 : 1 + exponent_bits], digits[1 + exponent_bits :]
    bias, e, fraction = 2 ** (exponent_bits - 1) - 1, int(exponent, 2), int(mantissa, 2) / 2 ** len(mantissa)
    if e == 2**exponent_bits - 1:
        return math.nan if fraction else (-1) ** int(sign) * math.inf
    return float((-1) ** int(sign) * (2.0 ** (1 - bias) * fraction if e == 0 else 2.0 ** (e - bias) * (1 + fraction)))


@pytest.mark.parametrize("value", [66246.39, 1.0, -0.1, 1e-8, 6e-8, 3e-5, 65504.0, 1e-41, 0.0, math.inf])
def test_bits_stand_for_what_is_stored(value: float) -> None:
    for kind, exponent_bits in ((FP32, 8), (FP16, 5), (BF16, 8)):
        digits = kind.bits(value)
        assert len(digits) == sum(kind.fields)
        assert value_of(digits, exponent_bits) == kind.stored(value)
    with np.errstate(over="ignore"):
        assert FP16.stored(value) == float(np.float64(value).astype(np.float16))


def test_the_types_are_those_of_the_standards() -> None:
    assert [kind.fields for kind in FLOAT_TYPES] == [(1, 8, 23), (1, 5, 10), (1, 8, 7)]
    assert np.finfo(np.float16).max == 65504 == torch.finfo(torch.float16).max
    assert float(np.finfo(np.float16).smallest_subnormal) == pytest.approx(6e-8, rel=0.01)
    assert FP16.stored(66246.39) == math.inf
    assert round(100 * (66246.39 / 65504 - 1)) == 1  # per cent
    assert BF16.stored(66246.39) == 66048


def test_the_explorer_says_what_becomes_of_a_number_in_both_languages() -> None:
    assert "FP16 becomes infinite" in explain_bits("66246.39", 0)
    assert "FP16 becomes 0" in explain_bits("1e-8", 0)
    assert "FP16 off by" in explain_bits("1e-8", 20)
    assert "FP32 exact" in explain_bits("0.5", 3)
    assert "no number" in explain_bits("a lot", 0)
    set_language("zh")
    assert "FP16 变成无穷大" in explain_bits("66246.39", 0)
    assert "不是数" in explain_bits("", 0)


def test_the_explorer_uses_only_what_ipywidgets_7_has() -> None:
    source = (REPOSITORY.top / "course_lib" / "bits_widget.py").read_text(encoding="utf-8")
    assert set(re.findall(r"ipywidgets\.([A-Z]\w+)", source)) == {"Layout", "Text", "IntSlider"}
    assert "tooltip" not in source


def test_zones_of_fp16() -> None:
    sizes = np.array([2.0**-25, 2.0**-24, 2.0**-15, 2.0**-14, 1.0, 65504.0, 2.0**16, 0.0])
    assert zone_shares(sizes) == pytest.approx((1 / 7, 2 / 7, 3 / 7, 1 / 7))


# -- gradients and the scale


@pytest.fixture(scope="module")
def trained() -> GPT:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    model = GPT(GPTConfig(layers=2, width=32, vocab=VOCAB, block_size=32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _step in range(200):
        tokens, targets = draw_batch(8, 32, draw)
        optimizer.zero_grad()
        next_token_loss(model(tokens), targets).backward()
        optimizer.step()
    torch.set_num_threads(threads)
    return model


def test_more_than_half_of_the_logits_gradients_vanish_and_none_when_scaled(trained: GPT) -> None:
    tokens, targets = draw_batch(64, 32, torch.Generator().manual_seed(1))
    logits = trained(tokens).detach()
    once = F.one_hot(targets, VOCAB)
    by_hand = ((logits.softmax(-1) - once) / targets.numel()).abs().flatten()  # the derivative of cross-entropy
    lost = (by_hand[by_hand > 0].half() == 0).float().mean().item()
    assert 0.5 < lost < 0.9
    assert (by_hand < 2.0**-14).float().mean() > 0.9
    assert (2.0**16 * by_hand[by_hand > 0]).half().count_nonzero() == by_hand.count_nonzero()


def test_fp16_has_a_window_of_scales_and_bf16_needs_none(trained: GPT) -> None:
    tokens, targets = draw_batch(64, 32, torch.Generator().manual_seed(1))

    def gradient(dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
        trained.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
            loss = next_token_loss(trained(tokens), targets)
        (scale * loss).backward()
        gradients = [each.grad.flatten() for each in trained.parameters() if each.grad is not None]
        return torch.cat(gradients).double() / scale

    exact = gradient(torch.float32)
    error = {e: ((gradient(torch.float16, 2.0**e) - exact).norm() / exact.norm()).item() for e in (-8, 0, 12, 24)}
    bf16 = ((gradient(torch.bfloat16) - exact).norm() / exact.norm()).item()
    assert error[12] < bf16 / 3 < bf16 < error[0] < error[-8]
    assert not math.isfinite(error[24])


# -- what autocast shrinks


def test_7b_under_autocast_leaves_more_behind_at_batch_1_and_less_at_batch_8() -> None:
    config = read_config("llama-7b")
    left = {}
    for name, batch in (("fp32", 1), ("amp-fp16", 1), ("bf16", 1), ("fp32", 8), ("amp-fp16", 8)):
        trace = dry_run_config(config, Recipe(precision=name, optimizer_impl="fused", batch=batch, seq=2048))
        left[name, batch] = trace.end_of(Moment.FORWARD)[Account.ACTIVATIONS]
        if name == "amp-fp16":
            assert trace.static_bytes[Account.WEIGHTS] == pytest.approx(4 * 6_738_415_616, rel=1e-6)
    matrices = LAYERS * (4 * HIDDEN**2 + 3 * HIDDEN * FFN) + VOCABULARY * HIDDEN
    assert 2 * matrices / GIB == pytest.approx(12.3, abs=0.05)
    assert left["amp-fp16", 1] / left["fp32", 1] == pytest.approx(1.257, abs=0.01)
    for batch in (1, 8):  # without the copies a third less
        rest = left["amp-fp16", batch] - 2 * matrices
        assert rest / left["fp32", batch] == pytest.approx(2 / 3, abs=0.03)
    assert left["amp-fp16", 8] < 0.8 * left["fp32", 8]
    assert left["bf16", 1] < 0.6 * left["fp32", 1]


def saved_by_autograd(batch: int, autocast: bool) -> int:
    """Bytes saved for the backward pass by eight linear layers, as PyTorch's hooks see them, on the real CPU."""
    net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
    own = {each.untyped_storage().data_ptr() for each in net.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    rows = torch.randn(batch, 256)
    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast),
    ):
        net(rows).sum()
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def test_eight_layers_save_more_under_autocast_until_the_batch_is_large() -> None:
    assert saved_by_autograd(4, True) > 20 * saved_by_autograd(4, False)
    assert saved_by_autograd(64, True) > 2 * saved_by_autograd(64, False)
    assert saved_by_autograd(1024, True) < 0.8 * saved_by_autograd(1024, False)


def test_the_casts_that_the_lesson_shows_for_the_cpu_are_the_cpus() -> None:
    x = torch.ones(4, 16, 16, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.layer_norm(x, (16,)).dtype == x.softmax(-1).dtype == torch.bfloat16
        assert F.cross_entropy(x[0], torch.zeros(16, dtype=torch.long)).dtype == torch.float32
    with on_meta("cuda"), torch.autocast("cuda", dtype=torch.bfloat16):
        assert F.layer_norm(x.to("meta"), (16,)).dtype == x.to("meta").softmax(-1).dtype == torch.float32


class Casts(TorchDispatchMode):
    """Counts conversions of type."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("cache", "of_the_weight"), [(True, 1), (False, 2)])
def test_a_weight_used_twice_is_cast_once_while_the_cache_is_on(cache: bool, of_the_weight: int) -> None:
    for device in ("cpu", "meta"):
        weight = nn.Parameter(torch.ones(4, 4, device=device))
        x = torch.ones(2, 4, dtype=torch.bfloat16, device=device)
        pretend = on_meta("cpu") if device == "meta" else nullcontext()
        with pretend, Casts() as casts, torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache):
            F.linear(F.linear(x, weight), weight)
        assert casts.count == of_the_weight
    assert torch.is_autocast_cache_enabled()


# -- updates that vanish, TF32, cards


def test_a_small_update_vanishes_in_bf16() -> None:
    weight = torch.tensor(0.02, dtype=torch.bfloat16)
    gap = torch.nextafter(weight, torch.tensor(1.0, dtype=torch.bfloat16)) - weight
    assert gap.item() == 2.0**-13 == pytest.approx(0.00012, rel=0.02)
    assert weight + 1e-5 == weight != weight + 1e-4
    one = torch.tensor(1.0, dtype=torch.bfloat16)
    assert torch.nextafter(one, one * 2) - one == 2.0**-7


def test_fp16_and_tf32_round_alike_and_bf16_eight_times_coarser() -> None:
    x = torch.rand(10_000, dtype=torch.float64) + 1
    error = {bits: ((x * 2**bits).round() / 2**bits - x).norm().item() for bits in (10, 7)}
    assert error[7] / error[10] == pytest.approx(8, rel=0.02)
    assert (x.half().double() - x).norm().item() == pytest.approx(error[10], rel=1e-6)


def test_a_t4_is_before_native_bf16_and_a_3090_after() -> None:
    types = {card.name: card.training_type().dtype for card in CARDS}
    assert (types["T4"], types["V100 16GB"], types["RTX 3090"], types["GTX 1080"]) == ("fp16", "fp16", "bf16", "fp32")


def test_the_text_is_bytes_and_targets_follow_tokens() -> None:
    tokens, targets = draw_batch(3, 16, torch.Generator().manual_seed(2))
    assert tokens.shape == targets.shape == (3, 16)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert int(text().max()) < VOCAB
    with pytest.raises(CourseError, match="less than the text"):
        draw_batch(1, 10**6, torch.Generator())


# -- the tasks


def type_for(capability: tuple[int, int]) -> str:
    return "bf16" if capability[0] >= 8 else "fp16" if capability[0] == 7 else "fp32"


def fp16_step(loss: Any, parameters: Any, optimizer: Any, scaler: Any, max_norm: float) -> None:
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(parameters, max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def spacing(value: float, mantissa_bits: int) -> float:
    return float(2.0 ** (math.frexp(value)[1] - 1 - mantissa_bits))


def without(*left_out: str) -> Callable[..., None]:
    """An FP16 step that leaves something out, or takes another order."""

    def step(loss: Any, parameters: Any, optimizer: Any, scaler: Any, max_norm: float) -> None:
        (loss if "scale" in left_out else scaler.scale(loss)).backward()
        if "clip first" in left_out:
            nn.utils.clip_grad_norm_(parameters, max_norm)
        if "unscale" not in left_out:
            scaler.unscale_(optimizer)
        if "twice" in left_out:
            scaler.unscale_(optimizer)
        if "clip" not in left_out and "clip first" not in left_out:
            nn.utils.clip_grad_norm_(parameters, max_norm)
        if "step" not in left_out:
            optimizer.step() if "scaler" in left_out else scaler.step(optimizer)
        if "update" not in left_out:
            scaler.update()
        if "zero" not in left_out:
            optimizer.zero_grad()

    return step


@pytest.mark.parametrize(
    ("task", "answer"), [("type_for", type_for), ("fp16_step", fp16_step), ("spacing", spacing)]
)
def test_right_answers_pass(task: str, answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    check(f"precision.{task}", answer)
    assert f"✓ precision.{task}" in capsys.readouterr().out


WRONG: list[tuple[str, Any, str]] = [
    ("type_for", lambda capability: "bf16" if capability >= (7, 5) else type_for(capability), "only emulated"),
    ("type_for", lambda capability: "fp16", "no tensor cores"),
    ("type_for", lambda capability: "fp32", "has tensor cores"),
    ("type_for", lambda capability: type_for(capability) if capability < (8, 0) else "fp16", "needs no scaler"),
    ("type_for", lambda capability: None, "nothing came"),
    ("fp16_step", without("clip first"), "unscale_ comes before clipping"),
    ("fp16_step", without("unscale", "clip first"), "unscale_ comes before clipping"),
    ("fp16_step", without("clip"), "nothing was clipped"),
    ("fp16_step", without("scale"), "each call belongs once"),
    ("fp16_step", without("twice"), "each call belongs once"),
    ("fp16_step", without("step"), "scaler.step|each call belongs once"),
    ("fp16_step", without("scaler"), "infinite gradients must not reach"),
    ("fp16_step", without("update"), "each call belongs once|scaler.update"),
    ("fp16_step", without("zero"), "drop them at the end"),
    ("spacing", lambda value, bits: 2.0**-bits, "gap between 1 and 2"),
    ("spacing", lambda value, bits: value * 2.0**-bits, "does not grow"),
    ("spacing", lambda value, bits: spacing(value, bits) / 2, "half of the gap"),
    ("spacing", lambda value, bits: 2.0 ** (math.ceil(math.log2(value)) - bits), "twice the gap"),
]


@pytest.mark.parametrize(("task", "answer", "message"), WRONG)
def test_wrong_answers_hear_the_usual_cause(task: str, answer: Any, message: str) -> None:
    with pytest.raises(Unsolved, match=message):
        check(f"precision.{task}", answer)


# -- the notebook as a whole


def test_the_core_is_short_and_the_deeper_sections_are_six() -> None:
    unit = read_source(REPOSITORY, "02_mixed_precision")
    assert 15 <= core_cells(unit) <= 20
    assert deeper_sections(unit) == {"en": 6, "zh": 6}


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_figure_in_the_prose_is_printed_by_a_cell(language: str) -> None:
    outcome, notebook = execute(REPOSITORY, "02_mixed_precision", language)
    assert outcome.failure is None
    assert outcome.complaints == []
    said = printed(notebook)
    for figure in ("66,048.00", "6.55e+04", "6e-08", "1.0078125", "26.5", "102.3", "12.3 GiB", "125.7 %", "1,048,576 B",
                   "237 operators", "287 operators", "50 casts", "begins at 65536", "after 2000", "x 27.39",
                   "No inf checks were recorded", "Attempting to unscale FP16 gradients", "nan"):  # fmt: skip
        assert figure in said, figure
    skipped = re.search(r"skipped: steps \[(.*)\]", said)
    assert skipped is not None
    assert skipped[1]
    moved = [int(share) for share in re.findall(r"moves (\d+)% of the weights", said)]
    assert moved[0] > 90
    assert moved[2] < 15
    pictures = re.findall(r"<img [^>]*>", said)
    assert len(pictures) == 5
    assert all(re.search(r'alt="[^"]{40,}"', picture) for picture in pictures)
    claims = ["C3", "C5", "C9", "C6", "C8", "C20", "C4", "C7", "C16"]
    assert re.findall(r"^(?:claim|论断) (C\d+)[:：]", said, re.MULTILINE) == claims
