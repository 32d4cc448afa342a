"""What a probe takes down of a training loop: the evidence from which :mod:`course_lib.clinic.diagnosis` judges.

Operators are numbered from 0 in the order in which they ran. Everything else points into that row: a piece of memory
is born at one operator and dies after another, a pass, a backward pass and an update begin before one.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from course_lib.accounts import Account, Moment
from course_lib.cards import Capability
from course_lib.oom import OomMessage
from course_lib.trace import Trace


class Piece(NamedTuple):
    """One storage."""

    size_bytes: int
    born: int  #: operator that made it; -1: there before the first
    died: int  #: last operator that ran while it was alive
    account: Account
    moment: Moment  #: of its birth
    shape: tuple[int, ...]  #: as it was first seen
    dtype: torch.dtype
    trained: bool = False  #: a parameter, and it wants a gradient


class Pass(NamedTuple):
    """One call of a model."""

    at: int  #: the first operator that runs in it
    update: int  #: updates before it
    training: bool  #: ``model.training``
    grad: bool  #: whether autograd took notes
    autocast: torch.dtype | None
    rows: int  #: B of the first input
    length: int  #: T of it; 1 where it has one dimension
    outputs: int  #: last dimension of what came out: V of logits; 0 when nothing came
    handling: str  #: name of the exception that was being handled when it began, or nothing
    model: int  #: which model, numbered as they turned up
    dead_switch: bool  #: some layer has ``gradient_checkpointing`` on, and is not in training mode

    @property
    def tokens(self) -> int:
        return self.rows * self.length


class Mean(NamedTuple):
    """A cross-entropy: its mean over the targets that count, in nats."""

    value: float
    targets: int
    at: int


class Backward(NamedTuple):
    """One ``loss.backward()``."""

    at: int
    end: int
    update: int
    value: float  #: of the tensor on which it was called, divided by a scaler's scale
    found: tuple[float, ...]  #: by optimizer, the largest absolute gradient that was there before; nan: there was none


class Update(NamedTuple):
    """One ``optimizer.step()``; numbers are nan where tensors have none (meta)."""

    at: int
    end: int
    optimizer: int  #: which, numbered as they turned up
    parameters: int  #: in its groups
    with_gradient: int
    gradient_dtypes: frozenset[torch.dtype]
    weight_dtypes: frozenset[torch.dtype]
    norm: float  #: of all gradients together
    zeros: float  #: share of gradient elements that are exactly 0
    moved: float  #: share of the weights with a gradient other than 0 that came out changed
    finite: bool  #: gradients before it
    finite_after: bool  #: weights after it
    scale: float  #: a scaler's, 1 without one


class Nonfinite(NamedTuple):
    """The first operator of a moment that made inf or nan of finite numbers."""

    at: int
    update: int
    moment: Moment
    operator: str
    dtype: torch.dtype
    largest: float  #: absolute value among its inputs


class Death(NamedTuple):
    """Memory ran out, whether or not anybody caught it."""

    at: int
    update: int
    moment: Moment
    tried_bytes: int  #: what was refused; 0 where a real card refused it
    live_bytes: int


class Recomputed(NamedTuple):
    """Layers with parameters that ran again within the backward pass, before anything went back through them."""

    at: int
    layers: int
    of: int  #: layers with parameters in the model


@dataclass
class Reading:
    """Everything that was seen of one run."""

    pieces: tuple[Piece, ...] = ()
    passes: tuple[Pass, ...] = ()
    means: tuple[Mean, ...] = ()
    backwards: tuple[Backward, ...] = ()
    updates: tuple[Update, ...] = ()
    nonfinite: tuple[Nonfinite, ...] = ()
    recomputed: tuple[Recomputed, ...] = ()
    deaths: tuple[Death, ...] = ()
    operators: tuple[tuple[Moment, str], ...] = ()
    scaler_calls: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str = ""  #: of what the loop ended with: its class
    message: str = ""  #: and its first line
    capability: Capability | None = None  #: of the card, where one is named
    counters: OomMessage | None = None  #: a card's own figures
    trace: Trace = Trace(())

    @property
    def death(self) -> Death | None:
        """What ended the run, if memory did."""
        return self.deaths[-1] if self.deaths and "OutOfMemory" in self.error else None

    @property
    def last_pass(self) -> Pass | None:
        """The pass in which, or after which, the run ended."""
        return self.passes[-1] if self.passes else None

    def before(self, at: int) -> list[Piece]:
        """What is alive when operator ``at`` begins."""
        return [each for each in self.pieces if each.born < at <= each.died]

    @cached_property
    def at_death(self) -> list[Piece]:
        """What is alive when the run dies of memory, the piece that was refused included."""
        if self.death is None:
            return []
        return [each for each in self.pieces if each.born <= self.death.at <= each.died]

    def share(self, pieces: list[Piece]) -> float:
        """Of what is alive at the death, by bytes; 0 where nobody died."""
        return total(pieces) / max(1, total(self.at_death))

    def took(self, account: Account) -> int:
        """Bytes of an account at the death."""
        return total([each for each in self.at_death if each.account is account])

    @cached_property
    def windows(self) -> list[list[Backward]]:
        """The backward passes that went into each update, and after the last one."""
        return [
            [each for each in self.backwards if each.update == number] for number in range(len(self.updates) + 1)
        ]

    @cached_property
    def ratio(self) -> list[float]:
        """For each window: what its backward passes were called on, together, by the mean of their cross-entropies.

        1 is right; N where each of N micro-batches went in undivided. Nothing where losses are not cross-entropies.
        """
        found = []
        for window in self.windows[:-1]:
            means = [self._mean_of(each) for each in window]
            if window and all(mean is not None for mean in means):
                average = sum(mean.value for mean in means if mean) / len(means)
                found.append(sum(each.value for each in window) / average if average else float("nan"))
        return found

    def _mean_of(self, backward: Backward) -> Mean | None:
        earlier = max((each.end for each in self.backwards if each.end < backward.at), default=-1)
        fitting = [each for each in self.means if earlier < each.at <= backward.at]
        return fitting[-1] if fitting else None

    def grown(self, passes: list[Pass]) -> list[int]:
        """Bytes by which more is alive from the beginning of each pass to that of the next."""
        live = [total(self.before(each.at)) for each in passes]
        return [later - earlier for earlier, later in zip(live, live[1:], strict=False)]


def total(pieces: list[Piece]) -> int:
    return sum(each.size_bytes for each in pieces)
