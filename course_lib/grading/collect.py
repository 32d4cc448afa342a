"""Finds submissions: a folder tree, a flat folder, a zip or one notebook, as Colab, Canvas, Moodle and nbgrader name
them. What is no notebook has a reason, and the others go on."""

import re
import stat
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path, PurePosixPath

from course_lib.errors import CourseError

MOST_BYTES = 50 * 2**20  #: of one notebook
_MOST_UNPACKED = 4 * 2**30  #: of one zip
_MOST_RATIO = 200  #: unpacked ÷ packed, above which a large file is a bomb
_MOST_FILES = 50_000
_IGNORED = re.compile(r"(^|/)(\.(?!\./)|__MACOSX/|Thumbs\.db$|desktop\.ini$)|\.(db|log|csv)$|(^|/)timestamp\.txt$")
#: What a browser, Colab or Canvas puts around a file's name.
_TRY = re.compile(r"(?: ?\((\d+)\)|-(\d{1,2}))$")
_COPY = re.compile(r"^(?:Copy of |副本 ?)+|(?: 的副本| 副本|_副本)$", re.I)
_CANVAS = re.compile(r"^(?P<student>[^_]+)(?P<late>_LATE)?_\d+_\d+_(?P<rest>.+)$")
_MOODLE = re.compile(r"^(?P<student>.+?)_\d+_assignsubmission_file_?(?P<rest>.*)$")


@dataclass(frozen=True)
class Found:
    """A file that somebody handed in."""

    student: str
    assignment: str | None  #: None where the name does not say
    name: str  #: as it was found, for messages
    content: bytes = b""
    problem: str = ""  #: why it cannot be graded
    attempt: int = 0
    handed_in: datetime | None = None
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class _File:
    path: PurePosixPath  #: within what was given
    content: bytes
    changed: float
    problem: str = ""


def collect(given: Path, assignments: Sequence[str], pattern: str = "", roster: "Roster | None" = None) -> list[Found]:
    """Every student's newest try of each assignment, sorted.

    Args:
        given: folder, zip or notebook.
        pattern: a regular expression with a group ``student``, for the path within ``given``.

    Raises:
        CourseError: ``given`` is nothing that can hold submissions.
    """
    known = re.compile(pattern) if pattern else None
    if known and "student" not in known.groupindex:
        raise CourseError(f"--pattern: got {pattern!r}, expected a group such as (?P<student>[^/]+)")
    found: dict[tuple[str, str | None], list[Found]] = {}
    for file in _files(given):
        each = _read_name(file, assignments, known, roster)
        if each is not None:
            found.setdefault((each.student, each.assignment), []).append(each)
    return [_newest(tries) for _key, tries in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or ""))]


def _newest(tries: list[Found]) -> Found:
    usable = [each for each in tries if not each.problem] or tries
    newest = max(usable, key=lambda each: (each.attempt, each.handed_in or datetime.min.replace(tzinfo=UTC), each.name))
    if len(tries) > 1:
        note = f"of {len(tries)} files the newest was taken: {newest.name}"
        newest = replace(newest, notes=(*newest.notes, note))
    return newest


# --- files ------------------------------------------------------------------------------------------------------------


def _files(given: Path) -> Iterator[_File]:
    if given.is_dir():
        for path in sorted(given.rglob("*")):
            inside = PurePosixPath(path.relative_to(given).as_posix())
            if path.is_dir() and not path.is_symlink() or _IGNORED.search(str(inside)):
                continue
            yield from _file_on_disk(path, inside)
    elif not given.is_file():
        raise CourseError(f"--submissions: {given} is not there; expected a folder, a .zip or a notebook")
    elif zipfile.is_zipfile(given):
        yield from _in_zip(given.read_bytes(), PurePosixPath())
    elif given.suffix == ".ipynb":
        yield from _file_on_disk(given, PurePosixPath(given.name))
    else:
        raise CourseError(f"--submissions: {given} is neither a folder nor a .zip nor an .ipynb")


def _file_on_disk(path: Path, inside: PurePosixPath) -> Iterator[_File]:
    if path.is_symlink() or not path.is_file():
        yield _File(inside, b"", 0, "is a link or no file, and is not followed")
        return
    state = path.stat()
    if inside.suffix == ".zip" and state.st_size <= MOST_BYTES:
        yield from _in_zip(path.read_bytes(), inside.with_suffix(""))
    elif state.st_size > MOST_BYTES:
        yield _File(inside, b"", state.st_mtime, _too_large(state.st_size))
    else:
        yield _File(inside, path.read_bytes(), state.st_mtime)


def _too_large(size: int) -> str:
    return f"has {size / 2**20:,.0f} MiB; a notebook may have {MOST_BYTES // 2**20} MiB"


