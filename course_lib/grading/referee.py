"""Holds the tests and knows what is right, outside of the student's process.

A test cell is executed here, letter for letter, with stand-ins in place of the student's functions. Where a test
watches a function (:func:`course_lib.exercises.judge.observe`, a ``Witness``, ``watch``, a ``Bed``), the watching
happens in the student's room and its result travels here as data; comparing it with what is right happens here. The
hidden part gets this run's seed in place of the one in the source, so that the right values are nobody's to know
before.
"""

import ast
import builtins
import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from course_lib.exercises import (
    accumulation,
    checkpointing,
    checkpointing_mistakes,
    curves,
    judge,
    precision,
    segments,
    watched_training,
    witness,
)
from course_lib.grading import answering  # noqa: F401 - says which classes may travel
from course_lib.grading.line import Silence
from course_lib.grading.sandbox import Gone, Room
from course_lib.grading.wire import pack, unpack


class Unproven(Exception):
    """The data cannot be judged, since something that it rests on is wrong; the test's own word remains."""


@dataclass(frozen=True)
class Verdict:
    """What the referee says of one part of a test cell."""

    passed: bool
    says: str = ""  #: the test's message
    mistake: str | None = None  #: the known mistake that it looks like
    gone: str = ""  #: why the room is no more, where it is not
    unproven: str = ""


@dataclass
class Student:
    """The names of one notebook, in its bare room."""

    room: Room
    seconds: float  #: for each answer
    gone: str = ""
    witnesses: list[witness.Witness] = field(default_factory=list)  #: in the order in which they were asked
    looked: dict[Any, judge.Facts] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)  #: facts of ``checkpoint_blocks`` that are not right
    said: dict[Any, Any] = field(default_factory=dict)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One answer of the room.

        Raises:
            Gone: there is none; ``gone`` then says why.
        """
        if self.gone:
            raise Gone(self.gone)
        try:
            reply = self.room.ask({"op": op, **{name: pack(value) for name, value in fields.items()}}, self.seconds)
            return {name: unpack(value) for name, value in reply.items()}
        except Gone as error:
            self.gone = error.why
            raise
        except Silence:
            self.room.close()
            self.gone = "died"
            raise Gone(self.gone) from None


@dataclass(frozen=True, eq=False)
class Remote:
    """Stands for a function of the student's."""

    name: str
    student: Student

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        reply = self.student.ask("call", name=self.name, arguments=arguments, settings=settings)
        if "raised" not in reply:
            return reply.get("value")
        kind = getattr(builtins, str(reply["raised"]), RuntimeError)
        raise (kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError)(reply.get("text"))


