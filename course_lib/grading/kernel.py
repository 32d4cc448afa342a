"""Runs a notebook's cells inside a sandbox, one message at a time: IPython's own shell, its output caught.

All that happens here happens in the student's process and can be forged by it. What is believed is decided outside.
"""

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import IO, Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type
from traitlets.config import Config

from course_lib.grading.line import Line, Silence

_MOST_TEXT = 1 << 16  #: characters of a stream that a cell keeps
_MOST_SHOWN = 1 << 20  #: characters of everything that it displays


class _Hook(DisplayHook):
    """Keeps what an expression at a cell's end shows."""

    def start_displayhook(self) -> None:
        return

    def write_output_prompt(self) -> None:
        return

    def write_format_data(self, format_dict: dict, md_dict: dict | None = None) -> None:
        self.shell.display_pub.publish(  # type: ignore[union-attr]
            format_dict, md_dict or {}
        )

    def finish_displayhook(self) -> None:
        return


class _Shell(InteractiveShell):
    displayhook_class = Type(_Hook)
    display_pub_class = Type(CapturingDisplayPublisher)

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        return  # the error goes into the answer

    def enable_gui(self, gui: Any = None) -> None:
        return


def serve(end: socket.socket, request: dict[str, Any], bare: bool) -> None:
    """Answer messages until the line closes. ``run`` executes a cell; a bare room also answers for its functions."""
    line = Line(end)
    out, err = _catch(1), _catch(2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(fd), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
                              for fd in (1, 2))  # fmt: skip
    if not request["isolated"]:
        os.chdir(tempfile.mkdtemp())
    config = Config()
    config.HistoryManager.enabled = False
    shell = _Shell.instance(config=config)
    sys.modules["__main__"] = shell.user_module
    answer: Callable[[dict[str, Any]], dict[str, Any]] = partial(_run, shell, out=out, err=err)
    if bare:
        from course_lib.grading.answering import Answering

        answer = Answering(shell.user_ns)
    while True:
        try:
            message = line.receive()
            reply = _run(shell, message, out, err) if message["op"] == "run" else answer(message)
            line.send(reply)
        except KeyboardInterrupt:
            continue
        except Silence:
            os._exit(0)


def _catch(fd: int) -> IO[bytes]:
    file = os.fdopen(os.memfd_create("said"), "w+b")  # whatever has become of /tmp
    os.dup2(file.fileno(), fd)
    return file


def _run(shell: _Shell, message: dict[str, Any], out: IO[bytes], err: IO[bytes]) -> dict[str, Any]:
    start = time.perf_counter()
    result = shell.run_cell(message["code"], store_history=True)
    error = result.error_before_exec or result.error_in_exec
    outputs: list[dict[str, Any]] = []
    published: Any = shell.display_pub
    for name, file in (("stdout", out), ("stderr", err)):
        (sys.stdout if name == "stdout" else sys.stderr).flush()
        text = _since(file)
        if text:
            outputs.append({"output_type": "stream", "name": name, "text": text})
    room = _MOST_SHOWN
    for shown in published.outputs:
        data = {kind: content for kind, content in shown["data"].items() if isinstance(content, str)}
        room -= sum(map(len, data.values()))
        if room > 0:
            outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    published.outputs = []
    reply: dict[str, Any] = {"seconds": time.perf_counter() - start, "outputs": outputs, "error": None}
    if error is not None:
        mistake = getattr(error, "mistake", None)
        reply["error"] = {"name": type(error).__name__, "says": str(error)[:_MOST_TEXT], "line": _line_of(error),
                          "mistake": mistake if isinstance(mistake, str) else None}  # fmt: skip
    return reply


def _line_of(error: BaseException) -> int | None:
    """The line of the cell in which it was raised, from 1."""
    if isinstance(error, SyntaxError):
        return error.lineno
    found, trace = None, error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename.startswith("<ipython-input") or "ipykernel" in (
            trace.tb_frame.f_code.co_filename
        ):
            found = trace.tb_lineno
        trace = trace.tb_next
    return found


def _since(file: IO[bytes]) -> str:
    """What was written since the last cell, its middle left out where it is long; then the file is emptied."""
    size = os.fstat(file.fileno()).st_size
    half = _MOST_TEXT // 2
    if size <= 2 * half:
        data = os.pread(file.fileno(), size, 0)
    else:
        left_out = f"\n… {size - 2 * half:,} bytes left out …\n".encode()
        data = os.pread(file.fileno(), half, 0) + left_out + os.pread(file.fileno(), half, size - half)
    os.ftruncate(file.fileno(), 0)
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    return data.decode("utf-8", "replace")
