"""Limits that the kernel itself keeps, for all processes of a room together: control groups, version 2 or 1.

They need a place where groups may be made: root has one on most machines; a user gets one with
``systemd-run --user --scope -p Delegate=yes course grade …``. Where there is none, the watchdog of
:mod:`course_lib.grading.zygote` has to do. See cgroups(7).
"""

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_NEEDED = ("memory", "pids")
#: By version: file of a limit; for a limit on memory with swap, where there is swap.
_FILES: dict[int, dict[str, tuple[str, ...]]] = {
    2: {"memory": ("memory.max",), "no swap": ("memory.swap.max",), "pids": ("pids.max",)},
    1: {"memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), "no swap": (), "pids": ("pids.max",)},
}
#: Where the kernel counts what it refused: controller, file (of either version), name in it, what that means.
_COUNTS = (
    ("memory", "memory.events", "oom_kill", "memory"),
    ("memory", "memory.oom_control", "oom_kill", "memory"),
    ("pids", "pids.events", "max", "processes"),
)


@dataclass
class Group:
    """One room's. ``doors`` are open files: who writes ``0`` into each is inside, with all that it starts later."""

    folders: dict[str, Path]  #: by controller; the same folder for both in version 2
    doors: list[int] = field(default_factory=list)

    def shut(self) -> None:
        """No further process goes in."""
        while self.doors:
            os.close(self.doors.pop())

    def exceeded(self) -> str:
        """``memory`` if the kernel had to kill for it, ``processes`` if some could not be started, else nothing."""
        for controller, file, count, why in _COUNTS:
            said = [line.split() for line in _read(self.folders[controller] / file).splitlines()]
            if any(name == count and int(number) for name, number in said):
                return why
        return ""

    def remove(self, seconds: float = 0.0) -> bool:
        """Whether it is gone; as long as a process is in it, it cannot go."""
        self.shut()
        ends_at = time.monotonic() + seconds
        while True:
            try:
                for folder in set(self.folders.values()):
                    if folder.exists():
                        folder.rmdir()
                return True
            except OSError:
                if time.monotonic() >= ends_at:
                    return False
                time.sleep(0.02)


class Groups:
    """Where groups can be made."""

    def __init__(self, version: int, parents: dict[str, Path]) -> None:
        self.version, self._parents, self._made = version, parents, 0
        self._leaving: list[Group] = []  #: rooms that are closed and not yet empty

    @classmethod
    def find(cls) -> "Groups | None":
        """None where this process may make none."""
        with suppress(OSError):
            lines = (line.split(":", 2) for line in _read(Path("/proc/self/cgroup")).splitlines())
            own = {names: path for _number, names, path in lines}
            if (_MOUNT / "cgroup.controllers").exists():
                place = _MOUNT if os.access(_MOUNT, os.W_OK) else _delegated(_MOUNT / own.get("", "/").lstrip("/"))
                parents = dict.fromkeys(_NEEDED, place) if place and _offers(place) else {}
                version = 2
            else:
                mine = {name: path for names, path in own.items() for name in names.split(",")}
                parents = {name: _MOUNT / name / mine[name].lstrip("/") for name in _NEEDED if name in mine}
                version = 1
            if len(parents) == len(_NEEDED):
                groups = cls(version, parents)
                groups.make(1 << 30, 64).remove()  # some mounts are read-only, which only trying tells
                return groups
        return None

    def make(self, memory_bytes: int, processes: int) -> Group:
        """
        Raises:
            OSError: it may not, or not any more.
        """
        self._leaving = [each for each in self._leaving if not each.remove()]
        self._made += 1
        name = f"course-{os.getpid()}-{self._made}"
        group = Group({controller: parent / name for controller, parent in self._parents.items()})
        files = _FILES[self.version]
        try:
            for folder in set(group.folders.values()):
                folder.mkdir()
            for controller, most in (("memory", memory_bytes), ("no swap", 0), ("pids", processes)):
                for file in files[controller]:
                    path = group.folders["memory" if controller == "no swap" else controller] / file
                    if path.exists():
                        path.write_text(str(most))
            group.doors = [os.open(folder / "cgroup.procs", os.O_WRONLY) for folder in set(group.folders.values())]
        except OSError:
            group.remove()
            raise
        return group

    def leave(self, group: Group) -> None:
        """Remove a group, now or when its processes are dead."""
        if not group.remove():
            self._leaving.append(group)

    def close(self) -> None:
        for group in self._leaving:
            group.remove(seconds=2.0)


def _delegated(own: Path) -> Path | None:
    """This process's own group, if it may divide it: then the process has to sit in a part of it, first."""
    if own == _MOUNT or not os.access(own / "cgroup.procs", os.W_OK):
        return None
    with suppress(OSError):
        part = own / "course-grader"
        part.mkdir(exist_ok=True)
        for pid in _read(own / "cgroup.procs").split():
            (part / "cgroup.procs").write_text(pid)
        return own
    return None


def _offers(place: Path) -> bool:
    """Whether groups made there have both controllers."""
    with suppress(OSError):
        if not set(_NEEDED) <= set(_read(place / "cgroup.subtree_control").split()):
            (place / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _NEEDED))
        return set(_NEEDED) <= set(_read(place / "cgroup.subtree_control").split())
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
