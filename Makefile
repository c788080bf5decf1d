# Everything starts here: `make` lists the targets.
#
# The environment makes itself: a target that needs one builds $(VENV) first, and again when pyproject.toml or
# constraints.txt changed. The demo needs only the core, so it gets only the core (seconds, no torch); tests need the rest.

PYTHON ?= python3
VENV   := .venv
ARGS   :=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt

# Stamps, because a directory's own time says nothing about what was installed into it.
STAMP_VENV := $(VENV)/.stamp-venv
STAMP_CORE := $(VENV)/.stamp-core
STAMP_DEV  := $(VENV)/.stamp-dev
STAMP_DOCS := $(VENV)/.stamp-docs

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two pips in one environment at a time break it; `make -j` gains nothing here.
.NOTPARALLEL:
.SUFFIXES:

.PHONY: help demo test spec docs lint format test-vllm test-cuda evidence clean check-cuda

help: ## list the targets
	@echo 'usage: make TARGET [ARGS=...] [PYTHON=python3] [VENV=.venv]'
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{ printf "  %-12s %s\n", $$1, $$2 }'
	@echo
	@echo 'ARGS goes to the program that the target runs:   make demo ARGS="--seed 3"   make test ARGS="-k lease"'
	@echo 'On Linux, PyPI gives torch as a CUDA build of several gigabytes. For the small CPU build:'
	@echo '  PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make test'

demo: $(STAMP_CORE) ## run the demo: CUDA if torch and a device are there, else the simulator
	$(BIN)/cgstate demo $(ARGS)

# Tests that need a device are left out, not skipped, so that a green run has no skips to read past.
test: lint ## check style and types, then run every test that needs no GPU
	$(BIN)/python -m pytest -q -n auto -m 'not cuda' $(ARGS)

# Everything about the lifecycle that can be proven, checked or walked; TLC needs Java, and says so.
spec: $(STAMP_DEV) ## prove the lifecycle, walk it, drive it through the runtime, let TLC check it
	$(BIN)/cgstate spec generate --check
	$(BIN)/cgstate spec prove
	$(BIN)/cgstate mutants --sample 12 --checkers z3,walker
	$(BIN)/cgstate spec walk --entries 1
	$(BIN)/cgstate spec replay
	$(BIN)/cgstate spec check --config ci
	$(BIN)/cgstate spec check --config liveness

# Offline: no page asks for anything from outside. A warning, such as a link that leads nowhere, is an error.
docs: $(STAMP_DOCS) ## build the documentation into docs/_build/html
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs docs/_build/html $(ARGS)

lint: $(STAMP_DEV) ## check style (ruff) and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP_DEV) ## fix what ruff can fix, and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# vLLM's own code against the adapter, without a GPU and without most of what vLLM brings, in an environment of its own. Two releases
# share it: the second lies in a folder that comes first on the path.
VLLM       := .venv-vllm
VLLM_NEXT  := $(VLLM)/vllm-0.33
STAMP_VLLM := $(VLLM)/.stamp
VLLM_PIP   := $(VLLM)/bin/python -m pip --disable-pip-version-check install
VLLM_TEST  := $(VLLM)/bin/python -m pytest -q tests/integrations/vllm tests/integrations/vllm_local $(ARGS)

test-vllm: $(STAMP_VLLM) ## run the tests of the vLLM adapter against vLLM 0.29 and 0.33, without a GPU
	PYTHONPATH=. $(VLLM_TEST)
	PYTHONPATH=$(VLLM_NEXT):. $(VLLM_TEST)

# These two run on $(PYTHON) itself: on a GPU host, torch is the one built for its driver, not one of ours.
test-cuda: check-cuda ## run the tests that need a CUDA device, with the torch and pytest of $(PYTHON)
	$(PYTHON) -m pytest -p no:benchmark --dist loadfile -m cuda tests $(ARGS)  # with -n: tests of one file share a process

evidence: check-cuda ## measure on this machine's GPU and write docs/evidence/{core,memory}-h200.json
	$(PYTHON) -m benchmarks.core --out docs/evidence/core-h200.json $(ARGS); core=$$?; \
	$(PYTHON) -m benchmarks.memory --out docs/evidence/memory-h200.json $(ARGS) && exit $$core

clean: ## remove the environment, caches and build output
	rm -rf $(VENV) $(VLLM) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis docs/_build
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# Without this, a run in which every test skips for want of a device would look like a pass.
check-cuda:
	@$(PYTHON) -W ignore -c 'import torch; raise SystemExit(not torch.cuda.is_available())' || { \
	  echo 'error: $(PYTHON) finds no torch with a CUDA device; nothing was run. Try PYTHON=/path/to/python' >&2; exit 1; }

$(STAMP_VENV):
	@$(PYTHON) -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' || { \
	  echo 'error: cgstate needs Python 3.11 or newer; $(PYTHON) is missing or older. Try: make PYTHON=python3.11 ...' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo 'error: $(PYTHON) has no venv module. On Debian: apt install python3-venv' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(STAMP_CORE): pyproject.toml constraints.txt | $(STAMP_VENV)
	$(PIP) --quiet -e .
	@touch $@

$(STAMP_VLLM): tests/integrations/vllm/requirements.txt constraints.txt
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM_PIP) -c constraints.txt hypothesis pytest torch
	$(VLLM_PIP) --no-deps -r tests/integrations/vllm/requirements.txt
	$(VLLM_PIP) --no-deps --target $(VLLM_NEXT) vllm==0.33.0
	@touch $@

# One install serves both stamps: whoever has this has the core.
$(STAMP_DEV): pyproject.toml constraints.txt | $(STAMP_VENV)
	$(PIP) -e '.[dev,torch]'  # not quiet: torch is a long download, and its progress should show
	@touch $(STAMP_CORE) $@

$(STAMP_DOCS): pyproject.toml constraints.txt | $(STAMP_VENV)
	$(PIP) --quiet -e '.[docs]'
	@touch $@
