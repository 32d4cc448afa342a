"""The clinic's cases, by what goes wrong; the order is that in which they are shown."""

from course_lib.clinic.cases import (
    checkpoints,
    copies,
    errors,
    evaluation,
    growth,
    outside,
    precision,
    scalers,
    shapes,
    speed,
    steps,
    training,
)

_IN_ORDER = (
    steps, growth, shapes, checkpoints, evaluation, copies, outside, scalers, errors, training, precision, speed,
)  # fmt: skip
CASES = tuple(case for module in _IN_ORDER for case in module.CASES)
