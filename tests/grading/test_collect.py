"""Submissions are found as platforms name them; what is no notebook has a reason; zips cannot harm."""

import io
import os
import stat
import zipfile
from pathlib import Path

import pytest

from course_lib.errors import CourseError
from course_lib.grading.collect import MOST_BYTES, Found, Roster, collect, safe

UNITS = ("ex1_precision", "ex2_checkpointing")

NAMES = {
    # nbgrader
    "ada/ex1_precision/ex1_precision.ipynb": ("ada", "ex1_precision"),
    "submitted/ada/ex1_precision/ex1_precision.ipynb": ("ada", "ex1_precision"),
    # a folder for each student, as it was saved
    "ada/ex1_precision.ipynb": ("ada", "ex1_precision"),
    "ada/Copy of ex1_precision.ipynb": ("ada", "ex1_precision"),
    "ada/ex1_precision (2).ipynb": ("ada", "ex1_precision"),
    "ada/homework.ipynb": ("ada", None),
    # flat
    "ada_ex1_precision.ipynb": ("ada", "ex1_precision"),
    "ex1_precision-ada.ipynb": ("ada", "ex1_precision"),
    "王小明_ex2_checkpointing.ipynb": ("王小明", "ex2_checkpointing"),
    # Canvas
    "lovelaceada_12345_678901_ex1_precision.ipynb": ("lovelaceada", "ex1_precision"),
    "lovelaceada_LATE_12345_678901_ex1_precision-2.ipynb": ("lovelaceada", "ex1_precision"),
    # Moodle
    "Ada Lovelace_1234567_assignsubmission_file_/ex1_precision.ipynb": ("Ada_Lovelace", "ex1_precision"),
    "Ada Lovelace_1234567_assignsubmission_file/Copy of ex1_precision.ipynb": ("Ada_Lovelace", "ex1_precision"),
    "Ada Lovelace_1234567_assignsubmission_file_ex2_checkpointing.ipynb": ("Ada_Lovelace", "ex2_checkpointing"),
}


def lay(folder: Path, name: str, content: bytes = b"{}") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_student_and_assignment_by_the_file_s_name(tmp_path: Path, name: str) -> None:
    lay(tmp_path, name)
    [found] = collect(tmp_path, UNITS)
    assert (found.student, found.assignment, found.problem) == (*NAMES[name], "")


