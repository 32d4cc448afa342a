"""The figures of an allocator's out-of-memory message, in every wording that PyTorch has given it.

torch 1.0 to 1.3 says ``cached`` and means what it holds *beyond* tensors; 1.4 to 2.0 says ``reserved in total by
PyTorch``; from 2.1 on ``reserved by PyTorch but unallocated`` is again what it holds beyond them, and other
processes are listed (c10/cuda/CUDACachingAllocator.cpp). XPU, HIP, NPU and MLU builds share these wordings;
cudaMallocAsync has a table of its own (c10/cuda/CUDAMallocAsyncAllocator.cpp), and Apple's backend a sentence of
its own (aten/src/ATen/mps/MPSAllocator.mm).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from course_lib.units import GIB

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50, "e": 2**60}
#: PyTorch's figures are binary, also where its Apple backend once wrote MB and GB: its 1024 MB are 1 GB.
SIZE = r"(\d[\d,]*(?:\.\d*)?) ?([kmgtpe]?)i?b(?:ytes?)?\b"
#: What a CUDA context may take, driver state and kernels; course_lib.device has it in figures.
CONTEXT_BYTES = GIB
#: More than any card has, so no figure: what torch prints where the driver does not say how much a process uses (in
#: WSL), or what a computed size has wrapped around to.
BEYOND_CARDS_BYTES = 2**50


class Process(NamedTuple):
    """A process on the card, as the message lists it."""

    pid: int | None  #: None: the one that ran out of memory
    used_bytes: int | None  #: None where the driver does not say


@dataclass(frozen=True)
class OomMessage:
    """What one message says, in bytes; None where it does not say."""

    tried_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None  #: in tensors
    reserved_bytes: int | None = None  #: all that PyTorch holds, tensors included
    allowed_bytes: int | None = None  #: a limit that was set below the total
    private_bytes: int | None = None  #: of the allocated, in private pools such as CUDA graphs'
    processes: tuple[Process, ...] = ()
    apple: bool = False
    others_bytes: int | None = None  #: Apple's message states what is held elsewhere

    @property
    def elsewhere_bytes(self) -> int | None:
        """Neither free nor held by PyTorch: contexts, other processes, other libraries of this one."""
        if self.apple:
            return self.others_bytes
        if self.total_bytes is None or self.reserved_bytes is None or self.free_bytes is None:
            return None
        return max(0, self.total_bytes - self.reserved_bytes - self.free_bytes)  # below 0 where the driver spills

    @property
    def own_bytes(self) -> int | None:
        """All that the process which ran out has in use on the card."""
        return next((each.used_bytes for each in self.processes if each.pid is None), None)

    @property
    def outside_bytes(self) -> int | None:
        """What that process has in use outside PyTorch: its context, other libraries."""
        if self.own_bytes is None or self.reserved_bytes is None:
            return None
        return max(0, self.own_bytes - self.reserved_bytes)

    @property
    def unallocated_bytes(self) -> int | None:
        """What PyTorch holds without a tensor in it."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return self.reserved_bytes - self.allocated_bytes

    @property
    def usable_bytes(self) -> int | None:
        """What the run may count on: a limit that was set, or what others leave of the card, a context aside."""
        if self.allowed_bytes is not None or self.total_bytes is None:
            return self.allowed_bytes
        return self.total_bytes - max(0, (self.elsewhere_bytes or 0) - CONTEXT_BYTES)

    @property
    def refused_though_free(self) -> bool:
        """Whether as much was free as was asked for, and no limit of PyTorch's explains the refusal."""
        tried, free = self.tried_bytes, self.free_bytes
        return self.allowed_bytes is None and tried is not None and free is not None and free >= tried

    @property
    def figures(self) -> dict[str, int | None]:
        """The figures by the names that the command's JSON gives them."""
        names = ("tried", "total", "free", "allocated", "reserved", "elsewhere")
        return {f"{name}_bytes": getattr(self, f"{name}_bytes") for name in names}

    @property
    def is_complete(self) -> bool:
        return None not in self.figures.values()


def read_messages(text: str) -> list[OomMessage]:
    """Every message of an allocator in ``text``, in order, each once.

    The text may be a log or a traceback; lines may be wrapped, quoted, commented out or in a frame.
    """
    flat = flatten(lines_near(text, ALLOCATION, before=2, after=_MOST_LINES))
    begins = [match.start() for match in _BEGINNING.finditer(flat)]
    pieces = [flat[at:end][:_MOST_CHARACTERS] for at, end in pairwise([*begins, len(flat)])]
    return list(dict.fromkeys(map(_read, pieces)))


