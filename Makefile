# headrace: the two commands a newcomer needs are `make up` and `make test`; `make help` lists the rest.
#
# Everything is installed into .venv by pip from pyproject.toml. A stamp per set of extras makes repeated calls
# instant; a changed pyproject.toml makes them run again.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
TYPES := build/types
MODEL := smollm2-135m-instruct
# The reference answers of both known models are tested.
TEST_MODELS := $(MODEL) gemma3-270m
FIND_PYTHON := for python in python3 python3.11 python3.12 python3.13; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done
# Compiles the kernels where the machine has no C compiler of its own.
COMPILER := ziglang==0.17.1
PYTHON ?= $(shell $(FIND_PYTHON))
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# services/tokenize has the name of a standard module: the current folder must never enter sys.path.
export PYTHONSAFEPATH := 1

.PHONY: help install up test check types bench soak

help: ## List the targets
	@sed -nE 's/^([a-z]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

install: $(VENV)/.stamp-all ## Make .venv and install headrace into it

up: install ## Install, fetch the default model and serve on 127.0.0.1:8080 (options: make up ARGS='--port 9000')
	@$(BIN)/headrace models pull $(MODEL)
	@exec $(BIN)/headrace up $(ARGS)

test: $(VENV)/.stamp-test ## Install what the tests need and run them, the fast ones first
	@for model in $(TEST_MODELS); do $(BIN)/headrace models pull $$model; done
	@$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.stamp-check ## Format, lint, types and architecture rules
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(MAKE) --no-print-directory types
	@$(BIN)/python -m pytest tests/architecture tests/deploy

types: $(VENV)/.stamp-check ## Check types over build/types, where the folders stand under their import names
	@rm -rf $(TYPES) && mkdir -p $(TYPES)/headrace
	@ln -s $(CURDIR)/services/* $(CURDIR)/shared $(TYPES)/headrace/
	@MYPYPATH=$(TYPES) $(BIN)/mypy --python-executable $(BIN)/python -p headrace

# ONLY=throughput,prefix QUICK=1 RUNS=3 PEERS=vllm,llamacpp PEERS_DIR=folder SOAK=20; docs/performance.md explains them.
BENCH_ARGS = $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick) $(if $(RUNS),--runs $(RUNS)) $(if $(PEERS),--peers $(PEERS)) \
	$(if $(PEERS_DIR),--peers-dir $(PEERS_DIR)) $(if $(SOAK),--soak $(SOAK))

bench: $(VENV)/.stamp-bench ## Measure on this machine, beside the peers that are installed, into build/bench
	@$(BIN)/headrace models pull $(MODEL)
	@BENCH_COMMAND='$(strip make bench $(MAKEOVERRIDES))' $(BIN)/python bench $(strip $(BENCH_ARGS) $(ARGS))

soak: $(VENV)/.stamp-bench ## Load an instance for MINUTES=20 and watch its memory, into build/soak.json
	@$(BIN)/headrace models pull $(MODEL)
	@BENCH_COMMAND='$(strip make soak $(MAKEOVERRIDES))' $(BIN)/python bench --only '' --soak $(or $(MINUTES),20)

# Each set of extras contains the one before it; that of the benchmark is a branch of its own.
$(VENV)/.stamp-all: EXTRAS := all
$(VENV)/.stamp-test: EXTRAS := all,test
$(VENV)/.stamp-check: EXTRAS := all,test,check
$(VENV)/.stamp-bench: EXTRAS := all,bench
$(VENV)/.stamp-test: $(VENV)/.stamp-all
$(VENV)/.stamp-check: $(VENV)/.stamp-test
$(VENV)/.stamp-bench: $(VENV)/.stamp-all

$(VENV)/.stamp-%: pyproject.toml
	@test -n "$(PYTHON)" || { echo 'headrace needs Python 3.11 or newer (set PYTHON=/path/to/python3)' >&2; exit 1; }
	@echo "installing headrace[$(EXTRAS)] into $(VENV) (PyTorch makes the first time take some minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --editable '.[$(EXTRAS)]'
	@command -v cc >/dev/null || command -v gcc >/dev/null || $(PIP) install $(COMPILER)
	@$(BIN)/python -m headrace.shared.kernels.build
	@touch $@