@pytest.mark.parametrize("name", NAMES)
def test_the_same_in_a_zip(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr(name, "{}")
    [found] = collect(tmp_path / "all.zip", UNITS)
    assert (found.student, found.assignment) == NAMES[name]


def test_the_newest_of_several_tries_and_it_is_said(tmp_path: Path) -> None:
    for number, name in enumerate(("ex1_precision", "ex1_precision (1)", "ex1_precision (10)", "ex1_precision (2)")):
        lay(tmp_path, f"ada/{name}.ipynb", str(number).encode())
    [found] = collect(tmp_path, UNITS)
    assert found.content == b"2"
    assert found.notes == ("of 4 files the newest was taken: ada/ex1_precision (10).ipynb",)


def test_by_time_where_names_do_not_say(tmp_path: Path) -> None:
    for when, name in enumerate(("b", "a", "c")):
        os.utime(
            lay(tmp_path, f"ada/{name}_ex1_precision.ipynb", name.encode()),
            (10**9 + 100 * (when == 1), 10**9 + 100 * (when == 1)),
        )
    assert [each.content for each in collect(tmp_path, UNITS)] == [b"a"]


def test_a_roster_knows_people_by_all_their_names(tmp_path: Path) -> None:
    roster = lay(
        tmp_path, "roster.csv", "student,name,login\ns001,Ada Lovelace,lovelaceada\ns002,王小明,wxm\n".encode()
    )
    lay(tmp_path, "in/lovelaceada_1_2_ex1_precision.ipynb")
    lay(tmp_path, "in/Ada Lovelace_1_assignsubmission_file_/ex2_checkpointing.ipynb")
    lay(tmp_path, "in/王小明/ex1_precision.ipynb")
    found = collect(tmp_path / "in", UNITS, roster=Roster.read(roster))
    assert {(each.student, each.assignment) for each in found} == {
        ("s001", "ex1_precision"), ("s001", "ex2_checkpointing"), ("s002", "ex1_precision"),
    }  # fmt: skip


def test_a_pattern_of_one_s_own(tmp_path: Path) -> None:
    lay(tmp_path, "group7/2026-ada/final.ipynb")
    [found] = collect(tmp_path, UNITS[:1], pattern=r"2026-(?P<student>\w+)/")
    assert (found.student, found.assignment) == ("ada", "ex1_precision")
    with pytest.raises(CourseError, match="expected a group"):
        collect(tmp_path, UNITS, pattern="x")


def test_one_notebook_alone(tmp_path: Path) -> None:
    [found] = collect(lay(tmp_path, "ada_ex1_precision.ipynb"), UNITS)
    assert (found.student, found.assignment) == ("ada", "ex1_precision")


PROBLEMS = {"essay.pdf": (b"x", "is not a notebook"), "ex1_precision.py": (b"x", "is not a notebook"),
            "ex1_precision.ipynb": (b"x" * (MOST_BYTES + 1), "50 MiB"),
            "ex1.zip": (b"PK broken", "no zip")}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_cannot_be_taken_has_a_reason_and_the_others_go_on(tmp_path: Path, name: str) -> None:
    content, reason = PROBLEMS[name]
    lay(tmp_path, f"bob/{name}", content)
    lay(tmp_path, "ada/ex1_precision.ipynb")
    found = {each.student: each for each in collect(tmp_path, UNITS[:1])}
    assert reason in found["bob"].problem
    assert not found["ada"].problem


def zipped(tmp_path: Path, *members: tuple[zipfile.ZipInfo | str, bytes]) -> list[Found]:
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return collect(path, UNITS[:1])


@pytest.mark.parametrize("name", ["../../ada/ex1_precision.ipynb", "/etc/ex1_precision.ipynb",
                                  "C:\\ex1_precision.ipynb",
                                  "..\\..\\ex1_precision.ipynb"])  # fmt: skip
def test_a_path_that_climbs_out_is_refused(tmp_path: Path, name: str) -> None:
    found = zipped(tmp_path, (name, b"{}"), ("bob/ex1_precision.ipynb", b"{}"))
    assert [bool(each.problem) for each in sorted(found, key=lambda each: each.student == "bob")] == [True, False]


def test_a_bomb_and_a_link_are_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("eve/ex1_precision.ipynb")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    found = zipped(tmp_path, ("ada/ex1_precision.ipynb", b"\0" * (40 * 2**20)), (link, b"/etc/passwd"),
                   ("bob/ex1_precision.ipynb", b"{}"))  # fmt: skip
    problems = {each.student: each.problem for each in found}
    assert "unpacks to more" in problems["ada"]
    assert "link" in problems["eve"]
    assert not problems["bob"]


def test_a_zip_within_the_folder_is_a_student_s(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("ex1_precision.ipynb", "{}")
    lay(tmp_path, "ada.zip", buffer.getvalue())
    [found] = collect(tmp_path, UNITS)
    assert (found.student, found.assignment) == ("ada", "ex1_precision")


def test_a_link_in_a_folder_is_not_followed(tmp_path: Path) -> None:
    lay(tmp_path, "secret.txt", b"secret")
    (tmp_path / "in" / "ada").mkdir(parents=True)
    (tmp_path / "in" / "ada" / "ex1_precision.ipynb").symlink_to(tmp_path / "secret.txt")
    [found] = collect(tmp_path / "in", UNITS)
    assert "link" in found.problem
    assert found.content == b""


@pytest.mark.parametrize(("name", "is_safe"), [("../../x", "x"), ("=cmd|' /C calc'!A0", "cmd_C_calc_A0"),
                                               ("a b", "a_b"),
                                               ("", "unknown"), ("王", "王"), ("-x", "x"),
                                               ("..", "unknown")])  # fmt: skip
def test_ids_are_no_paths_and_no_formulas(name: str, is_safe: str) -> None:
    assert safe(name) == is_safe
