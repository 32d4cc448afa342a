"""From the traces of two shallow models to the trace of a deep one.

A stack of equal blocks leaves a periodic trace: in each stretch of it (one forward pass, one backward
pass, the optimizer's step) a deeper model repeats the same run of events once more for each further
period of blocks. Comparing two depths shows which run that is; repeating it gives the trace at any
depth, event by event, so that the moment of the peak may move with depth as it really does. What
happens in one operator for all blocks together (Adam's foreach temporary) grows linearly instead.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from itertools import groupby

from course_lib.trace import Change, Event, Tensor, Trace


def at_depth(run: Callable[[int], Trace], layers: int, period: int = 1, first: int = 0) -> Trace:
    """The trace of ``layers`` blocks, from two shallow runs where these are less work.

    Args:
        run: makes and runs the model with as many blocks, and returns its trace.
        layers: how many blocks the model in question has.
        period: after so many blocks the model, or what the recipe does with it, repeats itself.
        first: how many blocks come before that.
    """
    shallow = first + (layers - first) % period + 2 * period
    if shallow + period >= layers:
        return run(layers)
    try:
        return grow(run(shallow), run(shallow + period), (layers - shallow) // period)
    except ValueError:  # the step is not periodic although the model is
        return run(layers)


def grow(shallow: Trace, deeper: Trace, periods: int) -> Trace:
    """The trace of a model ``periods`` periods deeper than ``shallow``.

    Args:
        shallow: the trace of a model with at least two periods of blocks.
        deeper: the same model one period deeper.
        periods: how many periods to add to ``shallow``; 0 gives ``shallow``, 1 ``deeper``.

    Raises:
        ValueError: the two traces do not differ by a repeated run; the model is not periodic.
    """
    stretches, more = _stretches(shallow), _stretches(deeper)
    if [moment for moment, _ in stretches] != [moment for moment, _ in more]:
        raise ValueError("the two depths pass through different moments")
    events: list[Event] = []
    for (_, short), (_, long) in zip(stretches, more, strict=True):
        events += _grow_stretch(short, long, periods)
    static = {
        account: size + periods * (deeper.static_bytes[account] - size)
        for account, size in shallow.static_bytes.items()
    }
    return Trace(tuple(events), static)


def _stretches(trace: Trace) -> list[tuple[str, list[Event]]]:
    return [(moment, list(events)) for moment, events in groupby(trace.events, key=lambda event: event.moment)]


def _grow_stretch(short: list[Event], long: list[Event], periods: int) -> list[Event]:
    """One stretch, cut into pieces in each of which a single run of events is repeated."""
    events: list[Event] = []
    while short or long:
        here, there = _first_piece(short, long)
        start, added = _where_the_run_starts(short[:here], long[:there]), there - here
        if not there or start is None:
            raise ValueError("a stretch of the deeper trace does not repeat a run of the shallow one")
        before = [_extend(a, b, periods) for a, b in zip(short[:start], long[:start], strict=True)]
        after = [_extend(a, b, periods) for a, b in zip(short[start:here], long[start + added : there], strict=True)]
        events += before + long[start : start + added] * periods + after
        short, long = short[here:], long[there:]
    return events


def _first_piece(short: list[Event], long: list[Event]) -> tuple[int, int]:
    """How many events of each belong to the first piece: all of them, unless more than one run was inserted.

    An optimizer that goes over its tensors several times inserts a run in each of these loops.
    """
    if _where_the_run_starts(short, long) is not None:
        return len(short), len(long)
    keys, more = _keys(short), _keys(long)
    same = _common(keys, more)
    follow = {added: _common(keys[same:], more[same + added :]) for added in range(1, len(long) - len(short) + 1)}
    added = max(follow, key=lambda added: (follow[added], -added), default=0)
    return same + follow.get(added, 0), same + added + follow.get(added, 0)


def _where_the_run_starts(short: list[Event], long: list[Event]) -> int | None:
    """The index at which ``long`` has a run inserted: of all that fit, the one that changes fewest events."""
    added = len(long) - len(short)
    keys, more = _keys(short), _keys(long)
    prefix = _common(keys, more)
    suffix = _common(keys[::-1], more[::-1])
    first, last = len(short) - suffix, prefix
    if added < 0 or first > last:
        return None
    best, start = 0, first
    gain = 0  # how many fewer events change when the run starts at i instead of at first
    for i in range(first, last):
        gain += _same(short[i], long[i]) - _same(short[i], long[i + added])
        if gain > best:
            best, start = gain, i + 1
    return start


def _same(a: Event, b: Event) -> bool:
    return a.change == b.change and _sizes(a) == _sizes(b)


def _sizes(event: Event) -> list[int]:
    return sorted(tensor.size_bytes for tensor in event.born + event.died)


def _keys(events: list[Event]) -> list[str]:
    return [event.operator for event in events]


def _common(a: Sequence[object], b: Sequence[object]) -> int:
    """How many entries the two lists share from the start."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _extend(short: Event, long: Event, periods: int) -> Event:
    if short.change == long.change:  # nothing that grows
        return short
    change = tuple(a + periods * (b - a) for a, b in zip(short.change, long.change, strict=True))
    born, died = (tuple(_extend_tensors(a, b, periods)) for a, b in ((short.born, long.born), (short.died, long.died)))
    return short._replace(change=_as_change(change), born=born, died=died)


def _extend_tensors(short: tuple[Tensor, ...], long: tuple[Tensor, ...], periods: int) -> list[Tensor]:
    """Tensors that grow with depth, or more of the same: one for each parameter of a further block."""
    if len(short) == len(long):
        return [_grown(a, b, periods) for a, b in zip(short, long, strict=True)]
    start, added = _common(short, long), len(long) - len(short)
    if long[start + added :] == short[start:]:
        return [*short[:start], *(long[start : start + added] * periods), *short[start:]]
    changes = SequenceMatcher(None, short, long, autojunk=False).get_opcodes()
    if {change for change, *_ in changes} == {"equal", "insert"}:  # in several places: weights, then states
        runs = ((long[i:j], 1 if change == "equal" else periods) for change, _, _, i, j in changes)
        return [tensor for run, times in runs for tensor in run * times]
    few, more = Counter(short), Counter(long)  # order is lost, sizes are not
    return [tensor for tensor in more for _ in range(few[tensor] + periods * (more[tensor] - few[tensor]))]


def _grown(short: Tensor, long: Tensor, periods: int) -> Tensor:
    return short._replace(size_bytes=short.size_bytes + periods * (long.size_bytes - short.size_bytes))


def _as_change(change: tuple[int, ...]) -> Change:
    weights, gradients, optimizer, activations, temporary = change
    return weights, gradients, optimizer, activations, temporary
