"""What this machine can train on: its rung of the hardware ladder, and the number format to use.

One function asks the machine (:func:`inspect_machine`); everything else is a pure function of the
:class:`Facts` that it returns. What is wrong with a machine, and how to mend it, is said in
:mod:`course_lib.gpu_findings`. Nothing here imports torch before there is a card that it could use.

AMD, Intel and Apple GPUs are not used: PyTorch's memory counters, and so the course's figures, are CUDA's.
"""

import os
import platform
import re
import runpy
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from course_lib.cards import Capability, TrainingType, training_type_for
from course_lib.errors import CourseError
from course_lib.i18n import N_, _
from course_lib.units import GIB

if TYPE_CHECKING:
    import torch

Version = tuple[int, ...]


@dataclass(frozen=True)
class MachineCard:
    """A graphics card in this machine (or the slice of one that this process may use)."""

    index: int  #: in the order of whoever reported it: torch where it sees the card, else the driver
    name: str
    total_bytes: int
    capability: Capability
    used_elsewhere_bytes: int = 0  #: in use on the card, but not in this process's cache


@dataclass(frozen=True)
class Facts:
    """What the machine says of itself. None and empty: it does not have that."""

    system: str  #: Linux, Windows or Darwin
    host_memory_bytes: int
    cards: tuple[MachineCard, ...] = ()
    wsl: bool = False  #: Linux inside Windows
    colab: bool = False
    driver_version: str | None = None
    driver_cuda: Version | None = None  #: the newest CUDA that the driver serves
    visible_devices: str | None = None  #: CUDA_VISIBLE_DEVICES
    torch_version: str | None = None
    torch_cuda: Version | None = None  #: the CUDA that torch was built for; None: a CPU build
    torch_sees_cuda: bool = False
    torch_archs: tuple[str, ...] = ()  #: what torch's kernels were compiled for: sm_80, compute_90, ...
    apple_gpu: bool = False

    @property
    def card(self) -> MachineCard | None:
        """The card that ``torch.device("cuda")`` means, if torch can run on it."""
        first = self.cards[0] if self.cards and self.torch_sees_cuda else None
        return first if first and built_for(first.capability, self.torch_archs) else None


class Rung(StrEnum):
    """The hardware ladder: what a lesson finds, and therefore does."""

    CPU = N_("CPU only")
    SMALL = N_("8 to 12 GB card, as in laptops")
    T4 = N_("16 GB card, such as Colab's T4")
    CARD_24GB = N_("24 GB card")
    LARGER = N_("larger card")

    @property
    def plan(self) -> str:
        return {
            Rung.CPU: _("everything runs: the dry run for memory, tiny tensors for numerics"),
            Rung.SMALL: _("real steps of small models, the dry run for the rest"),
            Rung.T4: _("real steps of small models, 7B only with NF4, the dry run for the rest"),
            Rung.CARD_24GB: _("7B with LoRA, the dry run for what is larger"),
            Rung.LARGER: _("7B with LoRA in larger batches, full fine-tuning as far as the ledger says"),
        }[self]


#: Usable bytes from which on a card stands on a rung (between the usable figures of course_lib.cards).
_RUNG_FROM = ((28 * GIB, Rung.LARGER), (20 * GIB, Rung.CARD_24GB), (13 * GIB, Rung.T4), (0, Rung.SMALL))


def rung(facts: Facts) -> Rung:
    """Where this machine stands as it is; a card that torch cannot use does not count."""
    if facts.card is None:
        return Rung.CPU
    total_bytes = facts.card.total_bytes
    return next(step for least, step in _RUNG_FROM if total_bytes >= least)


def training_type(facts: Facts) -> TrainingType:
    """The number format to train in on this machine, and why."""
    if facts.card is None:
        return TrainingType("fp32", _("processors compute FP32 well, 16-bit matrix products can be 100 times slower"))
    return training_type_for(facts.card.capability)


