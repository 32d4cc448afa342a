"""Whatever a user gets wrong: exit status 2, one line on stderr that names it, nothing on stdout."""

import json
import os
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from course_lib.cli import COMMANDS, main
from course_lib.presets import PRESETS
from course_lib.recipe import Recipe

#: Arguments after `course ledger` or `course dryrun`, and what the message must name.
MISTAKES = [
    ("", "MODEL"),
    ("no-such-model", "no-such-model"),
    ("llama-7b gpt2", "gpt2"),
    ("llama-7b --no-such-flag", "--no-such-flag"),
    ("llama-7b --bat 2", "--bat"),
    ("llama-7b --batch", "--batch"),
    ("llama-7b --batch 0", "--batch: got 0"),
    ("llama-7b --batch -3", "--batch: got -3"),
    ("llama-7b --batch 1e3", "--batch: got '1e3'"),
    ("llama-7b --batch 99999999999999999999", "--batch: got 99999999999999999999"),
    ("llama-7b --batch 65536 --seq 1048576", "--batch 65536 of --seq 1048576"),
    ("llama-7b --seq 0", "--seq: got 0"),
    ("llama-7b --seq 2048.5", "--seq: got '2048.5'"),
    ("llama-7b --accum 0", "--accum: got 0"),
    ("llama-7b --accum many", "--accum: got 'many'"),
    ("gpt2 --seq 2048", "--seq: got 2048"),
    ("llama-7b --lora-rank -1", "--lora-rank: got -1"),
    ("llama-7b --lora-rank 8 --lora-targets c_attn", "--lora-targets: llama-7b has no linear layer 'c_attn'"),
    ("gpt2 --lora-rank 8 --lora-targets q_proj", "--lora-targets: gpt2 has no linear layer 'q_proj'"),
    ("llama-7b --lora-targets nonsense", "--lora-targets"),
    ("llama-7b --lora-rank 8 --lora-targets ,", "--lora-targets: got no name"),
    ("llama-7b --checkpoint every:0", "--checkpoint: got 'every:0'"),
    ("llama-7b --checkpoint every:x", "--checkpoint"),
    ("llama-7b --precision fp8", "--precision: got 'fp8'"),
    ("llama-7b --optimizer adam", "--optimizer: got 'adam'"),
    ("llama-7b --loss logits:0", "--loss: got 'logits:0'"),
    ("llama-7b --attention flash --precision fp32", "--attention flash needs 16-bit"),
    ("llama-7b --quant nf4", "add --lora-rank"),
    ("llama-7b --double-quant", "--double-quant"),
    ("llama-7b --kbit-prepare", "--kbit-prepare"),
    ("llama-7b --precision master-bf16 --lora-rank 8", "choose --precision bf16"),
    ("llama-7b --precision master-bf16 --optimizer adafactor", "--optimizer adafactor"),
    ("llama-7b --precision fp32 --lora-rank 8 --adapter-dtype bf16", "--adapter-dtype bf16"),
    ("llama-7b --optimizer adafactor --optimizer-impl fused", "--optimizer-impl foreach"),
    ("llama-7b --gpu no-such-card", "--gpu: got 'no-such-card'"),
    ("llama-7b --budget-gib -1", "--budget-gib: got -1"),
    ("llama-7b --budget-gib 0", "--budget-gib: got 0"),
    ("llama-7b --budget-gib nan", "--budget-gib: got nan"),
    ("llama-7b --budget-gib 1e99", "--budget-gib: got 1e+99"),
    ("llama-7b --budget-gib lots", "--budget-gib: got 'lots'"),
    ("llama-7b --budget-gib 24 --gpu t4", "--gpu"),
]


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which ``course`` refuses ``argv``."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("course")
    assert err.endswith("\n")
    return err


