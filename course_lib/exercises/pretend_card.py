"""A card that is not there: code written for CUDA's counters runs against it on any machine.

Tensors that code would put on the card become meta tensors, sizes without memory; ``torch.cuda``'s
counters answer with what is alive of them. A dozen of its functions are there, no stream, no graph.
"""

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from course_lib.dryrun import on_meta
from course_lib.dryrun.cuda_kernels import scratch_bytes
from course_lib.units import GIB, round_to_block

TOTAL_BYTES = 16 * GIB


class _Counters(TorchDispatchMode):
    """``allocated`` now and the ``peak`` of it since :meth:`reset`, over every meta storage made under this mode."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated = self.peak = 0
        self._alive: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._raise(scratch_bytes(func, args))
        for leaf in tree_iter(out):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "meta":
                self._count(leaf.untyped_storage())
        return out

    def reset(self, *_: Any) -> None:
        self.peak = self.allocated

    def _count(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._alive:
            return
        size = round_to_block(storage.nbytes())
        self.allocated += size
        self._raise(0)
        self._alive[key] = weakref.ref(storage, lambda _: self._died(key, size))

    def _died(self, key: int, size: int) -> None:
        del self._alive[key]
        self.allocated -= size

    def _raise(self, on_top_bytes: int) -> None:
        self.peak = max(self.peak, self.allocated + on_top_bytes)


class _OntoMeta(TorchFunctionMode):
    """Sends to the meta device what is meant for ``cuda``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.device:  # a device may be called cuda, as long as nothing is put there
            args, kwargs = tree_map(_meta_for_cuda, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _meta_for_cuda(leaf: Any) -> Any:
    on_cuda = isinstance(leaf, torch.device) and leaf.type == "cuda"
    return torch.device("meta") if on_cuda or isinstance(leaf, str) and leaf.partition(":")[0] == "cuda" else leaf


@contextmanager
def pretend_card() -> Iterator[None]:
    """Within it, ``torch.cuda`` answers as on a machine with one card that nothing else uses."""
    counters = _Counters()

    def allocated(*_: Any, **__: Any) -> int:
        return counters.allocated

    def peak(*_: Any, **__: Any) -> int:
        return counters.peak

    def nothing(*_: Any, **__: Any) -> None:
        return None

    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: "pretend card",
        "synchronize": nothing,
        "empty_cache": nothing,
        "ipc_collect": nothing,
        "reset_peak_memory_stats": counters.reset,
        "reset_max_memory_allocated": counters.reset,
        "memory_allocated": allocated,
        "memory_reserved": allocated,
        "max_memory_allocated": peak,
        "max_memory_reserved": peak,
        "memory_stats": lambda *_: {"allocated_bytes.all.current": allocated(), "allocated_bytes.all.peak": peak()},
        "mem_get_info": lambda *_: (TOTAL_BYTES - counters.allocated, TOTAL_BYTES),
    }
    with ExitStack() as stack:
        for module in (torch.cuda, torch.cuda.memory):
            for name, answer in answers.items():
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, answer))
        for context in (on_meta(), counters, _OntoMeta()):
            stack.enter_context(context)
        # A probe inside finds the meta device as it needs it.
        stack.enter_context(patch("course_lib.dryrun.on_meta", nullcontext))
        yield
