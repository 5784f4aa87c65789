# Each target sets up .venv by itself; one stamp file per dependency group makes later calls quick.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check install --quiet

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo torus paper docs pages test check wheel coverage bench torture mutation clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 18

demo: $(VENV)/.demo ## Learn the metrics of 700 blood cells and their genes, write demo/cells.png and demo/report.html
	$(RUN) examples/cells.py

torus: $(VENV)/.demo ## Learn both metrics of the torus, write demo/torus.png
	$(RUN) examples/torus.py

paper: $(VENV)/.paper ## Recompute the figures and tables of the paper, write paper/index.html
	$(RUN) examples/paper.py

docs: $(VENV)/.docs ## Build the site, running its examples: docs/_build/html/index.html
	$(RUN) -m sphinx -W --keep-going docs docs/_build/html

pages: $(VENV)/.docs ## Build the site without running its examples
	RUN_EXAMPLES=0 $(RUN) -m sphinx -W --keep-going -q docs docs/_build/pages

test: $(VENV)/.test ## Lint, check types, run the tests
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

check: $(VENV)/.test ## Format the code, then run test
	$(RUN) -m ruff check --fix --quiet .
	$(RUN) -m ruff format .
	@$(MAKE) --no-print-directory test

wheel: $(VENV)/.wheel ## Build sdist and wheel in dist/, try the wheel in an empty environment without a compiler
	rm -rf dist
	$(RUN) -m build --outdir dist
	$(RUN) -m twine check --strict dist/*
	$(PYTHON) -m venv dist/env
	dist/env/bin/python -m pip --disable-pip-version-check install --quiet --only-binary :all: \
	  "$$(ls dist/*.whl)[cli,report]"
	cd dist && export PATH=/nowhere CC=/nowhere/cc LOKY_MAX_CPU_COUNT=1 && env/bin/cometric info && env/bin/python -c \
	  "import cometric as cm; r = cm.learn(cm.datasets.digits(60).X, drop_empty=True); print(r); r.save('r.npz')" \
	  && env/bin/cometric report r.npz -o r.html --force

coverage: $(VENV)/.test ## Measure branch coverage, with kernels also run uncompiled
	$(RUN) -m pytest --numprocesses 2 --dist loadfile --cov=src/cometric --cov-report=
	NUMBA_DISABLE_JIT=1 LAW_EXAMPLES=5 $(RUN) -m pytest --hypothesis-profile=thorough \
	  --cov=src/cometric --cov-append --cov-report=term --cov-report=json:coverage.json \
	  tests/kernels/test_small_problems.py tests/kernels/test_geometry.py tests/kernels/test_sinkhorn_pairs.py
	$(RUN) tests/raise_lines.py coverage.json

bench: $(VENV)/.bench ## Compare the speed with wsingular and POT, in one run
	$(RUN) benchmarks/exact.py
	$(RUN) benchmarks/entropic.py speed

torture: $(VENV)/.test ## Run all stress tests (over an hour), write their results into docs/reliability.md
	$(RUN) benchmarks/torture.py

mutation: $(VENV)/.mutation ## Run mutation tests of the numerical core, write the scores into docs/reliability.md
	$(RUN) benchmarks/mutation.py

clean: ## Remove everything the other targets create
	rm -rf $(VENV) demo paper dist build published.log .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	rm -rf docs/_build docs/examples docs/extending docs/api/generated docs/sg_execution_times.rst
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# pip supports --group (PEP 735) since 25.1; a fresh venv may have an older one.
$(VENV)/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "cometric needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	       "Choose another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.demo $(VENV)/.docs $(VENV)/.mutation $(VENV)/.paper $(VENV)/.test $(VENV)/.wheel: $(VENV)/.%: $(VENV)/.pip pyproject.toml
	$(PIP) --editable . --group $*
	@touch $@

# torch first: wsingular accepts any version, and most of them take gigabytes.
$(VENV)/.bench: $(VENV)/.pip pyproject.toml
	$(PIP) --group torch
	$(PIP) --editable . --group bench
	@touch $@
