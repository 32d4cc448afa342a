"""Write the notebooks that the sources make, or name those that are stale."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.i18n import LANGUAGES
from course_lib.pipeline.catalogues import compiled_catalogues
from course_lib.pipeline.editions import solved, student, to_bytes, was_edited
from course_lib.pipeline.repository import Repository, is_exercise
from course_lib.pipeline.sources import read_source


@dataclass(frozen=True)
class Made:
    """A generated file: where it belongs and its bytes."""

    path: Path
    content: bytes
    committed: bool = True  #: nbgrader's source folder is not


def made_from(repository: Repository) -> Iterator[Made]:
    """Everything that `course build` writes, in the order of the course."""
    yield from (Made(path, content) for path, content in compiled_catalogues())
    for name in repository.units():
        unit = read_source(repository, name)
        for language in LANGUAGES:
            notebook = to_bytes(solved(unit, language, repository))
            yield Made(repository.solved(name, language), notebook)
            yield Made(repository.student(name, language), to_bytes(student(unit, language, repository)))
            if is_exercise(name) and language == "en":
                yield Made(repository.nbgrader_source(name), notebook, committed=False)


def stale(repository: Repository) -> list[Path]:
    """Committed files that are not, byte for byte, what the sources make; and strays among them."""
    made = [each for each in made_from(repository) if each.committed]
    wrong = [each.path for each in made if not each.path.is_file() or each.path.read_bytes() != each.content]
    return wrong + _strays(repository, made)


def build(repository: Repository, force: bool = False) -> list[str]:
    """Write what is missing or stale; a notebook that someone edited is first moved aside.

    Args:
        force: overwrite edited notebooks without keeping them.

    Returns:
        One line for each file written or moved.

    Raises:
        CourseError: a source is wrong, or a file lies among the generated ones that no source makes.
    """
    made = list(made_from(repository))
    strays = _strays(repository, made)
    if strays:
        shown = strays[0].relative_to(repository.top)
        raise CourseError(f"{shown}:1: no source makes this file; move it away (code belongs in course_lib/)")
    lines = []
    for each in made:
        before = each.path.read_bytes() if each.path.is_file() else None
        if before == each.content:
            continue
        if before is not None and each.path.suffix == ".ipynb" and was_edited(before) and not force:
            aside = _free_name(each.path)
            each.path.rename(aside)
            lines.append(f"kept    {aside.relative_to(repository.top)}: someone edited the notebook that is built here")
        _write(each)
        lines.append(f"wrote   {os.path.relpath(each.path, repository.top)}")
    return lines


def _strays(repository: Repository, made: list[Made]) -> list[Path]:
    expected = {each.path for each in made}
    return [path for path in repository.notebooks_on_disk() if path not in expected and ".edited" not in path.suffixes]


def _free_name(path: Path) -> Path:
    names = [path.with_suffix(".edited.ipynb")] + [path.with_suffix(f".{n}.edited.ipynb") for n in range(2, 1000)]
    return next(name for name in names if not name.exists())


def _write(made: Made) -> None:
    made.path.parent.mkdir(parents=True, exist_ok=True)
    half = made.path.with_name(f".{made.path.name}.half")
    half.write_bytes(made.content)
    half.replace(made.path)
