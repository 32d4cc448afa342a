"""A conversation with a sandbox: frames of four bytes of length and JSON, none larger than it may be."""

import json
import select
import socket
import struct
import time
from typing import Any

MOST_BYTES = 32 * 2**20  #: of one frame
_HEADER = struct.Struct("!I")


class Silence(Exception):
    """The other side closed the line, or sent what is no frame."""


class TooLate(Exception):
    """No answer in time."""


class Line:
    """One end of a conversation. A message is a dict; each has its answer."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def send(self, message: dict[str, Any], deadline: float | None = None) -> None:
        """
        Raises:
            Silence: nobody is there.
            TooLate: ``deadline`` (of ``time.monotonic``) passed; the other side does not read.
        """
        data = json.dumps(message).encode()
        if len(data) > MOST_BYTES:
            raise Silence(f"an answer of {len(data):,} bytes; at most {MOST_BYTES:,} travel")
        left = memoryview(_HEADER.pack(len(data)) + data)
        while left:
            self._wait(deadline, writing=True)
            try:
                sent = self.end.send(left[: 1 << 16])
            except OSError as error:
                raise Silence("the line is closed") from error
            left = left[sent:]

    def receive(self, deadline: float | None = None) -> dict[str, Any]:
        """
        Raises:
            Silence: the line is closed, or what came is no frame.
            TooLate: ``deadline`` passed.
        """
        (size,) = _HEADER.unpack(self._read(_HEADER.size, deadline))
        if size > MOST_BYTES:
            raise Silence(f"a frame of {size:,} bytes; at most {MOST_BYTES:,} travel")
        try:
            message = json.loads(self._read(size, deadline))
        except (ValueError, RecursionError) as error:
            raise Silence("what came is not JSON") from error
        if not isinstance(message, dict):
            raise Silence("what came is no message")
        return message

    def _read(self, size: int, deadline: float | None) -> bytes:
        chunks = []
        while size:
            self._wait(deadline, writing=False)
            try:
                chunk = self.end.recv(min(size, 1 << 16))
            except OSError as error:
                raise Silence("the line is closed") from error
            if not chunk:
                raise Silence("the line is closed")
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def _wait(self, deadline: float | None, writing: bool) -> None:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = select.select([] if writing else [self.end], [self.end] if writing else [], [], left)
        if not any(ready):
            raise TooLate

    def close(self) -> None:
        self.end.close()
