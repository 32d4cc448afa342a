"""A whole class by the command: rows, files, gradebook, nothing lost; killed and gone on; the same whoever does it."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from nbgrader.api import Gradebook
from nbgrader_course import as_colab_saves

from course_lib.cli import main
from course_lib.grading.sandbox import Sandbox
from notebooks import UNIT, WRONG, quick, with_answer, with_cell

TOP = Path(__file__).resolve().parents[2]


def lay_class(folder: Path) -> Path:
    """Right, half right, unsolved, hostile and broken files, as several platforms name them."""
    notebooks = {
        "ada/ex1_precision.ipynb": quick(),
        "chen_12345_678_ex1_precision.ipynb": as_colab_saves(quick("zh")),
        "bob/ex1_precision (1).ipynb": with_answer(quick(), "static-bytes", WRONG),
        "eve/ex1_precision.ipynb": with_cell(with_answer(quick(), "static-bytes", WRONG),
                                             "from course_lib.exercises import precision\n"
                                             "precision.check_static = lambda *a, **k: None"),
        "mallory/ex1_precision.ipynb": with_cell(quick(), "import os\nos._exit(1)"),
    }  # fmt: skip
    for name, notebook in notebooks.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(notebook), encoding="utf-8")
    (folder / "dan").mkdir()
    (folder / "dan" / "ex1_precision.ipynb").write_text('{"cells": [', encoding="utf-8")
    (folder / "fay").mkdir()
    (folder / "fay" / "ex1.docx").write_text("x", encoding="utf-8")
    return folder


def command(submissions: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "course_lib", "grade", UNIT, "--submissions", str(submissions), "--out", str(out),
            "--seed", "5", *more]  # fmt: skip


def course(submissions: Path, out: Path, *more: str, status: int = 0) -> str:
    done = subprocess.run(command(submissions, out, *more), cwd=TOP, env=environment(), capture_output=True, text=True,
                          timeout=600)  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(TOP), "OMP_NUM_THREADS": "1"}


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory, sandbox: Sandbox) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("class")
    said = course(lay_class(folder / "in"), folder / "out", "--workers", "2")
    return folder / "out", said


def test_every_submission_has_its_row(graded: tuple[Path, str]) -> None:
    found = {row["student"]: (row["score"], row["max_score"], row["status"]) for row in rows(graded[0] / "grades.csv")}
    assert found == {
        "ada": ("5", "20", "graded"), "chen": ("5", "20", "graded"), "bob": ("2", "20", "graded"),
        "eve": ("2", "20", "needs-human"), "mallory": ("5", "20", "graded"),
        "dan": ("0", "20", "needs-human"), "fay": ("0", "20", "needs-human"),
    }  # fmt: skip


def test_whoever_needs_a_person_has_a_reason(graded: tuple[Path, str]) -> None:
    for row in rows(graded[0] / "grades.csv"):
        assert row["status"] == "graded" or row["reason"], row
        if row["status"] != "graded":
            assert row["reason"].split(";")[0] in " ".join(graded[1].split()), "said in the terminal, too"


def test_questions_add_up(graded: tuple[Path, str]) -> None:
    questions = rows(graded[0] / "questions.csv")
    for row in rows(graded[0] / "grades.csv"):
        own = [each for each in questions if each["student"] == row["student"]]
        assert len(own) == 9
        assert sum(float(each["score"]) for each in own) == float(row["score"])
        assert sum(float(each["max_score"]) for each in own) == float(row["max_score"])
        assert all(each["reason"] for each in own if float(each["score"]) < float(each["max_score"]))


def test_feedback_teaches_and_keeps_secrets(graded: tuple[Path, str]) -> None:
    pages = {path.parent.name: path.read_text(encoding="utf-8") for path in graded[0].glob("feedback/*/*.html")}
    assert pages.keys() == {"ada", "chen", "bob", "eve", "mallory", "dan", "fay"}
    assert "expected {weights: 4,000" in pages["bob"]
    assert "还没写" in pages["chen"], "in the language of the edition"
    source = (TOP / "solutions" / UNIT / f"{UNIT}.py").read_text(encoding="utf-8")
    secret = [line.strip() for part in source.split("### BEGIN HIDDEN TESTS")[1:]
              for line in part.split("### END HIDDEN TESTS")[0].splitlines() if len(line.strip()) > 12]  # fmt: skip
    assert len(secret) >= 6
    released = [path.read_text(encoding="utf-8") for path in graded[0].glob("release/**/*.ipynb")]
    for text in (*pages.values(), *released, (graded[0] / "class.html").read_text(encoding="utf-8")):
        for line in secret:
            assert line not in text
        assert "BEGIN SOLUTION" not in text


def test_nbgrader_goes_on_with_the_gradebook(graded: tuple[Path, str]) -> None:
    with Gradebook(f"sqlite:///{graded[0] / 'gradebook.db'}", "big-models-small-gpus") as gradebook:
        scores = {each.student.id: each.score for each in gradebook.assignment_submissions(UNIT)}
        assert scores == {"ada": 5, "chen": 5, "bob": 2, "eve": 2, "mallory": 5, "dan": 0, "fay": 0}
        waiting = {grade.name for grade in gradebook.find_submission_notebook(UNIT, UNIT, "eve").grades
                   if grade.needs_manual_grade}  # fmt: skip
        assert waiting == {"static-bytes-stored", "static-bytes-autocast"}


def test_a_second_run_does_nothing_again_and_keeps_a_person_s_marks(graded: tuple[Path, str], tmp_path: Path) -> None:
    out = graded[0]
    before = (out / "grades.csv").read_text(encoding="utf-8")
    with Gradebook(f"sqlite:///{out / 'gradebook.db'}", "big-models-small-gpus") as gradebook:
        grade = gradebook.find_grade("explain", UNIT, UNIT, "ada")
        grade.manual_score, grade.needs_manual_grade = 4.0, False
        gradebook.db.commit()
    times = {path: path.stat().st_mtime_ns for path in out.glob(".state/results/*")}
    course(out.parent / "in", out)
    assert {path: path.stat().st_mtime_ns for path in out.glob(".state/results/*")} == times
    after = (out / "grades.csv").read_text(encoding="utf-8")
    assert after == before.replace("ada,ex1_precision,5,", "ada,ex1_precision,9,")


def test_bad_arguments_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "bad.toml").write_text("sead = 1", encoding="utf-8")
    for more, word in (
        (("--submissions", str(tmp_path / "nothing")), "is not there"),
        (("--submissions", str(tmp_path / "in")), "no notebook in"),
        (("--submissions", str(tmp_path / "in"), "--sandbox", "chroot"), "invalid choice"),
        (("--submissions", str(tmp_path / "in"), "--workers", "0"), "from 1"),
        (("--submissions", str(tmp_path / "in"), "--class", str(tmp_path / "bad.toml")), "unknown key 'sead'"),
        (("--submissions", str(tmp_path / "in"), "--pattern", "x"), "expected a group"),
    ):
        assert main(["grade", UNIT, "--out", str(tmp_path / "out"), *more]) == 2
        said = capsys.readouterr().err
        assert word in said
        assert said.count("\n") == 1


@pytest.mark.slow
def test_killed_at_ten_moments_it_goes_on_to_the_same_end(graded: tuple[Path, str], tmp_path: Path) -> None:
    """SIGKILL of the whole process group; the CSVs in the end are those of one undisturbed worker."""
    submissions = graded[0].parent / "in"
    course(submissions, tmp_path / "whole", "--workers", "1")
    for moment in range(10):
        process = subprocess.Popen(command(submissions, tmp_path / "killed", "--workers", "2"), cwd=TOP,
                                   env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)  # fmt: skip
        try:
            process.wait(timeout=4 + 2.5 * moment)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(0.2)
    course(submissions, tmp_path / "killed", "--workers", "2")
    for name in ("grades.csv", "questions.csv"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
def test_on_a_cluster_the_same_rows(graded: tuple[Path, str], tmp_path: Path) -> None:
    """A scheduler and two workers with two threads each, as dask starts them by itself."""
    (out, _said), address, processes = graded, "tcp://127.0.0.1:18786", []
    dask = [sys.executable, "-m", "dask"]
    scheduler = ["scheduler", "--host", "127.0.0.1", "--port", "18786", "--no-dashboard"]
    worker = ["worker", address, "--nworkers", "1", "--nthreads", "2", "--no-dashboard", "--local-directory"]
    try:
        for arguments in (scheduler, [*worker, str(tmp_path / "one")], [*worker, str(tmp_path / "two")]):
            processes.append(
                subprocess.Popen([*dask, *arguments], cwd=TOP, env=environment(), stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, start_new_session=True)
            )  # fmt: skip
            time.sleep(2)
        course(out.parent / "in", tmp_path / "out", "--dask", address)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()
    for name in ("grades.csv", "questions.csv"):
        rerun = (tmp_path / "out" / name).read_bytes()
        assert rerun == (out / name).read_bytes().replace(b"ada,ex1_precision,9,", b"ada,ex1_precision,5,")


HANGS_AND_BOMBS = {
    "hangs": "while True: pass",
    "hangs-whatever-is-raised": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "sleeps": "import time\ntime.sleep(10**6)",
    "memory": "x = []\nwhile True: x.append(bytearray(2**26))",
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "threads": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
    "floods": "while True: print('x' * 2**20)",
    "fills-files": "for n in range(10**6): open(f'/tmp/{n}', 'wb').write(bytes(2**20))",
    "exits": "import os\nos._exit(1)",
    "segfaults": "import ctypes\nctypes.string_at(0)",
}


@pytest.mark.slow
def test_among_thirty_ten_that_hang_or_burst_cost_nobody_anything(tmp_path: Path, sandbox: Sandbox) -> None:
    """All have their row; the honest, and what the others answered besides, get what they deserve."""
    settings = tmp_path / "class.toml"
    settings.write_text("cell_seconds = 5\nnotebook_seconds = 30\nmemory_gib = 1\n", encoding="utf-8")
    for number in range(20):
        lay(tmp_path / "in" / f"honest{number}", with_cell(quick(), f"number = {number}"))
    for name, code in HANGS_AND_BOMBS.items():
        lay(tmp_path / "in" / name, with_cell(quick(), code))
    before = {each.pid for each in psutil.process_iter()}
    course(tmp_path / "in", tmp_path / "out", "--workers", "2", "--class", str(settings))
    found = {row["student"]: row for row in rows(tmp_path / "out" / "grades.csv")}
    assert found.keys() == {f"honest{number}" for number in range(20)} | HANGS_AND_BOMBS.keys()
    for student, row in found.items():
        assert (row["score"], row["status"]) == ("5", "graded"), (student, row)
    new = (each.cmdline() for each in psutil.process_iter() if each.pid not in before)
    assert not [command for command in new if "zygote" in " ".join(command)]


@pytest.mark.slow
def test_without_a_sandbox_only_by_name(tmp_path: Path) -> None:
    """The same scores; a student's code then runs as the person who grades."""
    lay(tmp_path / "in" / "ada", quick())
    lay(tmp_path / "in" / "bob", with_answer(quick(), "static-bytes", WRONG))
    lay(tmp_path / "in" / "eve", with_cell(quick(), "import os\nos._exit(1)"))
    course(tmp_path / "in", tmp_path / "out", "--sandbox", "none")
    found = {row["student"]: row["score"] for row in rows(tmp_path / "out" / "grades.csv")}
    assert found == {"ada": "5", "bob": "2", "eve": "5"}


