# make quickstart  run the quickstart suite and write its report to results/quickstart
# make test        run all tests, on two processes
# make test-fast   run the unit tests without the slow ones, for the inner loop
# make check       run the linters, the type checker and the contract of the layers
# make format      format the code and apply safe fixes
# make board       check the submissions in board/ and write its pages to board/site
# make docs        build the pages of docs/ to docs/site; open docs/site/index.html
# make columns     write docs/columns.md, the meanings of all columns
# make references  write the table that recommend answers from without results, from results/reference
# make clean       delete results and caches
#
# The first command creates the environment in .venv. The packages that only tests need (Ray, Parquet,
# TensorBoard, Optuna, linters) are installed by the first target that uses them.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Dozens of tests start Python: what it compiles is kept, also where the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test test-fast check format board claims docs columns references clean

quickstart: .venv/ready
	$(BIN)/python -m harness suite quickstart --out results

test: .venv/ready-to-test
	$(BIN)/pytest -n 2 --dist worksteal

test-fast: .venv/ready-to-test
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" tests/unit tests/golden

check: .venv/ready-to-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

format: .venv/ready-to-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Install torch first, so that a looser requirement does not replace it.
.venv/ready: constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"fedfrontier needs Python 3.11 to 3.13, this is {v[0]}.{v[1]}; use make PYTHON=python3.11" if not (3, 11) <= v < (3, 14) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) torch==2.13.0
	$(INSTALL) --editable .
	touch .venv/ready

.venv/ready-to-test: .venv/ready
	$(INSTALL) --editable '.[dev,ray,export,excel,tff,tune]'
	touch .venv/ready-to-test

.venv/ready-for-docs: .venv/ready
	$(INSTALL) --editable '.[docs]'
	touch .venv/ready-for-docs

# The golden rows have the same tolerance.
board: .venv/ready
	$(BIN)/python -m studies board check board/submissions --tolerance 1e-6
	$(BIN)/python -m studies board build board/submissions --out board/site

# Verdicts on the papers are those that the committed evidence gives, and that evidence is of today's versions.
claims: .venv/ready
	$(BIN)/python -m studies papers

docs: .venv/ready-for-docs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs docs/site

columns: .venv/ready
	$(BIN)/python -c 'from harness.report.data.columns import dictionary; print(dictionary(), end="")' > docs/columns.md

references: .venv/ready
	$(BIN)/python -m studies references

clean:
	rm -rf results/runs results/quickstart board/site docs/site .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -r {} +
