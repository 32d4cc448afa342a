"""Linux's own walls around a process: namespaces, mounts, limits, privileges (see namespaces(7), unshare(2))."""

import ctypes
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass

NOBODY = 65534
_NEW = {"mount": 0x00020000, "host name": 0x04000000, "IPC": 0x08000000, "user": 0x10000000, "process": 0x20000000,
        "network": 0x40000000}  # fmt: skip
_NOSUID, _NODEV, _NOEXEC, _REC, _PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x40000
_NO_NEW_PRIVILEGES, _DROP_BOUND = 38, 24
_LAST_CAPABILITY = 63
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Limits:
    """What one run may take."""

    seconds: float = 600.0  #: in all; whoever holds the leash mostly pulls earlier
    memory_bytes: int = 4 * 2**30
    processes: int = 64
    file_bytes: int = 32 * 2**20  #: each; and all of /tmp together twice that
    open_files: int = 256


def mount_proc() -> None:
    """A /proc with nothing laid over it: the kernel lets a child mount its own only where it sees such a one."""
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)


def become_nobody() -> None:
    """Where root started this: be nobody from here on, so that limits bind."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _call("prctl", 4, 1, 0, 0, 0)  # "dumpable": changing the user took /proc/self away from us


def enter_own_namespaces() -> None:
    """The next child of this process lives in namespaces of its own, as a user without rights outside."""
    user, group = os.getuid(), os.getgid()
    _call("unshare", sum(_NEW.values()))
    for name, line in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {user} 1"), ("gid_map", f"{NOBODY} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)


def give_up_privileges(limits: Limits, isolated: bool, masked: Sequence[str]) -> None:
    """In the child: its own /proc, /tmp and /dev/shm; ``masked`` folders empty; no way to more; limits."""
    if isolated:
        _mount("none", "/", None, _REC | _PRIVATE)
        mount_proc()
        for folder, size in (("/tmp", 2 * limits.file_bytes), ("/dev/shm", limits.file_bytes)):
            _mount("tmpfs", folder, "tmpfs", _NOSUID | _NODEV, f"size={size},nr_inodes=4096")
        for folder in masked:
            _mount("tmpfs", folder, "tmpfs", _NOSUID | _NODEV, "size=4k,mode=555")
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")  # else it could have rights again, in a namespace of its own
        for capability in range(_LAST_CAPABILITY + 1):
            _libc.prctl(_DROP_BOUND, capability, 0, 0, 0)
        header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        _call("capset", header, data)
        os.chdir("/tmp")
    for what, most in ((resource.RLIMIT_FSIZE, limits.file_bytes), (resource.RLIMIT_NOFILE, limits.open_files),
                       (resource.RLIMIT_CORE, 0)):  # fmt: skip
        resource.setrlimit(what, (most, most))
    if isolated:
        # Per user namespace since Linux 5.14; where there is none these would count what is not the child's.
        resource.setrlimit(resource.RLIMIT_NPROC, (limits.processes, limits.processes))
        most = limits.memory_bytes + _data_bytes()
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _data_bytes() -> int:
    """What the process has of its own already."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    _call("mount", source.encode(), target.encode(), kind.encode() if kind else None, flags, options.encode() or None)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments[:2]}: {os.strerror(number)}")
