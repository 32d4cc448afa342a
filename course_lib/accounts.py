"""The words in which every instrument answers: to which account a byte belongs, and when it lives."""

from enum import StrEnum


class Account(StrEnum):
    """What a byte on the card is for: the four classic bills, and the fifth that surprises people."""

    WEIGHTS = "weights"  #: parameters and buffers, trained or frozen
    GRADIENTS = "gradients"  #: what ``parameter.grad`` holds
    OPTIMIZER = "optimizer"  #: what the optimizer keeps from step to step (Adam's m and v, master weights)
    ACTIVATIONS = "activations"  #: made by the forward pass and still held when the backward pass begins
    TEMPORARY = "temporary"  #: everything else: born and gone within a moment


class Moment(StrEnum):
    """Where in a training step we are."""

    LOAD = "load"  #: before the step: what is resident anyway
    FORWARD = "forward"
    BACKWARD = "backward"  #: recomputation under checkpointing included
    OPTIMIZER_STEP = "optimizer_step"


ACCOUNTS: tuple[Account, ...] = tuple(Account)
#: The moments that have a peak of their own in a report.
STEP_MOMENTS: tuple[Moment, ...] = (Moment.FORWARD, Moment.BACKWARD, Moment.OPTIMIZER_STEP)
