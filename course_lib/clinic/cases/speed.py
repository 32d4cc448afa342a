"""Autocast that slows down."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.clinic.case import Case
from course_lib.clinic.patients import labels, sgd, vectors
from course_lib.clinic.reading import Reading
from course_lib.i18n import N_, _

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention_for_cpu")


class ManySmall(nn.Module):
    """Layers whose norm and activation are written out, a handful of operators each."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.head = nn.ModuleList(nn.Linear(64, 64) for _ in range(4)), nn.Linear(64, 8)
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(F.layer_norm(layer(x), (64,)), approximate="tanh") if self.fused else written_out(layer(x))
        return self.head(x)


def written_out(x: Tensor) -> Tensor:
    """Layer norm and GELU in elementary operators."""
    centred = x - x.mean(-1, keepdim=True)
    x = centred / (centred * centred).mean(-1, keepdim=True).add(1e-5).sqrt()
    inner = 0.7978845608 * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + torch.tanh(inner))


def many_small_operators() -> None:
    _train(ManySmall(fused=False))


def few_fused_operators() -> None:
    _train(ManySmall(fused=True))


def _train(model: nn.Module) -> None:
    optimizer = sgd(model)
    for x in vectors(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), labels(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def few_products_among_many(reading: Reading) -> str | None:
    mixed = [each for each in reading.passes if each.autocast]
    if not mixed or reading.error:
        return None
    begin = mixed[0].at
    end = next((each.at for each in reading.backwards if each.at > begin), len(reading.operators))
    names = [name for _moment, name in reading.operators[begin:end]]
    products = sum(name in _PRODUCTS for name in names)
    casts = names.count("_to_copy")
    views = ("t", "view", "transpose", "detach", "_unsafe_view", "expand", "reshape", "unsqueeze", "slice", "alias")
    others = sum(name not in (*_PRODUCTS, "_to_copy", *views) for name in names)
    if not products or others < 6 * products:
        return None
    return _(
        "a forward pass under autocast runs {products} matrix products, {casts} casts and {others} other operators"
    ).format(
        products=products, casts=casts, others=others
    )  # fmt: skip


CASES = (
    Case(
        name="small-operators",
        branch=("too slow", "since 16 bit"),
        symptom=N_("Autocast makes training slower, not faster"),
        words=N_(
            "AMP slower than FP32; mixed precision slow; many small elementwise operators; kernel launch; casts; "
            "small batch"
        ),
        cause=N_(
            "few large matrix products and many small operators: autocast adds casts, and each operator costs a "
            "launch"
        ),
        change=N_("fused norms and activations, torch.compile, or a larger batch; else leave that part in FP32"),
        surer=N_(
            "torch.profiler: time between kernels, and the share of aten::_to_copy; warm up and synchronise before "
            "timing"
        ),
        unit="02_mixed_precision",
        sign=few_products_among_many,
        broken=many_small_operators,
        mended=few_fused_operators,
    ),
)
