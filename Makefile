# Two commands for a newcomer: `make reproduce-table` and `make test`. Both set everything up first.
PYTHON ?= python3
PROFILE ?= quick
DEVICE ?= cpu
COMPRESSORS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help setup reproduce-table plan report publish new-compressor compare bench notebooks pictures test check format clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: $(INSTALLED) ## .venv with the pinned dependencies

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[app,dev]'
	@touch $@

reproduce-table: $(INSTALLED) ## the speed-up table of PROFILE (quick | real | smoke): runs what is missing, resumes; COMPRESSORS=none,topk,… for fewer
	@status=0; $(BIN)/python -m experiments.train -m experiment=speedup profile=$(PROFILE) $(if $(COMPRESSORS),compressor=$(COMPRESSORS)) || status=$$?; \
	$(BIN)/python -m experiments.report outputs/$(PROFILE) && exit $$status

report: $(INSTALLED) ## everything: all grids of PROFILE, the micro-benchmark (DEVICE=cuda: on the GPU), REPORT.md and report.html; resumes
	$(BIN)/python -m experiments.reproduce $(PROFILE) --device $(DEVICE)

artifact-%: $(INSTALLED) ## one table or figure of the paper, as `make artifact-speedup`: its grid in PROFILE, then its part of the report
	$(BIN)/python -m experiments.reproduce $(PROFILE) --only $* --device $(DEVICE)

plan: $(INSTALLED) ## what the speed-up table of PROFILE would take (jobs, steps, bytes, an estimate of hours), without running it
	@$(BIN)/python -m experiments.estimate experiment=speedup profile=$(PROFILE) $(if $(COMPRESSORS),compressor=$(COMPRESSORS))

publish: $(INSTALLED) ## commit-ready copy of the report of outputs/PROFILE under results/reference/
	$(BIN)/python -m experiments.publish outputs/$(PROFILE)

new-compressor: $(INSTALLED) ## skeletons of a compressor: NAME=my_method
	@$(BIN)/python scripts/new_compressor.py $(NAME)

compare: $(INSTALLED) ## the rows of C=my_method beside SIDCo-E, Top-k and dense, in PROFILE
	@status=0; $(BIN)/python -m experiments.train -m experiment=speedup profile=$(PROFILE) compressor=none,bf16,topk,sidco_e,$(C) || status=$$?; \
	$(BIN)/python -m experiments.report outputs/$(PROFILE) && exit $$status

bench: $(INSTALLED) ## the micro-benchmark of compressors, about ten minutes: outputs/bench/ (BENCH="--preset resnet50" …)
	$(BIN)/python -m experiments.bench $(BENCH)

notebooks: $(INSTALLED) ## notebooks/*.ipynb anew from the .py beside each, without outputs
	$(BIN)/python scripts/notebooks.py pair

pictures: $(INSTALLED) ## docs/pictures/: the notebooks' figures that the README shows, from the committed reference
	$(BIN)/python scripts/notebooks.py pictures

test: $(INSTALLED) ## all tests (those that need a GPU or network namespaces are skipped where there is none)
	$(BIN)/python -m pytest

check: test ## tests, ruff, pyright, import-linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(INSTALLED) ## ruff's formatter and safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## everything that `make` made, results in outputs/ excepted
	rm -rf $(VENV) *.egg-info .pytest_cache .ruff_cache .hypothesis
