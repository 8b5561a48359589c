# Two commands for newcomers: make quickstart, make test. The environment is made once, in .venv; what only
# tests need (Ray, Parquet, TensorBoard, linters) is added by the first target that needs it.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: quickstart test check format clean

quickstart: .venv/ready
	$(BIN)/python -m harness suite quickstart --out results

test: .venv/ready-to-test
	$(BIN)/pytest -n 2

check: .venv/ready-to-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

format: .venv/ready-to-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# torch goes first: a later, looser request must not replace it.
.venv/ready: constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"fedfrontier needs Python 3.11 to 3.13, this is {v[0]}.{v[1]}; use make PYTHON=python3.11" if not (3, 11) <= v < (3, 14) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) torch==2.13.0
	$(INSTALL) --editable .
	touch .venv/ready

.venv/ready-to-test: .venv/ready
	$(INSTALL) --editable '.[dev,ray,export]'
	touch .venv/ready-to-test

clean:
	rm -rf results/runs results/quickstart .pytest_cache .mypy_cache .ruff_cache
