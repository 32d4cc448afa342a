"""One training step of a small model, measured right, or in the ways in which people measure it wrong.

The tests of exercise 1 compare a student's figures with the right reading, and, when they differ, with
the wrong ones.
"""

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course_lib.accounts import Moment
from course_lib.dryrun.grow import at_depth
from course_lib.exercises.judge import one_thread
from course_lib.exercises.pretend_card import pretend_card
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.probe import as_on_a_card, probe
from course_lib.trace import Trace

Batch = tuple[Tensor, Tensor]
RECIPES = ("fp32", "amp-bf16", "bf16")
AMP_OVER_BF16 = "amp-bf16-over-bf16"  #: the model cast, and autocast around it: in no exercise, but in answers


class Size(NamedTuple):
    """A model and a batch."""

    name: str
    config: GPTConfig
    batch: int
    length: int
    model: type[nn.Module] = GPT  #: takes a ``GPTConfig``

    def make_model(self, device: str) -> nn.Module:
        """Fresh, in fp32; on the pretend card it is made of meta tensors, and moving it would untie its head."""
        with torch.device("meta" if device == "cuda" else device):
            return self.model(self.config)

    def make_batch(self, device: str) -> Batch:
        """Tokens and targets, int64 ``[B, T]`` each."""
        tokens = torch.randint(self.config.vocab, (self.batch, self.length + 1)).to(device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def with_layers(self, layers: int) -> "Size":
        return self._replace(config=replace(self.config, layers=layers))

    @property
    def parameters(self) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in self.model(self.config).parameters())

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.config.layers} layers of width {self.config.width}, batch {self.batch}×{self.length}"
        )


def wide_and_long(seed: int = 0, model: type[nn.Module] = GPT) -> tuple[Size, Size]:
    """A wide model on few tokens, whose peak falls in the optimizer's step, and a narrow one on many tokens, whose
    peak falls in the backward pass. No single reading of the wrong moment is right for both."""
    draw = torch.Generator().manual_seed(seed)

    def one_of(*values: int) -> int:
        return values[int(torch.randint(len(values), (), generator=draw))]

    wide = GPTConfig(vocab=8, layers=1, width=one_of(64, 80, 96), heads=4, block_size=16)
    long = GPTConfig(vocab=8, layers=one_of(1, 2), width=one_of(32, 40), heads=2, block_size=64)
    return Size("wide", wide, 1, one_of(6, 8, 10), model), Size("long", long, one_of(4, 6), 64, model)


class Reading(NamedTuple):
    """How a step is measured; as it stands, right."""

    warm_up: bool = True  #: a step before, which makes the optimizer's state
    parts: tuple[str, ...] = ("forward", "backward", "step")  #: of the measured step
    drop_gradients: bool = True  #: those of the step before
    implementation: str = "foreach"
    optimizer: str = "AdamW"
    logits_held: bool = False  #: by a name, while the backward pass runs


def trace_of(size: Size, recipe: str, device: str, reading: Reading = Reading()) -> Trace:  # noqa: B008
    """The measured step's trace; one that ends before ``zero_grad``."""
    if device != "meta":
        return _measured(size, recipe, device, reading)
    # Equal blocks: what a deep model does is seen in two shallow ones.
    return at_depth(lambda layers: _measured(size.with_layers(layers), recipe, device, reading), size.config.layers)


@cache
@one_thread()
def _measured(size: Size, recipe: str, device: str, reading: Reading) -> Trace:
    model = size.make_model(device)
    if recipe in ("bf16", AMP_OVER_BF16):
        model.bfloat16()
    batch = size.make_batch(device)
    optimizer = make_optimizer(model, reading)
    if reading.warm_up:
        with as_on_a_card(batch[0].device):
            _run(model, optimizer, batch, recipe, ("forward", "backward", "step"), reading.logits_held)
    if reading.drop_gradients:
        optimizer.zero_grad()
    with probe(model, optimizer) as measured:
        _run(model, optimizer, batch, recipe, reading.parts, reading.logits_held)
    return measured.trace


def peak_of(size: Size, recipe: str, device: str, reading: Reading = Reading()) -> int:  # noqa: B008
    """The peak in bytes."""
    return trace_of(size, recipe, device, reading).peak_bytes


def left_after(size: Size, recipe: str, device: str) -> int:
    """What is alive when the step has ended, gradients included."""
    return sum(trace_of(size, recipe, device).end_of(Moment.OPTIMIZER_STEP).values())


def gradient_bytes(size: Size, recipe: str) -> int:
    return size.parameters * (2 if recipe == "bf16" else 4)


@cache
def on_pretend_card(size: Size, recipe: str) -> tuple[int, int]:
    """Peak of a step by the pretend card's counters, and what it still holds after the step, gradients included."""
    with pretend_card():
        model, batch = size.make_model("cuda"), size.make_batch("cuda")
        optimizer = make_optimizer(model, Reading())
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            optimizer.zero_grad()
            _run(model, optimizer, batch, recipe, ("forward", "backward", "step"))
        return torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()


def make_optimizer(model: nn.Module, reading: Reading) -> Any:
    if reading.optimizer == "SGD":
        return torch.optim.SGD(model.parameters(), lr=1e-3)
    flags: dict[str, Any] = {"foreach": reading.implementation == "foreach", "fused": reading.implementation == "fused"}
    return torch.optim.AdamW(model.parameters(), lr=1e-3, **flags)


def _run(
    model: nn.Module, optimizer: Any, batch: Batch, recipe: str, parts: tuple[str, ...], logits_held: bool = False
) -> None:
    tokens, targets = batch
    where = "cpu" if tokens.device.type == "cpu" else "cuda"
    with torch.autocast(where, dtype=torch.bfloat16, enabled=recipe in ("amp-bf16", AMP_OVER_BF16)):
        logits = model(tokens)
        loss = next_token_loss(logits, targets)
    if not logits_held:
        del logits
    if "backward" in parts:
        loss.backward()
    del loss
    if "step" in parts:
        optimizer.step()
