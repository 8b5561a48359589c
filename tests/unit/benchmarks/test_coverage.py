"""Tests of the check by brute force of intervals over searches."""

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.coverage import covered, one_search
from harness.config.suite import make_suite
from harness.config.tune import SurfaceTune

ROOT = Path(__file__).parents[3]


def test_a_search_is_that_of_suite_natural_with_seeds_of_its_own():
    suites = [make_suite(one_search("covid", number), "") for number in (0, 1)]
    seeds = [{combination.given["seed"] for combination in suite.combinations} for suite in suites]
    assert all(isinstance(suite.tune, SurfaceTune) for suite in suites)
    assert [suite.tune.seed for suite in suites] == [0, 1]
    assert not seeds[0] & seeds[1]


def test_an_interval_is_compared_with_the_mean_of_the_other_searches():
    board = pd.DataFrame(
        {
            "dataset": "covid",
            "epsilon_asked": [None, None, None, 8.0, 8.0, 8.0],
            "search": [0, 1, 2] * 2,
            "auroc_mean": [0.5, 0.6, 0.7, 0.4, 0.4, 0.4],
            "procedure_low": [0.45, 0.66, 0.65, 0.3, 0.41, 0.3],
            "procedure_high": [0.66, 0.7, 0.75, 0.5, 0.5, 0.5],
        }
    )
    table = covered(board)
    assert table["others"].tolist() == pytest.approx([0.65, 0.6, 0.55, 0.4, 0.4, 0.4])
    assert table["covered"].tolist() == [True, False, False, True, False, True]


def test_the_committed_table_follows_from_its_means_and_intervals():
    """The page on epsilon says that all twenty intervals hold the mean of the other searches."""
    table = pd.read_csv(ROOT / "results" / "reference" / "coverage.csv")
    again = covered(table)
    assert table["others"].tolist() == pytest.approx(again["others"].tolist(), abs=1e-12)
    assert table["covered"].tolist() == again["covered"].tolist() == [True] * 20
