"""Llama 3.2 3B as torchtune trained it late in 2024, one saving after another: its operators, and what it compiles.

    python benchmarks/torchtune.py

torchtune writes its own models, which no flags describe; this module has the same operators in this course's words
(torchtune/modules/transformer.py, attention.py, rms_norm.py, position_embeddings.py, loss/ce_chunked_output_loss.py).
Each block is compiled on its own: what the compiler keeps is decided by its own partitioner (course_lib/dryrun/
compiled.py). So is the chunked loss; the plain one is not, since the recipes of that time dropped what ``compile_loss``
returned, and only the chunked loss is changed in place. The optimizer in the backward pass is one AdamW for each
parameter (``InBackward`` in course_lib/training.py); offloading sends what autograd keeps to the host and makes it anew
when it is asked for.

Writes results/torchtune.md.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from published_peaks import difference, rows
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from course_lib.dryrun import dry_run, with_cublas
from course_lib.dryrun.compiled import compiled
from course_lib.dryrun.grow import at_depth
from course_lib.dryrun.hf_model import default_dtype
from course_lib.trace import Trace
from course_lib.training import InBackward
from course_lib.units import GIB

HERE = Path(__file__).parent
LAYERS, WIDTH, HEADS, SHARED, INNER, VOCAB = 28, 3072, 24, 8, 8192, 128256
HEAD = WIDTH // HEADS
BATCH, LENGTH, CHUNKS, CONTEXT = 2, 4096, 8, 131072
RANK = 64
_SMALLEST_OFFLOADED_BYTES = 1024


@dataclass(frozen=True)
class Savings:
    """How far the table has come."""

    chunked: bool = False  #: the loss, in eight parts of the sequence
    checkpointed: bool = False
    in_backward: bool = False  #: the optimizer
    offloaded: bool = False  #: what is kept for the backward pass
    adapters: bool = False  #: LoRA on everything but keys


ROWS = {
    "tt-flags-03": Savings(),
    "tt-flags-05": Savings(chunked=True, checkpointed=True),
    "tt-flags-07": Savings(chunked=True, checkpointed=True, in_backward=True, offloaded=True),
    "tt-flags-09": Savings(chunked=True, checkpointed=True, offloaded=True, adapters=True),
}


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.scale


class Linear(nn.Linear):
    """With an adapter beside it, where there is to be one."""

    def __init__(self, inputs: int, outputs: int, adapted: bool) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.a = nn.Linear(inputs, RANK, bias=False) if adapted else None
        self.b = nn.Linear(RANK, outputs, bias=False) if adapted else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight)
        return out if self.a is None or self.b is None else out + 2.0 * self.b(self.a(x))


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """``[B, T, heads, d]`` by pairs, in fp32."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    cos, sin = angles[: x.shape[1]].view(-1, x.shape[1], 1, pairs.shape[3], 2).unbind(-1)
    one, other = pairs.unbind(-1)
    return torch.stack([one * cos - other * sin, other * cos + one * sin], -1).flatten(3).type_as(x)


class Block(nn.Module):
    def __init__(self, adapted: bool) -> None:
        super().__init__()
        self.before, self.between = RMSNorm(), RMSNorm()
        self.query, self.out = (Linear(WIDTH, WIDTH, adapted) for _ in range(2))
        self.key, self.value = Linear(WIDTH, SHARED * HEAD, False), Linear(WIDTH, SHARED * HEAD, adapted)
        self.gate, self.up = (Linear(WIDTH, INNER, adapted) for _ in range(2))
        self.down = Linear(INNER, WIDTH, adapted)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.before(x), angles)
        normed = self.between(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def attention(self, x: Tensor, angles: Tensor) -> Tensor:
        batch, length, _ = x.shape

        def for_every_head(shared: Tensor) -> Tensor:
            copies = shared.unsqueeze(3).expand(batch, length, SHARED, HEADS // SHARED, HEAD)
            return copies.reshape(batch, length, HEADS, HEAD).transpose(1, 2)

        query = rotated(self.query(x).view(batch, length, HEADS, HEAD), angles).transpose(1, 2)
        key = for_every_head(rotated(self.key(x).view(batch, length, SHARED, HEAD), angles))
        value = for_every_head(self.value(x).view(batch, length, SHARED, HEAD))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, length, WIDTH))


