"""Bytes, and the two families of units that must never be mixed in one table.

Graphics memory is sold and reported in binary units (1 GiB = 2**30 bytes); file sizes and the
round figures of articles are decimal (1 GB = 10**9 bytes). The two differ by 7 %.
"""

from typing import Literal

KIB, MIB, GIB = 2**10, 2**20, 2**30
KB, MB, GB = 10**3, 10**6, 10**9

#: PyTorch's CUDA caching allocator hands out memory in blocks of this many bytes
#: (kMinBlockSize in c10/core/AllocatorConfig.h; c10/cuda/CUDACachingAllocator.cpp before torch 2.9).
BLOCK_BYTES = 512

Unit = Literal["GiB", "MiB", "KiB", "GB", "MB", "B"]
_SIZES: dict[str, int] = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "GB": GB, "MB": MB, "B": 1}


def round_to_block(size_bytes: int) -> int:
    """The bytes that the caching allocator really sets aside for a tensor of ``size_bytes``."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def unit_for(size_bytes: float) -> Unit:
    """GiB, or MiB for what is smaller than one."""
    return "GiB" if size_bytes >= GIB else "MiB"


def in_unit(size_bytes: float, unit: Unit = "GiB") -> float:
    """``size_bytes`` as a number of ``unit``."""
    return size_bytes / _SIZES[unit]


def format_bytes(size_bytes: float, unit: Unit = "GiB", decimals: int = 2) -> str:
    """The one formatter: ``format_bytes(3 * 2**30) == '3.00 GiB'``."""
    if unit == "B":
        return f"{size_bytes:,.0f} B"
    return f"{in_unit(size_bytes, unit):,.{decimals}f} {unit}"
