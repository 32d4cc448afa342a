"""The four bills: C1, C2, C10, C17, by the ledger, which the tests hold against dry runs and published peaks."""

from dataclasses import replace
from functools import cache

from course_lib import ledger
from course_lib.accounts import Account
from course_lib.article import Finding, finding
from course_lib.hf_config import read_model
from course_lib.i18n import _
from course_lib.ledger import Bill, Instant
from course_lib.recipe import Recipe
from course_lib.units import GB

FP32 = Recipe(precision="fp32", batch=1, seq=2048)


@cache
def bill_of(model: str, recipe: Recipe) -> Bill:
    return ledger.predict(read_model(model), recipe)


@finding("C1")
def four_bills() -> Finding:
    foreach, fused = (bill_of("llama-7b", replace(FP32, optimizer_impl=code)) for code in ("foreach", "fused"))
    activations = foreach.at(Instant.FORWARD_END)[Account.ACTIVATIONS]
    weights, gradients, optimizer = (size / GB for size in foreach.static_bytes.values())
    cases = {
        "4N, 4N, 8N": [size * 7.0e9 / GB for size in (4, 4, 8)] == [28, 28, 56],
        "activations": 10 * GB <= activations <= 40 * GB,
        "foreach": foreach.peak_bytes >= 120 * GB,
        "fused": fused.peak_bytes >= 120 * GB,
    }
    said = _("Llama-2-7B in FP32: {weights:.1f}, {gradients:.1f}, {optimizer:.1f} GB stay, activations {act:.1f} GB; "
             "peak {foreach:.1f} GB in {moment}, with a fused optimizer {fused:.1f} GB")  # fmt: skip
    return Finding(cases, said.format(
        weights=weights, gradients=gradients, optimizer=optimizer, act=activations / GB,
        foreach=foreach.peak_bytes / GB, fused=fused.peak_bytes / GB, moment=_(foreach.peak_moment),
    ))  # fmt: skip


@finding("C2")
def file_times_six_to_eight() -> Finding:
    recipes = {name: replace(FP32, precision=name) for name in ("fp32", "amp-bf16", "bf16", "master-bf16")}
    recipes["bf16 + LoRA"] = replace(recipes["bf16"], lora_rank=16)
    file_bytes = 2 * read_model("llama-7b").params
    times = {
        name: sum(bill_of("llama-7b", recipe).static_bytes.values()) / file_bytes for name, recipe in recipes.items()
    }
    figures = ", ".join(f"{name} {ratio:.1f}" for name, ratio in times.items())
    said = _("what stays, as multiples of a 16-bit file: {figures}").format(figures=figures)
    return Finding({name: 6 <= round(ratio, 1) <= 8 for name, ratio in times.items()}, said)


@finding("C10")
def activations_grow() -> Finding:
    base = replace(FP32, precision="bf16")

    def kept(recipe: Recipe, depth: int = 1) -> int:
        shape = read_model("llama-7b")
        bill = ledger.predict(replace(shape, layers=shape.layers * depth), recipe)
        return bill.at(Instant.FORWARD_END)[Account.ACTIVATIONS]

    eager = replace(base, attention="eager")
    times = {
        "depth": kept(base, 2) / kept(base),
        "batch": kept(replace(base, batch=2)) / kept(base),
        "length": kept(replace(base, seq=4096)) / kept(base),
        "length (eager)": kept(replace(eager, seq=4096)) / kept(eager),
    }
    shares = {}
    for name, model, recipe in (
        ("half (7B)", "llama-7b", base), ("half (SmolLM2)", "smollm2-135m", replace(FP32, batch=8, seq=1024)),
    ):  # fmt: skip
        at_end = bill_of(model, recipe).at(Instant.FORWARD_END)
        shares[name] = at_end[Account.ACTIVATIONS] / sum(at_end.values())
    cases = {name: abs(ratio - 2) < 0.05 for name, ratio in times.items()}
    figures = ", ".join(f"{name} × {ratio:.2f}" for name, ratio in times.items())
    said = _("twice of one thing makes activations: {figures}; their share {seven:.0%} for a 7B, {small:.0%} for a "
             "small model")  # fmt: skip
    seven, small = shares.values()
    cases |= {name: share >= 0.5 for name, share in shares.items()}
    return Finding(cases, said.format(figures=figures, seven=seven, small=small))


@finding("C17")
def inference_takes_weights() -> Finding:
    shape = read_model("llama-7b")
    weights = 2 * shape.params
    caches = {
        f"{batch} x {seq}": 2 * 2 * shape.layers * shape.kv_width * batch * seq
        for batch, seq in ((1, 512), (1, 2048), (8, 2048))
    }
    figures = ", ".join(f"{name} {size / GB:.2f}" for name, size in caches.items())
    said = _("Llama-2-7B in 16 bits: weights {weights:.2f} GB; the KV cache by batch and length, GB: {figures}")
    cases = {name: size <= 0.1 * weights for name, size in caches.items()}
    return Finding(cases, said.format(weights=weights / GB, figures=figures))
