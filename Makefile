# Every target sets up .venv by itself; a second run finds the stamps and starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NEEDS := pyproject.toml constraints.txt
# Accuracy (research/benchmarks/accuracy.py, window.py) takes hours and recorded streams: see research/measured.md.
QUICK := tests/test_tables.py tests/test_registry.py tests/test_settings.py tests/stream tests/evaluation tests/learning \
	tests/models tests/fitting/test_search.py tests/strategies/test_default.py \
	tests/strategies/test_reductions.py tests/strategies/test_golden.py \
	--ignore tests/learning/test_meta_training.py --ignore tests/learning/test_unrolled_meta_training.py \
	--deselect tests/learning/test_checkpoint.py::TestFailures::test_a_kill_at_any_moment_leaves_one_of_the_two_states
# Each process gets a run of neighbours, so that what tests of a file share is made once; the first to end takes from the others.
SPREAD := -n auto --dist worksteal
SPEED := startup prepare pretrain prequential recommend lists events fit blend grid bench peers

.PHONY: help demo serve quick test test-slow check lint docs bench format clean

help:
	@echo "make demo       an embedded stream, predicted and learned batch by batch; ends with a table and a page to open"
	@echo "make serve      the live service on a made-up news site; watch it learn at http://127.0.0.1:8000/ (Ctrl-C stops it)"
	@echo "make quick      the core's tests, in a minute"
	@echo "make test       the tests (make test-slow: the long ones)"
	@echo "make docs       the documentation as a site: build/site/index.html"
	@echo "make check      lint, format, types, layers, docs and tests: what continuous integration runs"
	@echo "make bench      the benchmarks of speed, one after another"
	@echo "make format     put the code in its usual form"
	@echo "make clean      remove caches and built files (the virtual environment stays)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "melon needs Python 3.11 or newer; say which with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The demo needs no development tools, so the first thing a person runs is also the lighter one.
$(VENV)/.run-stamp: $(NEEDS) | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[plots,torch]'
	@touch $@

$(VENV)/.dev-stamp: $(NEEDS) | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.run-stamp

demo: $(VENV)/.run-stamp
	$(BIN)/melon demo

# The service needs no PyTorch.
serve: $(NEEDS) | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[plots,serve,client]'
	$(BIN)/melon serve --demo

# Rows, streams, evaluation, learning and strategies' formulas; no command is started and nothing is compiled anew.
# Gradients of meta-training and the killed process are for `make test`.
quick: $(VENV)/.dev-stamp
	$(BIN)/python -m pytest $(SPREAD) -m "not slow" $(QUICK)

test: $(VENV)/.dev-stamp
	$(BIN)/python -m pytest $(SPREAD) -m "not slow"

test-slow: $(VENV)/.dev-stamp
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,ray]'
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.dev-stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Strict: a link that leads nowhere is an error. Nothing is downloaded, neither now nor when the site is read.
docs: $(VENV)/.dev-stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "the documentation: build/site/index.html"

check: lint docs
	@$(MAKE) --no-print-directory test

bench: $(VENV)/.dev-stamp
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,bench]'
	@set -e; for name in $(SPEED); do echo "== benchmarks/$$name.py"; $(BIN)/python "benchmarks/$$name.py"; done

format: $(VENV)/.dev-stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
