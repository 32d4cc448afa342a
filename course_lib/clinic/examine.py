"""Run a loop under the probe, to its end or its death."""

from collections.abc import Callable
from typing import Any

import torch

from course_lib.cards import Capability
from course_lib.clinic.reading import Reading
from course_lib.clinic.watch import Watch


def examine(
    loop: Callable[[], Any],
    *,
    device: str = "cpu",
    card_bytes: int | None = None,
    capability: Capability | None = None,
) -> Reading:
    """Run a training loop under the probe, to its end or its death; arguments as in :class:`Watch`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small: threads would wait for each other longer than they work
    watch = Watch(device, card_bytes, capability)
    try:
        with watch:
            loop()
    except Exception:  # whatever a sick loop dies of is what we want to know; it is in the reading
        pass
    finally:
        torch.set_num_threads(threads)
    return watch.reading
