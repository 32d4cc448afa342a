"""The clinic's cases, by what goes wrong; the order is that in which they are shown."""

from course_lib.clinic.cases import (
    checkpoints,
    copies,
    evaluation,
    growth,
    outside,
    precision,
    scalers,
    speed,
    steps,
    training,
)

CASES = tuple(
    case
    for module in (steps, growth, copies, checkpoints, evaluation, outside, scalers, speed, precision, training)
    for case in module.CASES
)
