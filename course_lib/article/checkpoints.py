"""Checkpointing: C11 and C12, counted. Lesson 03 measures the same on real memory."""

from dataclasses import replace
from math import ceil

from course_lib.accounts import Account
from course_lib.article import Finding, finding
from course_lib.article.bills import bill_of
from course_lib.article.cuts import MODEL, ONE
from course_lib.flops import step_flops
from course_lib.hf_config import read_config
from course_lib.i18n import _
from course_lib.ledger import Instant


@finding("C11")
def root_of_n() -> Finding:
    """A chain of n equal layers that keep one unit each: boundaries, and the inside of one segment."""

    def units(layers: int, every: int) -> int:
        return ceil(layers / every) + every

    times = {"one per layer": units(256, 1) / units(16, 1), "sqrt(n) segments": units(256, 16) / units(16, 4)}
    lora = replace(ONE, precision="bf16", lora_rank=16)
    block, root = (bill_of(MODEL, replace(lora, checkpoint=each)).peak_bytes for each in ("block", "every:6"))
    cases = {f"chain, {name}": ratio < 5 for name, ratio in times.items()} | {"7B, sqrt(n) segments": root < block}
    said = _("16 times as deep, {one:.1f} times the memory with one checkpoint a layer, {root:.1f} with √n segments; "
             "7B with LoRA: {a:.1f} GB a block, {b:.1f} GB in segments of 6")  # fmt: skip
    return Finding(cases, said.format(one=times["one per layer"], root=times["sqrt(n) segments"], a=block / 1e9,
                                      b=root / 1e9))  # fmt: skip


@finding("C12")
def price_and_saving() -> Finding:
    config, full = read_config(MODEL), replace(ONE, precision="bf16")
    extra, saved = {}, {}
    for name, recipe in {"full fine-tuning": full, "LoRA": replace(full, lora_rank=16)}.items():
        blocks = replace(recipe, checkpoint="block")
        extra[name] = step_flops(config, blocks) / step_flops(config, recipe) - 1
        kept = [bill_of(MODEL, each).at(Instant.FORWARD_END)[Account.ACTIVATIONS] for each in (recipe, blocks)]
        saved[name] = 1 - kept[1] / kept[0]
    cases = {f"FLOPs, {name}": 0.2 <= share <= 0.3 for name, share in extra.items()}
    cases |= {f"activations, {name}": 0.6 <= share <= 0.8 for name, share in saved.items()}
    figures = "; ".join(f"{name}: {extra[name]:+.0%}, {-saved[name]:+.0%}" for name in extra)
    return Finding(cases, _("7B, operations and activations: {figures}").format(figures=figures))
