"""Values as JSON, arrays as npy inside it, and nothing that runs when it is read.

What comes from a student's process is data to judge: arrays are read without pickle, and an object that is none of
the known kinds arrives as :class:`Foreign`, which equals nothing.
"""

import base64
import io
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch

from course_lib.grading.line import Silence

_PLAIN = (bool, int, float, str)
#: Values of classes that may travel: their fields, by name.
_KNOWN: dict[str, type] = {}


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
