#!/usr/bin/env bash
# The dry run with the versions that published rows were measured with: transformers 4.48.1, peft 0.13.2, bitsandbytes
# 0.43.3, in an environment of its own. Writes benchmarks/results/published_peaks_4_48.md.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV_4_48:-.venv-4.48}
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --disable-pip-version-check --quiet \
    torch==2.13.0 transformers==4.48.1 peft==0.13.2 bitsandbytes==0.43.3 rich
PYTHONPATH=. "$venv/bin/python" benchmarks/published_peaks.py --library "transformers 4.48.1" \
    --out benchmarks/results/published_peaks_4_48.md