def lay(folder: Path, notebook: dict[str, object]) -> None:
    folder.mkdir(parents=True)
    (folder / f"{UNIT}.ipynb").write_text(json.dumps(notebook), encoding="utf-8")


@pytest.mark.slow
def test_an_instructor_s_own_edition(tmp_path: Path, sandbox: Sandbox) -> None:
    """Points, deadline, late policy, hidden tests, language and pseudonyms of one's own."""
    settings = tmp_path / "class.toml"
    settings.write_text(
        """
seed = "nobody guesses this"
language = "zh"
pseudonyms = true
[deadlines]
ex1_precision = 2020-01-01T00:00:00+00:00
[late]
percent_per_day = 10
most_percent = 50
[points.ex1_precision]
verdict-tests = 4
[hidden.ex1_precision]
static-bytes-autocast = '''
assert static_bytes(10, "amp-bf16")["optimizer"] == 80
'''
""",
        encoding="utf-8",
    )
    (tmp_path / "in" / "ada").mkdir(parents=True)
    (tmp_path / "in" / "ada" / f"{UNIT}.ipynb").write_text(json.dumps(quick()), encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "course_lib", "grade", UNIT, "--submissions", str(tmp_path / "in"),
                           "--out", str(tmp_path / "out"), "--class", str(settings)], cwd=TOP, env=environment(),
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = rows(tmp_path / "out" / "grades.csv")
    assert (row["score"], row["max_score"]) == ("3.5", "22")
    assert "late by" in row["reason"]
    assert row["student"].startswith("p")
    [key] = rows(tmp_path / "out" / "pseudonyms.csv")
    assert key == {"pseudonym": row["student"], "student": "ada"}
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file() and path.name not in ("pseudonyms.csv",):
            assert b"ada" not in path.name.encode()
    assert "因迟交" in (tmp_path / "out" / "feedback" / row["student"] / f"{UNIT}.html").read_text(encoding="utf-8")
