"""Nothing of the host is in reach of a submission, and nothing of it stays."""

import ast
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from course_lib.errors import CourseError
from course_lib.grading import cgroups
from course_lib.grading.namespaces import Limits
from course_lib.grading.sandbox import Gone, Room, Sandbox
from course_lib.grading.score import Graded
from notebooks import quick, with_cell


@pytest.fixture(scope="module", params=["bwrap", pytest.param("docker", marks=pytest.mark.slow)])
def walled(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """Behind each of the walls; docker where there is one."""
    if request.param == "bwrap":
        yield request.getfixturevalue("sandbox")
        return
    try:
        made = Sandbox(request.param)
        made.wait()
    except CourseError as error:
        pytest.skip(str(error))
    yield made
    made.close()


REACHES = """
import os, socket, urllib.request
def attempt(what, action):
    try:
        print("REACHED" if action() else "nothing", what)
    except BaseException as error:
        print("refused", what, type(error).__name__)
def connect(family, address):
    s = socket.socket(family); s.settimeout(1); s.connect(address); return True
attempt("loopback", lambda: connect(socket.AF_INET, ("127.0.0.1", PORT)))
attempt("an abstract socket", lambda: connect(socket.AF_UNIX, "\\0course-test"))
attempt("the outside", lambda: connect(socket.AF_INET, ("1.1.1.1", 80)))
attempt("a name", lambda: socket.getaddrinfo("example.org", 80))
attempt("the secret file", lambda: open(SECRET).read())
attempt("the environment", lambda: "COURSE_SECRET" in str(dict(os.environ)) + open("/proc/1/environ").read())
attempt("the solutions", lambda: [n for t, _, f in os.walk("/") for n in f if n.startswith("ex1_precision")])
attempt("the repository", lambda: any(os.path.exists(p) for p in [TOP + "/solutions", TOP + "/pyproject.toml"]))
attempt("the home folder", lambda: os.listdir(HOME + "/.cache"))
attempt("other processes", lambda: [p for p in os.listdir("/proc") if p.isdigit() and p != str(os.getpid())])
attempt("writing to the package", lambda: open("/course/course_lib/x", "w"))
attempt("writing to the root", lambda: open("/x", "w"))
attempt("writing to /usr", lambda: open("/usr/x", "w"))
attempt("writing to /dev", lambda: open("/dev/x", "w"))
attempt("a new user namespace", lambda: __import__("ctypes").CDLL(None).unshare(0x10000000) == 0)
attempt("a mount", lambda: __import__("ctypes").CDLL(None).mount(b"x", b"/mnt", b"tmpfs", 0, None) == 0)
attempt("becoming root", lambda: os.setuid(0) or True)
attempt("kernel memory", lambda: open("/proc/kcore", "rb").read(1))
attempt("sysrq", lambda: open("/proc/sysrq-trigger", "w").write("h"))
attempt("memory of process 1 of the host", lambda: open("/proc/sys/kernel/core_pattern", "w").write("|/x"))
"""


@pytest.mark.parametrize("bare", [False, True])
def test_nothing_is_in_reach(walled: Sandbox, bare: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("expected data")
    listener = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0course-test")
    abstract.listen()
    top = str(Path(__file__).resolve().parents[2])
    code = (REACHES.replace("PORT", str(listener.getsockname()[1])).replace("SECRET)", f"{str(secret)!r})")
            .replace("TOP", repr(top)).replace("HOME", repr(str(Path.home()))))  # fmt: skip
    with listener, abstract, walled.room(Limits(), bare) as room:
        reply = room.ask({"op": "run", "code": code}, 60)
    assert reply["error"] is None, reply
    said = reply["outputs"][0]["text"]
    assert "REACHED" not in said, said
    assert said.count("\n") == REACHES.count('attempt("')


def test_one_child_leaves_nothing_to_the_next(walled: Sandbox) -> None:
    with walled.room(Limits()) as first:
        reply = first.ask({"op": "run", "code": (
            "import builtins, os, torch, course_lib.models as m\n"
            "for folder in ('/tmp', '/dev/shm'): open(folder + '/left', 'w').write('x')\n"
            "builtins.left = torch.left = m.left = 1; torch.manual_seed(5); torch.set_num_threads(7)"
        )}, 60)  # fmt: skip
        assert reply["error"] is None, reply
    with walled.room(Limits()) as second:
        reply = second.ask({"op": "run", "code": (
            "import builtins, os, torch, course_lib.models as m\n"
            "(os.listdir('/dev/shm'), 'left' in os.listdir('/tmp'), hasattr(builtins, 'left'), hasattr(torch, 'left'), "
            "hasattr(m, 'left'), torch.get_num_threads())"
        )}, 60)  # fmt: skip
    assert reply["outputs"][0]["data"]["text/plain"] == "([], False, False, False, False, 1)"


def test_a_detached_child_dies_with_its_room(walled: Sandbox) -> None:
    with walled.room(Limits()) as room:
        room.ask({"op": "run", "code": (
            "import os, subprocess, sys\n"
            "subprocess.Popen(['sleep', '98765'], start_new_session=True)\n"
            "if os.fork() == 0:\n    os.setsid()\n    os.execvp('sleep', ['sleep', '98765'])"
        )}, 60)  # fmt: skip
        time.sleep(0.3)
        assert sleepers()
    for _ in range(100):
        if not sleepers():
            return
        time.sleep(0.1)
    raise AssertionError(sleepers())


def sleepers() -> list[int]:
    found = []
    for each in psutil.process_iter(["cmdline"]):
        if each.info["cmdline"] == ["sleep", "98765"]:
            found.append(each.pid)
    return found


BOMBS = {
    "memory": ("x = []\nwhile True: x.append(bytearray(2**26))", 512),
    "memory in many processes": (
        "import os\nfor _ in range(12): os.fork()\nx = bytearray(2**27)\nimport time; time.sleep(60)", 512),
    "processes": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", 4096),
    "shared memory": (
        "import os\nfds = []\nwhile True:\n    fd = os.memfd_create('x'); fds.append(fd)\n"
        "    os.write(fd, bytes(2**24))", 512),
    "a file": ("open('/tmp/x', 'wb').write(bytes(2**30))", 4096),
    "many files": ("for n in range(10**6): open(f'/tmp/{n}', 'wb').write(bytes(2**20))", 4096),
    "output": ("while True: print('x' * 2**20)", 4096),
    "output past print": ("import os\nwhile True: os.write(1, b'x' * 2**20)", 4096),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [*(["memory"]), *(pytest.param(each, marks=pytest.mark.slow) for each in list(BOMBS)[1:])]
)
def test_a_bomb_costs_its_room_and_nothing_else(walled: Sandbox, name: str) -> None:
    code, mib = BOMBS[name]
    available = psutil.virtual_memory().available
    lowest = [available]
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.05):
            lowest.append(psutil.virtual_memory().available)

    watcher = threading.Thread(target=look)
    watcher.start()
    start = time.monotonic()
    try:
        with walled.room(Limits(memory_bytes=mib * 2**20), bare=False) as room:
            assert how_it_ended(room, code) in ("memory", "processes", "died", "time", "an error")
    finally:
        stop.set()
        watcher.join()
    assert time.monotonic() - start < 40
    assert available - min(lowest) < 6 * 2**30, "the host was short of memory"
    with walled.room(Limits()) as room:
        assert room.ask({"op": "run", "code": "1 + 1"}, 60)["outputs"][0]["data"]["text/plain"] == "2"


def how_it_ended(room: Room, code: str) -> str:
    try:
        return "an error" if room.ask({"op": "run", "code": code}, 8)["error"] else "well"
    except Gone as error:
        return error.why


def test_a_loop_that_catches_everything_loses_only_what_comes_from_it(grade: Callable[..., Graded]) -> None:
    from conftest import BUDGET

    loop = "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    short = type(BUDGET)(cell_seconds=2.0, notebook_seconds=60.0, limits=BUDGET.limits)
    assert grade(with_cell(quick(), loop), budget=short).points == 5.0


def test_the_environment_of_the_host_stays_outside(walled: Sandbox) -> None:
    with walled.room(Limits()) as room:
        names = room.ask({"op": "run", "code": "import os; sorted(os.environ)"}, 60)["outputs"][0]["data"]["text/plain"]
    assert not set(os.environ) & set(ast.literal_eval(names)) - {
        "PATH", "HOME", "LANG", "PYTHONPATH", "PWD", "OMP_NUM_THREADS", "COURSE_STATE_DIR", "PYTHONHASHSEED",
        "MPLBACKEND", "MPLCONFIGDIR", "PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE", "IPYTHONDIR", "_",
        "NBGRADER_EXECUTION", "TORCHINDUCTOR_CACHE_DIR",  # torch sets the latter itself
    }  # fmt: skip


def test_control_groups_bind_memory_that_no_process_has_mapped(walled: Sandbox) -> None:
    if not walled.groups:
        pytest.skip("no control groups can be made here")
    code = "import os\nfd = os.memfd_create('x')\nfor _ in range(30): os.write(fd, bytes(2**24))"
    for mib, ending in ((128, "memory"), (1024, "well")):
        with walled.room(Limits(memory_bytes=mib * 2**20, file_bytes=2**30)) as room:
            assert how_it_ended(room, code) == ending
            assert room.group is None or all(folder.is_dir() for folder in room.group.folders.values())
    walled.groups.close()
    assert not list(Path("/sys/fs/cgroup").rglob(f"course-{os.getpid()}-*"))


def test_control_groups_of_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the kernel's documentation names, in a tree laid by hand."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    (tmp_path / "cgroup.subtree_control").write_text("memory pids")
    monkeypatch.setattr(cgroups, "_MOUNT", tmp_path)
    real_mkdir = Path.mkdir

    def mkdir(path: Path, *arguments: object, **settings: object) -> None:
        real_mkdir(path)
        for name in ("memory.max", "memory.swap.max", "pids.max", "cgroup.procs"):
            (path / name).write_text("")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(cgroups.Group, "remove", lambda self, seconds=0.0: self.shut() or True)
    groups = cgroups.Groups.find()
    assert groups is not None
    group = groups.make(2**30, 64)
    [folder] = set(group.folders.values())
    assert [(folder / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")] == [
        str(2**30), "0", "64"]  # fmt: skip
    assert len(group.doors) == 1
    assert group.exceeded() == ""
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n")
    assert group.exceeded() == "memory"
    group.shut()
