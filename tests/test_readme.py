"""The READMEs show what the commands really print: every transcript in them is run again.

In a fenced block, ``$ course …`` is a command and the lines up to the next ``$`` are what it prints; a line of
dots stands for lines left out. ``python3 -m course_lib …`` is the same command, where nothing is installed yet.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from course_lib.cli import COMMANDS, main
from course_lib.presets import PRESETS

TOP = Path(__file__).resolve().parents[1]
READMES = ("README.md", "README.zh.md")
#: These print the same on every machine. Of the others only the name is looked up.
AT_ONCE, IN_SECONDS = ("ledger", "plan", "oom"), ("dryrun",)
COMMAND = re.compile(r"^(?:\$ )?(?:course|python3 -m course_lib) (?P<arguments>.*)$")
DOTS = ("...", "…", "……")
FIGURE = re.compile(r"(\d[\d,]*\.\d\d) (?:GiB|MiB)")

Transcript = tuple[list[str], list[str]]


def tokens(readme: str) -> list[tuple[str, str]]:
    """The kind and the content of each fenced block and each piece of prose."""
    parsed = MarkdownIt("commonmark").enable("table").parse((TOP / readme).read_text(encoding="utf-8"))
    return [(token.type, token.content) for token in parsed if token.type in ("fence", "inline")]


def transcripts(readme: str) -> list[Transcript]:
    """Each command, as the list of its arguments, and the lines that it is said to print."""
    found: list[Transcript] = []
    for kind, content in tokens(readme):
        shown: list[str] | None = None
        for line in content.replace("\\\n", " ").splitlines() if kind == "fence" else ():
            if command := COMMAND.match(line):
                shown = []
                found.append((shlex.split(command["arguments"], comments=True), shown))
            elif line.startswith("$"):
                shown = None
            elif shown is not None and line.strip() and line.strip() not in DOTS:
                shown.append(squeeze(line))
    return found


def squeeze(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """What a command prints in a terminal of 80 columns; a config.json that it names is that of Llama-2-7B."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(arguments: list[str]) -> str:
        for path in map(Path, arguments):
            if path.suffix == ".json":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(PRESETS["llama-7b"]))
        assert main(arguments) in (0, 1), arguments
        return squeeze(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("readme", READMES)
def test_commands_print_what_is_shown_and_prose_repeats_it(readme: str, printed) -> None:
    everything = compare(readme, AT_ONCE, printed)
    prose = [figure for kind, content in tokens(readme) if kind == "inline" for figure in FIGURE.findall(content)]
    assert [figure for figure in prose if figure not in everything] == [], "printed by no command that is shown"


@pytest.mark.slow
@pytest.mark.parametrize("readme", READMES)
def test_slower_commands_print_what_is_shown(readme: str, printed) -> None:
    assert compare(readme, IN_SECONDS, printed)


def compare(readme: str, commands: tuple[str, ...], printed) -> str:
    """Run these commands of a README again; returns all that they printed."""
    everything = ""
    for arguments, shown in transcripts(readme):
        assert arguments[0] in COMMANDS, arguments
        if arguments[0] in commands:
            said = printed(arguments)
            assert [line for line in shown if line not in said] == [], f"course {shlex.join(arguments)}"
            everything += said
    return everything


@pytest.mark.parametrize("readme", READMES)
def test_the_question_about_7b_is_answered_in_full(readme: str) -> None:
    shown = [lines for arguments, lines in transcripts(readme) if arguments == ["ledger", "llama-7b", "--gpu", "3090"]]
    assert any("Peak " in line for lines in shown for line in lines)
    assert any("does not fit" in line for lines in shown for line in lines)


@pytest.mark.parametrize("readme", READMES)
def test_make_targets_and_linked_files_exist(readme: str) -> None:
    text = (TOP / readme).read_text(encoding="utf-8")
    rules = re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(encoding="utf-8"), re.M)
    code = [content for kind, content in tokens(readme) if kind == "fence"] + re.findall(r"`([^`\n]+)`", text)
    targets = {name for content in code for name in re.findall(r"\bmake ([a-z-]+)", content)}
    assert targets, "how to begin"
    assert targets - set(rules) == set()
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if link and not (TOP / link).exists()] == []


def test_the_first_chinese_command_needs_nothing_but_python() -> None:
    first = next(content for kind, content in tokens("README.zh.md") if kind == "fence").splitlines()[0]
    assert first.startswith("$ python3 -m course_lib ")
    arguments = shlex.split(first.removeprefix("$ python3 "), comments=True)
    # -S: without any installed package
    done = subprocess.run([sys.executable, "-S", *arguments], cwd=TOP, env={}, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)["verdict"]
