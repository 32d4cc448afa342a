"""The mistakes of exercise 3, and how each of them shows.

A row says which facts would come instead of the right ones; facts that it leaves out would be right. Gradients are
in ``gradient_mistakes``, clipping and the scaler in ``update_mistakes``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from course_lib.exercises.judge import Facts, Mistake, Near, Raised
from course_lib.exercises.watched_training import Bench, Seen
from course_lib.i18n import N_

CALL, WINDOWS, ENTRIES, FIRST = "train(...)", N_("micro-batches before each update"), "entries", N_("first entry")
FULL, NUMBERS = N_("updates after accum_steps micro-batches"), "a list of numbers"
LESSON = "04_accumulation"
ROOM = 1e-3  #: by which rounding may move a gradient or a loss; every mistake here moves them further


@dataclass
class Case:
    """What was asked of ``train``, and what was seen."""

    bench: Bench
    seen: Seen
    windows: list[list[int]] = field(default_factory=list)  #: those whose gradients are judged
    came: dict[str, Any] = field(default_factory=dict)


def near(values: Iterable[float]) -> list[Near]:
    return [Near(value, ROOM) for value in values]


def means(bench: Bench, window: Sequence[int]) -> list[float]:
    return [bench.loss([each]) for each in window]


# --- windows and entries ----------------------------------------------------------------------------------------------


def _updates(*ways: Callable[[int, int], list[int]]) -> Any:
    """Other places for the updates, whatever the entries."""

    def shows(case: Case) -> Iterator[Facts]:
        for way in ways:
            yield {WINDOWS: way(len(case.bench.pieces), case.bench.accum_steps), ENTRIES: case.came.get(ENTRIES)}

    return shows


def _first_alone(count: int, steps: int, leftover: bool) -> list[int]:
    rest = (count - 1) % steps
    return [1] + [steps] * ((count - 1) // steps) + ([rest] if leftover and rest else [])


def _entries(way: Callable[[Bench, list[int]], Iterable[float]]) -> Any:
    """Other entries, the windows being right."""

    def shows(case: Case) -> Iterator[Facts]:
        bench = case.bench
        yield {ENTRIES: near([entry for window in bench.windows for entry in way(bench, window)])}

    return shows


TRAIN = (
    Mistake("step-on-i-mod-n",
            N_("the first update comes after one micro-batch: i % accum_steps == 0 is true for i = 0. Count from 1: "
               "(i + 1) % accum_steps == 0"),
            LESSON, _updates(lambda count, steps: _first_alone(count, steps, False),
                             lambda count, steps: _first_alone(count, steps, True))),
    Mistake("last-window-dropped",
            N_("the micro-batches after the last full window are never used. Update once more when the list ends "
               "inside a window"),
            LESSON, _updates(lambda count, steps: [steps] * (count // steps))),
    Mistake("step-every-micro-batch",
            N_("an update after every micro-batch: that is training with the small batch. Call step() once per window"),
            LESSON, _updates(lambda count, steps: [1] * count)),
    Mistake("entry-of-last-micro-batch",
            N_("an entry is the loss of its window's last micro-batch alone. Add up the summed losses of the whole "
               "window"),
            LESSON, _entries(lambda bench, window: means(bench, window)[-1:])),
    Mistake("entry-per-micro-batch",
            N_("there is an entry for every micro-batch. Give one per update"),
            LESSON, _entries(means)),
    Mistake("entry-is-a-sum",
            N_("an entry is a sum that was not divided. Divide the window's summed loss by its unmasked tokens"),
            LESSON, lambda case: (shown for way in (
                lambda bench, window: [sum(means(bench, window))],
                lambda bench, window: [sum(bench.sums[each] for each in window)]) for shown in _entries(way)(case))),
    Mistake("entry-divided-twice",
            N_("an entry is divided once too often: by the number of micro-batches, when it is a mean over all "
               "tokens already"),
            LESSON, lambda case: (shown for way in (
                lambda bench, window: [bench.loss(window) / len(window)],
                lambda bench, window: [bench.loss(window) / bench.accum_steps]) for shown in _entries(way)(case))),
    Mistake("partial-window-over-n",
            N_("the last window is divided by accum_steps, though it has fewer micro-batches. Divide by what the "
               "window holds"),
            LESSON, _entries(lambda bench, window: [bench.loss(window) * len(window) / bench.accum_steps])),
    Mistake("entry-after-the-update",
            N_("the loss was computed again after the update. An entry is the loss that the window had before it; "
               "the forward passes of the window have shown it already"),
            LESSON, lambda case: ({FIRST: "changed by the update"},)),
)  # fmt: skip


# --- a window without targets -----------------------------------------------------------------------------------------

KINDS, WEIGHTS = N_("entries, by kind"), N_("weights after the window without targets")
NUMBER, NAN, BEFORE = "number", "nan", "as before"


def _kinds(*middle: str, after: str = NUMBER) -> list[str]:
    return [NUMBER, *middle, after]


EMPTY = (
    Mistake("empty-window-nan",
            N_("0 ÷ 0: the window's loss and its gradients became nan, and the update carried that into every "
               "weight. When a window has no unmasked token, append nan and call neither backward nor step"),
            LESSON, lambda case: ({KINDS: _kinds(middle, after=NAN), WEIGHTS: "nan"} for middle in (NAN, "0"))),
    Mistake("empty-window-steps",
            N_("step() was called for a window without targets. A zero gradient still moves weights under Adam "
               "(momentum, weight decay). Leave the whole update out"),
            LESSON, lambda case: ({KINDS: _kinds(middle), WEIGHTS: "changed"} for middle in (NAN, "0"))),
    Mistake("empty-window-left-out",
            N_("the window without targets has no entry. Report nan, so that the list still has one entry per window"),
            LESSON, lambda case: ({KINDS: _kinds()},)),
    Mistake("empty-window-zero",
            N_("the window without targets reports 0, which would look like a perfect loss. Report float(\"nan\")"),
            LESSON, lambda case: ({KINDS: _kinds("0")},)),
    Mistake("empty-window-raises",
            N_("a window without targets must not end the training. Test for zero tokens before you divide"),
            LESSON, lambda case: ({CALL: Raised(kind)} for kind in (
                "ZeroDivisionError", "ValueError", "AssertionError"))),
)  # fmt: skip


# --- what is kept -----------------------------------------------------------------------------------------------------

KEPT, WAITING = N_("earlier graphs still alive, at most"), N_("micro-batches waiting for their backward pass, at most")
ROWS, TYPES = N_("sequences in one forward pass, at most"), N_("types of the entries")


def _graph_kept(bench: Bench) -> Iterator[Facts]:
    for kept in range(1, len(bench.pieces) + 1):
        for types in (["float"], ["Tensor"]):
            yield {KEPT: kept, TYPES: types}


RELEASED = (
    Mistake("graph-kept",
            N_("a loss is kept with its graph. Adding or appending the tensor keeps every graph behind it alive; "
               "keep loss.item(), a plain number"),
            LESSON, _graph_kept),
    Mistake("one-backward-for-the-window",
            N_("the losses of the window are added up and backward() runs once at its end: all its activations are "
               "alive together, and nothing is saved. Call backward() after each forward pass"),
            LESSON, lambda bench: ({WAITING: waiting, KEPT: kept, TYPES: types} for waiting in {bench.accum_steps - 1}
                                   for kept in range(bench.accum_steps + 2) for types in (["float"], ["Tensor"]))),
    Mistake("micro-batches-joined",
            N_("the micro-batches of a window were joined into one big batch. The gradient is right, but so is the "
               "big batch's memory. Run them one after the other"),
            LESSON, lambda bench: ({ROWS: sum(bench.pieces[each].rows for each in bench.windows[0]), TYPES: types}
                                   for types in (["float"], ["Tensor"]))),
    Mistake("entries-are-tensors",
            N_("the entries are tensors. Give plain numbers: loss.item()"),
            LESSON, lambda bench: ({TYPES: ["Tensor"]},)),
)  # fmt: skip
