# Every target does its own set-up. The README's two commands are `make demo` and `make test`.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test check-fast proto gpu-check clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt setuptools
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -r requirements-dev.txt -e '.[plot]'
	$(BIN)/python -m compileall -q tiers migration paging service connectors benchmarks proto src/hybridkv/__init__.py
	touch $(STAMP)

demo: setup
	$(BIN)/hybridkv demo

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/regenerate.py --check
	$(BIN)/pytest -n 2

proto: setup
	$(BIN)/python proto/regenerate.py

gpu-check: setup
	$(BIN)/python -m hybridkv.benchmarks.gpu_check

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
