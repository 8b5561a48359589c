"""Combinations that a suite refused stand among the runs that they would have been compared with."""

from dataclasses import replace

import pytest

from harness.config.report import Pivot
from harness.config.sweep import expand
from harness.executors.work import in_suite
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.plots import overview as maps
from harness.report.tables.columns import narrow_columns
from harness.report.tables.pivot import tabulate
from harness.report.tables.rows import Board
from harness.report.tables.write import reasons
from harness.storage.store import RunRecord
from tests.support.records import evaluation

BASE = {"data": "breast-cancer", "partition": {"kind": "iid", "clients": 8}, "model": "logistic"}
SWEEP = {
    "algorithm": ["centralized", "fedavg", "k_gt_minimax"],
    "privacy": [None, {"placement": "central", "clip": 1, "epsilon": 8}],
    "compression.beta": [0, 0.9],
}


def record(cell, number, status, **more):
    """Return the record that a store makes of a combination in a suite."""
    told = in_suite(cell)
    return RunRecord(
        told["id"] and str(number), "s", "", told["spec"], status, told["reason"], "",
        digest=told.get("digest", ""), versions=told["versions"], **{"rounds": [], **more},
    )  # fmt: skip


@pytest.fixture
def records():
    """All combinations, those that are possible as done."""
    found = []
    for number, cell in enumerate(expand(BASE, [SWEEP])):
        epsilon = 8.0 if cell.spec and cell.spec.privacy else None
        line = evaluation(100, epsilon=epsilon, accuracy=0.9)
        done = {"status": "done", "rounds": [line]} if cell.spec else {"status": "skipped"}
        found.append(record(cell, number, **done))
    return found


def test_refused_rows_have_the_task_and_the_names_of_the_others(records):
    """Six of twelve are refused: centralized with privacy, and k_gt_minimax, which solves another problem."""
    frame = leaderboard(Results(records))
    assert (len(frame), int(frame["skipped"].sum()), frame["task"].nunique()) == (12, 6, 1)
    shown = {column.heading for column in narrow_columns(Board(frame))}
    assert not shown & {"Dataset", "Problem", "Alpha", "Variant"}
    private = frame[frame["dp_unit"].notna()]
    assert set(private["dp_placement"]) == {"central", "local"}, "what ran says local here"
    assert frame["settings"].str.contains("drop_negatives|precision").sum() == 0


def test_a_table_and_a_map_have_a_place_for_what_was_refused(records):
    results = Results(records)
    plain = tabulate(results, Pivot("algorithm.name", "compression.beta"), "accuracy")
    assert [dict(grid.lines())["k_gt_minimax"] for grid in plain] == [["skipped"] * 2] * 2
    rows = {}
    for cell in results.cells:
        rows.setdefault(maps._row(cell), []).append(cell)
    crossed = {
        its[0].algorithm: sorted(maps._column(cell).budget.epsilon for cell in its if maps._refused([cell]))
        for its in rows.values()
    }
    none = float("inf")
    assert crossed == {"centralized": [8, 8], "fedavg": [], "k_gt_minimax": [8, 8, none, none]}


def test_a_map_crosses_out_neither_values_nor_what_is_yet_to_run(records):
    """A budget's place may hold a run of one mechanism beside what was refused of another."""
    done, refused = (next(c for c in Results(records).cells if bool(c.done) == ran) for ran in (True, False))
    assert maps._refused([refused]) and not maps._refused([refused, done])
    missing = [RunRecord("x", "s", "", done.spec, "missing", None, "", [])]
    assert not maps._refused(Results(missing).cells)


def test_a_reason_is_told_once_with_all_algorithms_that_it_befell(records):
    for name in ("sagda", "codasca"):
        (cell,) = expand({**BASE, "algorithm": name}, [{"seed": [0]}])
        records.append(record(replace(cell, reason="needs something else"), name, "skipped"))
    told = reasons(leaderboard(Results(records)))
    assert len(told) == 3 and "codasca, sagda: needs something else" in told
    assert sum(line.endswith(", in 4 rows") for line in told) == 1, "k_gt_minimax, with and without privacy"
