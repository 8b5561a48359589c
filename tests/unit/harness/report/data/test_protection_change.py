"""The change that privacy, or compression, makes to a row."""

import math

import pytest

from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from tests.support.records import JITTER, done, private, searched, spec


def at(epsilon, mean, algorithm="fedavg", jitter=JITTER, finalists=None, seeds=range(10)):
    privacy = None if epsilon is None else private(epsilon)
    off = dict(enumerate(jitter))
    runs = [
        done(spec(algorithm, seed, privacy=privacy), accuracy=mean + off.get(seed, 0.0)) for seed in seeds
    ]
    return runs if finalists is None else searched(runs, finalists)


def changes(*cells):
    board = leaderboard(Results([run for cell in cells for run in cell]))
    rows = board.set_index(["algorithm", "epsilon_asked"])
    return rows[["privacy_change", "privacy_change_low", "privacy_change_high"]].astype("float64")


def test_a_private_row_is_compared_with_itself_without_privacy_seed_by_seed():
    wide = [20 * off for off in JITTER]  # the same in both rows, so that the pairs hardly differ
    rows = changes(at(None, 0.8, jitter=wide), at(2.0, 0.7, jitter=wide), at(2.0, 0.75, "fedprox"))
    change, low, high = rows.loc[("fedavg", 2.0)]
    assert change == pytest.approx(-0.1) and low == pytest.approx(-0.1) and high == pytest.approx(-0.1)
    assert rows.drop(index=("fedavg", 2.0)).isna().all(axis=None), "no row to compare with, or none private"


def test_every_seed_counts_and_common_ones_are_paired():
    """A private row has further seeds; its change is that of the means which the table shows."""
    few, many = [20 * off for off in JITTER], [20 * off for off in JITTER] + [-0.05] * 20
    rows = changes(
        at(None, 0.8, jitter=few, finalists=()),
        at(2.0, 0.7, jitter=many, finalists=(), seeds=range(30)),
        at(2.0, 0.7, "fedprox", finalists=()),
    )
    change, low, high = rows.loc[("fedavg", 2.0)]
    assert change == pytest.approx(-0.1 - 0.05 * 20 / 30 - 20 * sum(JITTER) * (1 / 10 - 1 / 30))
    assert low < change < high and high - low < 0.2


def test_nothing_is_compared_that_has_no_seed_in_common():
    rows = changes(at(None, 0.8, seeds=range(5)), at(2.0, 0.7, seeds=range(5, 10)))
    assert rows.loc[("fedavg", 2.0)].isna().all()


def test_the_interval_is_over_searches_where_there_were_any():
    alone = changes(at(None, 0.8, finalists=()), at(2.0, 0.7, finalists=()))
    other = changes(at(None, 0.8, finalists=()), at(2.0, 0.7, finalists=[(0.4, [0.6] * 10)]))
    assert alone.loc[("fedavg", 2.0), "privacy_change_low"] > -0.12
    assert other.loc[("fedavg", 2.0), "privacy_change_low"] < -0.18


def test_compression_is_compared_with_whole_messages_under_the_same_privacy():
    def runs(epsilon, beta, mean):
        privacy = None if epsilon is None else private(epsilon)
        compression = {"alpha": 0.0, "beta": beta}
        return [
            done(spec("fedavg", seed, privacy=privacy, compression=compression), accuracy=mean + off)
            for seed, off in enumerate(JITTER)
        ]

    board = leaderboard(
        Results([*runs(None, 0.0, 0.8), *runs(None, 0.9, 0.79), *runs(2.0, 0.0, 0.7), *runs(2.0, 0.9, 0.65)])
    )
    found = board.set_index([board["epsilon_asked"].fillna(0), "beta"])
    assert found["compression_change"].astype("float64").to_dict() == pytest.approx(
        {(0, 0.0): math.nan, (0, 0.9): -0.01, (2, 0.0): math.nan, (2, 0.9): -0.05}, nan_ok=True
    )
    assert found.loc[(2, 0.9), "privacy_change"] == pytest.approx(-0.14)
    assert found.loc[(2, 0.9), "compression_change_low"] == pytest.approx(-0.05)
