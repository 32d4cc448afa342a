"""What an exercise measures on a real card, kept in the notebook with all that is needed to judge it later."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import torch

from course_lib.cards import dotted
from course_lib.gpu import Facts, inspect_machine
from course_lib.i18n import _
from course_lib.units import format_bytes


def record(measure: Callable[[str], Mapping[str, int]]) -> None:
    """Print predicted and measured bytes as a table with card, versions and day; without a card, say so.

    Args:
        measure: takes a device and returns bytes by name; called with ``meta`` (predicted), then with ``cuda``.
    """
    facts = inspect_machine()
    if facts.card is None:
        print(_("No card that torch can use here: none recorded yet. The exercise is complete without it."))
        return
    predicted, measured = measure("meta"), measure("cuda")
    print(circumstances(facts))
    print(f"{'':24}{_('predicted'):>14}{_('measured'):>14}")
    for name, size_bytes in measured.items():
        off = size_bytes / predicted[name] - 1
        print(f"{name:24}{format_bytes(predicted[name]):>14}{format_bytes(size_bytes):>14}{off:>+9.1%}")


def circumstances(facts: Facts) -> str:
    """One line: card, its memory and capability, versions, the day."""
    card = facts.card
    assert card is not None
    return (
        f"{card.name}, {format_bytes(card.total_bytes)}, capability {dotted(card.capability)} · torch "
        "{torch.__version__}, "
        f"CUDA {torch.version.cuda}, driver {facts.driver_version} · {datetime.now(UTC):%Y-%m-%d}"
    )
