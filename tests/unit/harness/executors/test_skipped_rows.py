"""What a suite records of combinations that cannot be run: their rows stand among the others."""

import pytest

from harness.config.sweep import expand
from harness.executors.work import in_suite
from harness.report import leaderboard
from harness.report.tables.columns import narrow_columns
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
    frame = leaderboard(Store(tmp_path).records())
    assert sorted(frame["skipped"]) == [0, 0, 0, 1, 1, 1]
    assert set(frame["task"].value_counts()) == {6}
    for name, value in {"dataset": "breast-cancer", "problem": "classify", "alpha": 0, "beta": 0}.items():
        assert set(frame[name]) == {value}, name
    assert set(frame["dp_unit"].dropna()) == {"client"}
    headings = [column.heading for column in narrow_columns(frame)]
    assert headings == ["#", "Algorithm", "Model for", "DP", "ε total", "Runs"]


def test_a_combination_for_data_that_cannot_be_read_is_skipped_too():
    (cell,) = expand({**BASE, "data": "csv:nothing.csv?label=y", "algorithm": "splitnn"}, [{}])
    recorded = in_suite(cell)
    assert recorded["id"] is None and "digest" not in recorded
    assert recorded["spec"]["data"]["path"] == "nothing.csv"
