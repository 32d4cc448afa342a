"""What goes in and out of a sandbox: frames of JSON, arrays as npy inside them, and nothing that runs when it is read.

Both sides use this file. A frame is four bytes of length and JSON. What comes from a student's process is data to
judge: it has a largest size, arrays are read without pickle, and an object that is none of the known kinds arrives as
:class:`Foreign`, which equals nothing.
"""

import base64
import io
import json
import select
import socket
import struct
import time
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch

MOST_BYTES = 32 * 2**20  #: of one frame
_HEADER = struct.Struct("!I")
_PLAIN = (bool, int, float, str)
#: Values of classes that may travel: their fields, by name.
_KNOWN: dict[str, type] = {}


class Silence(Exception):
    """The other side closed the line, or sent what is no frame."""


class TooLate(Exception):
    """No answer in time."""


@dataclass(frozen=True, eq=False)
class Foreign:
    """In place of an object that does not travel: equal to nothing, itself included."""

    kind: str

    def __eq__(self, other: object) -> bool:
        return False

    def __str__(self) -> str:
        return f"an object of type {self.kind}"


def may_travel(*classes: type) -> None:
    """Let dataclasses and named tuples travel, field by field."""
    _KNOWN.update({f"{each.__module__}.{each.__qualname__}": each for each in classes})


def pack(value: Any) -> Any:
    """JSON for a value; exact types alone, so that a subclass cannot smuggle in behaviour of its own."""
    kind = type(value)
    if value is None or kind in _PLAIN:
        return value
    if value is ...:
        return {"dots": True}
    if kind is list:
        return [pack(each) for each in value]
    if kind is tuple:
        return {"tuple": [pack(each) for each in value]}
    if kind is dict:
        return {"dict": [[pack(key), pack(each)] for key, each in value.items()]}
    if kind in (torch.Tensor, torch.nn.Parameter) and value.device.type == "cpu":
        tensor = value.detach()
        wide = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
        return {"tensor": _npy(wide.numpy()), "dtype": str(tensor.dtype)}
    if kind is np.ndarray or isinstance(value, np.generic):
        return {"array": _npy(np.asarray(value)), "scalar": isinstance(value, np.generic)}
    if isinstance(value, type) and _name(value) in _KNOWN:
        return {"class": _name(value)}
    if _name(kind) in _KNOWN:
        names = [each.name for each in fields(value)] if is_dataclass(value) else list(value._fields)
        return {"known": _name(kind), "fields": {name: pack(getattr(value, name)) for name in names}}
    return {"foreign": kind.__name__}


def unpack(data: Any) -> Any:
    """The value that was packed.

    Raises:
        Silence: it is nothing that :func:`pack` makes.
    """
    try:
        return _unpack(data)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, MemoryError) as error:
        raise Silence(f"unreadable data: {type(error).__name__}") from error


def _unpack(data: Any) -> Any:
    if data is None or isinstance(data, _PLAIN):
        return data
    if isinstance(data, list):
        return [_unpack(each) for each in data]
    [(form, content), *rest] = data.items()
    more = dict(rest)
    if form == "dots":
        return ...
    if form == "tuple":
        return tuple(_unpack(each) for each in content)
    if form == "dict":
        return {_unpack(key): _unpack(each) for key, each in content}
    if form == "tensor":
        return torch.from_numpy(_array(content)).to(getattr(torch, str(more["dtype"]).removeprefix("torch.")))
    if form == "array":
        return _array(content)[()] if more["scalar"] else _array(content)
    if form == "class":
        return _KNOWN[content]
    if form == "known":
        return _KNOWN[content](**{name: _unpack(each) for name, each in more["fields"].items()})
    return Foreign(str(content)[:100])


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _npy(array: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()


def _array(text: str) -> np.ndarray:
    file = io.BytesIO(base64.b64decode(text))
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _fortran, dtype = read_header(file)
    # Before anything is allocated: a header may promise more than there is.
    if dtype.hasobject or int(np.prod(shape, dtype=object)) * dtype.itemsize != len(file.getvalue()) - file.tell():
        raise ValueError("not as large as its header says")
    file.seek(0)
    return np.load(file, allow_pickle=False)


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
