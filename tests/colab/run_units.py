"""Execute every solved notebook where course_lib is not installed: its own set-up cell brings it, from a wheel.

`make test-colab` runs this with the Python of an environment that has Colab's versions. Nothing that was there may
have changed afterwards; small packages may have come.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

TOP = Path(__file__).resolve().parents[2]


COURSE = "big-models-small-gpus"


def pip(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def installed() -> set[str]:
    return {line for line in pip("freeze", "--all").splitlines() if not line.startswith(COURSE)}


def main() -> int:
    before, failures = installed(), 0
    wheel = max(TOP.glob("dist/*.whl"), key=os.path.getmtime)
    for path in sorted(TOP.glob("solutions/*/*.en.ipynb")):
        pip("uninstall", "--quiet", "--yes", COURSE)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(wheel, folder)
            environment = {**os.environ, "COURSE_STATE_DIR": folder, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
            resources = {"metadata": {"path": folder}}
            client = NotebookClient(nbformat.read(path, 4), timeout=300, kernel_name="python3", resources=resources)
            start = time.perf_counter()
            try:
                client.execute(env=environment)
                said = "passed"
            except Exception as error:  # whatever it is, the other units are still to be tried
                failures += 1
                said = f"failed: {error}"
            print(f"{path.name:32} {time.perf_counter() - start:5.1f} s  {said}", flush=True)
    if changed := before - installed():
        failures += 1
        print(f"changed by set-up cells: {', '.join(sorted(changed))}")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
