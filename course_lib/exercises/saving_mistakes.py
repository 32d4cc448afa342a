"""The mistakes that people make in ``compare`` and ``best_every``, and how each of them shows."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from course_lib.exercises.judge import Facts, Mistake, Near
from course_lib.i18n import N_

ROOM = 0.02
LESSON = "03_checkpointing"


def figure_of(key: str, every: int, bed: Any) -> str:
    return f'compare(…, every={every})["{key}"], {bed}'


def _figures(key: str, find: Callable[[Any, Any], float]) -> Callable[[Any], Iterator[Facts]]:
    """``find(plain step, checkpointed step)`` in place of the right figure."""

    def shows(cases: Any) -> Iterator[Facts]:
        yield {
            figure_of(key, every, bed): Near(find(case.plain, case.checkpointed), ROOM) for every, bed, case in cases
        }

    return shows


def _nothing(*keys: str) -> Callable[[Any], Iterator[Facts]]:
    def shows(cases: Any) -> Iterator[Facts]:
        for nothing in (0, 0.0):
            yield {figure_of(key, every, bed): nothing for every, bed, _ in cases for key in keys}

    return shows


SAVING, FLOPS = "activation_saving", "extra_flops"

COMPARE = (
    Mistake("ratio-not-saving",
            N_("that is what remains. The saving is 1 − with ÷ without"),
            LESSON, _figures(SAVING, lambda plain, other: other.saved_bytes / plain.saved_bytes)),
    Mistake("without-over-with",
            N_("divided the wrong way round: 1 − with ÷ without"),
            LESSON, _figures(SAVING, lambda plain, other: 1 - plain.saved_bytes / other.saved_bytes)),
    Mistake("percent-for-fraction",
            N_("these are per cent. Return fractions: 0.9, not 90"),
            LESSON, lambda cases: (
                {figure_of(key, every, bed): Near(100 * case.figures[key], ROOM) for every, bed, case in cases}
                for key in (SAVING, FLOPS))),
    Mistake("weights-counted",
            N_("the weights are counted: a linear layer saves its weight for the backward pass, but that is there "
               "anyway. Leave out storages that belong to parameters"),
            LESSON, _figures(SAVING, lambda plain, other: 1 - other.saved_with_weights / plain.saved_with_weights)),
    Mistake("counted-twice",
            N_("a storage is counted as often as it is saved, though it takes its room once (a view, or one tensor "
               "saved by two operators). Remember storages, not tensors"),
            LESSON, _figures(SAVING, lambda plain, other: 1 - other.saved_each_time / plain.saved_each_time)),
    Mistake("saving-of-the-peak",
            N_("this is the saving at the peak of the step, which weights, gradients and logits share. Here only "
               "what is saved for the backward pass counts, at the end of the forward pass"),
            LESSON, _figures(SAVING, lambda plain, other: 1 - other.peak_bytes / plain.peak_bytes)),
    Mistake("ratio-not-extra",
            N_("that is with ÷ without. What is added is that minus 1"),
            LESSON, _figures(FLOPS, lambda plain, other: other.flops / plain.flops)),
    Mistake("share-of-forward",
            N_("divided by the forward pass alone. The plain step is forward and backward"),
            LESSON, _figures(FLOPS, lambda plain, other: (other.flops - plain.flops) / plain.forward_flops)),
    Mistake("share-of-the-new-step",
            N_("divided by the step with checkpointing. Divide by the plain one"),
            LESSON, _figures(FLOPS, lambda plain, other: 1 - plain.flops / other.flops)),
    Mistake("forward-counted-alone",
            N_("only the forward pass is counted, but recomputation happens in the backward pass: let "
               "loss.backward() run inside the counter, too"),
            LESSON, _nothing(FLOPS)),
    Mistake("plain-is-checkpointed-too",
            N_("both steps ran with checkpointing, or both without: checkpoint_blocks changes its model in place. "
               "Make a new model for each step: make_model()"),
            LESSON, _nothing(SAVING, FLOPS)),
)  # fmt: skip


def cheapest(blocks: int, boundary_bytes: int, inside_bytes: int) -> int:
    """The K from 1 to ``blocks`` with the least ceil(n / K) · boundary + K · inside; the smaller of equals."""
    return _least(range(1, blocks + 1), blocks, boundary_bytes, inside_bytes)


def _cost(blocks: int, boundary: int, inside: int, every: int, segments: Callable[[float], float] = math.ceil) -> float:
    return segments(blocks / every) * boundary + every * inside


def _least(
    candidates: range, blocks: int, boundary: int, inside: int, segments: Callable[[float], float] = math.ceil
) -> int:
    return min(candidates, key=lambda every: _cost(blocks, boundary, inside, every, segments))


def _answers(*rules: Callable[[int, int, int], float]) -> Callable[[Sequence[tuple[int, int, int]]], Iterator[Facts]]:
    """Each of ``rules`` in place of :func:`cheapest`."""

    def shows(asked: Sequence[tuple[int, int, int]]) -> Iterator[Facts]:
        for rule in rules:
            yield {f"best_every{each}": rule(*each) for each in asked}

    return shows


def _every(n: int) -> range:
    return range(1, n + 1)


BEST = (
    Mistake("ties-to-the-larger",
            N_("of two equally cheap K the smaller one is asked for: it recomputes less at once"),
            LESSON, _answers(lambda n, boundary, inside: _least(_every(n)[::-1], n, boundary, inside))),
    Mistake("remainder-forgotten",
            N_("n / K is rounded down, or not at all: the blocks that are left over are a segment, too. Round up"),
            LESSON, _answers(lambda n, boundary, inside: _least(_every(n), n, boundary, inside, math.floor),
                             lambda n, boundary, inside: _least(_every(n), n, boundary, inside, float))),
    Mistake("square-root",
            N_("√n holds only where a block's inside is as large as its input. Minimise the sum itself"),
            LESSON, _answers(lambda n, boundary, inside: max(1, round(math.sqrt(n))),
                             lambda n, boundary, inside: max(1, math.floor(math.sqrt(n))),
                             lambda n, boundary, inside: math.ceil(math.sqrt(n)))),
    Mistake("range-ends-early",
            N_("range(1, n_blocks) leaves out n_blocks itself, one segment around everything"),
            LESSON, _answers(lambda n, boundary, inside: _least(range(1, max(2, n)), n, boundary, inside))),
    Mistake("cost-not-every",
            N_("that is the smallest number of bytes. Return the K that gives it"),
            LESSON, _answers(lambda n, boundary, inside: _cost(n, boundary, inside, cheapest(n, boundary, inside)))),
    Mistake("segments-not-blocks",
            N_("that is the number of segments. K is the number of blocks in a segment"),
            LESSON, _answers(lambda n, boundary, inside: math.ceil(n / cheapest(n, boundary, inside)))),
    Mistake("boundary-and-inside-swapped",
            N_("boundary and inside are swapped: boundaries are kept once a segment, insides of one segment at a time"),
            LESSON, _answers(lambda n, boundary, inside: cheapest(n, inside, boundary))),
)  # fmt: skip
