"""The tasks of lesson 03_checkpointing: which peak moves, what segments keep, adapters that learn."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from course_lib import ledger
from course_lib.hf_config import read_model
from course_lib.i18n import N_, _
from course_lib.recipe import Recipe
from course_lib.tasks import expect, task

#: The runs of the first task, without checkpointing; each with the preset that it trains.
RUNS = {
    "A": ("llama-7b", Recipe(precision="amp-bf16", optimizer_impl="fused")),
    "B": ("llama-7b", Recipe(precision="bf16", batch=8)),
    "C": ("llama-7b", Recipe(precision="bf16", lora_rank=16, seq=128)),
    "D": ("llama-7b", Recipe(precision="bf16", lora_rank=16, quant="nf4")),
}


def peaks(run: str) -> tuple[int, int]:
    """Bytes at the peak without and with a checkpoint around each block, by the ledger."""
    name, recipe = RUNS[run]
    plain, checkpointed = (
        ledger.predict(read_model(name), replace(recipe, checkpoint=each)).peak_bytes for each in ("none", "block")
    )
    return plain, checkpointed


@task(
    N_("First ask where the peak is: in the optimizer step no activation is alive."),
    N_("Then ask what it is made of: with 128 tokens, what weighs more, 13 GB of weights or the activations?"),
    N_("ledger.predict(llama, recipe).peak_moment and .at_peak tell both, for each run."),
)
def peak_moves(answer: Any) -> str:
    """Which of the runs have a peak that falls by a tenth or more."""
    right = {run: peaks(run)[1] <= 0.9 * peaks(run)[0] for run in RUNS}
    causes = {
        "A": _("when the backward pass ends no activation is left, and 100 GiB of weights, "
               "gradients and Adam's state are"),
        "B": _("8 sequences rise far above the optimizer step; the peak falls until that step is the highest"),
        "C": _("128 tokens leave little behind; the frozen weights own this peak"),
        "D": _("in NF4 the weights have shrunk to a quarter, so activations own this peak"),
    }
    if not isinstance(answer, dict) or set(answer) != set(right):
        expect(answer, right, "falls", shown=_("a dict with the keys {keys}").format(keys=", ".join(right)))
    for run, falls in right.items():
        expect(answer[run], falls, run, cause=causes[run], shown=_("the other answer"))
    return _("Ask for the moment of the peak first, then for its largest account, and only then for a remedy.")


@task(
    N_("How many segments are there? The remainder is a segment, too."),
    N_("Each segment keeps its input. While one segment is recomputed, the insides of its blocks are alive at once."),
    N_("math.ceil(n / every) * boundary + min(every, n) * inside"),
)
def segments_bytes(answer: Any) -> str:
    """``segments_bytes(n, every, boundary, inside)``: what is alive when a whole segment has been recomputed."""
    for n, every, boundary, inside in ((32, 1, 64, 730), (32, 6, 64, 730), (16, 4, 100, 100), (10, 3, 7, 50)):
        right = math.ceil(n / every) * boundary + every * inside
        causes = {
            n // every * boundary + every * inside: _("the blocks that are left over are a segment, too: round up"),
            n / every * boundary + every * inside: _("the blocks that are left over are a segment, too: round up"),
            math.ceil(n / every) * boundary + inside: _("all blocks of a segment are recomputed at once"),
            math.ceil(n / every) * boundary + n * inside: _("one segment at a time is recomputed, not all blocks"),
            every * boundary + math.ceil(n / every) * inside: _("inputs are kept once a segment, insides of one "
                                                                "segment: you have them swapped"),
            math.ceil(n / every) * boundary: _("what is recomputed needs room while it is used"),
        }  # fmt: skip
        causes.pop(right, None)
        what = f"segments_bytes({n}, {every}, {boundary}, {inside})"
        expect(answer(n, every, boundary, inside), right, what, "B", causes=causes)
    return _("Exercise 2 asks for the best length of a segment; this is the sum that it minimises.")


class Adapted(nn.Module):
    """A frozen layer with a trained low-rank pair beside it, ``[B, H] -> [B, H]``.

    Args:
        width: H.
        rank: of the pair.
        log: gets the block each time it runs.
    """

    def __init__(self, width: int = 16, rank: int = 2, log: list[nn.Module] | None = None) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        self.log = log

    def forward(self, x: Tensor) -> Tensor:
        if self.log is not None:
            self.log.append(self)
        return x + torch.tanh(self.frozen(x) + self.up(self.down(x)))


@task(
    N_("The input needs no gradient, and everything trained lies inside the checkpoints: which variant minds that?"),
    N_("The variant without reentrance looks at what happens inside: use_reentrant=False."),
    N_("for block in blocks: x = checkpoint(block, x, use_reentrant=False); then return x"),
)
def adapters_learn(answer: Any) -> str:
    """``adapters_learn(blocks, x)``: each block under its own checkpoint, with a gradient for every adapter."""
    torch.manual_seed(0)
    log: list[nn.Module] = []
    blocks = nn.ModuleList(Adapted(log=log) for _ in range(3))
    x = torch.randn(4, 16)
    plain = x
    for block in blocks:
        plain = block(plain)
    log.clear()
    out = answer(blocks, x.clone())
    if not isinstance(out, Tensor):
        expect(out, plain, _("output"), shown=_("the tensor that comes out of the last block"))
    expect(torch.equal(out, plain), True, _("same output as without checkpoints"), cause=_("are all blocks run, once?"))
    if out.requires_grad:
        out.sum().backward()
    trained = [each for each in blocks.parameters() if each.requires_grad]
    expect(
        sum(each.grad is not None for each in trained), len(trained), _("adapter weights with a gradient"),
        causes={0: _("nothing learns: a reentrant checkpoint cuts the graph when its input needs no gradient")},
    )  # fmt: skip
    order = [list(blocks).index(block) for block in log]
    runs = [order.count(place) for place in range(3)]
    causes = {
        (1, 1, 1): _("nothing was recomputed: no block is under a checkpoint"),
        (3, 3, 3): _("each block runs a third time: is there a checkpoint within a checkpoint?"),
    }
    expect(runs, [2, 2, 2], _("runs of each block, forward and backward"), causes=causes)
    expect(
        order[3:], [2, 1, 0], _("blocks in the order of their recomputation"),
        causes={(0, 1, 2): _("one checkpoint around everything: give each block its own")},
        cause=_("some checkpoint holds several blocks: give each block its own"),
    )  # fmt: skip
    return _("The same holds for frozen embeddings in transformers: use_reentrant=False, or inputs that "
             "need gradients.")  # fmt: skip
