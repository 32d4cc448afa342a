"""Losses that are too large, NaN without any 16 bits, updates that are lost: mistakes in the loop and in the data."""

import torch
from torch.nn import functional as F

from course_lib.accounts import Moment
from course_lib.clinic.case import Case
from course_lib.clinic.patients import Batch, batches, gpt, labels, loss_of, mlp, sgd, vectors
from course_lib.clinic.reading import Reading
from course_lib.i18n import N_, _
from course_lib.models import IGNORED, next_token_loss

ACCUM = 4


def accumulates_without_dividing() -> None:
    _accumulate(divide=1)


def accumulates_and_divides() -> None:
    _accumulate(divide=ACCUM)


def _accumulate(divide: int, count: int = 2 * ACCUM) -> None:
    model = gpt(layers=1)
    optimizer = sgd(model, 1e-2)
    for number, batch in enumerate(batches(count), 1):
        (loss_of(model, batch) / divide).backward()
        if number % ACCUM == 0:
            optimizer.step()
            optimizer.zero_grad()


def losses_add_up_to_n(reading: Reading) -> str | None:
    pieces = [len(window) for window in reading.windows[:-1]]
    fitting = [
        ratio for ratio, count in zip(reading.ratio, pieces, strict=False) if count > 1 and ratio > 0.9 * count
    ]  # fmt: skip
    if not fitting or len(fitting) < len(reading.ratio):
        return None
    return _(
        "{count} backward passes before each update, and their losses add up to {ratio:.1f} times the mean loss; 1 "
        "is right"
    ).format(
        count=pieces[0], ratio=fitting[0]
    )  # fmt: skip


def never_clears_gradients() -> None:
    model = gpt(layers=1)
    optimizer = sgd(model, 1e-2)
    for batch in batches(4):
        loss_of(model, batch).backward()
        optimizer.step()


def clears_gradients() -> None:
    model = gpt(layers=1)
    optimizer = sgd(model, 1e-2)
    for batch in batches(4):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def gradients_from_before_the_update(reading: Reading) -> str | None:
    """Between two updates of an optimizer, no backward pass found its gradients cleared."""
    old = []
    for number in {each.optimizer for each in reading.updates}:
        own = [each for each in reading.updates if each.optimizer == number]
        for before, after in zip(own, own[1:], strict=False):
            found = [each.found[number] for each in reading.backwards if before.end <= each.at <= after.at]
            if not found or not all(each > 0 for each in found):
                return None
            old += found
    if not old:
        return None
    return _("backward passes after an update found its gradients still there, up to {largest:.2g}").format(
        largest=max(old)
    )


def drops_the_last_window() -> None:
    _accumulate(divide=ACCUM, count=2 * ACCUM + 2)


