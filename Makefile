# `make test` is all a contributor needs: it makes the environment, then runs every test this machine can run.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
# One environment per set of pins, shared by all checkouts: it holds SGLang and torch, several GB.
KEY := $(shell { $(PYTHON) sglang_hisparse/pin.py; \
	$(PYTHON) -c "import sys;print(tuple(sys.version_info[:2]))"; } | sha256sum | cut -c1-12)
VENV := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sglang_hisparse/venv-$(KEY)
BIN := $(VENV)/bin
PYTEST = $(BIN)/python -m pytest
CUDA_SOURCES = find csrc -name '*.cuh' -o -name '*.cu' -o -name '*.h'

export OMP_NUM_THREADS ?= 2
export MKL_NUM_THREADS ?= 2

.PHONY: help venv test test-fast test-patched lint format demo clean
.PHONY: patches check-patches apply-patches unapply-patches

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' Makefile | column -t -s '|'

venv: $(VENV)/.complete ## make or reuse the cached environment, with this checkout installed in it
	@$(BIN)/pip install -q --no-deps --no-build-isolation -e .

$(VENV)/.complete:
	@echo "Making $(VENV): installs SGLang and torch, some minutes the first time."
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv --clear $(VENV)
	$(PYTHON) sglang_hisparse/pin.py > $(VENV)/requirements.txt
	$(BIN)/pip install -q -r $(VENV)/requirements.txt
	touch $@

test: venv ## the whole CPU suite, end-to-end tests included; GPU tests too where there is a GPU
	tests/run.sh $(BIN)/python $(ARGS)

test-fast: venv ## unit, seam, patch and CPU tests only
	$(PYTEST) tests/unit tests/seams tests/patches tests/cpu $(ARGS)

test-patched: venv ## the server tests once more, on a patched SGLang without the package (ARGS=tests/e2e/test_spill.py)
	rm -rf build/patched-tree
	$(BIN)/python -m sglang_hisparse.patching tree build/patched-tree
	HISPARSE_PATCHED_TREE="$(CURDIR)/build/patched-tree" $(PYTEST) $(or $(ARGS),tests/e2e)

patches: venv ## write patches/ anew, after any change to the seam table, the package or csrc/
	$(BIN)/python -m sglang_hisparse.patching make

check-patches: venv ## make, compare, apply, compile and take back the patches, against the pinned release
	$(BIN)/python -m sglang_hisparse.patching check

apply-patches: ## put the patches into a clean checkout of the pinned release: SGLANG_SRC=../sglang
	@$(PYTHON) -m sglang_hisparse.patching apply "$(SGLANG_SRC)"

unapply-patches: ## take them out again: SGLANG_SRC=../sglang
	@$(PYTHON) -m sglang_hisparse.patching unapply "$(SGLANG_SRC)"

lint: venv ## ruff, mypy and clang-format, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(CUDA_SOURCES) | xargs -r $(BIN)/clang-format --dry-run -Werror

format: venv ## let ruff and clang-format rewrite the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(CUDA_SOURCES) | xargs -r $(BIN)/clang-format -i

demo: venv ## a small run on this machine, start to end
	$(BIN)/python -m bench_serving.demo $(ARGS)

clean: ## remove build products and tool caches of this checkout
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
