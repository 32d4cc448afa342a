"""The parent inside a sandbox: it has imported torch once, and forks a child for each run of a notebook.

Started by :mod:`course_lib.grading.sandbox` as ``python -m course_lib.grading.zygote OPEN_FD BARE_FD``, or with the
path of a socket to knock at. It becomes two: the *open* one has all that a notebook may import; the *bare* one has the
instruments that watch a student's functions, and nothing that knows what is right. A request on a line brings two
sockets: the conversation, and a leash. Each child gets user, mount, process, network, IPC and host-name namespaces of
its own with a fresh /tmp, drops every privilege, and is process 1 there, so that all it started dies with it. Its
keeper holds the leash: a byte on it interrupts the child, its end kills it.
"""

import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from course_lib.grading.namespaces import Limits, become_nobody, enter_own_namespaces, give_up_privileges, mount_proc

_BOTH = ("torch", "numpy", "IPython.core.interactiveshell", "IPython.core.displaypub", "matplotlib.pyplot",
         "torch.utils.checkpoint", "torch.utils.flop_counter", "torch.optim", "course_lib.models", "course_lib.probe",
         "course_lib.journal", "course_lib.notebook_setup", "course_lib.gpu_findings", "packaging.requirements",
         "psutil", "course_lib.grading.kernel")  # fmt: skip
_OPEN = ("course_lib.exercises.precision", "course_lib.exercises.checkpointing", "course_lib.exercises.accumulation",
         "course_lib.exercises.curves", "course_lib.exercises.own_update", "course_lib.exercises.own_segments",
         "course_lib.exercises.variants", "course_lib.exercises.figures", "course_lib.exercises.curve_figures",
         "course_lib.figures", "course_lib.plots", "course_lib.exercises.submission",
         "course_lib.exercises.evidence")  # fmt: skip
INTERRUPT = b"i"
_LOOK_SECONDS = 0.1
_MOST_ENDS = 4  #: of sockets and files that come with a request


def main(arguments: Sequence[str]) -> None:
    open_line, bare_line = _lines(arguments)
    walls = os.environ.get("COURSE_WALLS")
    if walls == "root":
        mount_proc()
    if walls:
        become_nobody()
    for name in _BOTH:
        importlib.import_module(name)
    warm_up()
    if os.fork():
        bare_line.close()
        for name in _OPEN:
            importlib.import_module(name)
        _know_visible_values()
        _serve(open_line, bare=False)
    else:
        open_line.close()
        importlib.import_module("course_lib.grading.answering").forget_what_is_right()
        _serve(bare_line, bare=True)


def _lines(arguments: Sequence[str]) -> tuple[socket.socket, socket.socket]:
    """By their numbers, where they came with this process; else there is a door to knock at, once for each."""
    if len(arguments) == 2:
        return socket.socket(fileno=int(arguments[0])), socket.socket(fileno=int(arguments[1]))
    lines = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    for line in lines:
        line.connect(arguments[0])
    return lines[0], lines[1]


def warm_up() -> None:
    """One small step: an optimizer's first one imports hundreds of modules, which nothing that is forked should have
    to."""
    import torch

    from course_lib.models import GPT, GPTConfig, next_token_loss
    from course_lib.probe import probe

    torch.set_num_threads(1)
    for device in ("cpu", "meta"):
        with torch.device(device):
            model = GPT(GPTConfig(vocab=8, layers=1, width=8, heads=1, block_size=4))
            tokens = torch.zeros(1, 4, dtype=torch.int64)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        with probe(model, optimizer), torch.autocast(device, dtype=torch.bfloat16):
            next_token_loss(model(tokens), tokens).backward()
            optimizer.step()


def _know_visible_values() -> None:
    """What the visible tests of exercise 1 compare with is the same for everybody, and kept by :mod:`bench`."""
    from course_lib.exercises import bench

    wide, long = bench.wide_and_long()
    for size, recipe, device in ((wide, "fp32", "cpu"), (long, "fp32", "cpu"), (wide, "fp32", "meta"),
                                 (long, "amp-bf16", "cpu"), (long, "bf16", "cpu"),
                                 (long, "amp-bf16", "meta")):  # fmt: skip
        bench.peak_of(size, recipe, device)


def _serve(line: socket.socket, bare: bool) -> None:
    """Fork a keeper for each request, until the line closes."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers need no burial
    gc.collect()
    gc.freeze()
    line.send(b"ready")
    while True:
        request, ends, _flags, _address = socket.recv_fds(line, 1 << 16, _MOST_ENDS)
        if not request:
            os._exit(0)
        if os.fork():
            for end in ends:
                os.close(end)
            continue
        line.close()
        try:
            conversation, leash, *doors = ends
            _keep(json.loads(request), conversation, leash, doors, bare)
        finally:
            os._exit(0)


def _keep(request: dict[str, Any], conversation: int, leash: int, doors: Sequence[int], bare: bool) -> None:
    """Start the child, in its control group if there are ``doors`` to one; then hold the leash until one lets go."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    limits = Limits(**request["limits"])
    if request["isolated"]:
        enter_own_namespaces()
    own_bytes = _resident_bytes(os.getpid())
    child = os.fork()
    if not child:
        os.close(leash)
        for door in doors:
            os.write(door, b"0")
            os.close(door)
        os.setsid()  # or killing its process group would be killing ours: groups reach across namespaces
        try:
            give_up_privileges(limits, request["isolated"], request["masked"] if bare else ())
            kernel = importlib.import_module("course_lib.grading.kernel")
            kernel.serve(socket.socket(fileno=conversation), request, bare)
        finally:
            os._exit(0)
    for each in (conversation, *doors):
        os.close(each)
    end = socket.socket(fileno=leash)
    end.settimeout(_LOOK_SECONDS)
    ends_at = time.monotonic() + limits.seconds
    why = ""
    while not why:
        try:
            word = end.recv(1)
            if word == INTERRUPT:
                os.kill(child, signal.SIGINT)
            else:
                why = "let go"
        except TimeoutError:
            why = _excess(child, own_bytes, limits) or ("time" if time.monotonic() > ends_at else "")
        except OSError:
            why = "let go"
        if os.waitpid(child, os.WNOHANG)[0]:
            _tell(end, "died")
            return
    _kill_all(child)
    os.waitpid(child, 0)
    _tell(end, why)


def _tell(end: socket.socket, why: str) -> None:
    try:
        end.sendall(why.encode())
    except OSError:
        return  # nobody waits for it


def _family(child: int) -> list[int]:
    """The child and all that descends from it, as far as /proc shows."""
    found, waiting = [], [child]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                waiting += map(int, file.read().split())
        except OSError:
            continue
        if len(found) > 4096:
            break
    return found


def _excess(child: int, own_bytes: int, limits: Limits) -> str:
    family = _family(child)
    if len(family) > limits.processes:
        return "processes"
    # What is shared with the parent since the fork is nobody's own.
    used = sum(max(0, _resident_bytes(pid) - own_bytes) for pid in family)
    return "memory" if used > limits.memory_bytes else ""


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _kill_all(child: int) -> None:
    """Process 1 of a namespace takes all others with it; where there is no namespace, one by one."""
    for pid in reversed(_family(child)):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue


if __name__ == "__main__":
    main(sys.argv[1:])
