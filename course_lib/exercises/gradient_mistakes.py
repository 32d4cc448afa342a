"""The mistakes of exercise 3 that show in an update's gradient, and in entries where micro-batches differ.

Nearly every wrong gradient is a sum of the micro-batches' own gradients with wrong weights, so it can be computed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.exercises.accumulation_mistakes import ENTRIES, FULL, LESSON, ROOM, Case, means, near
from course_lib.exercises.judge import Facts, Mistake, Near
from course_lib.exercises.watched_training import Bench
from course_lib.i18n import N_, _


def gradient_fact(number: int) -> str:
    return _("gradient of update {number}").format(number=number)


def against(gradient: Tensor, right: Tensor) -> dict[str, Any]:
    """A gradient beside the right one: its length and its difference, both ÷ the right one's length."""
    length = float(right.norm())
    off = float((gradient - right).norm()) / length
    return {
        "length ÷ right": Near(float(gradient.norm()) / length, ROOM),
        "difference ÷ right": Near(off, 2 * ROOM) if off > ROOM else 0.0,
    }


RIGHT_GRADIENT = {"length ÷ right": Near(1.0, ROOM), "difference ÷ right": 0.0}


# --- gradients --------------------------------------------------------------------------------------------------------


Weights = Callable[[Bench, Sequence[int], int], float]  #: (bench, window, micro-batch) to the factor of its summed loss


def combined(bench: Bench, window: Sequence[int], factor: Weights, of: Sequence[int] | None = None) -> Tensor:
    places = window if of is None else of
    return sum((factor(bench, window, each) * bench.gradients[each] for each in places), torch.zeros(()))


def _mean(bench: Bench, each: int) -> float:
    return 1 / bench.counts[each] if bench.counts[each] else 0.0  # the mean of no loss has no gradient


def tokens_in(bench: Bench, window: Sequence[int]) -> int:
    return sum(bench.counts[each] for each in window)


DIVISIONS: dict[str, Weights] = {
    "tokens": lambda bench, window, each: 1 / tokens_in(bench, window),
    "means": lambda bench, window, each: _mean(bench, each) / len(window),
    "means, n": lambda bench, window, each: _mean(bench, each) / bench.accum_steps,
    "mean": lambda bench, window, each: _mean(bench, each),
    "sum": lambda bench, window, each: 1.0,
    "batch": lambda bench, window, each: _mean(bench, each) / bench.pieces[each].rows,
    "sum, batch": lambda bench, window, each: 1 / bench.pieces[each].rows,
    "sum, whole batch": lambda bench, window, each: 1 / sum(bench.pieces[one].rows for one in window),
    "positions": lambda bench, window, each: 1 / sum(bench.batches[one][1].numel() for one in window),
    "twice": lambda bench, window, each: 1 / tokens_in(bench, window) / len(window),
    "partial": lambda bench, window, each: len(window) / bench.accum_steps / tokens_in(bench, window),
}


def _weighted(*divisions: str) -> Any:
    """Every micro-batch's gradient divided by something else."""

    def shows(case: Case) -> Iterator[Facts]:
        for division in divisions:
            yield _divided(case, division)

    return shows


def _divided(case: Case, division: str) -> Facts:
    return _gradients(case, lambda window: combined(case.bench, window, DIVISIONS[division]))


def _gradients(case: Case, made: Callable[[list[int]], Tensor]) -> Facts:
    return {
        gradient_fact(number): against(made(window), case.bench.gradient(window))
        for number, window in enumerate(case.seen.windows, 1)
        if window in case.windows
    }


def _last_alone(case: Case) -> Iterator[Facts]:
    yield _gradients(case, lambda window: combined(case.bench, window, DIVISIONS["tokens"], window[-1:]))
    yield _gradients(case, lambda window: combined(case.bench, window, DIVISIONS["mean"], window[-1:]))


def _first_missing(case: Case) -> Iterator[Facts]:
    yield _gradients(case, lambda window: combined(case.bench, window, DIVISIONS["tokens"], window[1:]))


def _carried_over(case: Case) -> Iterator[Facts]:
    total, shown = torch.zeros(()), {}
    for number, window in enumerate(case.seen.windows, 1):
        total = total + case.bench.gradient(window)
        if window in case.windows:
            shown[gradient_fact(number)] = against(total, case.bench.gradient(window))
    yield shown


