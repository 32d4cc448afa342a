"""Machines described by their facts, the real machine asked, and the command that shows either."""

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from course_lib import gpu
from course_lib.cards import CARDS, find_card
from course_lib.cli import gpu as command
from course_lib.errors import CourseError
from course_lib.gpu import DeviceMemory, Facts, MachineCard, Rung, built_for, device_memory, inspect_machine
from course_lib.gpu_findings import findings
from course_lib.units import GIB, MIB

#: torch.cuda.get_arch_list() of torch 2.13's wheels (PYTORCH_RELEASES_CODE_CC in torch/cuda/__init__.py).
CUDA_126_ARCHS = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CUDA_130_ARCHS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")


def machine_card(name: str, **changes: Any) -> MachineCard:
    card = find_card(name)
    return replace(MachineCard(0, f"NVIDIA {card.name}", card.usable_bytes, card.capability, 300 * MIB), **changes)


HEALTHY = Facts(
    system="Linux",
    host_memory_bytes=64 * GIB,
    cards=(machine_card("3090"),),
    driver_version="580.95.05",
    driver_cuda=(13, 0),
    torch_version="2.13.0+cu130",
    torch_cuda=(13, 0),
    torch_sees_cuda=True,
    torch_archs=CUDA_130_ARCHS,
)
COLAB_T4 = replace(HEALTHY, cards=(machine_card("t4"),), colab=True)
NO_GPU = Facts("Linux", 16 * GIB, torch_version="2.13.0+cu130", torch_cuda=(13, 0))


def kinds(facts: Facts) -> list[str]:
    return [finding.kind for finding in findings(facts)]


@pytest.mark.parametrize("name", ["RTX 4060 Laptop", "RTX 3090", "L4", "A100 80GB", "H200", "RTX 5090"])
def test_a_healthy_machine_has_no_finding(name: str) -> None:
    assert kinds(replace(HEALTHY, cards=(machine_card(name),))) == []


