"""Verdicts follow from the cases alone, and are said in the reader's language."""

import pytest

from course_lib.claims import CLAIMS, judge
from course_lib.errors import CourseError
from course_lib.i18n import set_language

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("cases", "verdict"),
    [
        ({"fp32": True}, "verdict: holds."),
        ({"fp32": False, "bf16": False}, "verdict: does not hold."),
        (
            {"fp32": True, "amp": 1 == 1, "bf16": False},
            "verdict: holds only in some cases. It does: fp32; amp. It does not: bf16.",
        ),
    ],
)
def test_a_verdict_follows_from_its_cases(cases: dict[str, bool], verdict: str, capsys: Capture) -> None:
    judge("C2", cases)
    assert capsys.readouterr().out == f"\nclaim C2: {CLAIMS['C2']}\n{verdict}\n"


def test_a_verdict_speaks_chinese(capsys: Capture) -> None:
    set_language("zh")
    judge("C17", {"1 x 512": True, "8 x 2048": False})
    assert capsys.readouterr().out == (
        "\n论断 C17：推理只需要权重\n结论：只在部分情况下成立。成立：1 x 512。不成立：8 x 2048。\n"
    )


@pytest.mark.parametrize(("claim", "cases"), [("C99", {"fp32": True}), ("C1", {})])
def test_what_cannot_be_judged_is_refused(claim: str, cases: dict[str, bool]) -> None:
    with pytest.raises(CourseError, match=r"judge: got .* expected one of C1, "):
        judge(claim, cases)
