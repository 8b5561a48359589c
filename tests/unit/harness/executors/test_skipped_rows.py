"""What a suite records of combinations that cannot be run: their rows stand among the others."""

import pytest

import harness
from harness.config.sweep import expand
from harness.core.errors import UserError
from harness.executors.work import in_suite
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.tables.columns import narrow_columns
from harness.report.tables.rows import Board
from harness.storage.store import Store

BASE = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 3},
    "model": "logistic",
    "rounds": 2,
    "seed": 1,
}
PRIVATE = {"placement": "central", "epsilon": 8, "clip": 1}


@pytest.fixture
def combinations():
    """Fedavg; splitnn, which is for another problem; centralized, which no noise protects."""
    return expand(BASE, [{"algorithm": ["fedavg", "splitnn", "centralized"], "privacy": [None, PRIVATE]}])


def test_skipped_combinations_have_the_defaults_of_others(combinations):
    done, private, *_, skipped = (in_suite(cell) for cell in combinations)
    assert skipped["id"] is None and done["id"] is not None
    assert skipped["spec"]["algorithm"]["name"] == "centralized"
    for section in {"data", "partition", "problem", "model", "compression", "precision"}:
        assert skipped["spec"][section] == done["spec"][section], section
    assert skipped["spec"]["privacy"] == private["spec"]["privacy"]
    assert skipped["spec"]["privacy"]["sampling"] == "full"
    assert skipped["digest"] == done["digest"]


def test_skipped_rows_are_ranked_with_the_task_they_are_of(combinations, tmp_path):
    cells = [in_suite(cell) for cell in combinations]
    Store(tmp_path).open().write_suite("x", {"suite": "x", "profile": "smoke", "cells": cells})
    frame = leaderboard(Results(Store(tmp_path).records()))
    assert sorted(frame["skipped"]) == [0, 0, 0, 1, 1, 1]
    assert set(frame["task"].value_counts()) == {6}
    for name, value in {"dataset": "breast-cancer", "problem": "classify", "alpha": 0, "beta": 0}.items():
        assert set(frame[name]) == {value}, name
    assert set(frame["dp_unit"].dropna()) == {"client"}
    headings = [column.heading for column in narrow_columns(Board(frame))]
    assert headings == ["#", "Algorithm", "Model for", "DP", "ε total", "Runs"]


def test_a_combination_for_data_that_cannot_be_read_is_skipped_too():
    (cell,) = expand({**BASE, "data": "csv:nothing.csv?label=y", "algorithm": "splitnn"}, [{}])
    recorded = in_suite(cell)
    assert recorded["id"] is None and "digest" not in recorded
    assert recorded["spec"]["data"]["path"] == "nothing.csv"


def test_a_setting_that_is_tuned_need_not_be_in_the_file(tmp_path):
    """Under unit user local steps are needed; a search for them skipped all private combinations."""
    rows = [f"{n % 7},{n % 5},{n % 3 % 2},p{n // 2},site{n % 60 // 30}" for n in range(120)]
    path = tmp_path / "people.csv"
    path.write_text("\n".join(["a,b,y,person,site", *rows]))
    base = {
        "data": {"name": "csv", "path": str(path), "label": "y", "client": "site", "user": "person"},
        "partition": {"kind": "natural", "selection": 0.25},
        "model": "logistic",
        "algorithm": "fedavg",
        "privacy": {"unit": "user", "epsilon": 50, "delta": 0.001, "clip": 1},
        "rounds": 2,
    }
    tune = {
        "settings": {"algorithm.local_steps": {"choice": [1, 2]}},
        "budget": 2,
        "repeats": [1, 1, 1],
        "finalists": 1,
    }
    suite = {"suite": "people", "base": base, "sweep": {"seed": [0, 1]}, "tune": tune}
    board = harness.suite(suite, tmp_path / "out", jobs=1).leaderboard()
    assert board["done"].tolist() == [2] and board["skipped"].tolist() == [0]


def test_a_suite_of_which_nothing_can_be_run_is_refused(tmp_path):
    """It ended with exit code 0 and an empty table."""
    with pytest.raises(
        UserError, match=r"suite none: none of 2 combinations can be run: .*central.* \(2 of them\)"
    ):
        harness.suite(
            {
                "suite": "none",
                "base": {**BASE, "algorithm": "centralized", "privacy": PRIVATE},
                "sweep": {"seed": [0, 1]},
            },
            tmp_path,
            jobs=1,
        )
