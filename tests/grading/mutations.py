"""What happens to a notebook on its way, and harms nothing: its points stay, or a person is told why not."""

import json
import random
from collections.abc import Callable
from typing import Any

from nbgrader_course import as_colab_saves

from notebooks import find, grade_id, quick, with_cell

Notebook = dict[str, Any]


def _without_metadata(notebook: Notebook) -> Notebook:
    for cell in notebook["cells"]:
        cell["metadata"] = {}
    return notebook


def _without_metadata_of(*names: str) -> Callable[[Notebook], Notebook]:
    def change(notebook: Notebook) -> Notebook:
        for name in names:
            find(notebook, name)["metadata"] = {}
        return notebook

    return change


def _duplicated(name: str) -> Callable[[Notebook], Notebook]:
    def change(notebook: Notebook) -> Notebook:
        cell = find(notebook, name)
        place = notebook["cells"].index(cell)
        notebook["cells"].insert(place + 1, json.loads(json.dumps(cell)))
        return notebook

    return change


def _deleted(*names: str) -> Callable[[Notebook], Notebook]:
    def change(notebook: Notebook) -> Notebook:
        notebook["cells"] = [cell for cell in notebook["cells"] if grade_id(cell) not in names]
        return notebook

    return change


def _retyped(name: str, kind: str) -> Callable[[Notebook], Notebook]:
    def change(notebook: Notebook) -> Notebook:
        cell = find(notebook, name)
        cell["cell_type"] = kind
        cell.pop("outputs", None)
        cell.pop("execution_count", None)
        return notebook

    return change


def _moved_to_front(name: str) -> Callable[[Notebook], Notebook]:
    def change(notebook: Notebook) -> Notebook:
        cell = find(notebook, name)
        notebook["cells"].remove(cell)
        notebook["cells"].insert(0, cell)
        return notebook

    return change


def _shuffled_texts(notebook: Notebook) -> Notebook:
    texts = [cell for cell in notebook["cells"] if cell["cell_type"] == "markdown" and not grade_id(cell)]
    rest = [cell for cell in notebook["cells"] if cell not in texts]
    random.Random(1).shuffle(texts)
    notebook["cells"] = texts + rest
    return notebook


def _without_ids(notebook: Notebook) -> Notebook:
    notebook["nbformat_minor"] = 4
    for cell in notebook["cells"]:
        cell.pop("id", None)
    return notebook


def _same_ids(notebook: Notebook) -> Notebook:
    for cell in notebook["cells"]:
        cell["id"] = "same"
    return notebook


def _windows_line_ends(notebook: Notebook) -> Notebook:
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"]).replace("\n", "\r\n")
    return notebook


def _kernel(name: str) -> Callable[[Notebook], Notebook]:
    def change(notebook: Notebook) -> Notebook:
        notebook["metadata"]["kernelspec"] = {"name": name, "display_name": name}
        notebook["metadata"]["language_info"] = {"name": "python", "version": "3.6"}
        return notebook

    return change


def _bare(notebook: Notebook) -> Notebook:
    notebook["metadata"] = {}
    return notebook


def _merged(notebook: Notebook) -> Notebook:
    """The second test cell of static_bytes merged into the first, as an editor's command does."""
    second = find(notebook, "static-bytes-autocast")
    first = find(notebook, "static-bytes-stored")
    first["source"] = "".join(first["source"]) + "\n\n" + "".join(second["source"])
    notebook["cells"].remove(second)
    return notebook


def _split(notebook: Notebook) -> Notebook:
    """A test cell split in two."""
    cell = find(notebook, "static-bytes-stored")
    lines = "".join(cell["source"]).splitlines(keepends=True)
    cell["source"] = "".join(lines[:1])
    return with_cell(notebook, "".join(lines[1:]), notebook["cells"].index(cell) + 1)


def _tests_edited(notebook: Notebook) -> Notebook:
    find(notebook, "static-bytes-stored")["source"] = "precision.check_static(static_bytes, ('fp32',), sizes=(3,))"
    return notebook


