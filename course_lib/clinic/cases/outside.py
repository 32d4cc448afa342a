"""What no loop on a processor can have: the readings are figures that somebody published, or a card described.

What it looks like without the symptom is described, too: the same card, nothing refused.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from course_lib.clinic.case import Case
from course_lib.clinic.reading import Reading
from course_lib.i18n import N_, _
from course_lib.oom import Cause, OomMessage
from course_lib.oom.causes import cause_of
from course_lib.units import GIB, format_bytes


def impossible_request(reading: Reading) -> str | None:
    if not (seen := _with_cause(reading, Cause.IMPOSSIBLE_REQUEST)):
        return None
    return _("{tried} were asked for on a card of {total}").format(
        tried=_size(seen.tried_bytes), total=_size(seen.total_bytes)
    )


def fragmented(reading: Reading) -> str | None:
    if not (seen := _with_cause(reading, Cause.FRAGMENTATION)):
        return None
    return _("{unused} are reserved and hold nothing, more than the {tried} that were refused").format(
        unused=_size(seen.unallocated_bytes), tried=_size(seen.tried_bytes)
    )


def somebody_elses(reading: Reading) -> str | None:
    if not (seen := _with_cause(reading, Cause.ELSEWHERE)):
        return None
    return _("{elsewhere} of the card are in use outside this process's PyTorch; {tried} were refused").format(
        elsewhere=_size(seen.elsewhere_bytes), tried=_size(seen.tried_bytes)
    )


def beyond_the_card(reading: Reading) -> str | None:
    seen = reading.counters
    if not seen or reading.error or not seen.allocated_bytes or not seen.total_bytes:
        return None
    if seen.allocated_bytes <= seen.total_bytes:
        return None
    return _("{allocated} are allocated on a card of {total}, and nothing failed: the rest lies in host memory").format(
        allocated=_size(seen.allocated_bytes), total=_size(seen.total_bytes)
    )


def gathers_every_prediction() -> None:
    _gather(examples=200_000, tokens=77, vocabulary=49_408)


def gathers_the_best_word() -> None:
    _gather(examples=2_000, tokens=77, vocabulary=1)


def _gather(examples: int, tokens: int, vocabulary: int) -> None:
    """One array for all predictions, as an evaluation loop makes it to hand it to a metric."""
    import numpy as np

    with _no_more_than_there_is():
        np.zeros((examples, tokens, vocabulary), dtype=np.float32)


@contextmanager
def _no_more_than_there_is() -> Iterator[None]:
    """Some hosts promise memory that they do not have, and kill the process that uses it; here they may not."""
    if importlib.util.find_spec("resource") is None:
        yield
        return
    import resource

    import psutil

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = psutil.Process().memory_info().vms + 2**40
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def host_is_full(reading: Reading) -> str | None:
    host = reading.error in ("MemoryError", "_ArrayMemoryError", "Killed") or "DefaultCPUAllocator" in reading.message
    if not host or reading.deaths:
        return None
    return _("it was host memory that ended, not the card's: {message}").format(message=reading.message)


def _with_cause(reading: Reading, cause: Cause) -> OomMessage | None:
    """The card's figures, if they have that cause as ``course oom`` finds it."""
    return reading.counters if reading.counters and cause_of(reading.counters) is cause else None


def _size(size_bytes: int | None) -> str:
    return format_bytes(size_bytes or 0)


def _gib(**figures: float) -> OomMessage:
    return OomMessage(**{f"{name}_bytes": int(size * GIB) for name, size in figures.items()})  # type: ignore[arg-type]


def _refused(**figures: float) -> Reading:
    return Reading(counters=_gib(**figures), error="OutOfMemoryError", message="CUDA out of memory.")