class ChunkLoss(nn.Module):
    """Cross-entropy summed over a chunk, as the compiler comes to have it: an index compared with the target."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        words = torch.arange(VOCAB, device=logits.device)
        return -(F.log_softmax(logits.float(), dim=-1) * (words == targets.unsqueeze(1))).sum()


class Llama(nn.Module):
    def __init__(self, layers: int, savings: Savings) -> None:
        super().__init__()
        self.savings = savings
        self.tokens, self.norm = nn.Embedding(VOCAB, WIDTH), RMSNorm()  # the head is the embedding
        self.blocks = nn.ModuleList(Block(savings.adapters) for _ in range(layers))
        self.register_buffer("angles", torch.empty(CONTEXT, HEAD // 2, 2, dtype=torch.float32))
        self.as_compiled = [compiled(block) for block in self.blocks]

    def forward(self, tokens: Tensor) -> list[Tensor]:
        x = self.tokens(tokens)
        for block in self.as_compiled:
            run = partial(checkpoint, block, use_reentrant=False) if self.savings.checkpointed else block
            x = run(x, self.angles)
        x = self.norm(x)
        if self.savings.chunked:
            return [F.linear(chunk, self.tokens.weight) for chunk in x.chunk(CHUNKS, dim=1)]
        return [F.linear(x, self.tokens.weight).float()]


def offloading(model: nn.Module) -> AbstractContextManager[Any]:
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def send(tensor: Tensor) -> Any:
        stays = tensor.untyped_storage()._cdata in own or tensor.nbytes < _SMALLEST_OFFLOADED_BYTES
        return tensor if stays else (tensor.shape, tensor.dtype)

    def fetch(sent: Any) -> Tensor:
        return sent if isinstance(sent, Tensor) else torch.empty(sent[0], dtype=sent[1], device="meta")

    return saved_tensors_hooks(send, fetch)


def trace_of(layers: int, savings: Savings) -> Trace:
    with torch.device("meta"), default_dtype(torch.bfloat16):
        model = Llama(layers, savings)
        tokens = torch.zeros((BATCH, LENGTH), dtype=torch.long)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not savings.adapters or name.endswith((".a.weight", ".b.weight")))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    adamw = partial(torch.optim.AdamW, fused=True)
    optimizer = InBackward(trained, adamw) if savings.in_backward else adamw(trained)
    loss_of = compiled(ChunkLoss()) if savings.chunked else partial(F.cross_entropy, reduction="sum")

    def step() -> None:
        with offloading(model) if savings.offloaded else nullcontext():
            logits = model(tokens)
        goals = tokens.chunk(len(logits), dim=1)
        sums = [loss_of(part.reshape(-1, VOCAB), goal.reshape(-1)) for part, goal in zip(logits, goals, strict=True)]
        loss = torch.stack(sums).sum() / tokens.numel()
        del logits
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()

    return with_cublas(dry_run(model, step, optimizer))


def main() -> None:
    lines = ["| Row | What is new | measured, GiB | dry run, GiB | difference | moment |", "|---|---|--:|--:|--:|---|"]
    published = {row["id"]: row for row in rows()}
    for name, savings in ROWS.items():
        row = published[name]
        trace = at_depth(lambda layers, savings=savings: trace_of(layers, savings), LAYERS)  # type: ignore[misc]
        error = difference(trace.peak_bytes, round(row["measured_gb"] * GIB))
        news = row["note"].split(";")[0].removeprefix("+")
        figures = f"{row['measured_gb']:.1f} | {trace.peak_bytes / GIB:.2f} | {error:+.1f} %"
        lines.append(f"| {name} | {news} | {figures} | {trace.peak_moment} |")
        print(lines[-1], flush=True)
    (HERE / "results/torchtune.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
