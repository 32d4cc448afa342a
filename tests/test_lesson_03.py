"""03_checkpointing: its figures, held against hand formulas and PyTorch's profiler; its tasks; the notebook."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate, combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from lesson_notebooks import core_cells, deeper_sections, printed
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from course_lib import ledger
from course_lib.accounts import Account, Moment
from course_lib.dryrun import dry_run_config
from course_lib.errors import CourseError
from course_lib.hf_config import read_config, read_model
from course_lib.ledger import Instant
from course_lib.lessons.checkpointing import RUNS, Adapted, peaks
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.pipeline.repository import Repository
from course_lib.pipeline.run import execute
from course_lib.pipeline.sources import read_source
from course_lib.recipe import Recipe
from course_lib.tasks import Unsolved, check
from course_lib.widgets import _choices

REPOSITORY = Repository.find(Path(__file__).parent)
LAYERS, HIDDEN, FFN, VOCAB, TOKENS = 32, 4096, 11008, 32000, 2048
GIB, MIB = 2**30, 2**20
LORA = Recipe(precision="bf16", lora_rank=16, batch=4, seq=2048)


def peak_by_profiler(run: Callable[[], Any]) -> int:
    """The most bytes that ``run`` has allocated at once, as PyTorch's profiler counts them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    events = [each for each in recorded.profiler.kineto_results.events() if each.name() == "[memory]"]
    events.sort(key=lambda each: each.start_ns())
    return max(accumulate((each.nbytes() for each in events), initial=0))


# -- what it saves


def test_lora_leaves_32_boundaries_and_the_head() -> None:
    config = read_config("llama-7b")
    plain, cut = (dry_run_config(config, replace(LORA, checkpoint=each)) for each in ("none", "block"))
    left = [trace.end_of(Moment.FORWARD)[Account.ACTIVATIONS] for trace in (plain, cut)]
    assert 100 * (1 - left[1] / left[0]) == pytest.approx(94.2, abs=0.2)
    boundaries = LAYERS * 4 * TOKENS * HIDDEN * 2
    assert boundaries < left[1] < boundaries + 4 * TOKENS * (VOCAB * 4 + 20 * HIDDEN)  # an FP32 number a logit, at most
    assert (plain.peak_bytes / GIB, cut.peak_bytes / GIB) == pytest.approx((67.8, 17.8), abs=0.05)


@pytest.mark.parametrize(
    ("preset", "recipe", "saved", "fell"),
    [
        ("llama-7b", Recipe(precision="bf16", batch=1), 0.93, 1.0),
        ("llama-7b", Recipe(precision="bf16", optimizer_impl="fused", batch=8), 0.93, 0.40),
        ("qwen2.5-0.5b", Recipe(precision="bf16", optimizer_impl="fused", batch=4), 0.67, 0.63),
    ],
)
def test_what_is_saved_and_what_falls(preset: str, recipe: Recipe, saved: float, fell: float) -> None:
    config = read_config(preset)
    plain, cut = (dry_run_config(config, replace(recipe, checkpoint=c)) for c in ("none", "block"))
    bills = [ledger.predict(read_model(preset), replace(recipe, checkpoint=c)) for c in ("none", "block")]
    before, after = (bill.at(Instant.FORWARD_END)[Account.ACTIVATIONS] for bill in bills)
    assert 1 - after / before == pytest.approx(saved, abs=0.01)
    assert cut.peak_bytes / plain.peak_bytes == pytest.approx(fell, abs=0.01)
    assert bills[1].peak_bytes / bills[0].peak_bytes == pytest.approx(fell, abs=0.01)


def test_one_checkpoint_around_everything_saves_nothing_by_the_profiler() -> None:
    net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(12)))
    x = torch.randn(1024, 64)

    def by_block() -> torch.Tensor:
        out = x
        for block in net:
            out = checkpoint(block, out, use_reentrant=False)
        return out

    def step(forward: Callable[[], torch.Tensor]) -> int:
        net.zero_grad()
        return peak_by_profiler(lambda: forward().sum().backward())

    none = step(lambda: net(x))
    assert step(lambda: checkpoint(net, x, use_reentrant=False)) == pytest.approx(none, rel=0.02)
    assert step(by_block) < none / 3


def test_the_ledger_books_three_masks_of_the_first_block_too_many() -> None:
    llama, config = read_model("llama-7b"), read_config("llama-7b")
    numbers = 4 * TOKENS * HIDDEN
    for dropout, masks in ((0.05, 3), (0.0, 0)):
        recipe = replace(LORA, lora_dropout=dropout)
        over = ledger.predict(llama, recipe).peak_bytes - dry_run_config(config, recipe).peak_bytes
        assert over == pytest.approx(masks * numbers, abs=0.01 * numbers)
    assert ledger.predict(llama, LORA).peak_bytes / GIB == pytest.approx(67.91, abs=0.005)


# -- where the peak is


