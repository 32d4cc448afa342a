"""The table of cards, against what other people's cards reported, and names as people and drivers write them."""

import re
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.cards import CARDS, Card, find_card, training_type_for
from course_lib.errors import CourseError
from course_lib.units import GIB

#: Totals in GiB that PyTorch or CUDA reported in threads other than those that the table names.
REPORTED_GIB = [
    ("T4", 14.76, "ai-forever/ru-gpts#27"),
    ("T4", 14.57, "QwenLM/Qwen3-VL#1046"),
    ("GTX 1080", 7.92, "pytorch/pytorch#27600"),
    ("RTX 3070", 7.78, "meta-llama/codellama#82"),
    ("RTX 2080 Ti", 10.76, "ispc-lab/TMA#5"),
    ("RTX 3060", 11.76, "TencentARC/PhotoMaker#47"),
    ("RTX 3090", 23.69, "AIFSH/ComfyUI-Hallo#24"),
    ("RTX 4090", 23.64, "3DTopia/Phidias-Diffusion#8"),
    ("RTX 4090", 23.68, "zai-org/CogVideo#36"),
    ("RTX 5090", 31.37, "Wan-Video/Wan2.1#465"),
    ("A10G", 22.0, "batteries-included/batteries-included#1663"),
    ("V100 32GB", 31.749, "unslothai/unsloth#598"),
    ("A100 40GB", 39.50, "TianheWu/CoSeR#10"),
    ("A100 80GB", 79.15, "axolotl-ai-cloud/axolotl#971"),
    ("A100 80GB", 79.25, "levihsu/OOTDiffusion#235"),
    ("H100", 79.11, "vllm-project/vllm#27508"),
]

#: Compute capability as ``deviceQuery``, ``get_device_properties`` or a framework's log printed it.
REPORTED_CAPABILITY = [
    ("P100 16GB", (6, 0), "notebook output \"name='Tesla P100-PCIE-16GB', major=6, minor=0\""),
    ("P40", (6, 1), "unslothai/unsloth#813"),
    ("V100 16GB", (7, 0), "ultralytics/yolov3 README.md"),
    ("T4", (7, 5), "NVIDIA/DALI#1813"),
    ("RTX 2060 SUPER", (7, 5), "unslothai/unsloth#434"),
    ("A100 40GB", (8, 0), "bottlerocket-os/bottlerocket#3873"),
    ("A10G", (8, 6), "bottlerocket-os/bottlerocket#3561"),
    ("RTX A6000", (8, 6), "ikawrakow/ik_llama.cpp#333"),
    ("L4", (8, 9), "bottlerocket-os/bottlerocket-kernel-kit#139"),
    ("RTX 4090", (8, 9), "unslothai/unsloth-zoo#79"),
    ("RTX 4080", (8, 9), "ollama/ollama#9245"),
    ("B200", (10, 0), "pytorch/ao#4002"),
    ("RTX 5090", (12, 0), "NVIDIA/nccl#1637"),
    ("RTX PRO 6000", (12, 0), "antirez/ds4#449"),
]


@pytest.mark.parametrize(("name", "reported_gib", "source"), REPORTED_GIB)
def test_usable_memory_is_what_others_saw(name: str, reported_gib: float, source: str) -> None:
    usable_gib = find_card(name).usable_bytes / GIB
    assert usable_gib == pytest.approx(reported_gib, rel=0.016), source
    assert usable_gib <= reported_gib + 0.07, "the table keeps the smaller of two reports"


@pytest.mark.parametrize(("name", "capability", "source"), REPORTED_CAPABILITY)
def test_capability_is_what_others_saw(name: str, capability: tuple[int, int], source: str) -> None:
    assert find_card(name).capability == capability, source


def test_table_is_sorted_unique_and_sourced() -> None:
    assert [card.usable_bytes for card in CARDS] == sorted(card.usable_bytes for card in CARDS)
    assert len({card.name for card in CARDS}) == len(CARDS)
    for card in CARDS:
        # Makers count binary gigabytes; driver and error correction keep up to a tenth.
        assert 0.9 * card.sold_gb * GIB < card.usable_bytes < card.sold_gb * GIB, card.name
        assert re.match(r"[\w.-]+/[\w.-]+(#\d+| [\w/]*README.md)|https://|\S+ start line \"", card.source), card.name


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_every_card_is_found_by_its_name_and_size(card: Card) -> None:
    for name in (card.name, card.name.lower(), f"NVIDIA GeForce {card.name}", card.name.replace(" ", "-")):
        assert find_card(name) is card
    if not card.name.endswith("GB"):
        assert find_card(f"{card.name} {card.sold_gb} GB") is card


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("3090", "RTX 3090"),
        ("rtx3090-24gb", "RTX 3090"),
        ("  RTX_4090 ", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("a100-80gb", "A100 80GB"),
        ("A100 80GiB", "A100 80GB"),
        ("a100-40g", "A100 40GB"),
        ("4060 mobile", "RTX 4060 Laptop"),
        # as torch.cuda.get_device_name() prints them
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("Tesla V100-SXM2-32GB", "V100 32GB"),
        ("Tesla P100-PCIE-16GB", "P100 16GB"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "RTX 4060 Laptop"),
        ("NVIDIA GeForce GTX 1080 Ti", "GTX 1080 Ti"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
        ("Quadro RTX 8000", "Quadro RTX 8000"),
    ],
)
def test_names_as_they_are_written(written: str, name: str) -> None:
    assert find_card(written).name == name


@pytest.mark.parametrize(
    ("written", "offered"),
    [
        ("a100", "A100 40GB or A100 80GB"),
        ("V100", "V100 16GB or V100 32GB"),
        ("5060 ti", "RTX 5060 Ti 16GB"),  # also sold with 8 GB
        ("3090 Ti", "RTX 3090"),
        ("a100-64gb", "A100 40GB"),
    ],
)
def test_a_size_left_open_or_a_near_miss_is_told(written: str, offered: str) -> None:
    with pytest.raises(CourseError, match=offered):
        find_card(written)


@pytest.mark.parametrize("written", ["", "  ", "rtx", "voodoo 2", "🎮", "-1", "x" * 10_000])
def test_an_unknown_card_is_refused_in_one_short_line(written: str) -> None:
    with pytest.raises(CourseError, match="course gpu --list") as refusal:
        find_card(written)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 250


@given(st.text(max_size=40))
def test_any_text_is_a_card_or_refused(written: str) -> None:
    with suppress(CourseError):
        assert find_card(written) in CARDS


@pytest.mark.parametrize(
    ("name", "dtype", "native_bf16", "tensor_cores"),
    [
        ("P100 16GB", "fp32", False, False),
        ("V100 32GB", "fp16", False, True),
        ("T4", "fp16", False, True),
        ("A100 40GB", "bf16", True, True),
        ("RTX 3060", "bf16", True, True),
        ("RTX 5090", "bf16", True, True),
    ],
)
def test_what_to_train_in(name: str, dtype: str, native_bf16: bool, tensor_cores: bool) -> None:
    card = find_card(name)
    assert (card.native_bf16, card.tensor_cores_fp16) == (native_bf16, tensor_cores)
    chosen = card.training_type()
    assert chosen == training_type_for(card.capability)
    assert chosen.dtype == dtype
    assert ".".join(map(str, card.capability)) in chosen.reason


def test_the_table_and_the_command_import_nothing_heavy() -> None:
    code = (
        "import sys, course_lib.cards, course_lib.gpu, course_lib.gpu_findings, course_lib.cli.gpu\n"
        "print({'torch', 'numpy', 'matplotlib', 'rich', 'psutil', 'pynvml'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
