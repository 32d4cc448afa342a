"""What is wrong with a machine for training on its card, and how to mend it.

Each check is a function from the :class:`~course_lib.gpu.Facts` to a :class:`Finding` or nothing, so that
a machine one does not have can be described in a test. A machine with a healthy card has no finding.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from course_lib.cards import FIRST_WITH_NATIVE_BF16, dotted, training_type_for
from course_lib.gpu import Facts, Version, built_for
from course_lib.i18n import _
from course_lib.units import GIB, format_bytes

SELECTOR = "https://pytorch.org/get-started/locally/"

#: CUDA's major version -> the oldest driver that serves all of its minor versions
#: (https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, table 1).
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
#: The first Windows driver that moves memory to the host instead of failing
#: (https://nvidia.custhelp.com/app/answers/detail/a_id/5490, which also shows the setting).
FIRST_DRIVER_THAT_SPILLS = (536, 40)
#: Use by others that matters: more than the driver and a display take anyway, and a real part of the card.
NOTABLE_USE_BYTES, NOTABLE_USE_PART = GIB, 0.05


class Finding(NamedTuple):
    """``kind`` is a stable name for programs, the other two are for people."""

    kind: str
    what: str
    cure: str


def findings(facts: Facts) -> list[Finding]:
    """Everything found, the most fundamental first."""
    return [found for check in _CHECKS for found in check(facts)]


def _no_gpu(facts: Facts) -> Iterator[Finding]:
    if facts.cards:
        return
    what = _("no NVIDIA card with a driver is visible")
    if facts.apple_gpu:
        what += _("; an Apple GPU is not used, since PyTorch's memory counters are CUDA's")
    cure = _("none needed: the dry run shows memory, tiny tensors show numerics, GPU-only cells show recorded results")
    if facts.colab:
        cure += _("; for a card choose Runtime > Change runtime type > T4 GPU")
    yield Finding("no-gpu", what, cure)


def _no_torch(facts: Facts) -> Iterator[Finding]:
    if facts.torch_version is None:
        yield Finding(
            "no-torch",
            _("PyTorch is not installed: only course ledger, plan, oom and gpu work"),
            _("install it with the command that {selector} prints").format(selector=SELECTOR),
        )


def _cpu_only_torch(facts: Facts) -> Iterator[Finding]:
    if facts.cards and facts.torch_version and facts.torch_cuda is None:
        what = _("torch {version} is a CPU build beside {cards}").format(
            version=facts.torch_version, cards=_names(facts)
        )
        if facts.system == "Windows":
            what += _("; pip's default on Windows is one")
        yield Finding(
            "cpu-only-torch",
            what,
            _("pip uninstall torch, then install with the command that {selector} prints for {cuda}").format(
                selector=SELECTOR, cuda=f"CUDA {facts.driver_cuda[0]}.x" if facts.driver_cuda else "CUDA"
            ),
        )


def _torch_sees_no_card(facts: Facts) -> Iterator[Finding]:
    if not facts.cards or facts.torch_cuda is None or facts.torch_sees_cuda:
        return
    needed, served = facts.torch_cuda, facts.driver_cuda
    if served and served[0] < needed[0]:  # within a major version any minor version will do
        yield Finding(
            "driver-too-old",
            _("driver {driver} serves CUDA up to {served}, torch {version} needs CUDA {needed}").format(
                driver=facts.driver_version, served=dotted(served), version=facts.torch_version, needed=dotted(needed)
            ),
            _(
                "update the driver to {oldest} or later (nvidia.com/drivers), "
                "or install a torch built for CUDA {major}.x: {selector}"
            ).format(oldest=OLDEST_DRIVER.get(needed[0], _("the newest")), major=served[0], selector=SELECTOR),
        )
    elif facts.visible_devices is not None and not re.match(r"\s*(\d|GPU-|MIG-)", facts.visible_devices):
        yield Finding(
            "cards-hidden",
            _("CUDA_VISIBLE_DEVICES={value!r} hides {cards} from torch").format(
                value=facts.visible_devices, cards=_names(facts)
            ),
            _("unset CUDA_VISIBLE_DEVICES, or set it to 0, before Python starts"),
        )
    else:
        yield Finding(
            "cuda-unavailable",
            _("torch {version} cannot open {cards}, although the driver is new enough").format(
                version=facts.torch_version, cards=_names(facts)
            ),
            _(
                "run python -c 'import torch; torch.cuda.init()' to see why; "
                "after a driver update restart the machine, in a container pass --gpus all"
            ),
        )


def _not_built_for_card(facts: Facts) -> Iterator[Finding]:
    if not facts.torch_sees_cuda:
        return
    for card in facts.cards:
        if built_for(card.capability, facts.torch_archs):
            continue
        oldest = min(number for arch in facts.torch_archs for number in _numbers(arch))
        old = 10 * card.capability[0] + card.capability[1] < oldest
        yield Finding(
            "card-too-old" if old else "card-too-new",
            _("torch {version} has no kernels for {card} ({capability}); it has {kernels}").format(
                version=facts.torch_version, card=card.name, capability=dotted(card.capability),
                kernels=" ".join(facts.torch_archs),
            ),  # fmt: skip
            # PYTORCH_RELEASES_CODE_CC in torch/cuda/__init__.py (torch 2.13): only CUDA 12.6 has 5.0 to 7.0
            (
                _("install a torch built for CUDA 12.6, the last that serves 5.0 to 7.0: {selector}")
                if old
                else _("install the newest torch with its newest CUDA: {selector}")
            ).format(selector=SELECTOR),
        )


def _no_native_bf16(facts: Facts) -> Iterator[Finding]:
    for card in facts.cards:
        if card.capability < FIRST_WITH_NATIVE_BF16:
            dtype = training_type_for(card.capability).dtype
            how = {
                "fp16": "FP32 weights, torch.autocast('cuda', torch.float16), torch.amp.GradScaler('cuda')",
                "fp32": _("FP16 would need loss scaling and, without tensor cores, gain little time"),
            }[dtype]
            yield Finding(
                "pre-ampere",
                _(
                    "{card} ({capability}) has no native bfloat16 (from 8.0); "
                    "torch.cuda.is_bf16_supported() says True all the same, by emulation"
                ).format(card=card.name, capability=dotted(card.capability)),
                _("train in {dtype}: {how}; ask is_bf16_supported(including_emulation=False)").format(
                    dtype=dtype, how=how
                ),
            )


def _spills_to_host(facts: Facts) -> Iterator[Finding]:
    windows_driver = facts.wsl or facts.system == "Windows"
    if facts.cards and windows_driver and _numbers(facts.driver_version) >= FIRST_DRIVER_THAT_SPILLS:
        cure = _(
            "in Windows: NVIDIA Control Panel > Manage 3D settings > CUDA - Sysmem Fallback Policy > "
            "Prefer No Sysmem Fallback (driver 546.01 or later)"
        )
        if facts.wsl:
            cure += _(", then wsl --shutdown")
        yield Finding(
            "spills-to-host",
            _(
                "the Windows driver moves memory to the host when the card is full: steps turn many times slower "
                "where elsewhere CUDA reports out of memory, and device use can exceed the card"
            ),
            cure,
        )


def _memory_in_use(facts: Facts) -> Iterator[Finding]:
    for card in facts.cards:
        if card.used_elsewhere_bytes > max(NOTABLE_USE_BYTES, NOTABLE_USE_PART * card.total_bytes):
            yield Finding(
                "memory-in-use",
                _("{used} of {total} on {card} are held outside this process's tensors").format(
                    used=format_bytes(card.used_elsewhere_bytes), total=format_bytes(card.total_bytes), card=card.name
                ),
                _("nvidia-smi names the processes; most often it is the kernel of another notebook: shut it down"),
            )


def _mig_slice(facts: Facts) -> Iterator[Finding]:
    for card in facts.cards:
        if " MIG " in card.name:
            yield Finding(
                "mig-slice",
                _("{card} is a slice of a card with {size} of its own").format(
                    card=card.name, size=format_bytes(card.total_bytes)
                ),
                _("plan with --budget-gib {size} instead of the card's name").format(
                    size=f"{card.total_bytes / GIB:.2f}"
                ),
            )


_CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _no_gpu,
    _no_torch,
    _cpu_only_torch,
    _torch_sees_no_card,
    _not_built_for_card,
    _no_native_bf16,
    _spills_to_host,
    _memory_in_use,
    _mig_slice,
)


def _names(facts: Facts) -> str:
    return " and ".join(dict.fromkeys(card.name for card in facts.cards))


def _numbers(text: str | None) -> Version:
    return tuple(int(part) for part in re.findall(r"\d+", text or ""))
