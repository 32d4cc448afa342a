"""04_accumulation: its figures against PyTorch, published reports and hand formulas; resuming; its tasks."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lesson_notebooks import core_cells, deeper_sections, printed
from matplotlib import pyplot
from torch import nn
from torch.nn import functional as F

from course_lib import ledger
from course_lib.accounts import Account
from course_lib.accumulate import (
    WHOLE,
    Normed,
    Way,
    adamw,
    gradient,
    relative_difference,
    sgd,
    small_gpt,
    train,
    windows,
)
from course_lib.article import finders
from course_lib.dryrun import dry_run_config
from course_lib.errors import CourseError
from course_lib.exercises.curve_figures import loss_curves, relative_differences
from course_lib.hf_config import read_config, read_model
from course_lib.models import IGNORED
from course_lib.pipeline.repository import Repository
from course_lib.pipeline.run import execute
from course_lib.pipeline.sources import read_source
from course_lib.recipe import Recipe
from course_lib.resume import EVERYTHING, load, resumable
from course_lib.tasks import Unsolved, check
from course_lib.units import GIB, MIB

REPOSITORY = Repository.find(Path(__file__).parent)
EVEN, UNEVEN = windows(1)[0], windows(1, uneven=True)[0]


def by_pytorch(window: Any) -> torch.Tensor:
    """The gradient of the mean loss over all targets, by autograd alone."""
    model = small_gpt()
    tokens, targets = window
    kept = targets != IGNORED
    loss = F.cross_entropy(model(tokens)[kept], targets[kept])
    return torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))])


# -- gradients


@pytest.mark.parametrize("pieces", [1, 4, 8, 32])
def test_summed_losses_by_all_tokens_are_the_big_batch(pieces: int) -> None:
    for window in (EVEN, UNEVEN):
        assert relative_difference(gradient(small_gpt(), window, Way(pieces)), by_pytorch(window)) < 1e-6


def test_means_are_the_big_batch_only_with_equal_tokens() -> None:
    assert relative_difference(gradient(small_gpt(), EVEN, Way(8, "means")), by_pytorch(EVEN)) < 1e-6
    assert relative_difference(gradient(small_gpt(), UNEVEN, Way(8, "means")), by_pytorch(UNEVEN)) > 0.2


def test_undivided_is_eight_times_as_long_and_the_rest_is_rounding() -> None:
    assert relative_difference(gradient(small_gpt(), EVEN, Way(8, "nothing")), 8 * by_pytorch(EVEN)) < 1e-6
    model = small_gpt().double()
    in_64_bit = relative_difference(gradient(model, EVEN, Way(8)), gradient(model, EVEN, WHOLE))
    assert in_64_bit < 10 * torch.finfo(torch.float64).eps


def test_targets_of_the_micro_batches_differ_eleven_times() -> None:
    counts = [int((piece != IGNORED).sum()) for piece in UNEVEN[1].chunk(8)]
    assert counts[-1] / counts[0] == pytest.approx(11.1, abs=0.1)
    tokens, targets = EVEN
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


# -- curves


def test_sgd_takes_the_missing_division_for_a_learning_rate() -> None:
    data = windows(10)
    undivided = train(Way(8, "nothing"), data, sgd)
    eight_times = train(WHOLE, data, lambda parameters: torch.optim.SGD(parameters, lr=0.8))
    apart = relative_differences(undivided, eight_times)
    assert max(apart) < 1e-4
    assert max(apart[:2]) < 1e-6 < apart[-1]  # rounding at first, and so high a rate makes it grow
    assert max(relative_differences(undivided, train(WHOLE, data, sgd))) > 0.1


def test_adam_does_not_see_it_and_clipping_does() -> None:
    data = windows(10)
    right, wrong = train(WHOLE, data, adamw), train(Way(8, "nothing"), data, adamw)
    assert max(relative_differences(wrong, right)) < 1e-5
    assert train(WHOLE, data, adamw, clip=4.0) == right  # 4 is never reached
    assert 1e-4 < max(relative_differences(train(Way(8, "nothing"), data, adamw, clip=4.0), right)) < 0.1
    at_one = [train(way, data, sgd, clip=1.0) for way in (WHOLE, Way(8, "nothing"))]
    assert max(relative_differences(*at_one)) < 1e-4  # both are cut to 1, and the mistake is hidden


def test_the_classic_experiment() -> None:
    data = windows(6, uneven=True)
    right = train(WHOLE, data, adamw)
    assert max(relative_differences(train(Way(8), data, adamw), right)) < 1e-5
    assert max(relative_differences(train(Way(8, "means"), data, adamw), right)) > 1e-4


def test_many_curves_are_wrapped() -> None:
    for count, columns in ((2, 2), (3, 3), (5, 3), (6, 3)):
        figure = loss_curves({str(each): ([2.0, 1.0], [2.0, 1.1]) for each in range(count)}, "big", "small")
        titled = [axes for axes in figure.axes if axes.get_title()]
        assert len(figure.axes) == 2 * count
        assert [axes.get_title() for axes in titled] == [str(each) for each in range(count)]
        assert len({round(axes.get_subplotspec().colspan.start) for axes in titled}) == columns
        assert all(axes.lines for axes in figure.axes)
        pyplot.close(figure)


# -- memory


def test_gpt2_peaks_by_dry_run() -> None:
    for batch, accum, gib in ((1, 1, 2.99), (1, 2, 3.46), (4, 2, 8.21)):
        recipe = Recipe(precision="fp32", seq=1024, batch=batch, accum=accum)
        assert dry_run_config(read_config("gpt2"), recipe).peak_bytes / GIB == pytest.approx(gib, abs=0.02)
    big = ledger.predict(read_model("gpt2"), Recipe(precision="fp32", seq=1024, batch=32))
    assert round(big.peak_bytes / GIB) == 52


def test_what_accumulation_adds_is_one_copy_of_the_gradients() -> None:
    one, many = (
        ledger.predict(read_model("gpt2"), Recipe(precision="fp32", seq=1024, accum=accum)) for accum in (1, 1024)
    )
    assert one.static_bytes == many.static_bytes
    assert many.at_peak[Account.GRADIENTS] - one.at_peak[Account.GRADIENTS] == pytest.approx(4 * 124_439_808, rel=1e-3)
    assert round(many.peak_bytes / GIB, 2) == 3.48
    accounts = [round(bill.at_peak[Account.ACTIVATIONS] / GIB, 2) for bill in (one, many)]
    assert accounts == [1.20, 1.22]
    assert many.at_peak[Account.ACTIVATIONS] - one.at_peak[Account.ACTIVATIONS] == 1023 * 1024 * 3 * 8  # int64 inputs


def test_attention_of_2019_explains_the_report() -> None:
    eager = Recipe(precision="fp32", seq=1024, attention="eager")
    trace = dry_run_config(read_config("gpt2"), replace(eager, accum=2))
    gib = ledger.predict(read_model("gpt2"), replace(eager, accum=1024)).peak_bytes / GIB
    inputs = 1022 * 1024 * 3 * 8 / GIB
    assert round(gib, 2) == 4.74
    assert gib == pytest.approx(trace.peak_bytes / GIB + inputs, abs=0.01)
    # "5.93 GiB total capacity; 4.64 GiB already allocated; 54.94 MiB free; 233.05 MiB cached", on 198 MiB
    total, allocated, cached, free, tried = 5.93, 4.64, 233.05 / 1024, 54.94 / 1024, 198 / 1024
    assert allocated + tried == pytest.approx(gib, rel=0.02)
    assert total - allocated - cached - free == pytest.approx(1.0, abs=0.02)


def test_the_refused_tensor_was_the_logits() -> None:
    logits = 1024 * 50257 * 4
    assert round(logits / MIB, 1) == 196.3
    assert -(-logits // (2 * MIB)) * 2 == 198  # "Tried to allocate 198.00 MiB": in steps of 2 MiB


# -- order, norms


def test_unscaling_after_clipping_leaves_next_to_nothing() -> None:
    model = small_gpt()
    scaled = 2.0**16 * by_pytorch(EVEN)
    after = scaled / scaled.norm() / 2.0**16
    assert float(after.norm()) == pytest.approx(1.5e-5, rel=0.02)
    assert float(by_pytorch(EVEN).norm()) == pytest.approx(2.971, abs=0.001)
    assert sum(each.numel() for each in model.parameters()) == after.numel()


def test_batch_norm_follows_the_micro_batch() -> None:
    inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))
    layer = Normed(nn.LayerNorm)
    assert relative_difference(layer.gradient(inputs, 8), layer.gradient(inputs, 1)) < 1e-5
    frozen = Normed(nn.BatchNorm1d).eval()  # with fixed statistics it is a linear layer, and pieces do not matter
    assert relative_difference(frozen.gradient(inputs, 8), frozen.gradient(inputs, 1)) < 1e-5
    moving = Normed(nn.BatchNorm1d)
    assert relative_difference(moving.gradient(inputs, 8), moving.gradient(inputs, 1)) > 0.1


def test_the_claims_of_accumulation_have_mixed_verdicts() -> None:
    c13, c18, c19 = (finders()[claim]().cases for claim in ("C13", "C18", "C19"))
    assert list(c13.values()) == [True, False, True, False]
    assert list(c18.values()) == [True, True, False, False]
    assert list(c19.values()) == [True, True]


# -- resuming

KILLED = """\
import os, sys
from course_lib.accumulate import windows
from course_lib.resume import resumable

