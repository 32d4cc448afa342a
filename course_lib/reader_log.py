"""What a reader did, kept beyond the kernel: predictions, tasks passed, hints taken.

One file of JSON lines that only grows. Several notebooks may write to it at once, and a record
that was cut short (a full disk, a dead runtime) costs nothing but itself. The folder is, in this
order: ``COURSE_STATE_DIR``; the course's folder in a mounted Google Drive; ``XDG_DATA_HOME`` or
``~/.local/share``, and there ``big-models-small-gpus``.
"""

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError
from course_lib.i18n import _

FOLDER = "big-models-small-gpus"
DRIVE = Path("/content/drive/MyDrive")  #: where Colab mounts a Google Drive


def state_dir() -> Path:
    """The folder that keeps what the reader did (it need not exist yet)."""
    if chosen := os.environ.get("COURSE_STATE_DIR"):
        return Path(chosen).expanduser()
    if (DRIVE / FOLDER).is_dir():
        return DRIVE / FOLDER
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / FOLDER


class ReaderLog:
    """The records of one kind, such as ``predictions``, oldest first."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._unsaved: list[dict[str, Any]] = []  #: kept for this kernel's life where the folder takes nothing

    @property
    def path(self) -> Path:
        return state_dir() / f"{self.kind}.jsonl"

    def append(self, **record: Any) -> dict[str, Any]:
        """Keep a record; the time is added. Returns it.

        Raises:
            CourseError: a value is nothing that JSON can hold.
        """
        record = {**record, "at": datetime.now(UTC).isoformat(timespec="seconds")}
        try:
            line = json.dumps(record, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CourseError(f"{self.kind}: cannot keep {record}: {error}; give a number or a text") from error
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # One write of one line in append mode: whole lines, whoever else writes. The newline comes first,
            # so that a record which was cut short cannot swallow the next one.
            with open(self.path, "ab", buffering=0) as file:
                file.write(f"\n{line}".encode())
        except OSError as error:
            self._unsaved.append(record)
            print(_("Not saved, only remembered until this kernel ends: {error}").format(error=error))
        return record

    def read(self) -> list[dict[str, Any]]:
        """All whole records. The first look at a damaged file copies it aside and says so, once."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            content = b""
        except OSError as error:
            content = b""
            print(_("{path} cannot be read: {error}").format(path=self.path, error=error))
        records, damaged = [], 0
        for line in content.splitlines():
            if line.strip():
                try:
                    record = json.loads(line)
                    record["at"][:10]  # what every record has
                    records.append(record)
                except (ValueError, TypeError, KeyError):
                    damaged += 1
        known = max((record.get("damaged", 0) for record in records), default=0)
        if damaged > known:
            self._tell_damage(damaged)
        return [record for record in records if "damaged" not in record] + self._unsaved

    def _tell_damage(self, damaged: int) -> None:
        aside = self.path.with_name(f"{self.kind}.damaged.jsonl")
        try:
            shutil.copyfile(self.path, aside)
        except OSError:
            return
        what = _("Passed over what is damaged in {path} (lines: {damaged}); all else is there. A copy is in {aside}.")
        print(what.format(damaged=damaged, path=self.path, aside=aside.name))
        self.append(damaged=damaged)  # so that it is said once
