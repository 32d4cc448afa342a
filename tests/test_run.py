"""`course run` executes what the sources make, and a unit that fails is named by file and line."""

from pathlib import Path

import pytest
from test_build import make_course
from test_sources import LESSON

from course_lib.cli import main
from course_lib.pipeline.repository import Repository
from course_lib.pipeline.run import execute

Capture = pytest.CaptureFixture[str]


def test_every_unit_runs_solved_and_has_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    course = make_course(tmp_path / "course")
    monkeypatch.chdir(course.top)
    assert main(["run", "--lang", "zh"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert rows[0] == ["unit", "cells", "seconds", "peak", "host", "memory"]
    assert [(row[0], row[1]) for row in rows[2:]] == [("00_demo", "2"), ("ex1_demo", "3")]
    for row in rows[2:]:
        assert 0 < float(row[2]) < 300
        assert row[4] == "GiB"
    assert not (tmp_path / "state").exists(), "the author's own journal is left alone"


def test_a_unit_that_fails_is_named_by_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    line = LESSON.count("\n") + 2
    lesson = LESSON + "\n# %%\nimport sys\nprint('a remark', file=sys.stderr)\n\n# %%\nguess / 0\n"
    course = make_course(tmp_path / "course", lesson=lesson)
    monkeypatch.chdir(course.top)
    assert main(["run", "00_demo"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert f"failed solutions/00_demo/00_demo.py:{line + 4}: ZeroDivisionError" in said
    assert f"stderr solutions/00_demo/00_demo.py:{line}: a remark" in said
    assert "ex1_demo" not in said


def test_a_kernel_that_dies_fails_its_unit(tmp_path: Path) -> None:
    course = make_course(tmp_path / "course", lesson=LESSON + "\n# %%\nimport os\nos._exit(1)\n")
    outcome, _notebook = execute(course, "00_demo", "en")
    assert outcome.failure
    assert outcome.failure.startswith(f"solutions/00_demo/00_demo.py:{LESSON.count(chr(10)) + 2}: ")
    assert "died" in outcome.failure.lower()


def test_outputs_and_memory_are_those_of_the_kernel(tmp_path: Path) -> None:
    lesson = LESSON + "\n# %%\nblock = b'x' * (300 * 2**20)\ndel block\nprint(guess)\n"
    course = make_course(tmp_path / "course", lesson=lesson)
    outcome, notebook = execute(course, "00_demo", "en")
    assert outcome.failure is None
    assert notebook.cells[-1].outputs[0].text == "28\n"
    assert outcome.peak_host_bytes > 300 * 2**20, "memory that was given back counts"


def test_the_checkout_is_found_from_any_folder_inside(tmp_path: Path) -> None:
    course = make_course(tmp_path / "course")
    inside = course.top / "notebooks" / "en"
    inside.mkdir(parents=True)
    assert Repository.find(inside) == course
    assert Repository.find(tmp_path).top == Path(__file__).resolve().parents[1], "else the one that runs"
