"""The card that the clinic pretends: what it says when memory ends."""

from course_lib.units import MIB


def out_of_memory_text(tried_bytes: int, total_bytes: int, live_bytes: int) -> str:
    """The message of PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp), in MiB."""
    free = total_bytes - live_bytes
    return (
        f"CUDA out of memory. Tried to allocate {tried_bytes / MIB:.2f} MiB. GPU 0 has a total capacity of "
        f"{total_bytes / MIB:.2f} MiB of which {free / MIB:.2f} MiB is free. Of the allocated memory "
        f"{live_bytes / MIB:.2f} MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    )
