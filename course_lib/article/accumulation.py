"""Accumulation: C13, C18, C19, on small models that are really trained. Lesson 04 shows the same runs."""

import torch
from torch import nn

from course_lib.accumulate import (
    WHOLE,
    Normed,
    Way,
    adamw,
    gradient,
    relative_difference,
    sgd,
    small_gpt,
    train,
    windows,
)
from course_lib.article import Finding, finding
from course_lib.i18n import _

#: Relative differences up to here are rounding: FP32 has 24 bits, and a gradient adds some thousand numbers.
ROUNDING = 1e-5


@finding("C13")
def one_batch_in_pieces() -> Finding:
    model, (even,), (uneven,) = small_gpt(), windows(1), windows(1, uneven=True)
    cases = {
        "equal tokens, loss / N": relative_difference(
            gradient(model, even, Way(8, "means")), gradient(model, even, WHOLE)),
        "unequal tokens, loss / N": relative_difference(
            gradient(model, uneven, Way(8, "means")), gradient(model, uneven, WHOLE)),
        "unequal tokens, summed loss / all tokens": relative_difference(
            gradient(model, uneven, Way(8)), gradient(model, uneven, WHOLE)),
        "batch norm": _norm_difference(nn.BatchNorm1d),
    }  # fmt: skip
    figures = ", ".join(f"{name} {difference:.0e}" for name, difference in cases.items())
    said = _("relative difference of the gradient: {figures}").format(figures=figures)
    return Finding({name: difference < ROUNDING for name, difference in cases.items()}, said)


@finding("C18")
def the_same_curve() -> Finding:
    data, uneven = windows(6), windows(6, uneven=True)
    by_sgd, by_adamw = (train(WHOLE, data, make) for make in (sgd, adamw))
    apart = {
        "SGD": _apart(by_sgd, train(Way(8), data, sgd)),
        "AdamW": _apart(by_adamw, train(Way(8), data, adamw)),
        "unequal tokens, loss / N": _apart(train(WHOLE, uneven, adamw), train(Way(8, "means"), uneven, adamw)),
        "loss not divided (SGD)": _apart(by_sgd, train(Way(8, "nothing"), data, sgd)),
    }
    figures = ", ".join(f"{name} {difference:.0e}" for name, difference in apart.items())
    said = _("largest relative difference of the loss in 6 updates: {figures}").format(figures=figures)
    return Finding({name: difference < 1e-4 for name, difference in apart.items()}, said)


@finding("C19")
def norms_and_micro_batches() -> Finding:
    batch, layer = _norm_difference(nn.BatchNorm1d), _norm_difference(nn.LayerNorm)
    said = _("gradient of 8 x 4 against 32: batch norm differs by {batch:.0%}, layer norm by {layer:.0e}")
    cases = {"batch norm follows the micro-batch": batch > 0.01, "layer norm does not": layer < ROUNDING}
    return Finding(cases, said.format(batch=batch, layer=layer))


def _norm_difference(norm: type[nn.BatchNorm1d] | type[nn.LayerNorm]) -> float:
    inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))
    return relative_difference(Normed(norm).gradient(inputs, 8), Normed(norm).gradient(inputs, 1))


def _apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) / b for a, b in zip(one, other, strict=True))
