"""``course gpu``: what this machine can train on and what is wrong with it, or the table of cards."""

import argparse
from typing import Any

from course_lib.cards import CARDS, Card, dotted
from course_lib.gpu import Facts, inspect_machine, rung, training_type
from course_lib.gpu_findings import Finding, findings
from course_lib.units import format_bytes, in_unit


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "gpu",
        description="Show what this machine can train on and what to mend, or the cards that --gpu knows by name.",
        epilog="example: course gpu --list",
    )
    parser.add_argument(
        "--list", action="store_true", help="list cards and their usable memory instead of this machine"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON, sizes in bytes")


def run(args: argparse.Namespace) -> int:
    if args.list:
        _print_json([_card_to_dict(card) for card in CARDS]) if args.json else _show_cards()
        return 0
    facts = inspect_machine()
    found = findings(facts)
    _print_json(_machine_to_dict(facts, found)) if args.json else _show_machine(facts, found)
    return 0


def _card_to_dict(card: Card) -> dict[str, Any]:
    return {
        "name": card.name,
        "sold_gb": card.sold_gb,
        "usable_bytes": card.usable_bytes,
        "capability": dotted(card.capability),
        "native_bf16": card.native_bf16,
        "training_type": card.training_type().dtype,
        "source": card.source,
    }


def _machine_to_dict(facts: Facts, found: list[Finding]) -> dict[str, Any]:
    step = rung(facts)
    cards = [
        {
            "index": card.index,
            "name": card.name,
            "total_bytes": card.total_bytes,
            "used_elsewhere_bytes": card.used_elsewhere_bytes,
            "capability": dotted(card.capability),
        }
        for card in facts.cards
    ]
    return {
        "rung": step.name.lower(),
        "plan": step.plan,
        "training_type": training_type(facts)._asdict(),
        "cards": cards,
        "findings": [finding._asdict() for finding in found],
        "system": "WSL" if facts.wsl else facts.system,
        "colab": facts.colab,
        "host_memory_bytes": facts.host_memory_bytes,
        "driver_version": facts.driver_version,
        "driver_cuda": dotted(facts.driver_cuda) if facts.driver_cuda else None,
        "torch_version": facts.torch_version,
        "torch_cuda": dotted(facts.torch_cuda) if facts.torch_cuda else None,
        "torch_sees_cuda": facts.torch_sees_cuda,
    }


def _print_json(result: Any) -> None:
    import json

    print(json.dumps(result, indent=2))


def _show_machine(facts: Facts, found: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    step, number_format = rung(facts), training_type(facts)
    lines = [("rung", f"{step}: {step.plan}"), ("train in", f"{number_format.dtype}: {number_format.reason}")]
    for card in facts.cards:
        size = format_bytes(card.total_bytes)
        lines.append((f"card {card.index}", f"{card.name}, {size}, compute capability {dotted(card.capability)}"))
    lines.append(("host", f"{'WSL' if facts.wsl else facts.system}, {format_bytes(facts.host_memory_bytes)}"))
    if facts.driver_cuda:
        lines.append(("driver", f"{facts.driver_version}, serves CUDA up to {dotted(facts.driver_cuda)}"))
    if facts.torch_version:
        built = f"CUDA {dotted(facts.torch_cuda)}" if facts.torch_cuda else "the CPU only"
        lines.append(("torch", f"{facts.torch_version}, built for {built}"))
    grid = Table.grid(padding=(0, 2))
    for name, text in lines:
        grid.add_row(Text(name, style="bold"), Text(text))
    for finding in found:
        grid.add_row()
        grid.add_row(Text("found", style="bold yellow"), Text(finding.what))
        grid.add_row(Text("cure", style="bold green"), Text(finding.cure))
    Console(highlight=False).print(grid)


def _show_cards() -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in ("card, memory as sold", "usable GiB", "capability", "train in"):
        table.add_column(header, justify="right" if header in ("usable GiB", "capability") else "left")
    for card in CARDS:
        name = card.name if card.name.endswith("GB") else f"{card.name}, {card.sold_gb} GB"
        usable_gib = f"{in_unit(card.usable_bytes):.2f}"
        table.add_row(name, usable_gib, dotted(card.capability), card.training_type().dtype)
    console = Console(highlight=False)
    console.print(table)
    console.print("usable: the total that CUDA reports; course gpu --list --json says where each was reported")
