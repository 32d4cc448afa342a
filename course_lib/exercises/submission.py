"""From the notebook that a student has open to the file that can be graded.

nbgrader finds answers by the metadata of their cells, so a file is looked at before it is handed in: every graded
cell is there once, as it was released, and no answer is still the stub.
"""

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from course_lib.exercises.cells import CELLS
from course_lib.i18n import _

STUB, WRITTEN_STUB = "raise NotImplementedError()", "YOUR ANSWER HERE"
#: Seconds that Colab's page is given to send the notebook.
COLAB_PATIENCE_SECONDS = 30


@dataclass
class Report:
    """What is wrong with a file, and what is merely not done."""

    broken: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)  #: grade ids of answers that are still the stub
    failed: list[str] = field(default_factory=list)  #: grade ids of tests that ended in an error when they last ran


def examine(notebook: Mapping[str, Any], unit: str) -> Report:
    """Look at a notebook's JSON.

    Args:
        unit: the exercise that it should be.
    """
    report = Report()
    found: Counter[str] = Counter()
    for cell in notebook.get("cells", []):
        grading = cell.get("metadata", {}).get("nbgrader") or {}
        grade_id = grading.get("grade_id")
        if not grade_id:
            continue
        found[grade_id] += 1
        text = "".join(cell["source"])
        if grading.get("solution") and (STUB in text or text.strip() == WRITTEN_STUB):
            report.undone.append(grade_id)
        if any(output.get("output_type") == "error" for output in cell.get("outputs", [])):
            report.failed.append(grade_id)
    missing = [grade_id for grade_id in CELLS[unit] if not found[grade_id]]
    if len(missing) == len(CELLS[unit]):
        report.broken.append(_("this is not the notebook of {unit}, or all its grading metadata is lost: open the "
                               "exercise afresh and copy your answers over").format(unit=unit))  # fmt: skip
    elif missing:
        report.broken.append(_("these cells are missing or lost their metadata: {cells}. Open the exercise afresh "
                               "and copy your answers over").format(cells=", ".join(missing)))  # fmt: skip
    for grade_id, count in found.items():
        if count > 1:
            report.broken.append(_("the cell {grade_id} is there {count} times: delete the copies").format(
                grade_id=grade_id, count=count))  # fmt: skip
    return report


def prepare(unit: str, notebook: str | None = None) -> None:
    """Check the open notebook and lay ``UNIT.ipynb`` ready to hand in.

    Args:
        unit: the exercise, such as ``ex1_precision``.
        notebook: the saved notebook, where it is not found by itself.
    """
    if os.environ.get("NBGRADER_EXECUTION"):
        return  # being graded: this file has been handed in
    if "google.colab" in sys.modules and notebook is None:
        content = _from_colab()
    else:
        path = Path(notebook) if notebook else _open_notebook(unit)
        content = _read(path) if path else None
        if content and path and path.name != f"{unit}.ipynb":
            shutil.copyfile(path, f"{unit}.ipynb")
        if path and content:
            when = datetime.fromtimestamp(path.stat().st_mtime)
            looked = _("Looked at {path} as it was saved at {when:%H:%M:%S}. Changed something since? Save it (Ctrl+S) "
                       "and run this cell again.")  # fmt: skip
            print(looked.format(path=path, when=when))
    if content is None:
        _say_manual_way(unit)
        return
    report = examine(content, unit)
    for line in report.broken:
        print(f"✗ {line}")
    if report.undone:
        print("✗ " + _("Not answered yet: {cells}. In each of them put your answer in place of all that stands for it, "
                       "{stub} included.").format(cells=", ".join(report.undone), stub=STUB))  # fmt: skip
    if failed := [grade_id for grade_id in report.failed if grade_id not in report.undone]:
        print("✗ " + _("These tests failed when you last ran them: {cells}").format(cells=", ".join(failed)))
    if report.broken:
        return
    if "google.colab" in sys.modules and notebook is None:
        _hand_over(unit, content)
    hand_in = _("Hand in the file {name}; keep this name.").format(name=f"{unit}.ipynb")
    print(_("It can be handed in as it is, for part of the points. {hand_in}").format(hand_in=hand_in)
          if report.undone or report.failed else f"✓ {hand_in}")  # fmt: skip


def _open_notebook(unit: str) -> Path | None:
    """The notebook's file, as far as Jupyter or the working directory say."""
    said = os.environ.get("JPY_SESSION_NAME", "")
    candidates = [Path(said), Path(Path(said).name)] if said.endswith(".ipynb") else []
    copies = sorted(Path().glob(f"{unit}*.ipynb"), key=lambda path: -path.stat().st_mtime)
    return next((each for each in (*candidates, Path(f"{unit}.ipynb"), *copies) if each.is_file()), None)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(_("{path} cannot be read: {error}").format(path=path, error=error))
        return None
    return content if isinstance(content, dict) else None


def _from_colab() -> dict[str, Any] | None:
    """The notebook as it stands in the page now, whether saved or not."""
    try:
        from google.colab import _message  # there is no public way to ask the page

        answer = _message.blocking_request("get_ipynb", request="", timeout_sec=COLAB_PATIENCE_SECONDS)
        content = answer["ipynb"]
    except Exception as error:  # whatever changes on Colab's side, the manual way remains
        print(_("Colab did not send the notebook ({error}).").format(error=type(error).__name__))
        return None
    return dict(content)


def _hand_over(unit: str, content: dict[str, Any]) -> None:
    path = Path(f"{unit}.ipynb")
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    from google.colab import files

    files.download(str(path))


def _say_manual_way(unit: str) -> None:
    print(_("By hand: save the notebook, download it (File > Download > Download .ipynb; in JupyterLab File > "
            "Download), name it {name}, and hand it in. To check a file first: prepare({unit!r}, \"the file\")").format(
        name=f"{unit}.ipynb", unit=unit))  # fmt: skip