def built_for(capability: Capability, archs: tuple[str, ...]) -> bool:
    """Whether a torch whose kernels were compiled for ``archs`` runs on a card of this capability.

    Machine code (``sm_86``) runs on the same major version from its minor version on; intermediate code
    (``compute_90``) is compiled for any later card (CUDA C++ Programming Guide, "Application Compatibility").
    No list means that torch does not say.
    """
    if not archs:
        return True
    for arch in archs:
        kind, digits, suffix = re.fullmatch(r"(sm|compute)_(\d+)([a-z]?)", arch).groups()  # type: ignore[union-attr]
        major, minor = int(digits[:-1]), int(digits[-1])
        if capability == (major, minor):
            return True
        if not suffix and (kind == "compute" or major == capability[0]) and capability > (major, minor):
            return True
    return False


def inspect_machine() -> Facts:
    """Ask the machine. Fast without an NVIDIA card: torch is imported only where there is one."""
    import psutil

    release = platform.uname().release.lower()
    build = _torch_build()
    facts = Facts(
        system=platform.system(),
        host_memory_bytes=psutil.virtual_memory().total,
        wsl="microsoft" in release or "wsl" in release,
        colab="COLAB_RELEASE_TAG" in os.environ,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        torch_version=build.get("__version__"),
        torch_cuda=_version(build.get("cuda")),
    )
    facts = _ask_driver(facts)
    if build and (facts.driver_version and facts.torch_cuda or facts.system == "Darwin"):
        facts = _ask_torch(facts)
    return facts


def _ask_driver(facts: Facts) -> Facts:
    """Cards and versions by NVIDIA's management library, which works whatever torch is installed."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return facts  # no driver, no card
    cards = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        with suppress(pynvml.NVMLError):  # a chip that shares the host's memory has no memory of its own
            memory, name = pynvml.nvmlDeviceGetMemoryInfo(handle), pynvml.nvmlDeviceGetName(handle)
            capability = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            cards.append(MachineCard(index, name, int(memory.total), capability, int(memory.used)))
    cuda = pynvml.nvmlSystemGetCudaDriverVersion()
    return replace(
        facts,
        cards=tuple(cards),
        driver_version=pynvml.nvmlSystemGetDriverVersion(),
        driver_cuda=(cuda // 1000, cuda % 1000 // 10),
    )


def _ask_torch(facts: Facts) -> Facts:
    """The cards as torch sees them: totals that CUDA really hands out, in torch's order."""
    import pynvml
    import torch

    facts = replace(facts, apple_gpu=torch.backends.mps.is_available(), torch_archs=tuple(torch.cuda.get_arch_list()))
    if not torch.cuda.is_available():
        return facts
    cards = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        used = 0
        with suppress(pynvml.NVMLError):  # not mem_get_info: it would open a context and count it as use
            used = torch.cuda.device_memory_used(index) - torch.cuda.memory_reserved(index)
        capability = (properties.major, properties.minor)
        cards.append(MachineCard(index, properties.name, properties.total_memory, capability, max(0, used)))
    return replace(facts, torch_sees_cuda=True, cards=tuple(cards))


def _torch_build() -> dict[str, Any]:
    """What torch/version.py says; read, not imported, since importing torch takes seconds."""
    spec = find_spec("torch")
    return runpy.run_path(str(Path(spec.origin).with_name("version.py"))) if spec and spec.origin else {}


def _version(text: str | None) -> Version | None:
    return tuple(int(part) for part in text.split(".")[:2]) if text else None


class DeviceMemory(NamedTuple):
    """One card at one moment, in bytes."""

    allocated_bytes: int  #: in tensors of this process, rounded up to blocks
    reserved_bytes: int  #: held by this process's caching allocator; allocated included
    device_used_bytes: int  #: in use on the card: reserved, CUDA contexts, other processes (nvidia-smi's figure)
    total_bytes: int


def device_memory(device: "torch.device | str | int") -> DeviceMemory:
    """What is in use on a CUDA device now, by PyTorch's counters and by the driver's.

    Raises:
        CourseError: the device is not a CUDA device.
    """
    import torch

    device = torch.device(device)
    if device.type != "cuda":
        raise CourseError(f"device: got {device}, expected a CUDA device; elsewhere PyTorch keeps no such counters")
    free, total = torch.cuda.mem_get_info(device)
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    return DeviceMemory(allocated, reserved, total - free, total)
