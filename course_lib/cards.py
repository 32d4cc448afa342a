"""Graphics cards by name: the memory on the box, the memory that CUDA hands out, and what they compute in.

A "24 GB" card shows PyTorch about 23.7 GiB, a server card with error correction (ECC) about 22: the
driver, and ECC where it is on, keep the rest. So every figure here is one that CUDA itself reported
(an out-of-memory message, ``deviceQuery``, ``torch.cuda.get_device_properties``) in a public place,
which its row names; ``owner/name#number`` is a thread on GitHub. Reports of one card differ by a per cent
or two with driver and ECC, and the smaller one that could be cited stands here. They come from Linux;
Windows shows a little more and then needs it for the display. A card without such a report is left out.

Compute capabilities: https://developer.nvidia.com/cuda-gpus and https://developer.nvidia.com/cuda-legacy-gpus.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

from course_lib.errors import CourseError
from course_lib.i18n import _
from course_lib.units import GIB, MIB

Capability = tuple[int, int]  #: CUDA's compute capability, (major, minor)

#: The first capabilities whose arithmetic units take the type themselves (CUDA C++ Programming Guide,
#: "Arithmetic Instructions" and the feature table by compute capability).
FIRST_WITH_FP16_TENSOR_CORES: Capability = (7, 0)  #: Volta
FIRST_WITH_NATIVE_BF16: Capability = (8, 0)  #: Ampere


def dotted(version: tuple[int, ...]) -> str:
    """``(8, 6)`` as people write it: ``8.6``."""
    return ".".join(map(str, version))


class TrainingType(NamedTuple):
    """Which number format to train in, and why."""

    dtype: str  #: bf16, fp16 or fp32
    reason: str


def training_type_for(capability: Capability) -> TrainingType:
    """The number format that a card of this compute capability trains in best."""
    if capability >= FIRST_WITH_NATIVE_BF16:
        dtype = "bf16"
        reason = _(
            "compute capability {number} computes bfloat16 natively: half the bytes, the range of FP32, no loss scaling"
        )
    elif capability >= FIRST_WITH_FP16_TENSOR_CORES:
        dtype = "fp16"
        reason = _(
            "compute capability {number} is fast in FP16 but only emulates bfloat16 (native from 8.0): "
            "keep FP32 weights, run under autocast, scale the loss"
        )
    else:
        dtype = "fp32"
        reason = _(
            "compute capability {number} has no tensor cores (they start at 7.0): "
            "16 bits would save memory but little time"
        )
    return TrainingType(dtype, reason.format(number=dotted(capability)))


@dataclass(frozen=True)
class Card:
    """One kind of graphics card. A name that ends in a size was sold with other sizes, too."""

    name: str
    sold_gb: int  #: the size on the box
    usable_bytes: int  #: what CUDA reports as the total
    capability: Capability
    source: str  #: where ``usable_bytes`` was reported

    @property
    def native_bf16(self) -> bool:
        """By capability: ``torch.cuda.is_bf16_supported()`` says True on older cards, too, by emulation."""
        return self.capability >= FIRST_WITH_NATIVE_BF16

    @property
    def tensor_cores_fp16(self) -> bool:
        return self.capability >= FIRST_WITH_FP16_TENSOR_CORES

    def training_type(self) -> TrainingType:
        return training_type_for(self.capability)


def _gib(figure: float) -> int:
    """Bytes of a figure that a message printed in GiB, good to its last decimal."""
    return round(figure * GIB)


CARDS: tuple[Card, ...] = (
    Card("RTX 2060", 6, _gib(5.79), (7, 5), "facebookresearch/meshrcnn#92"),
    Card("GTX 1060 6GB", 6, _gib(5.93), (6, 1), "huggingface/transformers#1819"),
    Card("RTX 4060 Laptop", 8, 7806 * MIB, (8, 9),
         'Ultralytics start line "(NVIDIA GeForce RTX 4060 Laptop GPU, 7806MiB)" with torch 2.9 to 2.14; '
         "7915 with an older driver: zitongbai/Dev-Onramp README.md"),
    Card("RTX 3070", 8, _gib(7.76), (8, 6), "sshan-zhao/GASDA#19"),
    Card("RTX 2070", 8, _gib(7.78), (7, 5), "tloen/alpaca-lora#442"),
    Card("RTX 2060 SUPER", 8, _gib(7.785), (7, 5), "unslothai/unsloth#434"),
    Card("GTX 1080", 8, _gib(7.92), (6, 1), "pytorch/pytorch#29198"),
    Card("RTX 3080 10GB", 10, _gib(9.78), (8, 6), "zai-org/CogVideo#34"),
    Card("RTX 2080 Ti", 11, _gib(10.76), (7, 5), "JDAI-CV/image-captioning#11"),
    Card("GTX 1080 Ti", 11, 11178 * MIB, (6, 1),
         "YOLOv3 start line \"_CudaDeviceProperties(name='GeForce GTX 1080 Ti', total_memory=11178MB)\""),
    Card("RTX 4070", 12, 11994 * MIB, (8, 9),
         'YOLOv5 start line "CUDA:0 (NVIDIA GeForce RTX 4070, 11994MiB)" with torch 1.13'),
    Card("RTX 3060", 12, _gib(11.75), (8, 6), "smy20011/dreambooth-gui#78"),
    Card("T4", 16, _gib(14.56), (7, 5),
         "Zheng-Chong/CatVTON#133 (Google Cloud); 14.75 on Colab: hpcaitech/Open-Sora#697"),
    Card("RTX 5060 Ti 16GB", 16, 15816 * MIB, (12, 0), "Luce-Org/lucebox#407"),
    Card("RTX 4080 SUPER", 16, _gib(15.60), (8, 9), "shanice-l/UNOPose#4"),
    Card("RTX A4000", 16, _gib(15.61), (8, 6), "DengKaiCQ/VGGT-Long#6"),
    Card("RTX 4080", 16, 16076 * MIB, (8, 9), "ollama/ollama#9245"),
    Card("V100 16GB", 16, 16130 * MIB, (7, 0), "ultralytics/yolov3 README.md (2019)"),
    Card("P100 16GB", 16, _gib(15.90), (6, 0), "rmokady/CLIP_prefix_caption#7"),
    Card("L4", 24, 23_583_784_960, (8, 9), "bottlerocket-os/bottlerocket-kernel-kit#139"),
    Card("A10G", 24, 22587 * MIB, (8, 6),
         "https://meta-pytorch.org/torchcodec/stable/generated_examples/decoding/basic_cuda_example.html"),
    Card("P40", 24, _gib(22.38), (6, 1),
         "LinkSoul-AI/Chinese-Llama-2-7b#56; 23.88 with ECC off: unslothai/unsloth#813"),
    Card("RTX 4090", 24, _gib(23.514), (8, 9), "unslothai/unsloth#3542; 23.64: ali-vilab/VGen#104"),
    Card("A30", 24, _gib(23.53), (8, 0), "google/RB-Modulation#5"),
    Card("RTX A5000", 24, _gib(23.68), (8, 6), "zai-org/GLM-4#730"),
    Card("RTX 3090", 24, _gib(23.69), (8, 6), "Lightning-AI/litgpt#459"),
    Card("RTX 5090", 32, 33_677_180_928, (12, 0), "aikitoria/open-gpu-kernel-modules#1"),
    Card("V100 32GB", 32, _gib(31.74), (7, 0), "liucongg/ChatGLM-Finetuning#73"),
    Card("A100 40GB", 40, 42_298_834_944, (8, 0), "bottlerocket-os/bottlerocket#3873"),
    Card("A40", 48, _gib(44.4), (8, 6), "ollama/ollama#9858"),
    Card("L40", 48, _gib(44.40), (8, 9), "QwenLM/Qwen3-VL#2097"),
    Card("L40S", 48, _gib(44.42), (8, 9), "stepfun-ai/Step-Video-T2V#8"),
    Card("RTX 6000 Ada", 48, _gib(44.43), (8, 9), "DINGYANB/MTVCrafter#21 (ECC on)"),
    Card("Quadro RTX 8000", 48, _gib(47.46), (7, 5), "Victarry/stable-dreambooth#8"),
    Card("RTX A6000", 48, 48670 * MIB, (8, 6), "ultralytics/ultralytics#19084"),
    Card("H100", 80, _gib(79.10), (9, 0), "huggingface/trl#2688; 79.11: vllm-project/vllm#27508"),
    Card("A100 80GB", 80, _gib(79.14), (8, 0), "lianqi1008/Control-GIC#6; 79.25: levihsu/OOTDiffusion#235"),
    Card("H100 NVL", 94, _gib(93.00), (9, 0), "ali-vilab/VACE#56"),
    Card("RTX PRO 6000", 96, _gib(94.97), (12, 0), "antirez/ds4#431"),
    Card("H20 96GB", 96, _gib(95.00), (9, 0), "modelscope/DiffSynth-Studio#1238"),
    Card("H200", 141, _gib(139.80), (9, 0), "aimosprite/slime examples/scaffolding/README.md"),
    Card("B200", 180, _gib(178.35), (10, 0), "pytorch/ao#4002"),
)  # fmt: skip

#: Words that makers, drivers and shops put around the part of a name that tells cards apart.
_FILLERS = re.compile(
    r"nvidia|geforce|tesla|quadro|rtx|gtx|gpu|generation|blackwell|workstation|server|edition|sxm\d?|pcie|hbm\d?e?"
)


def _key(name: str) -> str:
    """``NVIDIA A100-SXM4-80GB`` and ``a100 80 gb`` alike become ``a10080gb``."""
    key = re.sub(r"[^a-z0-9]", "", _FILLERS.sub("", name.lower()))
    return key.replace("gib", "gb").replace("mobile", "laptop")


def _base(card: Card) -> str:
    return re.sub(r" \d+GB$", "", card.name)


def _keys(card: Card) -> set[str]:
    """The keys that mean this card: with its size; without it, if it was sold with no other size."""
    base = _key(_base(card))
    return {f"{base}{card.sold_gb}gb"} | ({base} if _base(card) == card.name else set())


def find_card(name: str) -> Card:
    """The card of this name, however it is written: ``3090``, ``rtx-3090``, ``NVIDIA GeForce RTX 3090``.

    Raises:
        CourseError: no card of the table has this name, or several might be meant.
    """
    asked = _key(name)
    for card in CARDS:
        if _keys(card) & {asked, asked + "b"}:  # 80g for 80gb
            return card
    sizes = [card.name for card in CARDS if _key(_base(card)) == asked]
    if sizes:
        raise CourseError(f"gpu: got {name[:40]!r}, which was sold with several sizes; write {' or '.join(sizes)}")
    by_key = {_key(card.name): card.name for card in CARDS}
    near = ", ".join(by_key[key] for key in get_close_matches(asked, by_key, n=4, cutoff=0.6))
    raise CourseError(
        f"gpu: got {name[:40]!r}, a card that is not in the table{f' (near it: {near})' if near else ''}; "
        "course gpu --list shows all, --budget-gib takes any size"
    )
