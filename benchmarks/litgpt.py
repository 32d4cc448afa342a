"""LoRA and QLoRA as lit-gpt ran them in autumn 2023: its operators, in the order in which they keep what they keep.

    python benchmarks/litgpt.py

lit-gpt writes its own models, which no flags describe; a dry run takes any module. This one has the same operators
(lit_gpt/model.py, lora.py, rmsnorm.py, utils.py; Fabric's bf16-true; bitsandbytes 0.41.1), in this course's words. What
they keep and transformers with peft does not:

- Queries, keys and values come from one matrix; ``index_copy`` puts the adapters' output for two of them among zeros,
  and autograd keeps what was copied, two hidden states a block.
- Fabric turns what a model returns to fp32: the chunks of the logits, too, and a list holds them all while the backward
  pass runs. With the log-probabilities it is 8 bytes for each token and word of the vocabulary.
- bitsandbytes 0.41.1 keeps the input of every 4-bit product that passes a gradient on, and quantises from fp16
  (``Params4bit.cuda``), so that a matrix is made anew in fp16 and cast to bf16: both are there at once. The head is
  quantised like everything else, and it is the largest matrix.

Writes results/litgpt.md.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from published_peaks import difference, rows
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.dryrun import dry_run, with_cublas
from course_lib.dryrun.grow import at_depth
from course_lib.dryrun.hf_model import default_dtype
from course_lib.dryrun.quantized import BLOCKSIZE, NESTED_BLOCKSIZE
from course_lib.trace import Trace
from course_lib.units import GB

HERE = Path(__file__).parent
RANK, DROPOUT, CHUNK = 8, 0.05, 128


@dataclass(frozen=True)
class Sizes:
    """A model of lit-gpt's configuration file. ``vocab`` is what the embedding is padded to."""

    layers: int
    width: int
    heads: int
    inner: int
    vocab: int
    context: int
    gated: bool = False  #: Llama's MLP and RMSNorm, no biases
    rotary: float = 1.0
    parallel: bool = False  #: attention and MLP beside each other
    one_norm: bool = False  #: and fed by the same norm
    head_bias: bool = False


PHI = Sizes(24, 2048, 32, 8192, 51200, 2048, rotary=0.5, parallel=True, one_norm=True, head_bias=True)
STABLELM = Sizes(16, 4096, 32, 16384, 50688, 4096, rotary=0.25, parallel=True)
LLAMA_7B = Sizes(32, 4096, 32, 11008, 32000, 4096, gated=True)
LLAMA_13B = Sizes(40, 5120, 40, 13824, 32000, 4096, gated=True)


@dataclass(frozen=True)
class Run:
    sizes: Sizes
    length: int
    batch: int = 1
    bits: str = "16"  #: of the frozen weights: ``16``, ``nf4`` or ``nf4-dq``


RUNS = {
    "litgpt-res-01": Run(PHI, 1044),
    "litgpt-res-03": Run(PHI, 1044, bits="nf4-dq"),
    "litgpt-res-05": Run(PHI, 1044, 4),
    "litgpt-res-07": Run(STABLELM, 1034, bits="nf4"),
    "litgpt-res-09": Run(STABLELM, 1034, 2),
    "litgpt-res-11": Run(LLAMA_7B, 1304),
    "litgpt-res-13": Run(LLAMA_7B, 1304, bits="nf4-dq"),
    "litgpt-res-15": Run(LLAMA_13B, 1304),
    "litgpt-res-17": Run(LLAMA_13B, 1304, bits="nf4-dq"),
}