@pytest.mark.parametrize(
    ("facts", "expected", "cure"),
    [
        (NO_GPU, ["no-gpu"], "dry run"),
        (replace(NO_GPU, colab=True), ["no-gpu"], "Change runtime type"),
        (replace(NO_GPU, torch_version=None, torch_cuda=None), ["no-gpu", "no-torch"], "pytorch.org"),
        (
            replace(HEALTHY, torch_version="2.13.0+cpu", torch_cuda=None, torch_sees_cuda=False, torch_archs=()),
            ["cpu-only-torch"],
            "CUDA 13.x",
        ),
        (
            replace(HEALTHY, driver_version="535.104.05", driver_cuda=(12, 2), torch_sees_cuda=False),
            ["driver-too-old"],
            "580",
        ),
        (replace(HEALTHY, visible_devices="", torch_sees_cuda=False), ["cards-hidden"], "CUDA_VISIBLE_DEVICES"),
        (replace(HEALTHY, visible_devices="-1", torch_sees_cuda=False), ["cards-hidden"], "CUDA_VISIBLE_DEVICES"),
        (replace(HEALTHY, visible_devices="0", torch_sees_cuda=False), ["cuda-unavailable"], "torch.cuda.init"),
        (COLAB_T4, ["pre-ampere"], "GradScaler"),
        (replace(HEALTHY, cards=(machine_card("v100-16gb"),)), ["card-too-old", "pre-ampere"], "CUDA 12.6"),
        (
            replace(HEALTHY, cards=(machine_card("5090"),), torch_archs=CUDA_126_ARCHS),
            ["card-too-new"],
            "newest torch",
        ),
        (replace(HEALTHY, wsl=True, driver_version="560.94"), ["spills-to-host"], "Sysmem Fallback Policy"),
        (replace(HEALTHY, system="Windows", driver_version="546.33"), ["spills-to-host"], "Prefer No Sysmem Fallback"),
        (
            replace(HEALTHY, cards=(machine_card("3090", used_elsewhere_bytes=9 * GIB),)),
            ["memory-in-use"],
            "nvidia-smi",
        ),
        (
            replace(HEALTHY, cards=(MachineCard(0, "NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5 * GIB, (8, 0)),)),
            ["mig-slice"],
            "--budget-gib 5.00",
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_is_wrong_is_found_and_its_cure_named(facts: Facts, expected: list[str], cure: str) -> None:
    assert kinds(facts) == expected
    assert any(cure in finding.cure for finding in findings(facts))
    for finding in findings(facts):
        assert finding.what
        assert "None" not in finding.what + finding.cure


def test_a_driver_serves_every_minor_version_of_its_cuda() -> None:
    older_minor = replace(HEALTHY, driver_version="525.60.13", driver_cuda=(12, 0), torch_cuda=(12, 8))
    assert kinds(older_minor) == []
    assert kinds(replace(older_minor, torch_sees_cuda=False)) == ["cuda-unavailable"]  # not the driver's age
    assert kinds(replace(older_minor, torch_cuda=(11, 8), torch_sees_cuda=False)) == ["cuda-unavailable"]


def test_windows_drivers_spill_from_53640_on() -> None:
    windows = replace(HEALTHY, system="Windows")
    assert kinds(replace(windows, driver_version="531.79")) == []
    assert kinds(replace(windows, driver_version="536.40")) == ["spills-to-host"]


def test_use_that_the_driver_and_a_display_explain_is_no_finding() -> None:
    for name, used in (("t4", 0.9 * GIB), ("h200", 5 * GIB)):
        facts = replace(HEALTHY, cards=(machine_card(name, used_elsewhere_bytes=int(used)),))
        assert "memory-in-use" not in kinds(facts)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("RTX 4060 Laptop", Rung.SMALL),
        ("RTX 3060", Rung.SMALL),
        ("T4", Rung.T4),
        ("RTX 4080", Rung.T4),
        ("L4", Rung.CARD_24GB),
        ("RTX 3090", Rung.CARD_24GB),
        ("RTX 5090", Rung.LARGER),
        ("A100 80GB", Rung.LARGER),
    ],
)
def test_rung_of_the_hardware_ladder(name: str, step: Rung) -> None:
    facts = replace(HEALTHY, cards=(machine_card(name),), torch_archs=())
    assert gpu.rung(facts) is step
    assert step.plan


def test_every_card_of_24_gb_stands_on_the_24_gb_rung() -> None:
    steps = {
        gpu.rung(replace(HEALTHY, cards=(machine_card(c.name),), torch_archs=())) for c in CARDS if c.sold_gb == 24
    }
    assert steps == {Rung.CARD_24GB}


@pytest.mark.parametrize(
    ("facts", "dtype"),
    [(HEALTHY, "bf16"), (COLAB_T4, "fp16"), (NO_GPU, "fp32"), (replace(HEALTHY, torch_sees_cuda=False), "fp32")],
)
def test_training_type_goes_by_what_torch_can_use(facts: Facts, dtype: str) -> None:
    assert gpu.training_type(facts).dtype == dtype
    assert (gpu.rung(facts) is Rung.CPU) == (dtype == "fp32")


def test_a_card_that_torch_has_no_kernels_for_does_not_count() -> None:
    p100 = replace(HEALTHY, cards=(machine_card("p100-16gb"),))
    assert gpu.rung(p100) is Rung.CPU
    assert gpu.rung(replace(p100, torch_archs=CUDA_126_ARCHS)) is Rung.T4


@pytest.mark.parametrize("archs", [CUDA_126_ARCHS, CUDA_130_ARCHS[:-1], ("sm_80",), ("sm_86", "sm_90")])
@pytest.mark.parametrize(
    "capability", [(5, 0), (6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
)
def test_built_for_agrees_with_torch(capability: tuple[int, int], archs: tuple[str, ...]) -> None:
    compatible = getattr(torch.cuda, "_code_compatible_with_device", None)
    if compatible is None:
        pytest.skip("this torch has no such table")
    numbers = [int(arch.removeprefix("sm_")) for arch in archs]
    assert built_for(capability, archs) == any(compatible(10 * capability[0] + capability[1], n) for n in numbers)


def test_intermediate_code_serves_later_cards_and_suffixed_code_only_its_own() -> None:
    assert built_for((12, 0), ("sm_80", "compute_90"))
    assert not built_for((8, 0), ("compute_90",))
    assert built_for((9, 0), ("sm_90a",))
    assert not built_for((9, 1), ("sm_90a",))


def test_the_real_machine_says_what_torch_says() -> None:
    facts = inspect_machine()
    assert facts.torch_version == torch.__version__
    assert (".".join(map(str, facts.torch_cuda)) if facts.torch_cuda else None) == torch.version.cuda
    assert facts.torch_sees_cuda == torch.cuda.is_available()
    assert facts.host_memory_bytes > GIB
    assert findings(facts) or facts.cards


def test_without_a_driver_torch_is_not_imported() -> None:
    code = (
        "import sys, pynvml\n"
        "def fail(): raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)\n"
        "pynvml.nvmlInit = fail\n"
        "import platform; platform.system = lambda: 'Linux'\n"
        "from course_lib.gpu import inspect_machine\n"
        "print(inspect_machine().cards, 'torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "() False\n"
    )


@pytest.fixture
def driver_with_a_t4(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver of CUDA 12.2 that reports one T4, as nvidia-ml-py would tell."""
    answers: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": object(),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=15360 * MIB, used=450 * MIB),
        "nvmlDeviceGetCudaComputeCapability": (7, 5),
        "nvmlDeviceGetName": "Tesla T4",
        "nvmlSystemGetDriverVersion": "535.104.05",
        "nvmlSystemGetCudaDriverVersion": 12020,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)


@pytest.mark.usefixtures("driver_with_a_t4")
def test_a_cpu_build_beside_a_card_is_recognised_through_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_torch_build", lambda: {"__version__": "2.13.0+cpu", "cuda": None})
    facts = inspect_machine()
    assert facts.cards == (MachineCard(0, "Tesla T4", 15360 * MIB, (7, 5), 450 * MIB),)
    assert (facts.driver_version, facts.driver_cuda) == ("535.104.05", (12, 2))
    assert kinds(facts)[:1] == ["cpu-only-torch"]


@pytest.mark.usefixtures("driver_with_a_t4")
def test_where_torch_sees_the_card_its_totals_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="Tesla T4", major=7, minor=5, total_memory=15095 * MIB)
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "get_device_properties": properties,
        "device_memory_used": 3000 * MIB,
        "memory_reserved": 2000 * MIB,
        "get_arch_list": ["sm_75", "sm_80"],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(gpu, "_torch_build", lambda: {"__version__": "2.11.0+cu128", "cuda": "12.8"})
    facts = inspect_machine()
    assert facts.card == MachineCard(0, "Tesla T4", 15095 * MIB, (7, 5), 1000 * MIB)
    assert kinds(facts) == ["pre-ampere"] + ["spills-to-host"] * (facts.wsl or facts.system == "Windows")


def test_device_memory_counts_the_whole_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10 * GIB, 24 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 11 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 13 * GIB)
    assert device_memory("cuda:0") == DeviceMemory(11 * GIB, 13 * GIB, 14 * GIB, 24 * GIB)
    with pytest.raises(CourseError, match="expected a CUDA device"):
        device_memory("cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
def test_device_memory_on_a_real_card() -> None:
    before = device_memory("cuda")
    block = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    after = device_memory("cuda")
    assert after.allocated_bytes - before.allocated_bytes == block.nbytes
    assert after.allocated_bytes <= after.reserved_bytes <= after.device_used_bytes <= after.total_bytes


def run(monkeypatch: pytest.MonkeyPatch, facts: Facts, *flags: str) -> int:
    monkeypatch.setattr(command, "inspect_machine", lambda: facts)
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return command.run(parser.parse_args(["gpu", *flags]))


@pytest.mark.parametrize("facts", [HEALTHY, COLAB_T4, NO_GPU], ids=["healthy", "t4", "no gpu"])
def test_the_command_shows_the_machine(
    facts: Facts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, facts) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"train in {gpu.training_type(facts).dtype}" in shown
    assert gpu.rung(facts).plan in shown
    for finding in findings(facts):
        assert finding.what in shown
        assert finding.cure in shown


def test_the_command_answers_programs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, COLAB_T4, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["rung"] == "t4"
    assert answer["training_type"]["dtype"] == "fp16"
    assert answer["cards"][0]["capability"] == "7.5"
    assert answer["cards"][0]["total_bytes"] == find_card("t4").usable_bytes
    assert [finding["kind"] for finding in answer["findings"]] == ["pre-ampere"]
    assert all(finding["cure"] for finding in answer["findings"])


def test_the_list_has_every_card(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, NO_GPU, "--list") == 0
    shown = capsys.readouterr().out
    assert all(card.name in shown and f"{card.usable_bytes / GIB:.2f}" in shown for card in CARDS)
    assert run(monkeypatch, NO_GPU, "--list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["usable_bytes"], row["source"]) for row in listed] == [
        (card.name, card.usable_bytes, card.source) for card in CARDS
    ]
