"""A case of the clinic: a symptom, the loop that has it, the same loop mended, and the sign by which it is known."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from course_lib.cards import Capability
from course_lib.clinic.examine import examine
from course_lib.clinic.reading import Reading
from course_lib.i18n import N_

Loop = Callable[[], object]
Sure = Literal["certain", "likely"]

#: What one sees first, and next: the two questions of the decision tree, with their answers in order.
BRANCHES: dict[str, tuple[str, ...]] = {
    N_("out of memory"): (
        N_("in a training step"), N_("although checkpointing is on"), N_("in evaluation"),
        N_("at load, resume or save"), N_("the message's figures"), N_("not the card's"),
    ),
    N_("an error"): (N_("from a GradScaler"), N_("in the forward pass"), N_("in the backward pass")),
    N_("wrong numbers"): (
        N_("loss is NaN"), N_("loss is too large"), N_("loss does not fall"), N_("updates are missing"),
    ),
    N_("too slow"): (N_("since 16 bit"), N_("since memory is full")),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One symptom. Texts are marked with ``N_``; a reader hears them in their language."""

    name: str
    branch: tuple[str, str]  #: in :data:`BRANCHES`
    symptom: str  #: as somebody would say it
    words: str  #: what else people type, phrases set apart by semicolons
    cause: str
    change: str  #: the next change to make
    surer: str  #: what to look at to be surer
    unit: str  #: where the course explains it
    sign: Callable[[Reading], str | None]  #: what gives it away, in words and figures; None: it is not this
    broken: Loop | None = None
    mended: Loop | None = None
    recorded: Reading | None = None  #: in place of the loop, where a processor cannot have the symptom
    healed: Reading | None = None  #: recorded, too: what it looks like without the symptom
    sure: Sure = "likely"
    messages: tuple[str, ...] = ()  #: of the errors that it ends with, as PyTorch and others write them
    card_bytes: int | None = None  #: memory of the pretended card
    capability: Capability | None = None
    device: str = "cpu"

    def read(self, mended: bool = False) -> Reading:
        """Run the loop under the probe; a recorded case hands out what was recorded."""
        if self.recorded is not None and self.healed is not None:
            return self.healed if mended else self.recorded
        loop = self.mended if mended else self.broken
        assert loop is not None, self.name
        return examine(loop, device=self.device, card_bytes=self.card_bytes, capability=self.capability)