def die(update):
    if update == 3:
        os._exit(9)  # as a machine that is taken away: nothing is tidied up

resumable(windows(6), sys.argv[1], after_each=die)
"""


def test_a_killed_process_resumes_on_the_same_curve(tmp_path: Path) -> None:
    kept = tmp_path / "run.pt"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(kept)], cwd=REPOSITORY.top, capture_output=True)
    assert killed.returncode == 9, killed.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]
    assert resumable(windows(6), kept) == resumable(windows(6))[3:]


@pytest.mark.parametrize("missing", ["model", "optimizer", "random", "position"])
def test_each_part_is_needed(missing: str, tmp_path: Path) -> None:
    right = resumable(windows(6))
    first = resumable(windows(6), tmp_path / "run.pt", updates=3)
    assert first == right[:3]
    rest = resumable(windows(6), tmp_path / "run.pt", parts=[part for part in EVERYTHING if part != missing])
    assert rest[:3] != right[3:]


def test_resuming_from_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="no file"):
        load(tmp_path / "none.pt", small_gpt(), None, None)


# -- tasks


def window_losses(sums: list[float], counts: list[int]) -> list[float]:
    return [total / sum(counts) for total in sums]


@pytest.mark.parametrize(
    ("task", "answer"),
    [("window_losses", window_losses), ("micro_batch", (2, 32)), ("display_or_gradient", "gradient"),
     ("display_or_gradient", "Gradient"), ("display_or_gradient", "梯度")],
)
def test_right_answers_pass(task: str, answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    check(f"accumulation.{task}", answer)
    assert capsys.readouterr().out.startswith(f"✓ accumulation.{task}\n  ")


WRONG: list[tuple[str, Any, str]] = [
    ("window_losses", lambda sums, counts: [s / c for s, c in zip(sums, counts, strict=True)], "not there yet"),
    ("window_losses", lambda sums, counts: [s / c / 3 for s, c in zip(sums, counts, strict=True)], "mean of means"),
    ("window_losses", lambda sums, counts: [s / len(sums) for s in sums], "number of micro-batches"),
    ("window_losses", lambda sums, counts: sums, "nothing is divided"),
    ("window_losses", lambda sums, counts: [s / 20 for s in sums], "a single micro-batch"),
    ("window_losses", lambda sums, counts: None, "nothing came yet"),
    ("window_losses", lambda sums, counts: sum(sums) / sum(counts), "as long as sums"),
    ("window_losses", lambda sums, counts: sums[:1], "as long as sums"),
    ("micro_batch", (1, 64), "room for more"),
    ("micro_batch", (4, 16), "only tight"),
    ("micro_batch", (8, 8), "does not fit"),
    ("micro_batch", (2, 16), "has to be 64"),
    ("display_or_gradient", "display", "computed from the gradients"),
    ("display_or_gradient", "显示", "computed from the gradients"),
    ("display_or_gradient", ["gradient"], "\"display\" or \"gradient\""),
]


@pytest.mark.parametrize(("task", "answer", "message"), WRONG)
def test_wrong_answers_hear_the_usual_cause(task: str, answer: Any, message: str) -> None:
    with pytest.raises(Unsolved, match=message):
        check(f"accumulation.{task}", answer)


def test_no_wrong_pair_is_told_the_right_one() -> None:
    with pytest.raises(Unsolved, match="expected another pair"):
        check("accumulation.micro_batch", (8, 8))


def test_both_ratios_of_the_opening_are_five() -> None:
    assert pytest.approx(5, abs=0.001) == 188.29 / 37.66
    assert pytest.approx(5, abs=0.001) == 10.5949 / 2.119


# -- the notebook as a whole


def test_the_core_is_short() -> None:
    unit = read_source(REPOSITORY, "04_accumulation")
    assert core_cells(unit) <= 20
    assert deeper_sections(unit) == {"en": 5, "zh": 5}


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_figure_in_the_prose_is_printed_by_a_cell(language: str) -> None:
    outcome, notebook = execute(REPOSITORY, "04_accumulation", language)
    assert outcome.failure is None
    assert outcome.complaints == []
    said = printed(notebook)
    for figure in ("8.000x", "at the start: 3.0", "4.74", "in steps of 2 MiB 198", "asked for 4.83 GiB",
                   "allocator 1.01 GiB", "1.22", "not divided (SGD)", "2.970910", "counts 11 times", "52.11", "2.99",
                   "3.48", "196.3 MiB", "0.000015", "8.208 GiB", "changes the right curve: False"):  # fmt: skip
        assert figure in said, figure
    assert re.search(r"^(?:measured|实测) +a$", said, re.MULTILINE)
    pictures = re.findall(r"<img [^>]*>", said)
    assert len(pictures) == 4
    assert all(re.search(r'alt="[^"]{40,}"', picture) for picture in pictures)
    assert re.findall(r"^(?:claim|论断) (C\d+)[:：]", said, re.MULTILINE) == ["C13", "C18", "C19"]
    uninterrupted, everything = re.findall(r"^(?:never interrupted|everything) +(\[.*\])", said, re.MULTILINE)
    assert uninterrupted == everything
    forgetful = re.search(r"^all but optimizer +(\[.*\])", said, re.MULTILINE)
    assert forgetful is not None
    same = [one == other for one, other in zip(eval(forgetful[1]), eval(everything), strict=True)]
    assert same[:2] == [True, False]