GRADIENT = (
    Mistake("no-division",
            N_("gradients of the micro-batches' means are added up and never divided: accum_steps times too long. A "
               "missing 1/N acts like a learning rate N times as high under SGD; under Adam it hides until you clip"),
            LESSON, _weighted("mean")),
    Mistake("sum-not-divided",
            N_("the gradient is that of a sum over tokens. Divide by the window's unmasked tokens"),
            LESSON, _weighted("sum")),
    Mistake("divided-by-batch",
            N_("a division by the number of sequences. What has to be divided by is the number of unmasked tokens in "
               "the whole window (with equal micro-batches: the mean loss by accum_steps)"),
            LESSON, _weighted("batch", "sum, batch", "sum, whole batch")),
    Mistake("divided-twice",
            N_("divided by the tokens of the window and by accum_steps as well: accum_steps times too short"),
            LESSON, _weighted("twice")),
    Mistake("zero-grad-inside",
            N_("zero_grad() is called inside the window, so only the last micro-batch is left at the update. Call it "
               "once per window: after step(), or before the first micro-batch"),
            LESSON, _last_alone),
    Mistake("gradients-carried-over",
            N_("the gradients of earlier windows are still there. Call zero_grad() after each update"),
            LESSON, _carried_over),
    Mistake("first-micro-batch-missing",
            N_("the window's first micro-batch is missing from the gradient: zero_grad() comes between its backward "
               "pass and the next one"),
            LESSON, _first_missing),
    Mistake("never-full",
            N_("no update came after accum_steps micro-batches. Mend the test above first"),
            LESSON, lambda case: ({FULL: "none"},)),
)  # fmt: skip


# --- unequal micro-batches --------------------------------------------------------------------------------------------


def _own_entries(case: Case, way: Callable[[Bench, Sequence[int]], float]) -> Facts:
    """Entries for the windows as they were; nothing where entries are not judged."""
    return {ENTRIES: near(way(case.bench, window) for window in case.seen.windows)} if ENTRIES in case.came else {}


def _mean_entry(bench: Bench, window: Sequence[int]) -> float:
    return sum(means(bench, window)) / len(window)


def _mean_over_steps(bench: Bench, window: Sequence[int]) -> float:
    return sum(means(bench, window)) / bench.accum_steps


def _mean_of_some(bench: Bench, window: Sequence[int]) -> float:
    return _mean_entry(bench, [each for each in window if bench.counts[each]])


def _mean_of_means(case: Case) -> Iterator[Facts]:
    for division in ("means", "means, n"):
        gradients = _divided(case, division)
        yield gradients
        for way in (_mean_entry, _mean_over_steps, _mean_of_some):
            yield {**gradients, **_own_entries(case, way)}


def _masked_counted(case: Case) -> Iterator[Facts]:
    gradients = _divided(case, "positions")
    entries = _own_entries(case, lambda bench, window: sum(bench.sums[each] for each in window)
                           / sum(bench.batches[each][1].numel() for each in window))  # fmt: skip
    return iter(({**gradients, **entries}, gradients, entries))


def _partial(case: Case) -> Iterator[Facts]:
    gradients = _divided(case, "partial")
    entries = _own_entries(case, lambda bench, window: bench.loss(window) * len(window) / bench.accum_steps)
    return iter((gradients, {**gradients, **entries}, entries))


def _mean_of_nothing(case: Case) -> Iterator[Facts]:
    bench = case.bench
    empty = {number: any(not bench.counts[each] for each in window) for number, window in enumerate(case.seen.windows)}
    entries = _own_entries(case, Bench.loss)
    if not entries or not any(empty.values()):
        return
    yield {ENTRIES: [Near(float("nan")) if empty[number] else entry for number, entry in enumerate(entries[ENTRIES])]}


TOKENS = (
    Mistake("mean-of-means",
            N_("a mean of means: each micro-batch counts the same, however few of its targets are unmasked. Add up "
               "summed losses (reduction=\"sum\") and divide by the unmasked tokens of the whole window"),
            LESSON, _mean_of_means),
    Mistake("entry-mean-of-means",
            N_("the gradients are right, but the entries are means of the micro-batches' means. An entry is the "
               "window's summed loss ÷ its unmasked tokens"),
            LESSON, lambda case: (
                _own_entries(case, way) for way in (_mean_entry, _mean_over_steps) if ENTRIES in case.came)),
    Mistake("masked-tokens-counted",
            N_("masked targets were counted. Only targets other than -100 are tokens of the loss: (targets != "
               "-100).sum()"),
            LESSON, _masked_counted),
    Mistake("partial-window-over-n",
            N_("the last window is divided as if it had accum_steps micro-batches. Divide by the tokens that it holds"),
            LESSON, _partial),
    Mistake("mean-of-nothing",
            N_("a micro-batch without a single target makes the entry nan: the mean of no loss is nan, and nan × 0 "
               "is nan. Use reduction=\"sum\", which gives 0"),
            LESSON, _mean_of_nothing),
)  # fmt: skip
