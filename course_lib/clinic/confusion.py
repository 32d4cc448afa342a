"""Every case's broken loop against every diagnosis: what is off the diagonal would be a false alarm."""

from matplotlib.axes import Axes

from course_lib.clinic.diagnosis import all_cases, diagnose
from course_lib.i18n import _

Named = dict[str, tuple[str, ...]]  #: by case, the diagnoses that its broken loop gets


def confusion() -> Named:
    """Run every case's broken loop, which takes some seconds."""
    return {name: diagnose(case.read()).names for name, case in all_cases().items()}


def draw_confusion(named: Named, ax: Axes | None = None) -> Axes:
    """Draw it: broken loops are rows, diagnoses columns, dark where the sign is found."""
    import matplotlib.pyplot as plt

    names = list(named)
    ax = ax or plt.subplots(figsize=(9.5, 9), layout="constrained")[1]
    ax.imshow([[column in named[row] for column in names] for row in names], cmap="Greys", vmin=0, vmax=1)
    ax.set_xticks(range(len(names)), names, rotation=90, fontsize=7.5)
    ax.set_yticks(range(len(names)), names, fontsize=7.5)
    ax.set(xlabel="diagnosis", ylabel="broken loop")
    return ax


def confusion_text(named: Named) -> str:
    """The picture in a sentence, in the reader's language."""
    right = sum(name in found for name, found in named.items())
    return _("{cases} broken loops: {right} get their own name, {wrong} times another's").format(
        cases=len(named), right=right, wrong=sum(map(len, named.values())) - right
    )
