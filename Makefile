# The same targets CI runs. Everything is installed into .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(PIP_CONSTRAINT)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where it is set, as in many containers, every process compiles our files and pytest rewrites its asserts again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all test-versions lint bench docs clean

# One process a core with one thread each: threads that wait for one another on busy cores multiply the time. A file's
# tests stay together, since they share what takes long to make. Files keep their order: by number of tests, as xdist
# would sort them, the few long tests of the executors come last, and one core waits for them.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --timeout 600 --durations 25

demo: .venv/demo.stamp  ## train small networks on synthetic data, compare them with the truth, write a report
	$(BIN)/calibrant demo

test: .venv/dev.stamp  ## the tests that a person runs, doctests included
	$(PYTEST) -m 'not slow'

test-all: .venv/dev.stamp  ## with those that take long: executors, Ray, Spark, killed processes, simulations
	$(PYTEST)

test-versions:  ## the tests with the oldest and the newest dependencies, torch included; see tools/versions.py
	$(PYTHON) tools/versions.py

lint: .venv/dev.stamp  ## formatting, style and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

bench: .venv/peers.stamp  ## measure speed and memory against named peers; writes results/
	for part in objectives metrics posthoc files scale training; do $(BIN)/python -m benchmarks.$$part || exit 1; done

docs: .venv/dev.stamp  ## the documentation, into docs/_build
	$(BIN)/sphinx-build -q -W --keep-going docs docs/_build

clean:
	rm -rf .venv .venv-versions docs/_build docs/_gallery .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Calibrant needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv

.venv/demo.stamp: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --editable '.[lab]'
	@touch $@

.venv/dev.stamp: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --upgrade pip  # dependency groups need 25.1
	$(BIN)/pip install --quiet --editable '.[all,mlflow,wandb]' --group dev
	@touch $@

.venv/peers.stamp: .venv/dev.stamp
	$(BIN)/pip install --quiet --editable '.[all,mlflow,wandb]' --group dev --group peers
	@touch $@