CASES = (
    Case(
        name="fragmentation",
        branch=("out of memory", "the message's figures"),
        symptom=N_("Out of memory, although much is reserved and not allocated"),
        words=N_(
            "reserved but unallocated; fragmentation; PYTORCH_CUDA_ALLOC_CONF; max_split_size_mb; "
            "expandable_segments; empty_cache"
        ),
        cause=N_("the allocator holds enough memory, but in pieces none of which is large enough"),
        change=N_(
            "PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before torch 2.9); the largest "
            "batch first"
        ),
        surer=N_("reserved − allocated in the message against the size that was refused"),
        unit="06_troubleshooting",
        sign=fragmented,
        # rshaojimmy/MADDoG#11
        recorded=_refused(tried=2.87, total=14.76, allocated=8.77, free=19.75 / 1024, reserved=13.71),
        healed=Reading(counters=_gib(total=14.76, allocated=8.77, free=4.5, reserved=9.2)),
    ),
    Case(
        name="elsewhere",
        branch=("out of memory", "the message's figures"),
        symptom=N_("Out of memory on a card that should be nearly empty"),
        words=N_(
            "memory used by another process; zombie process; nvidia-smi; another notebook's kernel; display; already "
            "in use"
        ),
        cause=N_("another process holds the card: most often the kernel of another notebook"),
        change=N_("nvidia-smi, find the process, shut that kernel down; or choose another card"),
        surer=N_("total − reserved − free in the message: more than the 1 GiB that a context may take"),
        unit="06_troubleshooting",
        sign=somebody_elses,
        # pytorch/pytorch#29198, where what is cached comes on top of what is allocated
        recorded=_refused(tried=352 / 1024, total=7.92, free=156 / 1024, allocated=1.67, reserved=1.67 + 124.28 / 1024),
        healed=Reading(counters=_gib(total=7.92, free=5.4, allocated=1.67, reserved=1.8)),
    ),
    Case(
        name="impossible-request",
        branch=("out of memory", "the message's figures"),
        symptom=N_("Tried to allocate hundreds of GiB, more than the card has"),
        words=N_("tried to allocate 341 GiB; absurd size; shape bug; index error; mask of all pairs"),
        cause=N_("a mistake in a shape: a tensor was expanded, or an index used as a size"),
        change=N_("find the line in the traceback, and print the shapes there; no memory lever applies"),
        surer=N_("tried > total in the message; divide the size by its bytes a number and factor it"),
        unit="06_troubleshooting",
        sign=impossible_request,
        # axolotl-ai-cloud/axolotl#971
        recorded=_refused(tried=341.58, total=79.15, free=72.91, allocated=5.62),
        healed=Reading(counters=_gib(total=79.15, free=72.91, allocated=5.62)),
        sure="certain",
    ),
    Case(
        name="spill",
        branch=("too slow", "since memory is full"),
        symptom=N_("No error, but ten times slower since the model grew a little"),
        words=N_(
            "shared GPU memory; Windows; WSL; sysmem fallback; system memory; suddenly very slow; nvidia-smi 100 %"
        ),
        cause=N_("the Windows driver moves what does not fit to host memory instead of failing"),
        change=N_("NVIDIA Control Panel, CUDA Sysmem Fallback Policy: Prefer No Sysmem Fallback; then make it fit"),
        surer=N_(
            "allocated more than the card has; a batch one smaller is many times faster; course gpu says whether "
            "this driver does it"
        ),
        unit="06_troubleshooting",
        sign=beyond_the_card,
        # a card described after microsoft/WSL#10452, which states no bytes
        recorded=Reading(counters=_gib(total=8, allocated=9)),
        healed=Reading(counters=_gib(total=8, allocated=7)),
    ),
    Case(
        name="host-memory",
        branch=("out of memory", "not the card's"),
        symptom=N_("Killed, MemoryError or a restarted session: it is not the card"),
        words=N_(
            "Killed; exit code 137; SIGKILL; host RAM; Your session crashed after using all available RAM; Unable to "
            "allocate; DefaultCPUAllocator; can't allocate memory"
        ),
        cause=N_(
            "host memory ended: predictions gathered in one array, a model loaded in FP32 on the host, data set "
            "copies in workers"
        ),
        change=N_(
            "reduce predictions batch by batch; load in shards and in 16 bit (low_cpu_mem_usage); fewer loader "
            "workers"
        ),
        surer=N_("no CUDA in the message; dmesg says oom-kill; watch free -h while it loads"),
        unit="06_troubleshooting",
        sign=host_is_full,
        broken=gathers_every_prediction,
        mended=gathers_the_best_word,
        sure="certain",
        messages=(
            "Unable to allocate", "exit code 137", "DefaultCPUAllocator: can't allocate memory",
            "Your session crashed after using all available RAM",
        ),
    ),
)
