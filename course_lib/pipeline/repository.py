"""Where the course's files lie, and what pyproject.toml says about the copy at hand."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError

_UNIT = re.compile(r"\d\d_[a-z0-9_]+|ex\d_[a-z0-9_]+")


@dataclass(frozen=True)
class Repository:
    """A checkout of the course. ``top`` is the folder with pyproject.toml and solutions/."""

    top: Path
    github: str = ""  #: OWNER/NAME, or empty: no badge
    branch: str = "main"
    source: str = ""  #: what the set-up cell installs where no wheel lies beside the notebook

    @classmethod
    def find(cls, start: Path | None = None) -> "Repository":
        """The checkout that ``start`` (the working directory) lies in, else the one this package runs from.

        Raises:
            CourseError: neither is inside a checkout.
        """
        start = start or Path.cwd()
        package = Path(__file__).resolve().parents[2]
        for folder in (start, *start.parents, package):
            if (folder / "pyproject.toml").is_file() and (folder / "solutions").is_dir():
                return cls.at(folder)
        raise CourseError(f"{start} is not inside a checkout of the course; go to the folder that holds solutions/")

    @classmethod
    def at(cls, top: Path) -> "Repository":
        settings = tomllib.loads((top / "pyproject.toml").read_text(encoding="utf-8")).get("tool", {}).get("course", {})
        github = settings.get("repository", "")
        source = settings.get("source", "") or (github and f"git+https://github.com/{github}")
        return cls(top, github, settings.get("branch", "main"), source)

    def units(self, chosen: Sequence[str] = ()) -> list[str]:
        """The units by name, in the order of the course; ``chosen`` narrows them.

        Raises:
            CourseError: a chosen unit has no source.
        """
        sources = self.top.glob("solutions/*/*.py")
        names = sorted(path.stem for path in sources if path.stem == path.parent.name and _UNIT.fullmatch(path.stem))
        unknown = [name for name in chosen if name not in names]
        if unknown:
            raise CourseError(f"no unit {unknown[0]!r}; expected some of {', '.join(names)}")
        return [name for name in names if not chosen or name in chosen]

    def source_of(self, unit: str) -> Path:
        return self.top / "solutions" / unit / f"{unit}.py"

    def solved(self, unit: str, language: str) -> Path:
        return self.top / "solutions" / unit / f"{unit}.{language}.ipynb"

    def student(self, unit: str, language: str) -> Path:
        return self.top / "notebooks" / language / unit / f"{unit}.ipynb"

    def nbgrader_source(self, unit: str) -> Path:
        return self.top / "autograder" / "source" / unit / f"{unit}.ipynb"

    def notebooks_on_disk(self) -> list[Path]:
        """Notebooks and Python files where only generated ones belong."""
        found = [*self.top.glob("solutions/*/*.ipynb"), *self.top.glob("notebooks/**/*.ipynb")]
        found += self.top.glob("notebooks/**/*.py")
        return sorted(path for path in found if ".ipynb_checkpoints" not in path.parts)

    def badge(self, unit: str, language: str) -> str | None:
        """The Markdown of the Colab badge, where there is a repository for it to open."""
        if not self.github:
            return None
        address = f"{self.github}/blob/{self.branch}/notebooks/{language}/{unit}/{unit}.ipynb"
        picture = "https://colab.research.google.com/assets/colab-badge.svg"
        return f"[![Open in Colab]({picture})](https://colab.research.google.com/github/{address})"


def is_exercise(unit: str) -> bool:
    """Exercises (ex1_…) are released and graded through nbgrader, lessons (00_…) are not."""
    return unit.startswith("ex")
