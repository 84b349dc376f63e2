# Every target sets up what it needs: .venv from requirements/test.txt, once. `make PYTHON=python3 TARGET` uses
# that interpreter as it is instead, on a machine that has its packages already and cannot install any.
.DEFAULT_GOAL := help
.PHONY: help setup peers demo test nightly gpu lint bench docs clean

ifneq ($(origin PYTHON),command line)
PYTHON := .venv/bin/python
SETUP := setup
PEERS := peers
endif
# the tests' two workers have one core each
WORKERS ?= 2
ARGS ?=
export PYTHONPATH := src$(if $(PYTHONPATH),:$(PYTHONPATH))

help:
	@echo "make demo       four losses on long-tailed digits: what each one misses (a minute)"
	@echo "make test       the whole test suite (ARGS='-k focal' for a part)"
	@echo "make lint       formatting, lint, types, and who may import whom"
	@echo "make bench      our speed beside the other packages'"
	@echo "make gpu        the tests that need an NVIDIA GPU"
	@echo "make nightly    the test suite with a thousand drawn cases for every few"
	@echo "make docs       write the pages that come from the registry anew"
	@echo "make clean      remove everything that was set up"

setup:
	@scripts/setup

peers:
	@scripts/setup --peers

demo: $(SETUP)
	@$(PYTHON) scripts/demo.py $(ARGS)

test: $(SETUP)
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n $(WORKERS) --timeout 600 $(ARGS)

nightly: $(SETUP)
	OMP_NUM_THREADS=1 REWEIGH_PROFILE=nightly $(PYTHON) -m pytest -n $(WORKERS) -m "nightly or not nightly" $(ARGS)

# alone on the GPU, and with nothing but pytest
gpu: $(SETUP)
	$(PYTHON) -m pytest -m gpu $(ARGS)

lint: $(SETUP)
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m pyright --pythonpath $(PYTHON)
	$(PYTHON) -c "import importlinter.cli; importlinter.cli.lint_imports_command()" --no-logo

bench: $(PEERS)
	PYTHONPATH=$(PYTHONPATH):.venv/peers $(PYTHON) -m benchmarks $(ARGS)

docs: $(SETUP)
	$(PYTHON) scripts/make_docs.py

clean:
	rm -rf .venv .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
