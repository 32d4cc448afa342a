"""From one source to two editions: what is written, what must never be, and what is left alone."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode
from test_sources import EXERCISE, LESSON

from course_lib.cli import main
from course_lib.errors import CourseError
from course_lib.pipeline.build import build, stale
from course_lib.pipeline.repository import Repository, is_exercise

HERE = Repository.at(Path(__file__).resolve().parents[1])
PYPROJECT = '[tool.course]\nrepository = "{}"\nbranch = "main"\nsource = ""\n'


def make_course(top: Path, github: str = "", lesson: str = LESSON, exercise: str = EXERCISE) -> Repository:
    """A small checkout with a lesson and an exercise."""
    top.mkdir(parents=True, exist_ok=True)
    (top / "pyproject.toml").write_text(PYPROJECT.format(github))
    for unit, text in (("00_demo", lesson), ("ex1_demo", exercise)):
        folder = top / "solutions" / unit
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{unit}.py").write_text(text, encoding="utf-8")
    return Repository.at(top)


@pytest.fixture
def course(tmp_path: Path) -> Repository:
    return make_course(tmp_path / "course")


def notebook(path: Path) -> NotebookNode:
    found = nbformat.read(path, as_version=4)
    nbformat.validate(found)
    return found


def generated(course: Repository) -> dict[str, bytes]:
    paths = [path for path in course.top.rglob("*.ipynb") if ".edited" not in path.suffixes]
    return {str(path.relative_to(course.top)): path.read_bytes() for path in paths}


def code_of(found: NotebookNode) -> list[str]:
    return [cell.source for cell in found.cells if cell.cell_type == "code"]


def test_every_file_has_its_place_and_a_second_build_does_nothing(course: Repository) -> None:
    assert build(course)
    assert sorted(generated(course)) == [
        "autograder/source/ex1_demo/ex1_demo.ipynb",
        "notebooks/en/00_demo/00_demo.ipynb",
        "notebooks/en/ex1_demo/ex1_demo.ipynb",
        "notebooks/zh/00_demo/00_demo.ipynb",
        "notebooks/zh/ex1_demo/ex1_demo.ipynb",
        "solutions/00_demo/00_demo.en.ipynb",
        "solutions/00_demo/00_demo.zh.ipynb",
        "solutions/ex1_demo/ex1_demo.en.ipynb",
        "solutions/ex1_demo/ex1_demo.zh.ipynb",
    ]
    assert build(course) == []
    assert stale(course) == []


def test_the_same_source_makes_the_same_bytes_elsewhere(course: Repository, tmp_path: Path) -> None:
    build(course)
    other = make_course(tmp_path / "elsewhere" / "deeper")
    build(other)
    assert generated(course) == generated(other)


@pytest.mark.parametrize("unit", HERE.units())
def test_the_committed_notebooks_are_safe_to_hand_out(unit: str) -> None:
    """Of every unit of the course, in both languages."""
    secrets = _secret_lines(notebook(HERE.solved(unit, "en")))
    for language in ("en", "zh"):
        student = notebook(HERE.student(unit, language))
        kept = {line.strip() for cell in student.cells for line in cell.source.splitlines()}
        assert not kept & secrets
        for marker in ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS", "MARK SCHEME"):
            assert not any(marker in cell.source for cell in student.cells)
        for found in (student, notebook(HERE.solved(unit, language))):
            assert not any(cell.get("outputs") or cell.get("execution_count") for cell in found.cells)
        assert [path.name for path in HERE.student(unit, language).parent.iterdir() if path.suffix == ".py"] == []


def _secret_lines(solved: NotebookNode) -> set[str]:
    """Lines of solutions and hidden tests that stand nowhere in the open."""
    inside, outside, secret = set(), set(), False
    for cell in solved.cells:
        for line in cell.source.splitlines():
            if "### BEGIN" in line or "### END" in line:
                secret = "### BEGIN" in line
            else:
                (inside if secret else outside).add(line.strip())
    return inside - outside - {""}


@pytest.mark.parametrize("unit", HERE.units())
def test_the_editions_share_their_code_but_for_one_literal(unit: str) -> None:
    for kind in (HERE.solved, HERE.student):
        english, chinese = notebook(kind(unit, "en")), notebook(kind(unit, "zh"))
        assert [cell.id for cell in english.cells] == [cell.id for cell in chinese.cells]
        pairs = list(zip(code_of(english), code_of(chinese), strict=True))
        differ = [(one, other) for one, other in pairs if one != other]
        assert len(differ) == 1
        assert differ[0][0].replace('LANGUAGE = "en"', 'LANGUAGE = "zh"') == differ[0][1]


def test_what_is_committed_is_what_the_sources_make() -> None:
    assert [str(path) for path in stale(HERE)] == []


def test_a_lesson_keeps_what_stands_around_its_solution_and_runs_on(course: Repository) -> None:
    build(course)
    cell = notebook(course.student("00_demo", "zh")).cells[-1]
    assert cell.source.split() == ["guess", "=", "..."]
    assert cell.metadata.tags == ["raises-exception"]
    assert "nbgrader" not in cell.metadata
    solved = notebook(course.solved("00_demo", "zh")).cells[-1]
    assert "guess = 28" in solved.source
    assert "tags" not in solved.metadata


def test_the_release_is_the_one_that_nbgrader_itself_makes(
    course: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stock generate_assignment, over what the build put into autograder/source."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    from nbgrader.apps import NbGraderAPI
    from traitlets.config import Config

    build(course)
    root = course.top / "autograder"
    config = Config()
    config.CourseDirectory.root = str(root)
    config.CourseDirectory.db_url = f"sqlite:///{tmp_path / 'gradebook.db'}"
    result = NbGraderAPI(config=config).generate_assignment("ex1_demo")
    assert result["success"], result.get("log")
    released = notebook(root / "release" / "ex1_demo" / "ex1_demo.ipynb")
    ours = notebook(course.student("ex1_demo", "en"))
    assert [path.name for path in (root / "release" / "ex1_demo").iterdir()] == ["ex1_demo.ipynb"]
    for theirs, own in zip(released.cells, ours.cells, strict=True):
        assert own.source == theirs.source
        assert own.metadata == theirs.metadata
        assert own.id == theirs.id
    chinese = notebook(course.student("ex1_demo", "zh"))
    for edition in (ours, chinese):
        ids = [cell.metadata.nbgrader.grade_id for cell in edition.cells if "nbgrader" in cell.metadata]
        assert ids == ["double", "double-tests", "why"]


def test_cell_ids_depend_on_unit_and_position_alone(course: Repository, tmp_path: Path) -> None:
    build(course)
    plain = notebook(course.student("00_demo", "en"))
    assert [cell.id for cell in plain.cells] == ["00_demo-000", "00_demo-001", "00_demo-002"]
    badged = make_course(tmp_path / "badged", github="someone/some-course")
    build(badged)
    cells = notebook(badged.student("00_demo", "zh")).cells
    assert [cell.id for cell in cells] == ["00_demo-badge", *(cell.id for cell in plain.cells)]
    assert "github/someone/some-course/blob/main/notebooks/zh/00_demo/00_demo.ipynb" in cells[0].source
    assert '"git+https://github.com/someone/some-course"' in cells[2].source
    assert not any("colab" in cell.source for cell in plain.cells if cell.cell_type == "markdown")


@pytest.mark.parametrize("how", ["cell", "outputs", "not a notebook", "foreign notebook"])
def test_an_edited_notebook_is_kept_beside_the_new_one(course: Repository, how: str, capsys: Any) -> None:
    build(course)
    path = course.student("00_demo", "en")
    fresh = path.read_bytes()
    content = json.loads(fresh)
    if how == "cell":
        content["cells"][0]["source"].append("my own note")
    elif how == "outputs":
        content["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "hours of work"}]
    elif how == "foreign notebook":
        content["metadata"] = {}
    edited = b"{" if how == "not a notebook" else json.dumps(content).encode()
    for name in ("00_demo.edited.ipynb", "00_demo.2.edited.ipynb"):
        path.write_bytes(edited)
        lines = build(course)
        assert lines[0] == f"kept    notebooks/en/00_demo/{name}: someone edited the notebook that is built here"
        assert path.with_name(name).read_bytes() == edited
        assert path.read_bytes() == fresh
    assert stale(course) == []


def test_saving_without_a_change_is_no_edit_and_force_keeps_nothing(course: Repository) -> None:
    build(course)
    path = course.student("00_demo", "en")
    fresh = path.read_bytes()
    saved = json.loads(fresh)
    saved["metadata"]["language_info"]["version"] = "3.13.0"  # as JupyterLab adds on saving
    path.write_text(json.dumps(saved))
    assert build(course) == ["wrote   notebooks/en/00_demo/00_demo.ipynb"]
    path.write_text("{")
    assert build(course, force=True) == ["wrote   notebooks/en/00_demo/00_demo.ipynb"]
    assert path.read_bytes() == fresh


def test_check_names_what_is_stale_missing_or_stray(
    course: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(course.top / "solutions")
    assert main(["build"]) == 0
    assert main(["build", "--check"]) == 0
    capsys.readouterr()
    english, chinese = course.student("00_demo", "en"), course.solved("ex1_demo", "zh")
    english.write_bytes(english.read_bytes() + b"\n")
    chinese.unlink()
    stray = english.with_name("helper.py")
    stray.write_text("x = 1\n")
    shutil.rmtree(course.top / "autograder")  # is not committed, so a fresh clone does not have it
    assert main(["build", "--check"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "stale   notebooks/en/00_demo/00_demo.ipynb",
        "stale   solutions/ex1_demo/ex1_demo.zh.ipynb",
        "stale   notebooks/en/00_demo/helper.py",
    ]
    assert main(["build"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("course build: notebooks/en/00_demo/helper.py:1: ")
    assert error.count("\n") == 1
    stray.unlink()
    assert main(["build"]) == 0
    assert main(["build", "--check"]) == 0


def test_a_cell_that_is_no_python_without_its_solution_is_refused(tmp_path: Path) -> None:
    body = "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n"
    course = make_course(tmp_path / "course", lesson=LESSON + "\n# %%\n" + body)
    line = LESSON.count("\n") + 2
    with pytest.raises(CourseError, match=f"^solutions/00_demo/00_demo.py:{line}: without its solution"):
        build(course)
    assert generated(course) == {}, "nothing is written when a source is wrong"


def test_only_exercises_go_to_nbgrader() -> None:
    assert [unit for unit in ("00_start", "07_interview", "ex1_precision") if is_exercise(unit)] == ["ex1_precision"]


def test_a_unit_that_does_not_exist_is_named(course: Repository) -> None:
    with pytest.raises(CourseError, match="no unit '01_nothing'; expected some of 00_demo, ex1_demo"):
        course.units(["01_nothing"])
