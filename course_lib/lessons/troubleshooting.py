"""Lesson 06_troubleshooting: the six questions that it asks, and its tasks, five blind cases."""

from typing import Any

from course_lib.clinic import Chart, Opinion, all_cases, diagnose, find_case
from course_lib.clinic.reading import Reading
from course_lib.errors import CourseError
from course_lib.i18n import N_, _
from course_lib.oom import OomMessage
from course_lib.tasks import expect, task
from course_lib.units import GIB

CANNOT_TELL = "cannot-tell"
#: Lightning-AI/litgpt#148: a 7B with adapters on a 24 GB card, one sequence at a time, dies in step 65,498.
_LATE = Reading(
    error="OutOfMemoryError", message="CUDA out of memory (step 65498).", counters=OomMessage(total_bytes=24 * GIB)
)  # fmt: skip
_BLIND: dict[str, str | Reading] = {
    "A": "longest-batch",
    "B": "clipped-scaled",
    "C": "evaluation-mode",
    "D": _LATE,
    "E": "no-target",
}
_charts: dict[str, Reading] = {}


def six_questions() -> list[str]:
    """The six rows that most lists of training troubles have, as somebody would ask."""
    return [
        _("FP16 training: the loss turns NaN"),
        _("slower with autocast"),
        _("gradient accumulation: loss abnormally large"),
        _("checkpointing is on and still OOM"),
        _("OOM in validation, fine in training"),
        _("OOM at the optimizer's step"),
    ]


def blind(letter: str) -> Chart:
    """Run a blind case, and show what the probe took down, without a name for it."""
    return Chart(_reading(letter))


@task(
    N_("In which step did it die, and what is different about that step's batch?"),
    N_("Compare the sizes of the passes: which is the largest, and where does it stand?"),
    N_("Its name begins with longest-."),
)
def blind_a(answer: Any) -> str:
    """What ended case A."""
    causes = {
        "kept-outputs": _("what is alive when each pass begins would rise from step to step; it does not"),
        "second-step": _("five steps passed before it, and this optimizer keeps no state"),
        "update": _("it died in the forward pass"),
    }
    return _judge("A", answer, causes)


@task(
    N_("Look at the gradient's length at the update, then at the scale. Multiply them."),
    N_("The product is the same in every step. What makes a length the same in every step?"),
    N_("Clipping was asked to bring the gradient to length 1, and saw it multiplied by the scale."),
)
def blind_b(answer: Any) -> str:
    """Why the loss of case B hardly moves."""
    causes = {
        "fp16-underflow": _("a scaler is in use, and few gradients are exactly 0"),
        "bf16-rounding": _("the weights are FP32, and nearly all of them changed"),
        "learning-rate": _("the loss does not grow"),
    }
    return _judge("B", answer, causes)


@task(
    N_("It died in a training step. Is the model in training mode there?"),
    N_("Checkpointing is on. How often does a layer's forward run in a step where it works?"),
    N_("An evaluation left the model in its mode."),
)
def blind_c(answer: Any) -> str:
    """Why checkpointing saves nothing in case C."""
    causes = {
        "no-no-grad": _("the pass that died was followed by a backward pass: it belongs to training"),
        "one-segment": _("nothing was computed again"),
        "long-attention": _("no piece has the square of the length"),
    }
    return _judge("C", answer, causes)


@task(
    N_("Which of the figures that would tell one cause from another are there?"),
    N_("A long sample, fragmentation, growth: what would each need, and is it on the chart?"),
    N_("A doctor who has not seen enough says so."),
)
def blind_d(answer: Any) -> str:
    """What ended case D, of which the report says little."""
    causes = {
        "longest-batch": _("likely, but neither the shape of that batch nor the largest before it was reported"),
        "fragmentation": _("possible, but nobody wrote down what was reserved and what allocated"),
        "kept-outputs": _("possible, but nobody wrote down the memory of two earlier steps"),
    }
    return _judge("D", answer, causes)


@task(
    N_("Where does the first number that is not finite come from?"),
    N_("Everything is FP32. Look at the targets of each cross-entropy."),
    N_("The mean over nothing is 0 / 0."),
)
def blind_e(answer: Any) -> str:
    """Where the NaN of case E comes from."""
    causes = {
        "fp16-overflow": _("nothing in this run is FP16"),
        "learning-rate": _("the losses before the NaN do not grow"),
        "log-of-zero": _("the first operator that made a NaN is the cross-entropy itself, and its inputs were finite"),
    }
    return _judge("E", answer, causes)


def _reading(letter: str) -> Reading:
    if letter not in _BLIND:
        raise CourseError(f"blind: got {letter!r}, expected one of {', '.join(_BLIND)}")
    if letter not in _charts:
        found = _BLIND[letter]
        _charts[letter] = found if isinstance(found, Reading) else find_case(found).read()
    return _charts[letter]


def _judge(letter: str, answer: Any, causes: dict[str, str]) -> str:
    """Compare the answer with what the probe's evidence says, not with a key."""
    names = [*all_cases(), CANNOT_TELL]
    opinion: Opinion = diagnose(_reading(letter))
    truth = opinion.names[0] if opinion.found else CANNOT_TELL
    unknown = answer not in names and isinstance(answer, str)
    cause = _("that is not the name of a case; the table above has them, and {name!r}").format(name=CANNOT_TELL)
    expect(answer, truth, _("case {letter}").format(letter=letter), causes=causes,
           cause=cause if unknown else _("its sign is not on the chart"), shown=_("another name"))  # fmt: skip
    return opinion.found[0].evidence if opinion.found else opinion.missing