def _in_zip(content: bytes, under: PurePosixPath) -> Iterator[_File]:
    """A zip's files, none of which is written to disk."""
    try:
        archive = zipfile.ZipFile(BytesIO(content))
        members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        yield _File(under.with_suffix(".zip"), b"", 0, f"is no zip that can be read ({error})")
        return
    if len(members) > _MOST_FILES or sum(each.file_size for each in members) > _MOST_UNPACKED:
        yield _File(under / "zip", b"", 0, "is a zip that unpacks to more than a class can hand in")
        return
    for member in sorted(members, key=lambda each: each.filename):
        name = member.filename.replace("\\", "/")
        if member.is_dir() or _IGNORED.search(name):
            continue
        inside, changed = PurePosixPath(name), datetime(*member.date_time, tzinfo=UTC).timestamp()
        if inside.is_absolute() or ".." in inside.parts or re.match(r"[A-Za-z]:", name):
            yield _File(under / inside.name, b"", changed, "has a path in its zip that climbs out of it")
        elif stat.S_ISLNK(member.external_attr >> 16):
            yield _File(under / inside, b"", changed, "is a link or no file, and is not followed")
        elif member.file_size > MOST_BYTES:
            yield _File(under / inside, b"", changed, _too_large(member.file_size))
        elif member.file_size > 2**20 and member.file_size > _MOST_RATIO * max(1, member.compress_size):
            yield _File(under / inside, b"", changed, "unpacks to more than its size can honestly hold")
        else:
            yield _member(archive, member, under / inside, changed)


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: PurePosixPath, changed: float) -> _File:
    try:
        with archive.open(member) as file:
            content = file.read(MOST_BYTES + 1)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError, EOFError, ValueError) as error:
        return _File(path, b"", changed, f"cannot be unpacked ({error})")
    except Exception as error:  # zlib.error, lzma.LZMAError: each method has its own
        return _File(path, b"", changed, f"cannot be unpacked ({type(error).__name__})")
    if len(content) > MOST_BYTES:
        return _File(path, b"", changed, _too_large(len(content)))
    return _File(path, content, changed)


# --- names ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roster:
    """Students by every name that a platform gives them; a CSV with a column ``student`` and others."""

    by_name: dict[str, str]
    students: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "Roster":
        """
        Raises:
            CourseError: no such file, or no column ``student``.
        """
        import csv

        try:
            with open(path, newline="", encoding="utf-8-sig") as file:
                rows = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise CourseError(f"--roster: {path} cannot be read: {error}") from error
        if not rows or "student" not in rows[0]:
            raise CourseError(f"--roster: {path} has no column `student`; expected it, and others with the names that "
                              "your platform gives them")  # fmt: skip
        by_name = {_plain(value): safe(row["student"]) for row in rows for value in row.values() if value}
        return cls(by_name, tuple(safe(row["student"]) for row in rows))


def safe(name: str) -> str:
    """A student's id as a file's name and as a cell of a spreadsheet: letters, digits, . _ @ + -, no formula."""
    return re.sub(r"[^\w.@+-]+", "_", name.strip()).strip("._").lstrip("@+-")[:100] or "unknown"


def _plain(name: str) -> str:
    return re.sub(r"\W+", "", name).casefold()


def _read_name(
    file: _File, assignments: Sequence[str], pattern: re.Pattern[str] | None, roster: Roster | None
) -> Found | None:
    stem, attempt = _stem(file.path.stem)
    parts = [*file.path.parts[:-1]]
    student = ""
    # A bare "nbgrader" tree, Canvas's flat files, Moodle's folders, a folder for each student, or flat files.
    for part in (*parts, file.path.stem):
        moodle = _MOODLE.match(part)
        if moodle:
            student, stem = moodle["student"], moodle["rest"] or stem
            break
    canvas = None if student else _CANVAS.match(file.path.stem)
    if canvas:
        student, (stem, attempt) = canvas["student"], _stem(canvas["rest"])
    assignment = next((name for name in assignments if name in (*parts, stem)), None)
    assignment = assignment or next((name for name in assignments if name in str(file.path)), None)
    if not student:
        others = [part for part in parts if part not in assignments and part not in ("submitted", "submissions")]
        left = stem.replace(assignment, "").strip(" _-.") if assignment else stem
        student = others[0] if others else left or "unknown"
    if pattern:
        match = pattern.search(str(file.path))
        if not match:
            return None
        student = match["student"]
    student = (roster.by_name.get(_plain(student)) if roster else None) or safe(student)
    if assignment is None and len(assignments) == 1:
        assignment = assignments[0]
    problem = file.problem or ("" if file.path.suffix == ".ipynb" else "is not a notebook (.ipynb)")
    handed_in = datetime.fromtimestamp(file.changed, UTC) if file.changed else None
    return Found(student, assignment, str(file.path), file.content, problem and f"{file.path.name} {problem}", attempt,
                 handed_in)  # fmt: skip


def _stem(name: str) -> tuple[str, int]:
    """The name without what was put around it, and which try it is."""
    name = _COPY.sub("", name.strip())
    match = _TRY.search(name)
    return (name[: match.start()], int(match[1] or match[2])) if match else (name, 0)
