"""A small model on which ``checkpoint_blocks`` is tried, and what it shows there.

Everything is observed from outside: losses, gradients, how often each block runs, how much memory is alive when the
forward pass ends. So any way of writing the function is judged alike.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from course_lib.exercises import checkpointing_mistakes as names
from course_lib.exercises.judge import Facts, Near, Raised, observe, one_thread
from course_lib.i18n import N_
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.probe import probe

EVERY = (1, 2, 3, 9)  #: segment lengths that are tried: some leave a remainder, one exceeds the model


class Bed:
    """Makes the same model again and again, and looks at what becomes of it.

    Args:
        seed: of weights and batch, and of the model's size.
        model: takes a ``GPTConfig``.
    """

    def __init__(self, seed: int = 0, model: type[nn.Module] = GPT, dropout: float = 0.0) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.blocks = 5 + 2 * int(torch.randint(2, (), generator=draw))
        width = 16 + 16 * int(torch.randint(2, (), generator=draw))
        self.seed, self.model = seed, model
        self.config = GPTConfig(
            vocab=16, layers=self.blocks, width=width, heads=2, block_size=16, dropout=dropout, tied_head=False
        )
        tokens = torch.randint(16, (2, 17), generator=draw)
        self.batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()  # [B, T] each
        self.boundary_bytes = 2 * 16 * width * 4
        self.key = (seed, model)

    def __str__(self) -> str:
        return f"{self.blocks} blocks of width {self.config.width}, dropout {self.config.dropout:g}"

    def fresh(self, dropout: float | None = None, blocks: int | None = None) -> nn.Module:
        """The model, with the same weights each time."""
        torch.manual_seed(self.seed)
        chosen = replace(
            self.config,
            dropout=self.config.dropout if dropout is None else dropout,
            layers=self.blocks if blocks is None else blocks,
        )
        return self.model(chosen)

    # --- what is right ------------------------------------------------------------------------------------------------

    def right(self) -> Facts:
        """What the facts of a right answer are."""
        twice, once = [2] * self.blocks, [1] * self.blocks
        return {
            names.RETURNS: N_("the model itself"),
            names.LOSS: N_("equal"),
            names.GRADIENTS: "equal",
            names.RUNS: twice,
            **{names.kept(every): Near(math.ceil(self.blocks / every), names.ROOM) for every in EVERY},
            **{names.loss_of(every): "equal" for every in EVERY[1:]},
            names.refused(0): Raised("ValueError"),
            names.refused(-1): Raised("ValueError"),
            names.DROPOUT: "equal",
            names.FROZEN: "equal",
            names.RUNS_EVAL: once,
            names.RUNS_AGAIN: twice,
            names.RUNS_LATER: twice,
            names.EVAL_LOSS: "equal",
            names.KEYS: N_("unchanged"),
        }

    # --- what came ----------------------------------------------------------------------------------------------------

    def look(self, checkpoint_blocks: Callable[..., Any]) -> Facts:
        """The same facts of a student's function; several test cells ask for them, once is enough."""
        known = _looked.setdefault(checkpoint_blocks, {})
        if self.key not in known:
            known[self.key] = self._look(checkpoint_blocks)
        return known[self.key]

    def _look(self, checkpoint_blocks: Callable[..., Any]) -> Facts:
        facts: Facts = {}
        facts[names.RETURNS] = observe(self._returns, checkpoint_blocks)
        facts[names.LOSS] = observe(self._loss, checkpoint_blocks, 1)
        facts[names.GRADIENTS] = observe(self._gradients, checkpoint_blocks)
        facts[names.RUNS] = observe(self._runs, checkpoint_blocks, "train")
        for every in EVERY:
            facts[names.kept(every)] = observe(self._kept, checkpoint_blocks, every)
        for every in EVERY[1:]:
            facts[names.loss_of(every)] = observe(self._loss, checkpoint_blocks, every)
        for every in (0, -1):
            answer = observe(checkpoint_blocks, self.fresh(), every)
            facts[names.refused(every)] = answer if isinstance(answer, Raised) else N_("an answer")
        facts[names.DROPOUT] = observe(self._gradients, checkpoint_blocks, dropout=0.25)
        facts[names.FROZEN] = observe(self._gradients, checkpoint_blocks, frozen=True)
        facts[names.RUNS_EVAL] = observe(self._runs, checkpoint_blocks, "eval")
        facts[names.RUNS_AGAIN] = observe(self._runs, checkpoint_blocks, "eval", "train")
        facts[names.RUNS_LATER] = observe(self._runs, checkpoint_blocks, "train", wrapped_in="eval")
        facts[names.EVAL_LOSS] = observe(self._loss, checkpoint_blocks, 1, training=False)
        facts[names.KEYS] = observe(self._keys, checkpoint_blocks)
        return facts

    def _returns(self, checkpoint_blocks: Callable[..., Any]) -> str:
        model = self.fresh()
        returned = checkpoint_blocks(model)
        return "the model itself" if returned is model else "None" if returned is None else N_("another object")

    def _loss(self, checkpoint_blocks: Callable[..., Any], every: int, training: bool = True) -> str:
        plain = _step(self.fresh().train(training), self.batch, backward=False)
        model = _applied(checkpoint_blocks, self.fresh(), every).train(training)
        return "equal" if torch.equal(_step(model, self.batch, backward=False), plain) else N_("different")

    def _gradients(self, checkpoint_blocks: Callable[..., Any], dropout: float = 0.0, frozen: bool = False) -> str:
        plain, model = self.fresh(dropout), self.fresh(dropout)
        for each in (plain, model):
            if frozen:
                for name, parameter in each.named_parameters():
                    parameter.requires_grad_(not name.startswith(("embedding", "positions")))
        model = _applied(checkpoint_blocks, model, 1)
        for each in (plain, model):
            _step(each, self.batch)
        pairs = [
            (one.grad, other.grad)
            for one, other in zip(plain.parameters(), model.parameters(), strict=True)
            if one.grad is not None
        ]
        if any(came is None for _, came in pairs):
            return N_("some are None")
        return "equal" if all(torch.equal(right, came) for right, came in pairs if came is not None) else "different"

    def _runs(self, checkpoint_blocks: Callable[..., Any], *modes: str, wrapped_in: str = "train") -> list[int]:
        """How often each block ran in a step, forward and backward, in the last of ``modes``."""
        model = self.fresh().train(wrapped_in == "train")
        runs = [0] * self.blocks
        for index, block in enumerate(model.blocks):  # type: ignore[arg-type]

            def count(*_: Any, index: int = index) -> None:
                runs[index] += 1

            next(block.children()).register_forward_hook(count)
        model = _applied(checkpoint_blocks, model, 1)
        for mode in modes:
            runs[:] = [0] * self.blocks
            _step(model.train(mode == "train"), self.batch)
        return runs

    def _kept(self, checkpoint_blocks: Callable[..., Any], every: int) -> float:
        """What the blocks keep at the end of the forward pass, in boundaries ``[B, T, H]``."""
        return self._boundaries(_applied(checkpoint_blocks, self.fresh(), every))

    def _boundaries(self, model: nn.Module) -> float:
        return round((alive_after_forward(model, self.batch) - self._outside) / self.boundary_bytes, 3)

    def _keys(self, checkpoint_blocks: Callable[..., Any]) -> str:
        plain, model = self.fresh(), _applied(checkpoint_blocks, self.fresh(), 1)
        return "unchanged" if list(plain.state_dict()) == list(model.state_dict()) else N_("renamed")

    @cached_property
    def _outside(self) -> int:
        return alive_after_forward(self.fresh(blocks=0), self.batch)

    @cached_property
    def plain_block(self) -> float:
        """What a block keeps without checkpointing, in boundaries."""
        return self._boundaries(self.fresh()) / self.blocks


