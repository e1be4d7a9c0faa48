# Two commands a newcomer needs: `make demo` and `make test`. Both make their own environment first.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin

.PHONY: help test lint types unit format demo docs bench clean

help: ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

demo: $(VENV)/.ready ## train on the embedded data, and show the first page before and after
	$(BIN)/firstpage demo

test: lint types unit ## formatter check, linter, strict types, tests and doctests

lint: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.ready
	$(BIN)/mypy

# Without bytecode each process would compile every file again, and pytest rewrite the asserts of each test;
# of the packages whose plugins it finds by itself it would rewrite all files, for plugins that no test uses.
# Three processes on two cores: many tests wait, for a disk, a browser or a process that they kill.
unit: $(VENV)/.ready
	env -u PYTHONDONTWRITEBYTECODE PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -p xdist -n 3 --dist loadfile --no-loadscope-reorder

format: $(VENV)/.ready ## format, and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/.docs-ready: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs-ready ## build the documentation into site/, with warnings as errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "wrote site/index.html"

bench: $(VENV)/.ready ## measure beside other packages, and write benchmarks/RESULTS.md; BENCH="--only losses" for a part
	$(BIN)/python benchmarks/run.py $(BENCH)

clean: ## remove the environment and every cache
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
