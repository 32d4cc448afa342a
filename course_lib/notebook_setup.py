"""What a notebook does first, once course_lib is importable: see :mod:`course_lib.pipeline.setup_cell`."""

import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from pathlib import Path

from course_lib.i18n import _, set_language
from course_lib.reader_log import DRIVE, FOLDER, state_dir

DISTRIBUTION = "big-models-small-gpus"
CHECKOUT = Path(__file__).resolve().parents[1]
#: Never installed by a notebook: where one of these is missing, the environment is not made for the course.
HEAVY = {"torch", "numpy", "transformers", "peft", "matplotlib"}


def set_up(language: str) -> None:
    """Speak the edition's language, bring what small packages are missing, and say what this machine is.

    Args:
        language: ``en`` or ``zh``.
    """
    set_language(language)
    print(_("English edition. Code and figures are the same in the Chinese one."))
    missing = missing_packages()
    heavy = [name for name in missing if name in HEAVY]
    if heavy:
        print(_("Missing here: {names}. Outside Colab, make the environment with: make setup").format(
            names=", ".join(heavy)
        ))  # fmt: skip
    light = [name for name in missing if name not in HEAVY]
    if light:
        _install(light)
    # Not before: what they import may just have been installed.
    from course_lib.gpu import inspect_machine, rung
    from course_lib.gpu_findings import findings

    facts = inspect_machine()
    step = rung(facts)
    print(_("This machine: {rung}; {plan}.").format(rung=_(step), plan=step.plan))
    for finding in findings(facts) if facts.cards else []:
        print(_("Found: {what}. To mend it: {cure}.").format(what=finding.what, cure=finding.cure))
    if facts.colab:
        _say_colab(bool(facts.cards))


def missing_packages() -> list[str]:
    """The course's declared dependencies that are not installed here, whatever their version."""
    from packaging.requirements import Requirement

    declared = map(Requirement, _declared())
    needed = [each.name for each in declared if not each.marker or each.marker.evaluate({"extra": ""})]
    return [name for name in needed if not _installed(name)]


def keep_in_drive() -> None:
    """On Colab: keep predictions and progress in your own Google Drive from now on, and find them there next time."""
    from google.colab import drive

    before = state_dir()
    drive.mount(str(DRIVE.parent))
    after = DRIVE / FOLDER
    after.mkdir(exist_ok=True)
    for path in before.glob("*.jsonl"):
        if path.parent != after:
            with open(after / path.name, "ab") as kept:
                kept.write(b"\n" + path.read_bytes())
            path.rename(path.with_suffix(".moved"))
    print(_("Predictions and progress are kept in {folder}.").format(folder=after))


def _declared() -> list[str]:
    try:
        return requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # a checkout that is used as it is
        project = tomllib.loads(CHECKOUT.joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]
        return list(project["dependencies"])


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _install(names: list[str]) -> None:
    """pip, forbidden to change anything that is here: what is installed is the constraint."""
    pinned = {each.metadata["Name"]: each.version for each in distributions()}
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "installed.txt")
        constraints.write_text("".join(f"{name}=={number}\n" for name, number in pinned.items() if name))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--constraint", str(constraints), *names]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["?"])[-1]
        print(_("Could not install {names}: {reason}").format(names=", ".join(names), reason=reason))


def _say_colab(has_card: bool) -> None:
    print(_("Colab: save a copy first (File > Save a copy in Drive), or your work is lost when the session ends."))
    if not has_card:
        print(_("For a graphics card: Runtime > Change runtime type > T4 GPU. The course does not need one."))
    if state_dir().is_relative_to(DRIVE):
        print(_("Predictions and progress are kept in {folder}.").format(folder=state_dir()))
    else:
        print(_("To keep predictions and progress in your Drive, run: "
                "from course_lib.notebook_setup import keep_in_drive; keep_in_drive()"))  # fmt: skip