def test_two_controls_together_bring_the_peak_to_the_optimizer_step_and_none_alone() -> None:
    start = {"lora_rank": 16, "batch": 4}
    controls = ("precision", "optimizer_impl", "lora_rank", "quant", "checkpoint", "batch", "seq")

    def reaches_the_step(**moved: Any) -> bool:
        try:
            recipe = Recipe(**(start | moved))
        except CourseError:
            return False  # the explorer shows the reason, and no bill
        return ledger.predict(read_model("llama-7b"), recipe).peak_moment is Moment.OPTIMIZER_STEP

    places = {name: _choices(name) for name in controls}
    assert not any(reaches_the_step(**{name: value}) for name in controls for value in places[name])
    pairs = {
        frozenset((one, other))
        for one, other in combinations(controls, 2)
        if any(reaches_the_step(**{one: a, other: b}) for a, b in product(places[one], places[other]))
    }
    assert len(pairs) > 1
    assert frozenset.intersection(*pairs) == {"lora_rank"}
    assert reaches_the_step(lora_rank=0, batch=1)
    assert reaches_the_step(lora_rank=0, checkpoint="block")


# -- what it costs


def test_the_extra_flops_of_7b_by_hand() -> None:
    attention = 4 * TOKENS**2 * HIDDEN  # two products of [T, T] and [T, H], counted whole
    block = 2 * TOKENS * (4 * HIDDEN**2 + 3 * HIDDEN * FFN) + attention
    plain = LAYERS * (3 * block - 3 * attention + attention + 10 * TOKENS**2 * HIDDEN) + 3 * 2 * TOKENS * VOCAB * HIDDEN
    last_product = 2 * TOKENS * FFN * HIDDEN  # recomputation stops before it
    extra = LAYERS * (block - last_product)
    assert plain / 1e12 == pytest.approx(88.9, abs=0.1)
    assert extra / plain == pytest.approx(0.257, abs=0.001)


def test_gradients_are_bitwise_the_same_and_wrong_when_the_random_state_is_lost() -> None:
    def gradients(**how: Any) -> torch.Tensor:
        torch.manual_seed(0)
        model = GPT(GPTConfig(layers=2, width=32, vocab=64, block_size=16, dropout=0.1))
        if how:
            for block in model.blocks:
                block.forward = partial(checkpoint, block.forward, use_reentrant=False, **how)
        tokens = torch.randint(64, (4, 16))
        torch.manual_seed(1)
        next_token_loss(model(tokens), tokens).backward()
        return torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])

    plain = gradients()
    assert torch.equal(gradients(preserve_rng_state=True), plain)
    assert not torch.allclose(gradients(preserve_rng_state=False), plain, rtol=0.01)


# -- segments


def test_segments_of_sqrt_n_are_worse_than_blocks_for_a_7b_and_best_for_a_chain() -> None:
    llama = read_model("llama-7b")
    by_length = {k: ledger.predict(llama, replace(LORA, checkpoint=f"every:{k}")) for k in range(1, 17)}
    gib = {k: bill.peak_bytes / GIB for k, bill in by_length.items()}
    assert min(gib, key=gib.__getitem__) == 2
    assert gib[2] < gib[1] < gib[4] < gib[6]
    assert gib[1] - gib[2] < 0.5
    for every in (2, 4):
        trace = dry_run_config(read_config("llama-7b"), replace(LORA, checkpoint=f"every:{every}"))
        assert trace.peak_bytes / GIB == pytest.approx(gib[every], rel=0.01)
    assert min(range(1, 65), key=lambda k: math.ceil(64 / k) + k) == 8  # inside as large as boundary


# -- the tasks