def lines_near(text: str, words: tuple[str, ...], before: int, after: int) -> str:
    """The lines of a log that hold a word, given in small letters, with some before and after.

    The rest of a long log is passed over: patterns would take a minute where this takes a second.
    """
    lines, wanted, told = text.splitlines(), [], -1
    for at, line in enumerate(lines):
        small = line.lower()
        if any(word in small for word in words):
            wanted += lines[max(told + 1, at - before) : at]
            told = at + after
        if at <= told:
            wanted.append(line)
    return "\n".join(wanted)


def flatten(text: str) -> str:
    """``text`` in one line: without colours, and without what frames, quotes and comments put at a line's ends."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    lines = (re.sub(r"^[\s│┃|>#*]+|[\s│┃|]+$", "", line) for line in text.splitlines())
    return re.sub(r"\s+", " ", " ".join(lines))


def to_bytes(number: str, unit: str) -> int:
    """``("1,024.50", "M")`` in bytes."""
    return round(float(number.replace(",", "")) * _UNITS[unit.lower()])


def size_after(pattern: str, text: str) -> int | None:
    """The size that the first match of ``pattern`` ends or begins with; ``pattern`` holds :data:`SIZE` once."""
    match = re.search(pattern, text, re.I)
    return to_bytes(match[1], match[2]) if match else None


#: From the first words of a message to the end of the longest that was ever written, with eight processes.
_MOST_CHARACTERS = 2000
_MOST_LINES = 60  #: that a message takes, where something has wrapped it
ALLOCATION = ("alloc",)  #: what every such message has a word with
_TRIED = rf"(?-i:Tried) to allocate (?:more than )?{SIZE}"  # "you tried to allocate" is the allocator of the CPU
_BEGINNING = re.compile(
    rf"MPS backend out of memory \(.{{0,200}}?{_TRIED}|Allocation on device .{{0,40}}?would exceed allowed memory|"
    rf"{_TRIED}",
    re.I,
)


def _read(piece: str) -> OomMessage:
    if piece.startswith("MPS"):
        return _read_apple(piece)
    if piece.startswith("Allocation"):
        return _read_async(piece)
    allocated = size_after(rf"{SIZE} already allocated", piece)
    if allocated is None:
        allocated = size_after(rf"{SIZE} is allocated by PyTorch", piece)
    reserved = size_after(rf"{SIZE} reserved in total by PyTorch", piece)
    beyond = size_after(rf"{SIZE} (?:is reserved by PyTorch but unallocated|cached)", piece)
    if reserved is None and beyond is not None and allocated is not None:
        reserved = allocated + beyond
    return OomMessage(
        tried_bytes=size_after(_TRIED, piece),
        total_bytes=_first(piece, rf"total capaci?ty of {SIZE}", rf"{SIZE} total capaci?ty"),
        free_bytes=_first(piece, rf"of which {SIZE} is free", rf"; {SIZE} free\b"),
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        allowed_bytes=size_after(rf"{SIZE} allowed;", piece),
        private_bytes=size_after(rf"{SIZE} allocated in private pools", piece),
        processes=tuple(_processes(piece)),
    )


def _read_apple(piece: str) -> OomMessage:
    """Metal's limit is the total; what is allocated is all that PyTorch's heaps hold.

    The message comes after all cached buffers have been given back (release_cached_buffers in MPSAllocator.mm), so
    the heaps hold tensors, and at most gaps between them.
    """
    held = size_after(rf"MPS allocated: {SIZE}", piece)
    return OomMessage(
        tried_bytes=size_after(_TRIED, piece),
        total_bytes=size_after(rf"max allowed: {SIZE}", piece),
        allocated_bytes=held,
        reserved_bytes=held,
        apple=True,
        others_bytes=size_after(rf"other allocations: {SIZE}", piece),
    )


def _read_async(piece: str) -> OomMessage:
    allowed, total = size_after(rf"fraction\) ?: {SIZE}", piece), size_after(rf"Device limit ?: {SIZE}", piece)
    return OomMessage(
        tried_bytes=size_after(rf"Requested ?: {SIZE}", piece),
        total_bytes=total,
        free_bytes=size_after(rf"Free \(according to CUDA\) ?: {SIZE}", piece),
        allocated_bytes=size_after(rf"Currently allocated ?: {SIZE}", piece),
        allowed_bytes=allowed if allowed and total and allowed < total else None,
    )


def _processes(piece: str) -> Iterator[Process]:
    for pid, number, unit in re.findall(rf"(?:Process (\d+)|this process) has {SIZE} memory in use", piece, re.I):
        used = to_bytes(number, unit)
        yield Process(int(pid) if pid else None, used if used < BEYOND_CARDS_BYTES else None)


def _first(piece: str, *patterns: str) -> int | None:
    found = (size_after(pattern, piece) for pattern in patterns)
    return next((size for size in found if size is not None), None)
