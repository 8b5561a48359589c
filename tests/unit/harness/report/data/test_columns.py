"""The table of columns: every column of every file that is written has a meaning."""

import csv
import io
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from harness import run
from harness.config.run import read_spec
from harness.config.sweep import Combination
from harness.metrics import ATTACKED, METRICS, PREFIXES, Predictions, write_predictions
from harness.report.data.clients import clients_table
from harness.report.data.columns import (
    COLUMNS,
    FILES,
    LEADERBOARD,
    TABLES,
    Better,
    Kind,
    describe,
    dictionary,
)
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.data.tidy import tidy
from harness.report.tables.named_columns import column_names
from harness.report.tables.pivot import grids_csv
from harness.simulation.plan import plan
from tests.support.records import done, spec

ROOT = Path(__file__).parents[5]
HAND_MADE = {"weights.csv"}  # by a study, not by the harness
TINY = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 3},
    "model": "logistic",
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "rounds": 1,
}
NOISE = {"noise_multiplier": 1.0, "clip": 1.0, "delta": 1e-5}
PRIVATE = {
    "client": {"unit": "client", "placement": "central", **NOISE},
    "record": {"unit": "record", "placement": "local", **NOISE},
    "distributed": {"unit": "client", "placement": "distributed", **NOISE},
}


def without_meaning(header):
    return [name for name in header if describe(str(name)) is None or not describe(str(name)).meaning]


def predictions(classes, score):
    n = 2
    return Predictions(
        client=np.zeros(n, dtype=np.int64),
        y_true=np.zeros(n, dtype=np.int64 if classes else np.float64),
        score=score,
        y_pred=np.zeros(n, dtype=np.int64) if classes else None,
        classes=tuple(map(str, range(classes))),
        loss=np.zeros(n),
    )


def test_every_entry_is_whole_and_stands_once():
    """Kinds and directions are those of `Column`; a sentence has no full stop, as a unit may follow."""
    entries = [column for table in TABLES.values() for column in table.values()]
    assert len(entries) == len(COLUMNS)
    for column in entries:
        assert column.kind in get_args(Kind) and column.better in get_args(Better), column
        assert column.meaning and not column.meaning.endswith("."), column
    assert set(TABLES) == {table for tables in FILES.values() for table in tables}


def test_the_leaderboard_and_its_metrics_have_meanings():
    prefixed = [f"{prefix}_{name}" for prefix, own in PREFIXES.items() for name in own]
    measures = [*METRICS, *ATTACKED, *prefixed, *TABLES["measure"]]
    assert not without_meaning(
        [*LEADERBOARD, *measures, *(f"{m}_{over}" for m in measures for over in ("mean", "std"))]
    )


def test_directions_are_those_of_metrics():
    """A spread over seeds is better small, whatever the metric."""
    assert (describe("auroc").better, describe("selection_auroc_mean").better) == ("high", "high")
    assert (describe("eqopp_mean").better, describe("auroc_clients_std").better) == ("low", "low")
    assert describe("train_accuracy").meaning.endswith("on training samples")


@pytest.mark.parametrize("name", ["accuracies", "nonsense_mean", "algorithm", "p"])
def test_only_known_names_are_described(name):
    assert (describe(name) is None) == (name != "algorithm")


@pytest.mark.parametrize(
    "privacy", [None, "client", pytest.param("record", marks=pytest.mark.slow), "distributed"]
)
def test_columns_of_a_run_have_meanings(tmp_path, privacy):
    settings = {"privacy": PRIVATE[privacy]} if privacy else {}
    record = run({**TINY, **settings}, tmp_path)
    assert not without_meaning(tidy([record]).columns)
    assert not without_meaning(leaderboard(Results([record])).columns)


def test_columns_of_a_plan_have_meanings():
    specs = [read_spec(TINY), read_spec({**TINY, "privacy": PRIVATE["client"]})]
    cells = [Combination(one.model_dump(mode="json"), one, None) for one in specs]
    cells.append(Combination({}, None, "incompatible"))
    assert not without_meaning(name for row in plan(cells, timed=False) for name in row)


@pytest.mark.parametrize(
    ("classes", "score"), [(0, np.zeros(2)), (2, np.zeros(2)), (3, np.full((2, 3), 1 / 3))]
)
def test_columns_of_predictions_have_meanings(tmp_path, classes, score):
    write_predictions(predictions(classes, score), tmp_path / "p.csv", ["a"])
    assert not without_meaning((tmp_path / "p.csv").read_text().splitlines()[0].split(","))


def test_columns_of_other_tables_have_meanings():
    headers = [
        clients_table(Results([])).columns,
        next(csv.reader(io.StringIO(grids_csv([])))),
        ["prediction", "p(a b)", "score"],
    ]
    assert not [name for header in headers for name in without_meaning(header)]


def test_columns_of_committed_results_have_meanings():
    files = [path for path in (ROOT / "results/reference").glob("*/*.csv") if path.name not in HAND_MADE]
    assert files
    for path in files:
        with path.open(newline="", encoding="utf-8") as file:
            assert not without_meaning(next(csv.reader(file))), path


def test_every_listed_column_has_its_meaning():
    assert all(column_names(leaderboard(Results([done(spec(), accuracy=0.5)]), baseline="fedavg")).values())


def test_the_page_of_columns_is_that_of_the_table():
    """`make columns` writes it."""
    assert (ROOT / "docs" / "columns.md").read_text(encoding="utf-8") == dictionary()
