"""A process behind a wall that has imported torch, and rooms in it, one for each run of a notebook.

The wall is raised by :mod:`course_lib.grading.walls`; what a room is, says :mod:`course_lib.grading.zygote`.
"""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from course_lib.errors import CourseError
from course_lib.grading.cgroups import Group, Groups
from course_lib.grading.line import Line, Silence, TooLate
from course_lib.grading.namespaces import Limits
from course_lib.grading.walls import DOOR, masked, raise_wall, remove_container

_START_SECONDS = 120.0
_GRACE_SECONDS = 2.0  #: after an interrupt
_INTERRUPT = b"i"


class Gone(Exception):
    """The room is no more: ``why`` is ``time``, ``memory``, ``processes`` or ``died``."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Ended(Exception):
    """The sandbox itself is no more; a new one has to be made."""


@dataclass
class Room:
    """A conversation with one child. Close it, and all that ran in it is dead."""

    line: Line
    leash: socket.socket
    groups: Groups | None = None
    group: Group | None = None

    def ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer. What takes longer is interrupted, as a person would by a button, and may then still answer.

        Raises:
            Gone: it died, or had to be killed.
        """
        deadline = time.monotonic() + seconds
        try:
            self.line.send(message, deadline)
            return self.line.receive(deadline)
        except TooLate:
            try:
                self.leash.send(_INTERRUPT)
                return self.line.receive(time.monotonic() + _GRACE_SECONDS)
            except (TooLate, OSError):
                self.close()
                raise Gone("time") from None
            except Silence:
                raise Gone(self._last_word() or "time") from None
        except Silence:
            raise Gone(self._last_word() or "died") from None

    def _last_word(self) -> str:
        """Why the keeper ended it."""
        try:
            self.leash.settimeout(5)
            word = self.leash.recv(64).decode()
        except OSError:
            word = ""
        if self.group and word in ("", "died"):
            word = self.group.exceeded() or word
        self.close()
        return word if word in ("time", "memory", "processes", "died") else ""

    def close(self) -> None:
        self.line.close()
        self.leash.close()
        if self.groups and self.group:
            self.groups.leave(self.group)
            self.group = None

    def __enter__(self) -> "Room":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sandbox:
    """Started once for many rooms; several processes may share it after a fork.

    Raises:
        CourseError: bubblewrap or docker is not there, or this machine does not let it work.
    """

    def __init__(self, kind: str = "bwrap") -> None:
        self.kind, self.ready = kind, False
        self.groups = Groups.find()
        self._folder = tempfile.TemporaryDirectory(prefix="course-sandbox-")
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the sandbox
        self._lines: list[socket.socket] = []  #: to the open parent, to the bare one
        self._door: socket.socket | None = None
        theirs: list[socket.socket] = []
        if kind == "docker":  # which cannot hand over what is open here: who is inside knocks
            self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._door.bind(os.path.join(self._folder.name, DOOR))
            self._door.listen(2)
        else:
            pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
            self._lines, theirs = [ours for ours, _ in pairs], [end for _, end in pairs]
        fds = [end.fileno() for end in theirs]
        command, environment = raise_wall(kind, self._folder.name, fds)
        self._process = subprocess.Popen(
            command, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said, env=environment,
            start_new_session=True,
        )  # fmt: skip
        for end in theirs:
            end.close()

    def wait(self) -> None:
        """Until torch is imported inside, which takes seconds in which the caller may do something else."""
        ends_at = time.monotonic() + _START_SECONDS
        while self._door and len(self._lines) < 2 and time.monotonic() < ends_at and self._process.poll() is None:
            self._door.settimeout(1.0)
            with suppress(TimeoutError):
                self._lines.append(self._door.accept()[0])
        words = []
        for line in self._lines:
            line.settimeout(max(0.1, ends_at - time.monotonic()))
            with suppress(TimeoutError):
                words.append(line.recv(64))
            line.settimeout(None)
        if words != [b"ready"] * 2:
            self._said.seek(0)
            said = self._said.read().decode("utf-8", "replace").strip().splitlines()[-1:] or ["no word"]
            self.close()
            raise CourseError(
                f"the sandbox does not start here ({said[0]}); user namespaces must be allowed, or choose another "
                "one by name with --sandbox"
            )
        self.ready = True

    def room(self, limits: Limits, bare: bool = False) -> Room:
        """A fresh child, in tens of milliseconds. A bare one knows nothing of what is right."""
        if not self.ready:
            self.wait()
        conversation, theirs = socket.socketpair()
        leash, their_leash = socket.socketpair()
        request = {"limits": asdict(limits), "isolated": self.kind != "none", "masked": masked()}
        group = self.groups.make(limits.memory_bytes, limits.processes) if self.groups else None
        ends = [theirs.fileno(), their_leash.fileno(), *(group.doors if group else ())]
        try:
            socket.send_fds(self._lines[bare], [json.dumps(request).encode()], ends)
        except OSError as error:
            raise Ended from error
        finally:
            theirs.close()
            their_leash.close()
            if group:
                group.shut()
        return Room(Line(conversation), leash, self.groups, group)

    @property
    def memory_limit(self) -> str:
        """What keeps a room from taking more memory and processes than it may."""
        return "control groups" if self.groups else "a watchdog"

    def close(self) -> None:
        for line in (*self._lines, *filter(None, [self._door])):
            line.close()
        try:
            self._process.wait(timeout=5 if self.ready else 0)
        except subprocess.TimeoutExpired:
            if self.kind == "docker":
                remove_container(self._folder.name)
            # The group: while bubblewrap still sets up, its own child is not yet bound to die with it.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._said.close()
        if self.groups:
            self.groups.close()
        self._folder.cleanup()