@pytest.mark.parametrize("command", ["ledger", "dryrun"])
@pytest.mark.parametrize(("arguments", "named"), MISTAKES)
def test_a_mistake_is_named_in_one_line(
    command: str, arguments: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused([command, *arguments.split()], capsys)
    assert message.startswith(f"course {command}: ")
    assert named in message
    assert not [each.name for each in fields(Recipe) if "_" in each.name and each.name in message]  # flags instead


@pytest.mark.parametrize("command", ["ledger", "dryrun"])
@pytest.mark.parametrize(
    "content", [b"not json", b"[1]", b"\x89PNG\r\n\x1a\n\x00", b"{}", b'{"model_type": "llama"}', b""]
)
def test_a_file_that_is_no_config(
    command: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a\nconfig.json"  # not even a file's name may break the line
    path.write_bytes(content)
    refused([command, str(path)], capsys)
    assert "folder" in refused([command, str(tmp_path)], capsys)


@pytest.mark.parametrize("command", ["ledger", "dryrun"])
def test_a_config_that_lacks_a_size(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        path.write_text(json.dumps({k: v for k, v in PRESETS["mistral-7b"].items() if k != key}))
        assert key in refused([command, str(path)], capsys)


def test_a_family_without_closed_form_is_sent_to_the_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**PRESETS["llama-7b"], "model_type": "gemma"}))
    message = refused(["ledger", str(path)], capsys)
    assert "gemma" in message
    assert "llama, mistral, qwen2, gpt2" in message
    assert "`course dryrun`" in message
    path.write_text(json.dumps({**PRESETS["llama-7b"], "model_type": "no-such-family"}))
    assert "no-such-family" in refused(["dryrun", str(path)], capsys)


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ({"model_type": "gemma", "hidden_act": "no-such-function"}, "no-such-function"),
        ({"model_type": "bert", "max_position_embeddings": 64}, "--seq"),
        ({"model_type": "t5"}, "T5Config"),
    ],
)
def test_what_transformers_cannot_build_or_run_is_one_line_too(
    entries: dict[str, Any], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**sizes, **entries}))
    assert named in refused(["dryrun", str(path)], capsys)


@pytest.mark.parametrize(
    "argv", [[], ["no-such-command"], ["--no-such-flag"], [""], ["--", "ledger", "gpt2"], ["ledge"]]
)
def test_a_command_that_is_none(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "course --help" in refused(argv, capsys)


def test_a_plot_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for plot in (tmp_path / "step.txt", tmp_path / "no" / "such" / "folder" / "step.svg", tmp_path):
        assert "--plot" in refused(["dryrun", "gpt2", "--plot", str(plot)], capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_the_parser_takes(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([command, "--help"]) == 0
    example = capsys.readouterr().out.partition("example: course ")[2].splitlines()[0].split()
    assert example[0] == command
    module = import_module(f"course_lib.cli.{command}")
    monkeypatch.setattr(module, "run", lambda args: 0)
    assert main(example) == 0


def test_the_list_of_commands_is_help_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)
    assert "example: course " in out


def test_interrupted_is_130_without_a_word(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("course_lib.cli.ledger"), "run", interrupt)
    assert main(["ledger", "gpt2"]) == 130
    assert capsys.readouterr() == ("", "")


def run_python(code: str, encoding: str = "utf-8", **settings: Any) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONIOENCODING": encoding}
    return subprocess.run(
        [sys.executable, "-c", code], text=True, env=environment, check=False, stderr=subprocess.PIPE, **settings
    )


def test_a_reader_who_leaves_early_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as nobody:
        code = "import sys; from course_lib.cli import main; sys.exit(main(['ledger', '--help']))"
        assert run_python(code, stdout=nobody).stderr == ""


def test_a_path_that_the_terminal_cannot_show_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "模型.json"
    path.write_text(json.dumps(PRESETS["gpt2"]))
    code = f"import sys; from course_lib.cli import main; sys.exit(main(['ledger', {str(path)!r}]))"
    result = run_python(code, stdout=subprocess.PIPE, encoding="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert r"\u6a21\u578b.json" in result.stdout.replace("\n", "")  # a long path wraps


def test_the_ledger_and_the_help_import_no_torch() -> None:
    code = (
        "import sys; from course_lib.cli import main\n"
        "assert main(['--help']) == 0 and main(['ledger', 'llama-7b', '--gpu', 't4', '--json']) in (0, 1)\n"
        "print(sorted({'torch', 'numpy', 'matplotlib', 'transformers'} & set(sys.modules)), file=sys.stderr)"
    )
    assert run_python(code, stdout=subprocess.DEVNULL).stderr == "[]\n"


def test_a_package_that_is_not_installed_is_named_in_one_line() -> None:
    top = Path(__file__).resolve().parents[1]
    # -S: as on a machine where `make setup` has not run yet
    command = [sys.executable, "-S", "-m", "course_lib", "ledger", "llama-7b"]
    done = subprocess.run(command, cwd=top, env={}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "course ledger: needs rich, which is not installed here; run make setup\n"
