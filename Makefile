# Needs make and Python 3.11 or newer; everything else goes into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# More than there are cores: tests wait, too. Each process collects all tests and starts a PostgreSQL of its own.
JOBS   ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); n=$$((2 * n)); echo $$((n < 16 ? n : 16)))
READY  := $(VENV)/.ready
PEERS  := $(VENV)/.peers
LOCK   := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
          --no-emit-index-url --custom-compile-command "make lock"

# Byte code is kept whatever the machine says: the tests start `redrive` hundreds of times.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test lab-short check format bench lab promises pictures lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## create .venv with everything that development needs

$(READY): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "redrive needs Python 3.11 or newer, and '$(PYTHON)' is not: install one and run 'make PYTHON=/path/to/it'." >&2; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV) # another Python over that one would leave a mixture
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(PEERS): requirements/bench.txt $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bench.txt
	@touch $@

demo: $(READY) ## see retries, an outage, dead letters and redrives, then try the console (ARGS=…)
	$(BIN)/redrive demo $(ARGS)

test: $(READY) ## run the tests on every store, on all cores (JOBS=1 for one, ARGS=…)
	$(BIN)/pytest -n $(JOBS) -m "not lab and not lab_short" $(ARGS)

lab-short: $(READY) ## run the short forms of the lab's experiments (JOBS=1, ARGS=…)
	$(BIN)/pytest -n $(JOBS) -m "lab_short and not lab" $(ARGS)

check: $(READY) ## lint, formatting, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## put the code in shape
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

bench: $(PEERS) ## measure, beside the peers (ARGS=--write for bench/results.md and README.md)
	$(BIN)/python bench/run.py all --peers $(ARGS)

lab: $(READY) ## long experiments (LAB_MINUTES=60 in all, LAB_SEED=…, ARGS=tests for those of the apps and brokers too)
	$(BIN)/pytest -m lab --timeout 0 $(or $(ARGS),tests/lab)

promises: $(READY) ## write docs/promises.md from the runs of the lab
	$(BIN)/python -m tests.lab.report

pictures: $(READY) ## draw the pictures of the documentation anew (ARGS=FOLDER for all of them)
	$(BIN)/python -m tests.console.screenshots $(ARGS)

lock: $(READY) ## resolve the requirements anew
	$(LOCK) --upgrade --all-extras pyproject.toml requirements/dev.in -o requirements/dev.txt
	$(LOCK) --upgrade requirements/bench.in -o requirements/bench.txt

clean: ## remove what these targets created
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +
