"""The set-up cell: it does nothing where the course is there, and changes nothing that is there."""

import os
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import course_lib
from course_lib import gpu, notebook_setup
from course_lib.gpu import Facts, MachineCard
from course_lib.journal import predict, predictions
from course_lib.notebook_setup import HEAVY, keep_in_drive, missing_packages, set_up
from course_lib.pipeline.setup_cell import setup_code
from course_lib.units import GIB

Capture = pytest.CaptureFixture[str]
TOP = Path(__file__).resolve().parents[1]
CPU = Facts("Linux", 8 * GIB, torch_version="2.13.0")
T4 = MachineCard(0, "Tesla T4", int(14.6 * GIB), (7, 5))


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the cell would have run."""
    ran: list[list[str]] = []

    def run(command: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        if "--constraint" in command:
            constraints = Path(command[command.index("--constraint") + 1]).read_text()
            command = [constraints if "installed.txt" in part else part for part in command]
        ran.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return ran


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder where course_lib cannot be imported, as far as the cell can tell."""
    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COURSE_SOURCE", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return folder


def run_cell(language: str = "en", source: str = "") -> None:
    exec(setup_code(language, source), {})


def test_where_the_course_is_installed_nothing_is_run(commands: list[list[str]], capsys: Capture) -> None:
    run_cell("zh", "git+https://example.org/course")
    assert commands == []
    assert "中文版" in capsys.readouterr().out


def test_the_newest_wheel_beside_the_notebook_is_installed_without_its_dependencies(
    commands: list[list[str]], elsewhere: Path
) -> None:
    for age, number in ((100, "0.10.0"), (200, "0.9.0")):
        wheel = elsewhere / f"big_models_small_gpus-{number}-py3-none-any.whl"
        wheel.touch()
        os.utime(wheel, (1e9 - age, 1e9 - age))
    run_cell(source="git+https://example.org/course")
    wheel_name = "big_models_small_gpus-0.10.0-py3-none-any.whl"
    assert commands == [[sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", wheel_name]]


def test_the_source_in_the_environment_comes_first_the_configured_one_last(
    commands: list[list[str]], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_cell(source="git+https://example.org/course")
    (elsewhere / "big_models_small_gpus-1-py3-none-any.whl").touch()
    monkeypatch.setenv("COURSE_SOURCE", "/media/stick/course.whl")
    run_cell(source="git+https://example.org/course")
    assert [command[-1] for command in commands] == ["git+https://example.org/course", "/media/stick/course.whl"]


def test_inside_a_checkout_it_is_used_as_it_is(commands: list[list[str]], elsewhere: Path) -> None:
    (elsewhere / "../../../course_lib").resolve().mkdir()
    run_cell()
    assert commands == []
    assert sys.path[0] == str(elsewhere.parents[2])


def test_with_no_source_at_all_it_says_what_to_do(commands: list[list[str]], elsewhere: Path) -> None:
    with pytest.raises(RuntimeError, match=r"Lay the course's .whl file beside this notebook / 请把"):
        run_cell()
    assert commands == []


def test_only_small_packages_are_brought_and_all_that_is_there_is_pinned(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    real = notebook_setup._installed
    monkeypatch.setattr(notebook_setup, "_installed", lambda name: name not in ("torch", "rich") and real(name))
    assert set(missing_packages()) == {"torch", "rich"}
    set_up("en")
    (command,) = commands
    assert command[-1] == "rich"
    assert not HEAVY & set(command)
    pinned = command[command.index("--constraint") + 1].splitlines()
    for name in ("torch", "numpy", "transformers", "ipywidgets"):
        assert f"{name}=={metadata.version(name)}" in pinned
    assert "Missing here: torch." in capsys.readouterr().out


def test_nothing_is_missing_here() -> None:
    assert missing_packages() == []


def test_where_it_is_not_installed_the_project_file_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook_setup, "DISTRIBUTION", "no-such-distribution")
    monkeypatch.setattr(notebook_setup, "_installed", lambda name: name not in ("torch", "nvidia-ml-py"))
    assert set(missing_packages()) == {"torch", "nvidia-ml-py"}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_it_says_which_rung_this_is_and_what_to_mend(
    language: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for facts in (CPU, replace(CPU, cards=(T4,), torch_cuda=(12, 8), torch_sees_cuda=True, driver_cuda=(12, 8))):
        monkeypatch.setattr(gpu, "inspect_machine", lambda facts=facts: facts)
        set_up(language)
        said = capsys.readouterr().out
        assert gpu.rung(facts).plan in said
        assert ("is_bf16_supported" in said) == bool(facts.cards)
        assert "Colab:" not in said
        assert "Colab：" not in said


def test_on_colab_it_says_to_save_a_copy_and_how_to_keep_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "inspect_machine", lambda: replace(CPU, colab=True))
    set_up("en")
    said = capsys.readouterr().out
    assert "save a copy first" in said
    assert "keep_in_drive()" in said
    assert "T4 GPU" in said
    # What follows is what the reader is told to run.
    predict("before", 1)
    drive = ModuleType("google.colab.drive")
    mounted: list[str] = []
    drive.mount = mounted.append  # type: ignore[attr-defined]
    colab = ModuleType("google.colab")
    colab.drive = drive  # type: ignore[attr-defined]
    for name, module in (("google.colab", colab), ("google.colab.drive", drive)):
        monkeypatch.setitem(sys.modules, name, module)
    my_drive = tmp_path / "drive" / "MyDrive"
    my_drive.mkdir(parents=True)
    monkeypatch.setattr(notebook_setup, "DRIVE", my_drive)
    monkeypatch.setattr("course_lib.reader_log.DRIVE", my_drive)
    keep_in_drive()
    assert mounted == [str(tmp_path / "drive")]
    monkeypatch.delenv("COURSE_STATE_DIR")  # as on Colab
    assert predictions()["before"].value == 1
    predict("after", 2)
    keep_in_drive()  # again changes nothing
    assert list(predictions()) == ["before", "after"]
    capsys.readouterr()
    set_up("en")
    assert f"kept in {my_drive}" in capsys.readouterr().out


def test_on_an_empty_machine_the_wheel_is_all_that_changes(tmp_path: Path) -> None:
    """A real wheel, a fresh environment that has the dependencies but not the course, and the cell as it stands."""
    work, site = tmp_path / "work", tmp_path / "site"
    work.mkdir()
    site.mkdir()
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(work)]
    subprocess.run(build, check=True, capture_output=True, cwd=TOP)
    for entry in Path(metadata.distribution("rich").locate_file("")).iterdir():
        if "big_models" not in entry.name.lower() and entry.suffix != ".pth":
            (site / entry.name).symlink_to(entry)
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{site}\n")
    before = set(packages.iterdir())
    code = setup_code("zh", "") + "\n\nimport course_lib, torch; print(course_lib.__file__); print(torch.__file__)"
    (work / "cell.py").write_text(code, encoding="utf-8")
    bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "COURSE_SOURCE")}
    settings = {"PIP_NO_INDEX": "1", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [python, "cell.py"], cwd=work, env=bare | settings, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("中文版")
    assert Path(said[-2]).is_relative_to(packages)
    assert Path(said[-1]).is_relative_to(site)
    new = {path.name for path in set(packages.iterdir()) - before}
    assert new == {"course_lib", f"big_models_small_gpus-{course_lib.__version__}.dist-info"}
