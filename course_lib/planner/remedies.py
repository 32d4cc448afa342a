"""What would help where no cut is enough: the smallest change to a wish, or the smallest card."""

from collections.abc import Iterator
from dataclasses import replace

from course_lib.cards import CARDS
from course_lib.i18n import _
from course_lib.planner import Plan, plan
from course_lib.recipe import flag
from course_lib.units import format_bytes


def remedies(failed: Plan) -> Iterator[str]:
    """Each in the reader's language, the smallest change first; a memory size at last."""
    end, wish = failed.end.recipe, failed.wish
    for name, most in (("batch", failed.max_batch), ("seq", failed.max_seq)):
        if 0 < most < getattr(end, name):
            yield _("with all these cuts, {flag} {most} fits instead of {wished}").format(
                flag=flag(name), most=most, wished=getattr(end, name)
            )
    for name in sorted(wish.kept - {"batch", "seq"}):
        other = plan(replace(wish, kept=wish.kept - {name}), failed.card)
        if other.fits:
            yield _("without the wish {flag} {value}, these cuts fit: {cut}").format(
                flag=flag(name), value=getattr(wish.recipe, name), cut=other.end.cut
            )
    high = failed.end.device.high_bytes
    card = min((each for each in CARDS if each.usable_bytes >= high), key=lambda each: each.usable_bytes, default=None)
    if card:
        yield _("with all these cuts it takes {size} to be sure; the smallest card of `course gpu --list` with as much "
                "is {card}").format(size=format_bytes(high), card=card.name)  # fmt: skip
    else:
        yield _("with all these cuts it takes {size} to be sure, which no single card of `course gpu --list` has"
                ).format(size=format_bytes(high))  # fmt: skip
