"""Words that tell of memory where no allocator's figures stand: the host's, a library's, a bare error code.

Rows are tried from the top; the first that is found in the text speaks. Of the host's rows most are certain. A bare
error code of the card's says that memory ran out, or may have, but not why.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from course_lib.i18n import N_
from course_lib.oom.message import SIZE, flatten, lines_near, to_bytes


class Place(StrEnum):
    """Whose memory it was."""

    HOST = "host"
    PERHAPS_HOST = "perhaps-host"  #: a death that may have other reasons
    SHARED = "shared"  #: the host's /dev/shm, where worker processes hand batches over
    CARD = "card"
    PERHAPS = "perhaps"  #: an error that has other reasons, too


@dataclass(frozen=True)
class Sign:
    """One kind of message."""

    place: Place
    pattern: re.Pattern[str]
    what: str  #: a sentence; in the reader's language by ``_(sign.what)``


def find_sign(text: str) -> tuple[Sign, int | None] | None:
    """The first sign of memory trouble in ``text``, and the bytes that were asked for, where it says so."""
    near = lines_near(text, _WORDS, before=1, after=1)
    flat = flatten(near)
    for sign in SIGNS:
        match = sign.pattern.search(near) or sign.pattern.search(flat)
        if match:
            number = match.groupdict().get("tried")
            return sign, to_bytes(number, match["unit"] or "") if number else None
    return None


_TRIED = SIZE.replace("(", "(?P<tried>", 1).replace("([", "(?P<unit>[", 1)


#: Every pattern below has one of these: a long log is searched for them alone.
_WORDS = (
    "memor", "alloc", "kill", "137", "-9", "oom", " ram", "signal", "mmap", "errno 12", "1455", "shm", "dispatched on",
    "status", "engine", "cudnn", "kernel", "resource", "kv cache", "invalid buffer", "显存", "内存",
)  # fmt: skip


def _sign(place: Place, pattern: str, what: str, *, ignore_case: bool = False) -> Sign:
    flags = re.MULTILINE | (re.IGNORECASE if ignore_case else 0)
    return Sign(place, re.compile(pattern.replace("{size}", f"(?i:{_TRIED})"), flags), what)


SIGNS = (
    _sign(Place.SHARED, r"insufficient shared memory \(shm\)|killed by signal: Bus error|"
          r"unable to (?:open shared memory object|write to file) </torch_|"
          r"(?:shm_open|No space left on device).*/dev/shm",
          N_("Shared memory ran out, in which worker processes hand batches over.")),
    _sign(Place.HOST, r"(?:can't allocate|not enough) memory: you tried to allocate {size}",
          N_("PyTorch's allocator of the CPU was refused memory.")),
    _sign(Place.HOST, r"Unable to allocate {size} for (?:an )?array", N_("NumPy was refused memory for one array.")),
    _sign(Place.HOST, r"out of memory: kill(?:ed)? process|oom[-_ ]kill|oomkilled(?!\W{1,3}false)|oom_reaper|"
          r"cgroup out of memory|srun: error: .{0,60}out of memory",
          N_("The kernel, or the job's memory limit, ended the process."), ignore_case=True),
    _sign(Place.HOST, r"node running low on memory|ray\.exceptions\.OutOfMemoryError",
          N_("Ray ended the process, since the node ran low on memory.")),
    _sign(Place.HOST, r"using all available RAM|tried to allocate more memory than is available",
          N_("The notebook's machine ran out of memory and was started anew."), ignore_case=True),
    _sign(Place.HOST, r"os error 1455|WinError 1455|paging file is too small|Not enough memory resources",
          N_("Windows ran out of memory and paging file.")),
    _sign(Place.HOST, r"\b(?i:exit|return)(?:ed|s)?(?: with)?(?: an?)?(?: exit| return)?[ _-]?(?i:code|status)"
          r"\W{0,5}(?:137|-9)\b|SIGKILL|[Ss]ignal:? (?:9\b|Killed)|^\s*(?:\S+: line \d+: +\d+ +)?Killed\b|"
          r"^(?:zsh: |\[\d+\] *[+-]? *\d+ )killed\b",
          N_("The process was killed from outside (signal 9), which the kernel does when memory ends.")),
    _sign(Place.HOST, r"\bstd::bad_alloc\b|\bMemoryError\b|_ArrayMemoryError|OUT_OF_HOST_MEMORY",
          N_("The program was refused memory.")),
    _sign(Place.HOST, r"Cannot allocate memory|Errno 12\b|unable to mmap|posix_memalign|cudaHostAlloc|"
          r"Native memory allocation \(mmap\) failed|insufficient memory for the Java",
          N_("The operating system refused memory.")),
    _sign(Place.HOST, r"OOM when allocating tensor[^\n]{0,200}device:CPU", N_("TensorFlow was refused memory.")),
    _sign(Place.PERHAPS_HOST, r"[Kk]ernel\b.{0,80}\bdied|Kernel Restarting|DeadKernelError",
          N_("The notebook's kernel died without a word, as it often does for want of the host's memory.")),
    _sign(Place.CARD, r"Free memory on device .{0,60}on startup is less than desired GPU memory utilization",
          N_("vLLM found less free memory on the card than it was told to take.")),
    _sign(Place.CARD, r"No available memory for the cache blocks|"
          r"larger than the (?:maximum number of tokens that can be stored in KV cache|available KV cache memory)",
          N_("vLLM has no room left for its key/value cache beside the weights.")),
    _sign(Place.CARD, r"Some modules are dispatched on the CPU or the disk",
          N_("The quantised model does not fit the card, so accelerate laid parts of it elsewhere.")),
    _sign(Place.CARD, r"Invalid buffer size: {size}",
          N_("Metal refuses a single buffer of that size: a shape is wrong, or one tensor has to be made in pieces.")),
    _sign(Place.CARD, r"(?:CUBLAS|HIPBLAS)_STATUS_ALLOC_FAILED|rocblas_status_memory_error",
          N_("cuBLAS was refused memory for its workspace.")),
    _sign(Place.CARD, r"CUDNN_STATUS_ALLOC_FAILED|miopenStatusAllocFailed", N_("cuDNN was refused memory.")),
    _sign(Place.CARD, r"Failed to CUDA calloc {size}", N_("NCCL was refused memory on a card for its buffers.")),
    _sign(Place.CARD, r"[Ff]ailure (?:2 )?'?out of memory|NCCL.{0,80}out of memory",
          N_("NCCL was refused memory on a card for its buffers.")),
    _sign(Place.CARD, r"allocating {size} on device.{0,40}cudaMalloc failed", N_("cudaMalloc was refused memory.")),
    _sign(Place.CARD, r"(?:[Oo]ut of memory (?:while trying to allocate|allocating)|requested buffer of size|"
          r"failed to allocate [\d.]+\w* \() ?{size}",
          N_("An allocation on the card failed.")),
    _sign(Place.CARD, r"out of memory|OutOfMemory|OUT_OF_(?:DEVICE_)?MEMORY|cudaErrorMemoryAllocation|"
          r"RESOURCE_EXHAUSTED|ResourceExhausted|cudaMalloc failed|\boom\b|ran out of (?:gpu |video |cuda )?memory|"
          r"(?:not enough|insufficient) (?:gpu |video |cuda |device )?(?:memory|vram)|"
          "显存不足|显存溢出|爆显存|内存不足|内存溢出",
          N_("An allocation failed."), ignore_case=True),
    _sign(Place.PERHAPS, r"(?:CUBLAS|HIPBLAS)_STATUS_NOT_INITIALIZED",
          N_("cuBLAS could not start: no room for its workspace, or an earlier error, such as an index out of range.")),
    _sign(Place.PERHAPS, r"CUDNN_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED)|"
          r"was unable to find an engine|[Uu]nable to find a valid cuDNN algorithm|"
          r"miopenStatus(?:Internal|Unknown)Error|UR_RESULT_ERROR_OUT_OF_RESOURCES",
          N_("cuDNN found no way to run: no room for a workspace, or a version or type that it does not take.")),
)  # fmt: skip
