"""GPT-2 as a book writes it from scratch, in steps that make it faster: what PyTorch held after each, and the replay.

    python benchmarks/gpt_from_scratch.py

No flags describe this code: its own LayerNorm and GELU are a dozen operators each, its attention keeps every score
three times. So it is a test of the dry run for a module of one's own and of the allocator's model (course_lib/
allocator.py), on figures of ``memory_reserved``. Writes benchmarks/results/gpt_from_scratch.md.

The rows are those of rasbt/LLMs-from-scratch, ch05/10_llm-training-speed, in data/published_peaks.jsonl; the model
here has the same operators in the same order.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.allocator import replay
from course_lib.dryrun import dry_run, with_cublas
from course_lib.units import GIB

HERE = Path(__file__).parent
LAYERS, WIDTH, HEADS, CONTEXT, BATCH, DROPOUT = 12, 768, 12, 1024, 8, 0.1


@dataclass(frozen=True)
class Steps:
    """How far the script has come."""

    sixteen_bit: bool = False
    fused_update: bool = False
    torch_modules: bool = False  #: PyTorch's LayerNorm, GELU and attention instead of one's own
    vocab: int = 50257


ROWS = {
    "rasbt-01": Steps(),
    "rasbt-03": Steps(fused_update=True),
    "rasbt-05": Steps(fused_update=True, sixteen_bit=True),
    "rasbt-07": Steps(fused_update=True, sixteen_bit=True, torch_modules=True),
    "rasbt-09": Steps(fused_update=True, sixteen_bit=True, torch_modules=True, vocab=50304),
}


class OwnNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        centre = x.mean(dim=-1, keepdim=True)
        spread = x.var(dim=-1, keepdim=True, unbiased=False)
        return self.scale * ((x - centre) / torch.sqrt(spread + 1e-5)) + self.shift


class OwnGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        inner = torch.sqrt(torch.tensor(2.0 / torch.pi)) * (x + 0.044715 * torch.pow(x, 3))
        return 0.5 * x * (1 + torch.tanh(inner))


class Scores(nn.Module):
    """Every score is built: masked in place, divided, softmax, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        key, query, value = (
            layer(x).view(batch, length, HEADS, -1).transpose(1, 2) for layer in (self.key, self.query, self.value)
        )
        scores = query @ key.transpose(2, 3)
        scores.masked_fill_(torch.triu(torch.ones(length, length), diagonal=1).bool(), -torch.inf)
        weights = self.dropout(torch.softmax(scores / key.shape[-1] ** 0.5, dim=-1))
        return self.out((weights @ value).transpose(1, 2).reshape(batch, length, WIDTH))


class Flash(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=DROPOUT, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self, steps: Steps) -> None:
        super().__init__()
        own = not steps.torch_modules
        self.norm1, self.norm2 = (OwnNorm() if own else nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention: nn.Module = Scores() if own else Flash()
        gelu = OwnGELU() if own else nn.GELU(approximate="tanh")
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), gelu, nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.attention(self.norm1(x))) + x
        return self.dropout(self.mlp(self.norm2(x))) + x


class GPT(nn.Module):
    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(steps.vocab, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*[Block(steps) for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH) if steps.torch_modules else OwnNorm()
        self.head = nn.Linear(WIDTH, steps.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1])))
        return self.head(self.norm(self.blocks(x)))


def held_bytes(steps: Steps) -> int:
    """What PyTorch holds after a few steps of training."""
    with torch.device("meta"):
        model = GPT(steps).to(torch.bfloat16 if steps.sixteen_bit else torch.float32)
        tokens = torch.zeros((BATCH, CONTEXT), dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=not steps.fused_update, fused=steps.fused_update)

    def step() -> None:
        with torch.device("meta"):
            optimizer.zero_grad()
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
            del logits
            loss.backward()
            optimizer.step()

    return replay(with_cublas(dry_run(model, step, optimizer))).reserved_bytes


def main() -> None:
    published = map(json.loads, (HERE / "data/published_peaks.jsonl").read_text().splitlines())
    rows = {row["id"]: row for row in published if row["id"] in ROWS}
    lines = [
        f"GPT-2 from scratch, reserved memory: measured on an A100, and replayed (torch {torch.__version__}).", "",
        "| Row | What is new | measured, GiB | replayed, GiB | difference |", "|---|---|--:|--:|--:|",
    ]  # fmt: skip
    for name, steps in ROWS.items():
        measured, replayed = rows[name]["measured_gb"], held_bytes(steps) / GIB
        news = rows[name]["note"].split(";")[0]
        error = 100 * (replayed / measured - 1)
        lines.append(f"| {name} | {news} | {measured:.2f} | {replayed:.2f} | {error:+.1f} % |")
        print(lines[-1], flush=True)
    (HERE / "results/gpt_from_scratch.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
