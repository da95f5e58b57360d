# Two commands for a newcomer: `make reproduce-table` and `make test`. Both set everything up first.
PYTHON ?= python3
PROFILE ?= quick
DEVICE ?= cpu
COMPRESSORS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help setup reproduce-table artifact-microbench report publish new-compressor compare bench notebooks pictures test check format clean
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

artifact-%: $(INSTALLED) ## one table or figure of the paper, as `make artifact-speedup`: its sweep in PROFILE, then its part of the report
	@status=0; grid=$$($(BIN)/python -m experiments.report --grid $*) || exit; \
	$(BIN)/python -m experiments.train -m experiment=$$grid profile=$(PROFILE) || status=$$?; \
	$(BIN)/python -m experiments.report outputs/$(PROFILE) --only $* && exit $$status

artifact-microbench: $(INSTALLED) ## compressors by themselves on DEVICE (cpu | cuda), on gradients of PROFILE's benchmarks and on noise: outputs/PROFILE/bench/
	$(BIN)/python -m experiments.train -m experiment=microbench profile=$(PROFILE) output=outputs/$(PROFILE)/bench
	$(BIN)/python -m experiments.bench --gradients outputs/$(PROFILE)/bench/jobs --sizes 262144 2621440 26214400 --rounds 11 \
		--compressors sidco_e sidco_gp sidco_p dgc redsync gaussiank --device $(DEVICE) --output outputs/$(PROFILE)/bench --name $(DEVICE) $(BENCH)
	$(BIN)/python -m experiments.report outputs/$(PROFILE)/bench --only microbench

report: $(INSTALLED) ## tables, figures and REPORT.md of outputs/PROFILE again, from its files
	$(BIN)/python -m experiments.report outputs/$(PROFILE)

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
