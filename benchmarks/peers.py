"""Other tools beside the ledger and the dry run, on every byte-exact row of Mistral-7B.

    python benchmarks/peers.py

Makes an environment of their own for them (.venv-peers; a tool that cannot be installed is left out, and the table
says so), asks each what it says of the rows that it can express (peer_tools.py), and writes results/peers.md.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from published_peaks import GROUPS, difference, recipe_of, rows

from course_lib.dryrun import dry_run_config
from course_lib.errors import CourseError
from course_lib.hf_config import read_config, read_model
from course_lib.ledger import predict

HERE = Path(__file__).parent
PYTHON = HERE.parent / ".venv-peers/bin/python"
#: What pip is asked for, one command a line. llm-analysis pins libraries of 2023, none of which its formulas use.
INSTALL = (
    ["fitcheck-llm==0.3.1", "accelerate", "transformers", "fire", "setuptools", "wheel"],
    ["--no-deps", "llm-analysis==0.2.2"],
    ["--no-build-isolation", "deepspeed==0.19.8"],
)
TOOLS = {"fitcheck": "fitcheck-llm 0.3.1", "accelerate": "accelerate", "deepspeed": "DeepSpeed, ZeRO-2 formula",
         "llm_analysis": "llm-analysis 0.2.2"}  # fmt: skip


def ask(asked: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """What each peer says, in bytes, by tool and row."""
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PYTHON.parents[1])], check=True)
        for packages in INSTALL:
            subprocess.run([str(PYTHON), "-m", "pip", "install", "--quiet", *packages], check=False)
    done = subprocess.run([str(PYTHON), str(HERE / "peer_tools.py")], input=json.dumps(asked), text=True,
                          stdout=subprocess.PIPE, check=True)  # fmt: skip
    return json.loads(done.stdout)


def main() -> None:
    asked, measured, groups = [], {}, {}
    says: dict[str, dict[str, int]] = {"ledger": {}, "dry run": {}}
    for row in rows():
        if not row.get("cli", "").startswith("mistral-7b"):
            continue
        name, (model, recipe) = row["id"], recipe_of(row["cli"])
        shape, config = read_model(model), read_config(model)
        measured[name], groups[name] = row["measured_bytes"], row["trainable"].split()[0]
        asked.append({"id": name, "config": config, "recipe": recipe.to_dict(), "params": shape.params})
        says["ledger"][name] = predict(shape, recipe).peak_bytes
        try:
            says["dry run"][name] = dry_run_config(config, recipe).peak_bytes
        except CourseError:  # another transformers' loss: see transformers_4_48.sh
            continue
    says |= ask(asked)
    tools = {"ledger": "ledger", "dry run": "dry run"} | TOOLS
    lines = ["Predicted against measured, in percent; empty where a tool cannot express the row, or is not there."]
    lines += ["", "| Row | Trained | " + " | ".join(tools.values()) + " |", "|---|---" + "|--:" * len(tools) + "|"]
    for name in measured:
        cells = [f"{difference(says[tool][name], measured[name]):+.2f}" if name in says[tool] else "" for tool in tools]
        lines.append(f"| {name} | {groups[name]} | " + " | ".join(cells) + " |")
    for group, title in GROUPS.items():
        cells = []
        for tool in tools:
            of_group = {name: size for name, size in says[tool].items() if groups[name] == group}
            errors = [abs(difference(size, measured[name])) for name, size in of_group.items()]
            cells.append(f"{median(errors):.3f} ({len(errors)})" if errors else "")
        lines.append(f"| **median error, {title}** (rows) | | " + " | ".join(cells) + " |")
    text = "\n".join(lines) + "\n"
    (HERE / "results/peers.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
