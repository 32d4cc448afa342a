"""The report's JSON is the contract's; its device range holds the figures that nvidia-smi really showed."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from course_lib.accounts import ACCOUNTS, Account, Moment
from course_lib.cli import main
from course_lib.cli.show import show_report
from course_lib.device import CONTEXT_LOW_BYTES, Budget, DeviceRange, device_range
from course_lib.errors import CourseError
from course_lib.ledger import Bill, Entry, Instant
from course_lib.recipe import Recipe
from course_lib.report import STATIC_ACCOUNTS, Report
from course_lib.trace import Event, Trace
from course_lib.units import GIB, MIB

#: Mistral-7B on an A100 80 GB: torch.cuda.max_memory_allocated, what was still allocated at the end of
#: training (weights and optimizer state), and nvidia-smi's peak in MiB. foundation-model-stack/fms-acceleration,
#: scripts/benchmarks/refs/a100_80gb.csv and a100_80gb_liger.csv, every run that has all three.
PUBLISHED = [
    (72434837504, 43467876352, 77256), (72435230720, 43468269568, 72988), (72432707584, 43466811392, 77278),
    (72433100800, 43467204608, 71198), (26704571904, 14664493056, 29576), (38742912512, 14664886272, 43232),
    (24473332736, 14664493056, 29066), (34280434688, 14664886272, 41698), (20669338112, 4307028992, 26056),
    (37002646016, 4307422208, 46050), (16373838336, 4306496512, 19912), (28412178944, 4306889728, 34016),
    (14115336192, 4306496512, 19946), (23922438144, 4306889728, 33666), (72432723456, 43466827264, 76071),
    (72433116672, 43467220480, 70035), (72432723456, 43466827264, 70285), (72433116672, 43467220480, 74829),
    (77144641024, 43468006912, 79041), (23530188288, 14664508928, 27511), (32393276928, 14664902144, 40271),
    (50119454208, 14665688576, 65793), (23530188288, 14664508928, 23833), (32393276928, 14664902144, 32921),
    (50119454208, 14665688576, 51099), (13064809472, 4306512384, 18809), (21823466496, 4306905600, 31953),
    (39338994688, 4307692032, 59137), (74371837952, 4309264896, 78209), (13035024896, 4306512384, 14171),
    (21761798656, 4306905600, 23323), (39215346176, 4307692032, 41883), (74122441216, 4309264896, 79005),
]  # fmt: skip

#: One step by hand: 4 GiB of weights and 2 of optimizer state stay; the backward pass holds the most.
STEP = Trace(
    (
        Event(Moment.LOAD, "weights", (4 * GIB, 0, 0, 0, 0)),
        Event(Moment.LOAD, "state", (0, 0, 2 * GIB, 0, 0)),
        Event(Moment.FORWARD, "mm", (0, 0, 0, 3 * GIB, 0)),
        Event(Moment.BACKWARD, "mm", (0, 1 * GIB, 0, 0, 512)),
        Event(Moment.BACKWARD, "free", (0, 0, 0, -3 * GIB, -512)),
        Event(Moment.OPTIMIZER_STEP, "foreach", (0, 0, 0, 0, 2 * GIB)),
        Event(Moment.OPTIMIZER_STEP, "free", (0, -1 * GIB, 0, 0, -2 * GIB)),
    ),
    {Account.WEIGHTS: 4 * GIB, Account.GRADIENTS: 1 * GIB, Account.OPTIMIZER: 2 * GIB},
)


def report(usable_bytes: int | None = None) -> Report:
    card = SimpleNamespace(name="some card", usable_bytes=usable_bytes) if usable_bytes is not None else None
    return Report("tiny", 2 * GIB, 1000, Recipe(lora_rank=8), STEP, card)


def test_json_is_the_contracts() -> None:
    device = {"low": 10 * GIB + 512 + 300 * MIB, "high": 10 * GIB + 512 + 900 * MIB + (4 * GIB + 512) * 55 // 100}
    assert json.loads(json.dumps(report(24 * GIB).to_dict())) == {
        "model": {"name": "tiny", "params": 2 * GIB, "trainable": 1000},
        "recipe": {**Recipe().to_dict(), "lora_rank": 8},
        "peak_allocated_bytes": 10 * GIB + 512,
        "peak_moment": "backward",
        "accounts_at_peak": {
            "weights": 4 * GIB, "gradients": GIB, "optimizer": 2 * GIB, "activations": 3 * GIB, "temporary": 512,
        },
        "moments": {"forward": 9 * GIB, "backward": 10 * GIB + 512, "optimizer_step": 9 * GIB},
        "static_bytes": {"weights": 4 * GIB, "gradients": GIB, "optimizer": 2 * GIB},
        "device_used_bytes": device,
        "gpu": {"name": "some card", "usable_bytes": 24 * GIB},
        "verdict": "fits",
    }  # fmt: skip


def test_accounts_sum_to_the_peak() -> None:
    result = report().to_dict()
    assert sum(result["accounts_at_peak"].values()) == result["peak_allocated_bytes"]
    assert result["peak_allocated_bytes"] == max(result["moments"].values())
    assert list(result["accounts_at_peak"]) == [str(account) for account in ACCOUNTS]
    assert result["gpu"] is None
    assert result["verdict"] is None


@pytest.mark.parametrize(
    ("over_low", "over_high", "verdict", "exit_code"),
    [
        (-1, None, "does-not-fit", 1),
        (0, None, "tight", 0),
        (None, -1, "tight", 0),
        (None, 0, "fits", 0),
    ],
)
def test_verdict_changes_at_the_ends_of_the_range(
    over_low: int | None, over_high: int | None, verdict: str, exit_code: int
) -> None:
    low, high = report().device
    usable_bytes = low + over_low if over_low is not None else high + (over_high or 0)
    assert (report(usable_bytes).verdict, report(usable_bytes).exit_code) == (verdict, exit_code)
    assert report().exit_code == 0


def test_the_range_holds_29_of_33_published_figures() -> None:
    ranges = [device_range(allocated, resident) for allocated, resident, _ in PUBLISHED]
    shown = [mib * MIB for _, _, mib in PUBLISHED]
    assert len(PUBLISHED) == 33
    assert all(low <= used for (low, _), used in zip(ranges, shown, strict=True))
    inside = sum(low <= used <= high for (low, high), used in zip(ranges, shown, strict=True))
    assert inside >= 29
    # not by being so wide that nothing could fall outside: the whole range is a third of what is allocated, on average
    widths = [(high - low) / allocated for (low, high), (allocated, _, _) in zip(ranges, PUBLISHED, strict=True)]
    assert sum(widths) / len(widths) < 0.37


def test_the_range_starts_at_what_is_allocated() -> None:
    assert device_range(0, 0).low_bytes == CONTEXT_LOW_BYTES
    assert device_range(5 * GIB, 7 * GIB) == DeviceRange(
        5 * GIB + 300 * MIB, 5 * GIB + 900 * MIB
    )  # nothing comes or goes


@pytest.mark.parametrize("gib", [0, -1, float("nan"), float("inf"), -float("inf"), 1e12])
def test_a_budget_that_no_card_has_is_refused(gib: float) -> None:
    with pytest.raises(CourseError, match="GiB above 0"):
        Budget(gib)


def test_a_budget_takes_a_cards_place() -> None:
    assert (Budget(23.5).name, Budget(23.5).usable_bytes) == ("23.5 GiB budget", 23 * GIB + GIB // 2)


@pytest.mark.parametrize(("usable_gib", "sentence"), [(8, "does not fit; 2.29 GiB short"), (12, "tight; it runs if"),
                                                      (24, "fits; 10.92 GiB to spare")])  # fmt: skip
def test_the_terminal_shows_peak_moment_accounts_and_verdict(
    usable_gib: int, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show_report(report(usable_gib * GIB))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    assert "Peak 10.00 GiB allocated, in backward" in out
    words = " ".join(out.split())
    assert sentence in words
    for line in ("weights 4.00 40.0%", "activations 3.00 30.0%", "together 10.00 7.00", "optimizer_step 9.00 90.0%"):
        assert line in " ".join(word for word in words.split() if not set(word) & set("━╸╺-"))


def test_the_ledgers_lines_come_largest_first(capsys: pytest.CaptureFixture[str]) -> None:
    at_step = (Instant.OPTIMIZER_STEP,)
    entries = (
        Entry(Account.TEMPORARY, "a small thing", at_step, GIB, "1 GiB [by hand]", "this test"),
        Entry(Account.WEIGHTS, "a large thing", at_step, 2 * GIB, "2 GiB", "this test"),
        Entry(Account.WEIGHTS, "gone by then", (Instant.FORWARD_END,), GIB, "1 GiB", "this test"),
    )
    bill = Bill(entries, dict.fromkeys(STATIC_ACCOUNTS, 0))
    show_report(Report("a model", 1, 1, Recipe(), bill))
    out = capsys.readouterr().out
    assert out.index("a large thing") < out.index("a small thing")
    assert "[by hand]" in out  # a formula's brackets are no markup
    assert "gone by then" not in out


def run(*argv: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON of one command."""
    status = main([*argv, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_the_ledger_passes_flags_on_and_exits_by_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--precision amp-bf16 --lora-rank 16 --lora-targets q_proj,v_proj --checkpoint every:2 --batch 4 --seq 512"
    status, result = run("ledger", "llama-7b", *flags.split(), "--budget-gib", "9", capsys=capsys)
    chosen = {
        "precision": "amp-bf16", "lora_rank": 16, "lora_targets": "q_proj,v_proj", "checkpoint": "every:2", "batch": 4,
        "seq": 512,
    }  # fmt: skip
    assert result["recipe"] == {**Recipe().to_dict(), **chosen}
    # two targets a block: A is [16, 4096] and B is [4096, 16], in 32 blocks
    assert result["model"] == {"name": "llama-7b", "params": 6_738_415_616, "trainable": 2 * 32 * 2 * 16 * 4096}
    assert result["gpu"] == {"name": "9 GiB budget", "usable_bytes": 9 * GIB}
    assert (status, result["verdict"]) == (1, "does-not-fit")  # the fp32 base alone has 25 GiB
    for more in (["--budget-gib", "1000"], []):
        assert run("ledger", "llama-7b", *more, capsys=capsys)[0] == 0


def test_a_models_learned_positions_limit_the_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, seq in ((["gpt2"], 1024), (["gpt2", "--seq", "7"], 7), (["llama-7b"], 2048)):
        assert run("ledger", *argv, capsys=capsys)[1]["recipe"]["seq"] == seq
    assert main(["ledger", "gpt2", "--seq", "1025"]) == 2
    assert "--seq: got 1025" in capsys.readouterr().err


def test_ledger_and_dry_run_answer_in_the_same_words(capsys: pytest.CaptureFixture[str]) -> None:
    for recipe in ([], ["--lora-rank", "8"]):
        _, ledger = run("ledger", "gpt2", *recipe, capsys=capsys)
        _, dryrun = run("dryrun", "gpt2", *recipe, capsys=capsys)
        assert dryrun["peak_allocated_bytes"] <= dryrun.pop("reserved_bytes")  # only a dry run knows its tensors
        assert ledger["model"] == dryrun["model"]
        assert ledger["recipe"] == dryrun["recipe"]
        assert {key: type(value) for key, value in ledger.items()} == {k: type(v) for k, v in dryrun.items()}
        assert ledger["accounts_at_peak"].keys() == dryrun["accounts_at_peak"].keys()


def test_both_commands_print_a_report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("ledger", "dryrun"):
        assert main([command, "gpt2", "--lora-rank", "8"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert max(map(len, out.splitlines())) <= 80
        assert "gpt2: 124,439,808 parameters" in out
        assert ("formula" in out) == (command == "ledger")


def test_the_plot_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dryrun", "gpt2", "--seq", "64", "--plot", str(tmp_path / "step.svg")]) == 0
    assert "<svg" in (tmp_path / "step.svg").read_text()