def segments_bytes(n: int, every: int, boundary: int, inside: int) -> int:
    return -(-n // every) * boundary + every * inside


def adapters_learn(blocks: Any, x: Any, **how: Any) -> Any:
    for block in blocks:
        x = checkpoint(block, x, **({"use_reentrant": False} | how))
    return x


RIGHT: dict[str, Any] = {
    "peak_moves": {"A": False, "B": True, "C": False, "D": True},
    "segments_bytes": segments_bytes,
    "adapters_learn": adapters_learn,
}


@pytest.mark.parametrize("task", list(RIGHT))
def test_right_answers_pass(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(f"checkpointing.{task}", RIGHT[task])
    assert f"✓ checkpointing.{task}" in capsys.readouterr().out


def test_the_answers_of_the_first_task_are_what_the_dry_run_says() -> None:
    for run, (preset, recipe) in RUNS.items():
        config = read_config(preset)
        plain, cut = (
            dry_run_config(config, replace(recipe, checkpoint=c)).peak_bytes for c in ("none", "block")
        )
        assert peaks(run) == pytest.approx((plain, cut), rel=0.01)
        assert (cut <= 0.9 * plain) is RIGHT["peak_moves"][run]


def not_at_all(blocks: Any, x: Any) -> Any:
    for block in blocks:
        x = block(x)
    return x


def around_all(blocks: Any, x: Any) -> Any:
    return checkpoint(nn.Sequential(*blocks), x, use_reentrant=False)


def in_two_segments(blocks: Any, x: Any) -> Any:
    return adapters_learn([nn.Sequential(*blocks[:2]), blocks[2]], x)


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize(
    ("task", "answer", "message"),
    [
        ("peak_moves", {"A": True, "B": True, "C": False, "D": True}, "no activation is left"),
        ("peak_moves", {"A": False, "B": False, "C": False, "D": True}, "above the optimizer step"),
        ("peak_moves", {"A": False, "B": True, "C": True, "D": True}, "frozen weights own"),
        ("peak_moves", {"A": False, "B": True, "C": False, "D": False}, "activations own"),
        ("peak_moves", {"A": False}, "a dict with the keys"),
        ("segments_bytes", lambda n, k, b, i: n // k * b + k * i, "round up"),
        ("segments_bytes", lambda n, k, b, i: -(-n // k) * b + i, "recomputed at once"),
        ("segments_bytes", lambda n, k, b, i: -(-n // k) * b, "needs room"),
        ("segments_bytes", lambda n, k, b, i: k * b + -(-n // k) * i, "swapped"),
        ("segments_bytes", lambda n, k, b, i: None, "nothing came"),
        ("adapters_learn", not_at_all, "nothing was recomputed"),
        ("adapters_learn", lambda blocks, x: adapters_learn(blocks, x, use_reentrant=True), "nothing learns"),
        ("adapters_learn", lambda blocks, x: adapters_learn(blocks[:2], x), "are all blocks run"),
        ("adapters_learn", around_all, "one checkpoint around everything"),
        ("adapters_learn", in_two_segments, "holds several blocks"),
        ("adapters_learn", lambda blocks, x: blocks, "comes out of the last block"),
    ],
)
def test_wrong_answers_hear_the_usual_cause(task: str, answer: Any, message: str) -> None:
    with pytest.raises(Unsolved, match=message):
        check(f"checkpointing.{task}", answer)


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_reentrant_checkpoints_leave_adapters_without_gradients() -> None:
    for reentrant, needs, expected in ((True, False, 0), (True, True, 6), (False, False, 6)):
        blocks, head = nn.ModuleList(Adapted() for _ in range(3)), nn.Linear(16, 1)
        x = torch.randn(4, 16, requires_grad=needs)
        head(adapters_learn(blocks, x, use_reentrant=reentrant)).sum().backward()
        assert sum(each.grad is not None for each in blocks.parameters()) == expected


# -- the notebook as a whole


def test_the_core_is_short_and_the_deeper_sections_are_six() -> None:
    unit = read_source(REPOSITORY, "03_checkpointing")
    assert 15 <= core_cells(unit) <= 20
    assert deeper_sections(unit) == {"en": 6, "zh": 6}


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_figure_in_the_prose_is_printed_by_a_cell(language: str) -> None:
    outcome, notebook = execute(REPOSITORY, "03_checkpointing", language)
    assert outcome.failure is None
    assert outcome.complaints == []
    said = printed(notebook)
    for figure in ("15 times as much", "bit for bit the same: True", "53.10 GiB", "17.81 GiB", "94.16 %", "+25.7%",
                   "+37.4%", "100 %", "67%", "0 of 48 weights", "eval  checkpointing on  peak  207.1 MiB", "23.18 GiB",
                   "17.59 GiB", "reentrant: 0 of 6", "not reentrant: 6 of 6", "3.3 TFLOP",
                   "offloaded, gradients bit for bit the same: True"):  # fmt: skip
        assert figure in said, figure
    beyond = re.search(r"inside / boundary (\d+): .* from (\d+) layers on", said)
    assert beyond is not None
    # n - sqrt(n) > r (sqrt(n) - 1) means sqrt(n) > r
    assert int(beyond[2]) == pytest.approx(int(beyond[1]) ** 2, rel=0.05)
    assert 20 < int(beyond[1]) < 30
    assert 600 <= int(beyond[2]) < 700
    chain = re.search(r"chain, sqrt\(n\) segments\s+16 layers\s+([\d.]+).*256 layers\s+([\d.]+)", said)
    assert chain is not None
    assert round(float(chain[2]) / float(chain[1]), 1) == 3.7
    for name, units in (("no checkpoint", "66.0"), ("one per layer", "66.0"), ("sqrt(n) segments", "17.0")):
        assert re.search(rf"chain, {re.escape(name)} .* 64 layers +{units} ", said), name
    pictures = re.findall(r"<img [^>]*>", said)
    assert len(pictures) == 3
    assert all(re.search(r'alt="[^"]{40,}"', picture) for picture in pictures)
    assert re.findall(r"^(?:claim|论断) (C\d+)[:：]", said, re.MULTILINE) == ["C12", "C11"]
