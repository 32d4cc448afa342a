"""Why memory ran out, as far as a message says it."""

from enum import StrEnum

from course_lib.oom.message import BEYOND_CARDS_BYTES, CONTEXT_BYTES, OomMessage

#: Gaps as large as what was asked for, and a tenth more, in per cent: below that a few bytes decide.
GAPS_PERCENT = 110
ROUNDING_BYTES = 4


class Cause(StrEnum):
    """What ``course oom`` may answer."""

    IMPOSSIBLE_REQUEST = "impossible-request"  #: more than the whole card
    FRAGMENTATION = "fragmentation"  #: PyTorch holds enough, in pieces
    ELSEWHERE = "elsewhere"  #: others hold what is missing
    GENUINE_SHORTAGE = "genuine-shortage"  #: the run's own tensors fill the card
    HOST_RAM = "host-ram"
    NOT_AN_OOM = "not-an-oom"
    CANNOT_TELL = "cannot-tell"


def cause_of(message: OomMessage) -> Cause:
    """The first rule that holds; ``cannot-tell`` where a rule's turn comes and its figures are not all there."""
    tried, total = message.tried_bytes, message.total_bytes
    if tried is not None and tried > (BEYOND_CARDS_BYTES if total is None else total):
        return Cause.IMPOSSIBLE_REQUEST
    if tried is None or total is None:
        return Cause.CANNOT_TELL
    gaps, elsewhere = message.unallocated_bytes, message.elsewhere_bytes
    if gaps is None or elsewhere is None:
        return Cause.CANNOT_TELL
    if _no_less(gaps, GAPS_PERCENT * tried / 100) and _no_less(gaps, elsewhere):
        return Cause.FRAGMENTATION
    if _no_less(elsewhere - CONTEXT_BYTES, tried):
        return Cause.ELSEWHERE
    return Cause.GENUINE_SHORTAGE


def _no_less(size_bytes: int, than_bytes: float) -> bool:
    """Up to the few bytes by which sums of printed figures are off."""
    return size_bytes >= than_bytes - ROUNDING_BYTES
