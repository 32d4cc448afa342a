"""Out of memory because one tensor is large by its shape: scores of all pairs of positions, logits of all words."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.accounts import Account
from course_lib.cards import find_card
from course_lib.clinic.case import Case
from course_lib.clinic.cases.checkpoints import Blockwise
from course_lib.clinic.patients import batches, gpt, loss_of, sgd
from course_lib.clinic.reading import Reading
from course_lib.i18n import N_, _
from course_lib.models import Attention
from course_lib.units import MIB, format_bytes


class Eager(Attention):
    """Attention written out: it makes the scores of all pairs of positions."""

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2)
        )
        scores = query @ key.transpose(2, 3) * (width // self.heads) ** -0.5  # [B, N, T, T]
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        return self.c_proj((scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width))


def attention_written_out() -> None:
    model = Blockwise(gpt(length=256).config)
    for block in model.blocks:
        block.attn = Eager(model.config)
    _one_update(model)


def attention_fused() -> None:
    _one_update(Blockwise(gpt(length=256).config))


def square_of_the_length(reading: Reading) -> str | None:
    last = reading.last_pass
    if not reading.death or not last or last.length < 2:
        return None
    square = [
        each for each in reading.at_death
        if each.shape[-2:] == (last.length,) * 2
        and (len(each.shape) == 4 or (len(each.shape) == 3 and each.shape[0] > last.rows))  # or [B N, T, T]
    ]  # fmt: skip
    if reading.share(square) < 0.3:
        return None
    return _("{share:.0%} of what was alive were {count} pieces with the square of the length, such as {shape}").format(
        share=reading.share(square), count=len(square), shape=list(max(square).shape)
    )


def _one_update(model: nn.Module) -> None:
    (batch,) = batches(1, length=256)
    optimizer = sgd(model)
    loss_of(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def all_logits_at_once() -> None:
    _head_of_an_8b(1)


def logits_in_pieces() -> None:
    _head_of_an_8b(16)


def _head_of_an_8b(pieces: int) -> None:
    """The last layer of Llama-3-8B and its loss, BF16, real size: 3 × 4096 tokens, 128,256 words; nothing else."""
    head = nn.Linear(4096, 128256, bias=False, dtype=torch.bfloat16, device="meta").requires_grad_(False)
    hidden = torch.empty(12288, 4096, dtype=torch.bfloat16, device="meta", requires_grad=True)  # [B T, H]
    targets = torch.empty(12288, dtype=torch.long, device="meta")
    for some, wanted in zip(hidden.chunk(pieces), targets.chunk(pieces), strict=True):
        (F.cross_entropy(head(some).float(), wanted, reduction="sum") / 12288).backward()


def logits_times_vocabulary(reading: Reading) -> str | None:
    last = reading.last_pass
    if not reading.death or not last or not last.grad or last.outputs < 1024:
        return None
    logits = [each for each in reading.at_death if each.shape[-1:] == (last.outputs,) and each.account not in _STAYS]
    if reading.share(logits) < 0.5:
        return None
    return _(
        "{share:.0%} of what was alive are {count} tensors as wide as the vocabulary, {outputs}; the largest has "
        "{size}"
    ).format(
        share=reading.share(logits), count=len(logits), outputs=f"{last.outputs:,}",
        size=format_bytes(max(logits).size_bytes, "GiB"),
    )  # fmt: skip


_STAYS = (Account.WEIGHTS, Account.GRADIENTS, Account.OPTIMIZER)


CASES = (
    Case(
        name="long-attention",
        branch=("out of memory", "although checkpointing is on"),
        symptom=N_("Checkpointing is on, and a long sequence still runs out of memory"),
        words=N_(
            "gradient checkpointing still OOM; sequence too long; one layer is too large; attention O(n^2); eager "
            "attention"
        ),
        cause=N_("inside the one block that is computed again, attention builds the scores of all pairs of positions"),
        change=N_('attn_implementation="sdpa" or FlashAttention; else shorter sequences, or a smaller batch'),
        surer=N_("the tensor that was refused: a multiple of length × length × heads × bytes"),
        unit="03_checkpointing",
        sign=square_of_the_length,
        broken=attention_written_out,
        mended=attention_fused,
        sure="certain",
        card_bytes=12 * MIB,
    ),
    Case(
        name="logits",
        branch=("out of memory", "in a training step"),
        symptom=N_("A small model with a large vocabulary runs out of memory in the loss"),
        words=N_(
            "logits OOM; cross_entropy out of memory; vocabulary 128k 152k 256k; small model large memory; "
            "logits.float()"
        ),
        cause=N_(
            "the logits, tokens × vocabulary, are alive several times at once: in 16 bit, in FP32, as log-softmax, "
            "as gradients"
        ),
        change=N_(
            "a loss that never builds all logits: fused linear cross-entropy (Liger), or in chunks; else fewer "
            "tokens at once"
        ),
        surer=N_("tokens × vocabulary × 4 bytes against what was refused; the ledger's line 'logits'"),
        unit="01_ledger",
        sign=logits_times_vocabulary,
        broken=all_logits_at_once,
        mended=logits_in_pieces,
        sure="certain",
        card_bytes=find_card("T4").usable_bytes,
        device="meta",
    ),
)