def takes_the_last_window() -> None:
    model, data = gpt(layers=1), batches(2 * ACCUM + 2)
    optimizer = sgd(model, 1e-2)
    for start in range(0, len(data), ACCUM):
        window = data[start : start + ACCUM]
        for batch in window:
            (loss_of(model, batch) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


def work_that_no_update_used(reading: Reading) -> str | None:
    left, pieces = reading.windows[-1], [len(window) for window in reading.windows[:-1]]
    if reading.error or not left or not pieces or max(pieces) < 2:
        return None
    return _("{left} backward passes came after the last update, and nothing was done with them").format(left=len(left))


def batch_without_a_target() -> None:
    model = gpt(layers=1)
    optimizer = sgd(model)
    for batch in _masked():
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def batch_without_a_target_left_out() -> None:
    model = gpt(layers=1)
    optimizer = sgd(model)
    for tokens, targets in _masked():
        if not (targets != IGNORED).any():
            continue
        next_token_loss(model(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def _masked() -> list[Batch]:
    """In the second batch the prompt was so long that truncation left no answer."""
    data = batches(4)
    data[1][1].fill_(IGNORED)
    return data


def mean_of_no_targets(reading: Reading) -> str | None:
    empty = [number for number, mean in enumerate(reading.means, 1) if mean.targets == 0]
    if not empty:
        return None
    return _(
        "cross-entropy number {number} had no target that counts: all were -100, and 0 / 0 is NaN in any type"
    ).format(
        number=empty[0]
    )  # fmt: skip


def logarithm_of_zero() -> None:
    model = mlp()
    optimizer = sgd(model)
    for x in vectors(3):
        probabilities = (40 * model(100 * x)).softmax(-1)  # sharp: some are exactly 0
        loss = -(F.one_hot(labels(x), 8) * probabilities.log()).sum(-1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def log_softmax_instead() -> None:
    model = mlp()
    optimizer = sgd(model, 1e-6)
    for x in vectors(3):
        loss = F.cross_entropy(40 * model(100 * x), labels(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def formula_left_its_domain(reading: Reading) -> str | None:
    domains = ("log", "log2", "log10", "div", "sqrt", "rsqrt", "pow", "reciprocal", "acos", "asin", "norm")
    found = [
        each for each in reading.nonfinite[:1]
        if each.moment is Moment.FORWARD and each.dtype == torch.float32 and each.operator in domains
    ]  # fmt: skip
    if not found or found[0].largest > 1e15:  # an overflow, not a domain
        return None
    return _(
        "{operator} made an infinite or undefined FP32 number of finite ones, in the forward pass of step {step}"
    ).format(
        operator=found[0].operator, step=found[0].update + 1
    )  # fmt: skip


def steps_too_far() -> None:
    _descend(rate=30.0)


def steps_short_enough() -> None:
    _descend(rate=0.1)


def _descend(rate: float) -> None:
    model = mlp()
    optimizer = sgd(model, rate)
    for x in vectors(8):
        (model(x) - x[:, :8]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def loss_runs_away(reading: Reading) -> str | None:
    if any(each.autocast == torch.float16 for each in reading.passes) or losses_add_up_to_n(reading):
        return None
    if gradients_from_before_the_update(reading):
        return None
    values = [each.value for each in reading.backwards]
    finite = [each for each in values if each == each and abs(each) != float("inf")]
    if len(finite) < 2 or not all(later > 10 * earlier for earlier, later in zip(finite, finite[1:], strict=False)):
        return None
    return _("the loss grows from step to step, from {first:.2g} to {last:.2g}, before anything is infinite").format(
        first=finite[0], last=finite[-1]
    )


CASES = (
    Case(
        name="not-divided",
        branch=("wrong numbers", "loss is too large"),
        symptom=N_("With gradient accumulation the loss, or its gradient, is several times too large"),
        words=N_(
            "accumulation loss abnormally large; forgot to divide by accum_steps; gradient_accumulation_steps loss 8 "
            "times; grad norm too large"
        ),
        cause=N_("each micro-batch's mean loss went into backward() undivided, so N of them give N times the gradient"),
        change=N_("loss / accum_steps; with unequal lengths the summed loss by all tokens of the window"),
        surer=N_("one big batch against N micro-batches on the same data: the ratio of the two gradients is N"),
        unit="04_accumulation",
        sign=losses_add_up_to_n,
        broken=accumulates_without_dividing,
        mended=accumulates_and_divides,
        sure="certain",
    ),
    Case(
        name="not-cleared",
        branch=("wrong numbers", "loss is too large"),
        symptom=N_("The gradient's length rises from update to update, and the loss swings or explodes"),
        words=N_("zero_grad forgotten; gradients accumulate forever; loss oscillates; grad norm keeps growing"),
        cause=N_("gradients are not cleared after the update, so each one holds the sum of all before it"),
        change=N_("optimizer.zero_grad() after each optimizer.step()"),
        surer=N_("the largest absolute gradient right before backward(): 0 or None is right"),
        unit="04_accumulation",
        sign=gradients_from_before_the_update,
        broken=never_clears_gradients,
        mended=clears_gradients,
        sure="certain",
    ),
    Case(
        name="last-window",
        branch=("wrong numbers", "updates are missing"),
        symptom=N_("With accumulation there are fewer updates than expected, and the last batches teach nothing"),
        words=N_(
            "last batches ignored; dataset size not divisible by accumulation steps; leftover gradients; partial "
            "window"
        ),
        cause=N_("the number of micro-batches is no multiple of accum_steps, and the rest never reaches an update"),
        change=N_("update after the last micro-batch, too, dividing by the number that the window really has"),
        surer="len(loader) % accum_steps",
        unit="04_accumulation",
        sign=work_that_no_update_used,
        broken=drops_the_last_window,
        mended=takes_the_last_window,
        sure="certain",
    ),
    Case(
        name="no-target",
        branch=("wrong numbers", "loss is NaN"),
        symptom=N_("The loss of some batches is NaN, in FP32 as well"),
        words=N_(
            "nan loss not precision; labels all -100; truncated answer; max_length; empty targets; train on "
            "responses only; eval loss nan"
        ),
        cause=N_("every target of the batch is masked, so the mean is taken over nothing"),
        change=N_("leave such samples out, or truncate the prompt instead of the answer"),
        surer=N_("(labels != -100).sum() for each batch"),
        unit="04_accumulation",
        sign=mean_of_no_targets,
        broken=batch_without_a_target,
        mended=batch_without_a_target_left_out,
        sure="certain",
    ),
    Case(
        name="log-of-zero",
        branch=("wrong numbers", "loss is NaN"),
        symptom=N_("NaN stays when everything is switched to FP32"),
        words=N_("log(0); division by zero; sqrt of zero gradient; NaN in FP32; own loss function; softmax then log"),
        cause=N_("a formula leaves its domain: the logarithm of a probability that rounded to 0, a division by 0"),
        change=N_(
            "log_softmax or cross_entropy in place of softmax and log; clamp or add a small number inside the root"
        ),
        surer=N_("torch.autograd.set_detect_anomaly(True), and the first tensor that is not finite"),
        unit="02_mixed_precision",
        sign=formula_left_its_domain,
        broken=logarithm_of_zero,
        mended=log_softmax_instead,
        sure="certain",
    ),
    Case(
        name="learning-rate",
        branch=("wrong numbers", "loss is too large"),
        symptom=N_("The loss explodes within a few steps, then is inf or NaN"),
        words=N_(
            "diverges; loss explodes; learning rate too high; gradient explosion; no warmup; nan after a few steps"
        ),
        cause=N_("the learning rate is too high: each update overshoots further than the last"),
        change=N_("a tenth of the learning rate, warm-up, gradient clipping"),
        surer=N_("the losses before the NaN: they grow step by step; overflow comes out of the blue"),
        unit="02_mixed_precision",
        sign=loss_runs_away,
        broken=steps_too_far,
        mended=steps_short_enough,
    ),
)
