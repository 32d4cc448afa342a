"""What a grading run keeps in its folder, so that it can be killed at any moment and goes on where it stopped."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.grading.score import Graded


@dataclass(frozen=True)
class Outbox:
    """``OUT``: reports, nbgrader's folders, and ``.state`` with the seed and one result for each submission."""

    folder: Path
    seed: str

    @classmethod
    def open(cls, folder: Path, seed: int | str | None) -> "Outbox":
        """
        Raises:
            CourseError: it was begun with another seed, or cannot be written.
        """
        kept = folder / ".state" / "seed"
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            if not kept.is_file():
                write(kept, str(secrets.randbits(64) if seed is None else seed))
        except OSError as error:
            raise CourseError(f"--out: {folder} cannot be written: {error.strerror}") from error
        there = kept.read_text(encoding="utf-8").strip()
        if seed is not None and str(seed) != there:
            raise CourseError(f"--seed: {folder} was begun with another; choose another folder or leave --seed out")
        return cls(folder, there)

    def result(self, key: str) -> Graded | None:
        try:
            return Graded.from_dict(json.loads(self._path(key).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, key: str, result: bytes) -> None:
        write(self._path(key), result)

    def _path(self, key: str) -> Path:
        return self.folder / ".state" / "results" / f"{key}.json"


def key_of(job: bytes) -> str:
    """The same for the same notebook, tests, seed, budget and grader."""
    return hashlib.sha256(job + _code()).hexdigest()[:32]


@cache
def _code() -> bytes:
    """All that decides a grade: the package, and the sources of the exercises beside it."""
    package = Path(__file__).resolve().parents[1]
    paths: Iterable[Path] = [*package.rglob("*.py"), *package.parent.glob("solutions/ex*/*.py")]
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()


def write(path: Path, content: bytes | str) -> None:
    """Whole or not at all, whatever happens meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    half.write_bytes(content if isinstance(content, bytes) else content.encode())
    half.replace(path)