def judge_part(code: str, student: Student, reference: dict[str, Any]) -> Verdict:
    """Execute a part of a test cell here.

    Args:
        reference: the names of the solved notebook.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    wanted = sorted({node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)})
    try:
        with instruments(student, reference), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            found = student.ask("look", names=wanted).get("found", {})
            for name, what in found.items():
                names[name] = Remote(name, student) if what[0] == "function" else what[1]
            exec(compile(code, "<test>", "exec"), names)
    except Unproven as error:
        return Verdict(True, unproven=str(error))
    except Gone as error:
        return Verdict(False, gone=error.why)
    except judge.Broken as error:
        return Verdict(False, str(error), error.mistake)
    except Exception as error:
        if student.gone:
            return Verdict(False, gone=student.gone)
        return Verdict(False, type(error).__name__ + ": " + str(error))
    return Verdict(True)


def imports_of(code: str) -> str:
    """The imports at the top of a test's visible part, on which the hidden one may rely."""
    found = [node for node in ast.parse(code).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return "".join(f"{ast.unparse(node)}\n" for node in found)


def reseeded(code: str, seed: str) -> str:
    """The same test with other seeds: every ``seed=NUMBER`` becomes another number that follows from ``seed``. Tests
    that share one go on sharing it, and with it what they found out."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "seed" and isinstance(node.value, ast.Constant):
            digest = hashlib.sha256(f"{seed}:{node.value.value!r}".encode()).digest()
            node.value = ast.copy_location(ast.Constant(int.from_bytes(digest[:4]) % 2**31), node.value)
    return ast.unparse(ast.fix_missing_locations(tree))


@contextmanager
def instruments(student: Student, reference: dict[str, Any]) -> Iterator[None]:
    """The instruments of the exercises' tests look into the student's room."""
    with ExitStack() as stack:
        for module in (precision, checkpointing, curves):
            stack.enter_context(patch.object(module, "observe", partial(_observe, reference)))
        stack.enter_context(patch.object(witness.Witness, "ask", _ask))
        stack.enter_context(patch.object(accumulation, "watch", _watch))
        stack.enter_context(patch.object(segments.Bed, "look", _look))
        stack.enter_context(patch.object(checkpointing, "_said", _said))
        yield


def _observe(reference: dict[str, Any], look: Any, *arguments: Any, **settings: Any) -> Any:
    if isinstance(look, Remote):
        reply = look.student.ask("observe", name=look.name, arguments=arguments, settings=settings)
        return reply["value"]
    if look is checkpointing.compared and isinstance(arguments[0], Remote):
        function, bed, every = arguments
        if not function.student.looked or function.student.wrong:
            raise Unproven(f"{function.name} is not right, and what compare has to find for it is not known here")
        return _compared_here(reference[function.name], bed, every, function.student)
    return judge.observe(look, *arguments, **settings)


#: What the solution's ``checkpoint_blocks`` comes to, with early stop and without.
_references: dict[tuple[Any, ...], segments.Compared] = {}


def _compared_here(
    checkpoint_blocks: Callable[..., Any], bed: segments.Bed, every: int, student: Student
) -> segments.Compared:
    """What ``compare`` has to find. A right ``checkpoint_blocks`` may recompute a segment to its end, or stop where all
    that was saved is there again; of the two, the one that the student's figure is nearer to."""
    key = _key_of(bed, every)

    def found(early_stop: bool) -> segments.Compared:
        known = (checkpoint_blocks, early_stop, *key)
        if known not in _references:  # the same for every submission of a run
            with set_checkpoint_early_stop(early_stop):
                _references[known] = segments.compared(checkpoint_blocks, bed, every)
        return _references[known]

    def away(one: segments.Compared) -> float:
        return abs(one.figures["extra_flops"] - flops)

    said = student.said.get(key)
    flops: Any = said.get("extra_flops") if isinstance(said, dict) else None
    if not isinstance(flops, float) or away(found(True)) <= checkpointing_mistakes.ROOM:
        return found(True)
    return min(found(True), found(False), key=away)


def _key_of(bed: segments.Bed, every: int) -> tuple[Any, ...]:
    return str(bed), *bed.key, every


def _ask(self: witness.Witness, measure_peak: Any, recipe: str) -> Any:
    known = measure_peak.student.witnesses
    if self not in known:
        known.append(self)
    reply = measure_peak.student.ask("ask", name=measure_peak.name, number=known.index(self), size=self.size,
                                     device=self.device, recipe=recipe)  # fmt: skip
    seen = reply["seen"]
    self.seen, self.optimizer = seen if isinstance(seen, witness.Seen) else None, str(reply["optimizer"])
    return reply["peak"]


def _watch(
    train: Remote, bench: watched_training.Bench, make_optimizer: Any = torch.optim.SGD, scaler: Any = None,
    **settings: Any,
) -> watched_training.Seen:  # fmt: skip
    kind = make_optimizer.func if isinstance(make_optimizer, partial) else make_optimizer
    more = make_optimizer.keywords if isinstance(make_optimizer, partial) else {}
    reply = train.student.ask("watch", name=train.name, bench=bench, optimizer=(kind.__name__, dict(more)),
                              scale=scaler.before if scaler else None, settings=settings)  # fmt: skip
    if scaler and isinstance(reply["scaled"], int) and isinstance(reply["scale"], int | float):
        scaler.scaled, scaler._scale, scaler._init_scale = reply["scaled"], None, float(reply["scale"])
    seen = reply["seen"]
    if not isinstance(seen, watched_training.Seen) or not _tensors(seen.gradients) or not _tensors(seen.after_update):
        raise judge.Broken("✗ train: what was seen of it is unreadable")
    return seen


def _tensors(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(each, torch.Tensor) and each.dim() == 1 for each in values)


def _said(compare: Remote, bed: segments.Bed, every: int) -> Any:
    known, key = compare.student.said, _key_of(bed, every)
    if key not in known:
        known[key] = compare.student.ask("said", name=compare.name, bed=_made_of(bed), every=every)["value"]
    return known[key]


def _made_of(bed: segments.Bed) -> tuple[int, type, float]:
    return bed.seed, bed.model, bed.config.dropout


def _look(self: segments.Bed, function: Remote) -> judge.Facts:
    """``Bed.look`` with the model in the student's room, and the comparison here."""
    key = (str(self), *self.key)
    if key not in function.student.looked:
        facts = function.student.looked[key] = _facts(self, function)
        function.student.wrong |= {fact for fact, right in self.right().items() if not judge.same(facts[fact], right)}
    return function.student.looked[key]


def _facts(bed: segments.Bed, function: Remote) -> judge.Facts:
    names = checkpointing_mistakes

    def step(every: int | None = 1, *modes: str, dropout: float | None = None, frozen: bool = False,
             wrapped_in: str = "train", backward: bool = True) -> Any:  # fmt: skip
        reply = function.student.ask("step", name=function.name, bed=_made_of(bed), every=every, dropout=dropout,
                                     frozen=frozen, modes=list(modes), wrapped_in=wrapped_in,
                                     backward=backward)  # fmt: skip
        return reply.get("raised", reply)

    def of(reply: Any, read: Any) -> Any:
        return reply if isinstance(reply, judge.Raised) else read(reply)

    def loss(reply: Any, training: bool = True) -> Any:
        right = _right_loss(_made_of(bed), training)
        return of(reply, lambda got: "equal" if _same_tensor(got["loss"], right) else "different")

    def gradients(reply: Any, dropout: float = 0.0, frozen: bool = False) -> Any:
        right = _right_gradients(_made_of(bed), dropout, frozen)
        return of(reply, lambda got: _compared(got["gradients"], right))

    facts: judge.Facts = {names.RETURNS: of(step(None), lambda got: got["returned"])}
    whole = step(1, "train")
    facts[names.LOSS], facts[names.GRADIENTS] = loss(whole), gradients(whole)
    facts[names.RUNS] = of(whole, lambda got: got["runs"])
    for every in segments.EVERY:
        kept = function.student.ask("kept", name=function.name, bed=_made_of(bed), every=every)["value"]
        whole_number = type(kept) is int
        facts[names.kept(every)] = round((kept - bed._outside) / bed.boundary_bytes, 3) if whole_number else kept
    for every in segments.EVERY[1:]:
        facts[names.loss_of(every)] = loss(step(every, "train", backward=False))
    for every in (0, -1):
        facts[names.refused(every)] = of(step(every), lambda got: "an answer")
    facts[names.DROPOUT] = gradients(step(1, "train", dropout=0.25), dropout=0.25)
    facts[names.FROZEN] = gradients(step(1, "train", frozen=True), frozen=True)
    for name, modes, wrapped_in in ((names.RUNS_EVAL, ("eval",), "train"),
                                    (names.RUNS_AGAIN, ("eval", "train"), "train"),
                                    (names.RUNS_LATER, ("train",), "eval")):  # fmt: skip
        facts[name] = of(step(1, *modes, wrapped_in=wrapped_in), lambda got: got["runs"])
    facts[names.EVAL_LOSS] = loss(step(1, "eval", backward=False), training=False)
    keys = list(bed.fresh().state_dict())
    facts[names.KEYS] = of(step(1), lambda got: "unchanged" if got["keys"] == keys else "renamed")
    return facts


@cache  # the same for every submission of a run
def _right_loss(bed: tuple[int, type, float], training: bool) -> torch.Tensor:
    the_bed = segments.Bed(*bed)
    return segments._step(the_bed.fresh().train(training), the_bed.batch, backward=False)


@cache
def _right_gradients(bed: tuple[int, type, float], dropout: float, frozen: bool) -> list[torch.Tensor | None]:
    the_bed = segments.Bed(*bed)
    plain = the_bed.fresh(dropout)
    if frozen:
        for name, parameter in plain.named_parameters():
            parameter.requires_grad_(not name.startswith(("embedding", "positions")))
    segments._step(plain, the_bed.batch)
    return [each.grad for each in plain.parameters()]


def _same_tensor(came: Any, right: torch.Tensor) -> bool:
    return isinstance(came, torch.Tensor) and came.dtype == right.dtype and torch.equal(came, right)


def _compared(came: Any, right: list[torch.Tensor | None]) -> str:
    if not isinstance(came, list) or len(came) != len(right):
        return "different"
    pairs = [(one, other) for one, other in zip(right, came, strict=True) if one is not None]
    if any(other is None for _, other in pairs):
        return "some are None"
    return "equal" if all(_same_tensor(other, one) for one, other in pairs) else "different"