class RMSNorm(nn.Module):
    """Through fp32, and keeps its input so."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        squares = torch.mean(wide * wide, dim=-1, keepdim=True)
        return (self.weight * (wide * torch.rsqrt(squares + 1e-5))).to(x.dtype)


class Product(torch.autograd.Function):
    """A 4-bit product as bitsandbytes 0.41 has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: "FourBit") -> Tensor:
        ctx.layer = layer
        ctx.kept = x if ctx.needs_input_grad[0] else None
        return F.linear(x, layer.dense(), layer.bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ ctx.layer.dense(), None


class FourBit(nn.Module):
    """A frozen linear layer in 4 bits, stored as bitsandbytes stores it."""

    def __init__(self, inputs: int, outputs: int, bias: bool, double_quant: bool) -> None:
        super().__init__()
        self.shape, self.double_quant = (outputs, inputs), double_quant
        blocks = -(-inputs * outputs // BLOCKSIZE)
        self.register_buffer("packed", torch.empty(inputs * outputs // 2, dtype=torch.uint8))
        self.register_buffer("code", torch.empty(16, dtype=torch.float32))
        self.register_buffer("absmax", torch.empty(blocks, dtype=torch.uint8 if double_quant else torch.float32))
        if double_quant:
            self.register_buffer("nested", torch.empty(-(-blocks // NESTED_BLOCKSIZE), dtype=torch.float32))
            self.register_buffer("nested_code", torch.empty(256, dtype=torch.float32))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def dense(self) -> Tensor:
        """The matrix, in the type from which it was quantised and then in that of the product."""
        maxima = torch.empty(self.absmax.shape, dtype=torch.float32, device="meta") if self.double_quant else None
        made = torch.empty(self.shape, dtype=torch.float16, device="meta")
        del maxima
        return made.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return Product.apply(x, self)


def linear(run: Run, inputs: int, outputs: int, bias: bool) -> nn.Module:
    if run.bits == "16":
        return nn.Linear(inputs, outputs, bias)
    return FourBit(inputs, outputs, bias, run.bits == "nf4-dq")


class AdaptedQKV(nn.Module):
    """One matrix for queries, keys and values, with adapters on queries and values."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        width = run.sizes.width
        self.linear = linear(run, width, 3 * width, not run.sizes.gated)
        self.a, self.b = nn.Parameter(torch.empty(2 * RANK, width)), nn.Parameter(torch.empty(2 * width, RANK))
        self.dropout = nn.Dropout(DROPOUT)
        self.places = torch.cat([torch.arange(width), torch.arange(2 * width, 3 * width)])

    def forward(self, x: Tensor) -> Tensor:
        frozen = self.linear(x)
        small = F.linear(self.dropout(x), self.a)
        adapted = F.conv1d(small.transpose(-2, -1), self.b.unsqueeze(-1), groups=2).transpose(-2, -1)
        return frozen + self.among_zeros(adapted, frozen.shape[-1]) * 2.0

    def among_zeros(self, adapted: Tensor, width: int) -> Tensor:
        swapped = adapted.transpose(0, 1)
        zeros = swapped.new_zeros((*swapped.shape[:-1], width)).view(-1, width)
        filled = zeros.index_copy(1, self.places, swapped.reshape(-1, adapted.shape[-1]))
        return filled.view((*swapped.shape[:-1], width)).transpose(0, 1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return ((x * cos) + (turned * sin)).type_as(x)


class Attention(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        width = run.sizes.width
        self.heads, self.rotary = run.sizes.heads, int(run.sizes.rotary * width // run.sizes.heads)
        self.qkv, self.out = AdaptedQKV(run), linear(run, width, width, not run.sizes.gated)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, self.heads, 3, -1).permute(0, 2, 3, 1, 4)
        query, key, value = (each.reshape(batch, -1, length, width // self.heads) for each in qkv.split(1, dim=2))
        n = self.rotary
        query = torch.cat((rotated(query[..., :n], cos, sin), query[..., n:]), dim=-1)
        key = torch.cat((rotated(key[..., :n], cos, sin), key[..., n:]), dim=-1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        width, inner, bias = run.sizes.width, run.sizes.inner, not run.sizes.gated
        self.up, self.down = linear(run, width, inner, bias), linear(run, inner, width, bias)
        self.gate = linear(run, width, inner, bias) if run.sizes.gated else None

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(F.gelu(self.up(x)))
        gate, up = self.gate(x), self.up(x)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        sizes = run.sizes
        norm = RMSNorm if sizes.gated else nn.LayerNorm
        self.norm_1, self.norm_2 = norm(sizes.width), None if sizes.one_norm else norm(sizes.width)
        self.attention, self.mlp, self.parallel = Attention(run), MLP(run), sizes.parallel

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first = self.norm_1(x)
        mixed = self.attention(first, cos, sin)
        if self.parallel:
            return self.mlp(self.norm_2(x) if self.norm_2 else first) + mixed + x
        x = mixed + x
        return self.mlp(self.norm_2(x)) + x  # type: ignore[misc]


class GPT(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        sizes = run.sizes
        self.embedding = nn.Embedding(sizes.vocab, sizes.width)
        self.blocks = nn.ModuleList(Block(run) for _ in range(sizes.layers))
        self.norm = (RMSNorm if sizes.gated else nn.LayerNorm)(sizes.width)
        self.head = linear(run, sizes.width, sizes.vocab, sizes.head_bias)
        turned = int(sizes.rotary * sizes.width // sizes.heads)
        self.register_buffer("cos", torch.empty(sizes.context, turned))
        self.register_buffer("sin", torch.empty(sizes.context, turned))

    def forward(self, tokens: Tensor) -> list[Tensor]:
        length = tokens.shape[1]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos[:length], self.sin[:length])
        return [self.head(part) for part in self.norm(x).split(CHUNK, dim=1)]


def trace_of(run: Run) -> Trace:
    """Of one update with one micro-batch; more of them need no more."""
    return at_depth(lambda layers: _trace(replace(run, sizes=replace(run.sizes, layers=layers))), run.sizes.layers)


def _trace(run: Run) -> Trace:
    with torch.device("meta"), default_dtype(torch.bfloat16):
        model = GPT(run)
        tokens = torch.zeros((run.batch, run.length), dtype=torch.long)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith((".a", ".b")))
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], foreach=True)

    def step() -> None:
        logits = [part.float() for part in model(tokens)]
        logits[-1] = logits[-1][..., :-1, :]
        parts = [
            F.cross_entropy(part.reshape(-1, run.sizes.vocab), goal.reshape(-1), ignore_index=-1, reduction="none")
            for part, goal in zip(logits, tokens[:, 1:].split(CHUNK, dim=1), strict=True)
        ]
        torch.cat(parts).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return with_cublas(dry_run(model, step, optimizer))


def main() -> None:
    lines = ["| Row | measured, GB | dry run, GB | difference |", "|---|--:|--:|--:|"]
    published = {row["id"]: row for row in rows()}
    for name, run in RUNS.items():
        row, peak = published[name], trace_of(run).peak_bytes
        error = difference(peak, round(row["measured_gb"] * GB))
        head = f"{name}, {row['model']}, {row['trainable'].split()[0]} | {row['measured_gb']}"
        lines.append(f"| {head} | {peak / GB:.2f} | {error:+.1f} % |")
        print(lines[-1], flush=True)
    (HERE / "results/litgpt.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
