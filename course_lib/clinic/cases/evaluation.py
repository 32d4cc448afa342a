"""Out of memory in evaluation: with a graph, with everything collected, with a larger batch."""

import torch

from course_lib.clinic.case import Case
from course_lib.clinic.patients import batches, gpt, loss_of, sgd
from course_lib.clinic.reading import Pass, Piece, Reading, total
from course_lib.i18n import N_, _
from course_lib.models import GPT
from course_lib.units import KIB, MIB, format_bytes


def _trained() -> GPT:
    model = gpt(layers=1)
    optimizer = sgd(model)
    for batch in batches(2):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def evaluates_with_a_graph() -> None:
    model, total_loss = _trained(), torch.zeros(())
    model.eval()
    for batch in batches(8):
        total_loss = total_loss + loss_of(model, batch)


def evaluates_without_a_graph() -> None:
    model, total_loss = _trained(), torch.zeros(())
    model.eval()
    with torch.no_grad():
        for batch in batches(8):
            total_loss = total_loss + loss_of(model, batch)


def with_a_graph(reading: Reading) -> str | None:
    last = reading.last_pass
    if not reading.death or not last or last.training or not last.grad or last.dead_switch:
        return None
    if any(each.at >= last.at for each in reading.backwards) or not any(each.training for each in reading.passes):
        return None
    return _(
        "it died in a pass that autograd took notes of (model.training is {training}), and no backward pass came; "
        "{kept} were kept for one"
    ).format(
        training=last.training, kept=format_bytes(total(_since(reading, last)), "MiB")
    )  # fmt: skip


def collects_all_logits() -> None:
    model, predictions = _trained(), []
    model.eval()
    with torch.no_grad():
        for tokens, _targets in batches(10):
            predictions.append(model(tokens))


def collects_what_the_metric_needs() -> None:
    model, predictions = _trained(), []
    model.eval()
    with torch.no_grad():
        for tokens, _targets in batches(10):
            predictions.append(model(tokens).argmax(-1))


def collected(reading: Reading) -> str | None:
    last = reading.last_pass
    if not reading.death or not last or last.grad:
        return None
    kept = _kept_by_evaluation(reading, last)
    if reading.share(kept) < 0.2:
        return None
    return _(
        "{share:.0%} of what was alive had been made by earlier evaluation batches: {count} pieces such as {shape}"
    ).format(
        share=reading.share(kept), count=len(kept), shape=list(max(kept).shape)
    )  # fmt: skip


def evaluates_in_larger_batches() -> None:
    model = _trained().eval()
    with torch.no_grad():
        for batch in batches(1, rows=32):
            loss_of(model, batch)


def evaluates_in_the_same_batches() -> None:
    model = _trained().eval()
    with torch.no_grad():
        for batch in batches(4, rows=4):
            loss_of(model, batch)


def larger_batches(reading: Reading) -> str | None:
    last = reading.last_pass
    if not reading.death or not last or last.grad or reading.share(_kept_by_evaluation(reading, last)) >= 0.2:
        return None
    trained = max((each.tokens for each in reading.passes if each.grad), default=0)
    if not trained or last.tokens < 1.5 * trained:
        return None
    return _("the evaluation batch that died has {now} tokens, training batches have {trained}").format(
        now=last.tokens, trained=trained
    )


def _since(reading: Reading, last: Pass) -> list[Piece]:
    first = next(each for each in reading.passes if each.training == last.training)
    return [each for each in reading.at_death if each.born >= first.at]


def _kept_by_evaluation(reading: Reading, last: Pass) -> list[Piece]:
    passes = [each for each in reading.passes if not each.grad]
    return [
        each for each in reading.at_death if passes[0].at <= each.born < last.at and each.size_bytes >= KIB
    ]  # fmt: skip


CASES = (
    Case(
        name="no-no-grad",
        branch=("out of memory", "in evaluation"),
        symptom=N_("Out of memory during validation, although training was fine"),
        words=N_("validation OOM; evaluation loop; forgot no_grad; model.eval() is not enough; eval loss summed"),
        cause=N_(
            "without no_grad every evaluation batch keeps its activations for a backward pass that never comes; "
            "eval() does not change that"
        ),
        change=N_("run evaluation under torch.no_grad() or torch.inference_mode()"),
        surer=N_("print loss.requires_grad in the evaluation loop: it must be False"),
        unit="06_troubleshooting",
        sign=with_a_graph,
        broken=evaluates_with_a_graph,
        mended=evaluates_without_a_graph,
        sure="certain",
        card_bytes=3 * MIB,
    ),
    Case(
        name="collected-logits",
        branch=("out of memory", "in evaluation"),
        symptom=N_("Evaluation starts well and runs out of memory after some batches; a metric was added"),
        words=N_(
            "compute_metrics OOM; predictions gathered; all logits concatenated; preprocess_logits_for_metrics; "
            "eval_accumulation_steps"
        ),
        cause=N_("the logits of all batches are collected on the card until the metric is computed"),
        change=N_(
            "reduce each batch to what the metric needs before keeping it: argmax, or a running sum (in the Trainer "
            "preprocess_logits_for_metrics)"
        ),
        surer=N_("memory_allocated() after each evaluation batch: it rises by batch × length × vocabulary × bytes"),
        unit="06_troubleshooting",
        sign=collected,
        broken=collects_all_logits,
        mended=collects_what_the_metric_needs,
        card_bytes=3 * MIB,
    ),
    Case(
        name="evaluation-batch",
        branch=("out of memory", "in evaluation"),
        symptom=N_("Out of memory at the very first batch of an evaluation"),
        words=N_(
            "per_device_eval_batch_size; default evaluation batch 8; eval OOM immediately; auto_find_batch_size "
            "lowers the wrong batch"
        ),
        cause=N_(
            "the evaluation batch is larger than the training batch, and its logits alone are larger than a whole "
            "training step"
        ),
        change=N_("set the evaluation batch to the training batch or below"),
        surer=N_("batch × length × vocabulary × 4 bytes, for both loops"),
        unit="06_troubleshooting",
        sign=larger_batches,
        broken=evaluates_in_larger_batches,
        mended=evaluates_in_the_same_batches,
        card_bytes=3 * MIB,
    ),
)
