"""Inside a bare room: a student's functions are called on what the referee asks, and what they do is sent back.

The referee (:mod:`course_lib.grading.referee`) holds the tests and knows what is right; here are only the instruments
that watch a function: they hand it models, batches and optimizers and note what happens.
"""

import gc
from contextlib import nullcontext
from typing import Any

import torch

from course_lib.exercises import bench, judge, segments, variants, watched_training, witness
from course_lib.exercises.pretend_card import pretend_card
from course_lib.grading.wire import may_travel, pack, unpack
from course_lib.models import GPT, GPTConfig

may_travel(GPT, variants.MixGPT, GPTConfig, bench.Size, judge.Raised, witness.Seen, watched_training.Seen,
           watched_training.Piece, watched_training.Bench)  # fmt: skip

#: What knows the right values; gone before a student's code is read.
_RIGHT = (
    (bench, ("peak_of", "trace_of", "left_after", "on_pretend_card", "gradient_bytes")),
    (segments, ("compared", "_counted", "Compared", "Step")),
    (watched_training.Bench, ("sums", "gradients", "loss", "gradient")),
)
OPTIMIZERS = {"SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW}


def forget_what_is_right() -> None:
    """Take out of the instruments' modules what computes the right values."""
    for holder, names in _RIGHT:
        for name in names:
            delattr(holder, name)


class Scaler(torch.amp.GradScaler):
    """PyTorch's own on the CPU, which counts how often it was asked to scale."""

    def __init__(self, scale: float) -> None:
        super().__init__("cpu", init_scale=scale)
        self.scaled = 0

    def scale(self, outputs: Any) -> Any:
        self.scaled += 1
        return super().scale(outputs)


class Answering:
    """Answers messages about the names of one notebook."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.witnesses: dict[int, witness.Witness] = {}

    def __call__(self, message: dict[str, Any]) -> dict[str, Any]:
        asked = {key: unpack(value) for key, value in message.items()}
        reply = getattr(self, f"_{asked.pop('op')}")(**asked)
        return {key: pack(value) for key, value in reply.items()}

    def _look(self, names: list[str]) -> dict[str, Any]:
        """What each name is: a function (to be called from afar), a value, or nothing."""
        found = {}
        for name in names:
            if name in self.names:
                value = self.names[name]
                found[name] = ("function",) if callable(value) else ("value", value)
        return {"found": found}

    def _observe(self, name: str, arguments: tuple, settings: dict[str, Any]) -> dict[str, Any]:
        return {"value": judge.observe(self.names[name], *arguments, **settings)}

    def _call(self, name: str, arguments: tuple, settings: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"value": self.names[name](*arguments, **settings)}
        except Exception as error:
            return {"raised": type(error).__name__, "text": str(error)[:1000]}

    def _ask(self, name: str, number: int, size: bench.Size, device: str, recipe: str) -> dict[str, Any]:
        """``measure_peak`` before a witness that remembers the models it made."""
        present = self.witnesses.setdefault(number, witness.Witness(size, device))
        gc.collect()
        with pretend_card() if device == "cuda" else nullcontext():
            peak = present.ask(self.names[name], recipe)
        return {"peak": peak, "seen": present.seen, "optimizer": str(present.optimizer)}

    def _watch(
        self, name: str, bench: watched_training.Bench, optimizer: tuple[str, dict[str, Any]], scale: float | None,
        settings: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """``train`` with a model and an optimizer that report."""
        kind, more = optimizer
        scaler = Scaler(scale) if scale is not None else None
        if scaler:
            settings = {**settings, "scaler": scaler}
        seen = watched_training.watch(
            self.names[name], bench, lambda parameters, lr: OPTIMIZERS[kind](parameters, lr=lr, **more), **settings
        )
        return {"seen": seen, "scaled": scaler and scaler.scaled, "scale": scaler and scaler.get_scale()}

    def _step(
        self, name: str, bed: tuple[int, type, float], every: int | None, dropout: float | None, frozen: bool,
        modes: list[str], wrapped_in: str, backward: bool,
    ) -> dict[str, Any]:  # fmt: skip
        """A training step of a model that ``checkpoint_blocks`` changed: loss, gradients, runs of each block, names."""
        with judge.quiet(), judge.one_thread():
            try:
                return self._stepped(self.names[name], segments.Bed(*bed), every, dropout, frozen, modes, wrapped_in,
                                     backward)  # fmt: skip
            except Exception as error:
                return {"raised": judge.Raised(type(error).__name__, judge._told(error))}

    def _stepped(
        self, function: Any, bed: segments.Bed, every: int | None, dropout: float | None, frozen: bool,
        modes: list[str], wrapped_in: str, backward: bool,
    ) -> dict[str, Any]:  # fmt: skip
        model = bed.fresh(dropout).train(wrapped_in == "train")
        if frozen:
            for each, parameter in model.named_parameters():
                parameter.requires_grad_(not each.startswith(("embedding", "positions")))
        runs = [0] * bed.blocks
        for index, block in enumerate(model.blocks):  # type: ignore[arg-type]

            def count(*_: Any, index: int = index) -> None:
                runs[index] += 1

            next(block.children()).register_forward_hook(count)
        returned = function(model) if every is None else function(model, every)
        kind = "the model itself" if returned is model else "None" if returned is None else "another object"
        model = returned if isinstance(returned, torch.nn.Module) else model
        loss = torch.zeros(())
        for mode in modes:
            runs[:] = [0] * bed.blocks
            loss = segments._step(model.train(mode == "train"), bed.batch, backward)
        gradients = [each.grad for each in model.parameters()]
        return {"returned": kind, "loss": loss, "gradients": gradients, "runs": runs,
                "keys": list(model.state_dict())}  # fmt: skip

    def _kept(self, name: str, bed: tuple[int, type, float], every: int) -> dict[str, Any]:
        """Bytes alive when the forward pass has ended."""
        the_bed = segments.Bed(*bed)

        def look() -> int:
            return segments.alive_after_forward(
                segments._applied(self.names[name], the_bed.fresh(), every), the_bed.batch
            )

        return {"value": judge.observe(look)}

    def _said(self, name: str, bed: tuple[int, type, float], every: int) -> dict[str, Any]:
        """What ``compare`` returns or raises."""
        the_bed = segments.Bed(*bed)
        return {"value": judge.observe(self.names[name], the_bed.fresh, the_bed.batch, every)}