def _answer_named_otherwise(notebook: Notebook) -> Notebook:
    find(notebook, "static-bytes")["metadata"]["nbgrader"]["grade_id"] = "cell-1a2b"
    return notebook


def _with_outputs(notebook: Notebook) -> Notebook:
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            cell["execution_count"] = number
            cell["outputs"] = [{"output_type": "error", "ename": "OldError", "evalue": "x", "traceback": ["x"]}]
    return notebook


MUTATIONS: dict[str, Callable[[Notebook], Notebook]] = {
    "nothing": lambda notebook: notebook,
    "all metadata gone": _without_metadata,
    "an answer's metadata gone": _without_metadata_of("static-bytes"),
    "a test's metadata gone": _without_metadata_of("static-bytes-stored"),
    "a written answer's metadata gone": _without_metadata_of("explain"),
    "several without metadata": _without_metadata_of("static-bytes", "verdict", "verdict-tests"),
    "a test twice": _duplicated("static-bytes-stored"),
    "an answer twice": _duplicated("static-bytes"),
    "a written answer twice": _duplicated("explain"),
    "a test deleted": _deleted("static-bytes-stored"),
    "all tests deleted": _deleted("static-bytes-stored", "static-bytes-autocast", "verdict-tests"),
    "a test became text": _retyped("static-bytes-stored", "markdown"),
    "an answer became raw": _retyped("static-bytes", "raw"),
    "an answer became text": _retyped("static-bytes", "markdown"),
    "a test in front": _moved_to_front("verdict-tests"),
    "an answer in front": _moved_to_front("verdict"),
    "texts in another order": _shuffled_texts,
    "saved by Colab": as_colab_saves,
    "ids cleared": _without_ids,
    "one id for all": _same_ids,
    "Windows line ends": _windows_line_ends,
    "a kernel of conda": _kernel("conda-env-torch-py"),
    "a kernel of Colab": _kernel("python3-colab"),
    "no metadata of the notebook": _bare,
    "two tests merged": _merged,
    "a test split": _split,
    "a test edited": _tests_edited,
    "an answer of another id": _answer_named_otherwise,
    "old outputs with errors": _with_outputs,
    "a cell with a magic": lambda notebook: with_cell(notebook, "%matplotlib inline\n!echo hello"),
    "a cell that fails": lambda notebook: with_cell(notebook, "1 / 0"),
    "a cell that is no Python": lambda notebook: with_cell(notebook, "def ("),
    "an empty cell": lambda notebook: with_cell(notebook, ""),
    "an await": lambda notebook: with_cell(notebook, "import asyncio\nawait asyncio.sleep(0)"),
    "a plot": lambda notebook: with_cell(notebook, "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()"),
    "the Chinese edition": lambda notebook: quick("zh"),
}

#: What is done to the file.
FILES: dict[str, Callable[[bytes], bytes]] = {
    "a byte order mark": lambda content: b"\xef\xbb\xbf" + content,
    "indented otherwise": lambda content: json.dumps(json.loads(content), indent=4, ensure_ascii=True).encode(),
    "keys in another order": lambda content: json.dumps(json.loads(content), sort_keys=True).encode(),
    "file with Windows line ends": lambda content: (
        json.dumps(json.loads(content), indent=1).replace("\n", "\r\n").encode()
    ),
}

#: What no program can grade, and a word of the reason.
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "cut off": (json.dumps(quick()).encode()[:5000], "cut off"),
    "no JSON": (b"<html>login</html>", "no notebook"),
    "not a notebook": (b'{"a": 1}', "no cells"),
    "a list": (b"[]", "no cells"),
    "no text": (bytes(range(256)), "no notebook"),
    "another notebook": (
        json.dumps({"cells": [{"cell_type": "code", "source": "1", "metadata": {}}]}).encode(),
        "none of",
    ),
    "nested without end": (b"[" * 200_000, "no notebook"),
    "strange cells": (b'{"cells": [1, null, {"cell_type": 7, "source": {"a": 1}, "metadata": []}]}', "none of"),
    "an answer deleted": (json.dumps(_deleted("static-bytes")(quick())).encode(), "missing"),
}
