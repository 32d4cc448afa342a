"""What no loop on a processor can have: the readings are figures that somebody published, or a card described.

What it looks like without the symptom is described, too: the same card, nothing refused.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from course_lib.clinic.case import Case
from course_lib.clinic.reading import Counters, Reading
from course_lib.i18n import N_, _
from course_lib.units import GIB, MB, MIB, format_bytes

CONTEXT_BYTES = GIB  #: what CUDA's context and a display may take without anybody being to blame


def impossible_request(reading: Reading) -> str | None:
    seen = reading.counters
    if not seen or seen.tried is None or seen.total is None or seen.tried <= seen.total:
        return None
    return _("{tried} were asked for on a card of {total}").format(
        tried=format_bytes(seen.tried), total=format_bytes(seen.total)
    )


def fragmented(reading: Reading) -> str | None:
    seen = reading.counters
    if not seen or impossible_request(reading) or seen.tried is None or seen.allocated is None or seen.reserved is None:
        return None
    unused = seen.reserved - seen.allocated
    if unused < 1.1 * seen.tried or unused < (seen.elsewhere or 0):
        return None
    return _("{unused} are reserved and hold nothing, more than the {tried} that were refused").format(
        unused=format_bytes(unused), tried=format_bytes(seen.tried)
    )  # fmt: skip


def somebody_elses(reading: Reading) -> str | None:
    seen = reading.counters
    if not seen or seen.elsewhere is None or seen.tried is None or impossible_request(reading) or fragmented(reading):
        return None
    if seen.elsewhere - CONTEXT_BYTES < seen.tried:
        return None
    return _("{elsewhere} of the card are in use outside this process's PyTorch; {tried} were refused").format(
        elsewhere=format_bytes(seen.elsewhere), tried=format_bytes(seen.tried)
    )


def beyond_the_card(reading: Reading) -> str | None:
    seen = reading.counters
    if not seen or seen.allocated is None or seen.total is None or reading.error or seen.allocated <= seen.total:
        return None
    return _("{allocated} are allocated on a card of {total}, and nothing failed: the rest lies in host memory").format(
        allocated=format_bytes(seen.allocated), total=format_bytes(seen.total)
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


def _recorded(counters: Counters, error: str = "OutOfMemoryError") -> Reading:
    return Reading(counters=counters, error=error, message="CUDA out of memory." if error else "")


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
        # pytorch/pytorch#35901 states the last two; that the request was as large as what was allocated is assumed
        recorded=_recorded(Counters(tried=1062 * MB, allocated=1062 * MB, reserved=12420 * MB)),
        healed=Reading(counters=Counters(tried=None, allocated=1062 * MB, reserved=1200 * MB)),
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
        # pytorch/pytorch#29198
        recorded=_recorded(
            Counters(352 * MIB, int(7.92 * GIB), 156 * MIB, int(1.67 * GIB), int(1.67 * GIB + 124.28 * MIB))
        ),
        healed=Reading(counters=Counters(None, int(7.92 * GIB), int(5.4 * GIB), int(1.67 * GIB), int(1.8 * GIB))),
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
        recorded=_recorded(
            Counters(int(341.58 * GIB), int(79.15 * GIB), int(72.91 * GIB), int(5.62 * GIB))
        ),
        healed=Reading(counters=Counters(None, int(79.15 * GIB), int(72.91 * GIB), int(5.62 * GIB))),
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
        recorded=Reading(counters=Counters(total=8 * GIB, allocated=9 * GIB)),
        healed=Reading(counters=Counters(total=8 * GIB, allocated=7 * GIB)),
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