_looked: "WeakKeyDictionary[Callable[..., Any], dict[Any, Facts]]" = WeakKeyDictionary()


def _applied(checkpoint_blocks: Callable[..., Any], model: nn.Module, every: int) -> nn.Module:
    returned = checkpoint_blocks(model, every)
    return returned if isinstance(returned, nn.Module) else model


def _step(model: nn.Module, batch: tuple[Tensor, Tensor], backward: bool = True) -> Tensor:
    torch.manual_seed(1)  # of the dropout
    loss = next_token_loss(model(batch[0]), batch[1])
    if backward:
        loss.backward()
    return loss.detach()


@one_thread()
def alive_after_forward(model: nn.Module, batch: tuple[Tensor, Tensor]) -> int:
    """Bytes alive when the forward pass has ended, weights aside."""
    with probe(model) as measured:
        loss = next_token_loss(model(batch[0]), batch[1])
    weights, *rest = measured.trace.live[-1]
    del loss
    return sum(rest)


class Compared(NamedTuple):
    """A step with and without checkpointing, counted."""

    figures: dict[str, float]
    plain: "Step"
    checkpointed: "Step"


@dataclass(frozen=True, eq=False)
class Step:
    saved_bytes: int  #: for the backward pass, parameters aside, each storage once
    saved_with_weights: int
    saved_each_time: int  #: a storage as often as it was saved
    forward_flops: int
    flops: int
    model: nn.Module
    batch: tuple[Tensor, Tensor]

    @cached_property
    def peak_bytes(self) -> int:
        """Of the step after it, which finds gradients there; few ask."""
        with one_thread(), probe(self.model) as measured:
            _step(self.model, self.batch)
        return measured.trace.peak_bytes


@one_thread()
def compared(checkpoint_blocks: Callable[..., Any], bed: Bed, every: int) -> Compared:
    """What ``compare`` has to find for this ``checkpoint_blocks``."""
    plain = _counted(bed.fresh(), bed.batch)
    checkpointed = _counted(_applied(checkpoint_blocks, bed.fresh(), every), bed.batch)
    figures = {
        "activation_saving": 1 - checkpointed.saved_bytes / plain.saved_bytes,
        "extra_flops": checkpointed.flops / plain.flops - 1,
    }
    return Compared(figures, plain, checkpointed)


def _counted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Step:
    parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    saved: list[tuple[int, int]] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved.append((storage._cdata, storage.nbytes()))
        return tensor

    torch.manual_seed(1)
    with FlopCounterMode(display=False) as counter:
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = next_token_loss(model(batch[0]), batch[1])
        forward_flops = counter.get_total_flops()
        loss.backward()
    activations = [(key, size) for key, size in saved if key not in parameters]
    return Step(
        sum(dict(activations).values()),
        sum(dict(saved).values()),
        sum(size for _, size in activations),
        forward_flops,
        counter.get_total_flops(),
        model,
        batch,
    )
