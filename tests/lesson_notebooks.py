"""What the tests of all lessons read: the outputs of an executed notebook, and how its source is divided."""

from nbformat import NotebookNode

from course_lib.pipeline.sources import Unit

_DEEPER = {"en": "## Deeper", "zh": "## 深入"}


def printed(notebook: NotebookNode, *kinds: str) -> str:
    """All that code cells printed and showed, of what they showed the ``kinds`` (``text/html`` without any)."""
    return "".join(
        output.get("text") or "".join(str(output.get("data", {}).get(kind, "")) for kind in kinds or ("text/html",))
        for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    )  # fmt: skip


def core_cells(unit: Unit) -> int:
    """How many cells come before the first deeper section."""
    return next(i for i, cell in enumerate(unit.cells) if cell.text["en"].startswith(_DEEPER["en"]))


def deeper_sections(unit: Unit) -> dict[str, int]:
    """How many deeper sections each language has."""
    return {
        language: sum(line.startswith(word) for cell in unit.cells for line in cell.text[language].splitlines())
        for language, word in _DEEPER.items()
    }
