"""What the article that this course follows claims, and the verdicts that lessons compute on it.

A lesson measures, says in which cases the claim came out true, and the verdict follows::

    judge("C2", {"fp32": True, "pure bf16": False})

    claim C2: training takes 6 to 8 times the model's file
    verdict: holds only in some cases. It does: fp32. It does not: pure bf16.
"""

from collections.abc import Mapping

from course_lib.errors import CourseError
from course_lib.i18n import N_, _

CLAIMS = {
    "C1": N_("7B in FP32: weights 28, gradients 28, Adam 56, activations 10 to 40 GB; together 120 GB and more"),
    "C2": N_("training takes 6 to 8 times the model's file"),
    "C3": N_("FP16: the largest number is 65504, the smallest positive one about 6e-5"),
    "C4": N_("FP16 halves the memory and is 2 to 3 times as fast on tensor cores"),
    "C5": N_("BF16 has the range of FP32 with fewer mantissa bits: 1 + 8 + 7, where FP16 has 1 + 5 + 10"),
    "C6": N_("from Ampere on BF16, on older cards FP16 with loss scaling"),
    "C7": N_("FP16 needs a scaler: torch.cuda.amp.GradScaler()"),
    "C8": N_("autocast runs matrix products in 16 bit, and layer norm, softmax and the loss in FP32"),
    "C9": N_("under autocast master weights stay in FP32"),
    "C10": N_("activations grow linearly with depth and batch, and are often half of the memory"),
    "C11": N_("checkpointing brings activation memory from O(n) to O(sqrt(n))"),
    "C12": N_("checkpointing costs 20 to 30 % of time and saves 60 to 80 % of the activations"),
    "C13": N_("accumulating N micro-batches is a batch N times as large, if the loss is divided by N"),
    "C14": N_("24 GB for 7B: BF16 112 to 56 GB, LoRA saves 50 more, checkpointing 20 to 6, accumulation; 21 at last"),
    "C15": N_("LoRA trains 0.5 % of the parameters: Adam takes some hundred MB in place of 56 GB"),
    "C16": N_("six troubles and their causes: NaN, slow autocast, large loss, three ways to run out of memory"),
    "C17": N_("inference takes the weights alone"),
    "C18": N_("8 micro-batches of 4 give the loss curve of one batch of 32"),
    "C19": N_("batch norm's statistics follow the micro-batch, which is a reason for layer norm in large models"),
    "C20": N_("BF16 costs almost nothing, and accumulation nothing"),
    "C21": N_("LoRA is the precondition of fine-tuning on a single card"),
    "C22": N_("LoRA is to freeze most layers"),
}


def judge(claim: str, cases: Mapping[str, bool]) -> None:
    """Print a claim and its verdict.

    Args:
        claim: its number in :data:`CLAIMS`.
        cases: whether it came out true, by case; a case is named as in code, so that it reads the same
            in every language.

    Raises:
        CourseError: no such claim, or no case.
    """
    if claim not in CLAIMS or not cases:
        known = ", ".join(CLAIMS)
        raise CourseError(f"judge: got {claim!r} with {len(cases)} cases, expected one of {known} and some case")
    print("\n" + _("claim {claim}: {text}").format(claim=claim, text=_(CLAIMS[claim])))
    print(_("verdict: {verdict}").format(verdict=verdict_of(cases)))


def verdict_of(cases: Mapping[str, bool]) -> str:
    """The verdict that follows from ``cases``, in the reader's language."""
    yes, no = ("; ".join(case for case, true in cases.items() if bool(true) is wanted) for wanted in (True, False))
    if not no:
        return _("holds.")
    if not yes:
        return _("does not hold.")
    return _("holds only in some cases. It does: {yes}. It does not: {no}.").format(yes=yes, no=no)
