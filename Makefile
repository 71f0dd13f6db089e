# Every target sets up .venv by itself; a second run finds the stamps and starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NEEDS := pyproject.toml constraints.txt
# Accuracy (benchmarks/accuracy.py, window.py, als.py) takes hours and recorded streams: see docs/benchmarks.md.
SPEED := startup prepare prequential recommend blend cores grid limits bench

.PHONY: help demo test test-slow check lint bench format clean

help:
	@echo "make demo       an embedded stream, predicted and learned batch by batch; ends with a table and a page to open"
	@echo "make test       the tests (make test-slow: the long ones)"
	@echo "make check      lint, format, types, layers and tests: what continuous integration runs"
	@echo "make bench      the benchmarks of speed, one after another"
	@echo "make format     put the code in its usual form"
	@echo "make clean      remove caches and built files (the virtual environment stays)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "melon needs Python 3.11 or newer; say which with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The demo needs no development tools, so the first thing a person runs is also the lighter one.
$(VENV)/.run-stamp: $(NEEDS) | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[plots]'
	@touch $@

$(VENV)/.dev-stamp: $(NEEDS) | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.run-stamp

demo: $(VENV)/.run-stamp
	$(BIN)/melon demo

test: $(VENV)/.dev-stamp
	$(BIN)/python -m pytest -n auto -m "not slow"

test-slow: $(VENV)/.dev-stamp
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,ray]'
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.dev-stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

check: lint
	@$(MAKE) --no-print-directory test

bench: $(VENV)/.dev-stamp
	@set -e; for name in $(SPEED); do echo "== benchmarks/$$name.py"; $(BIN)/python "benchmarks/$$name.py"; done

format: $(VENV)/.dev-stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
