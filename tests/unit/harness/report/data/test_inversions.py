"""Larger budgets with worse results."""

import pytest

from harness.report.data.inversions import inversions
from harness.report.data.results import Results
from tests.support.records import JITTER, done, private, searched, spec


def at(epsilon, mean, finalists=(), algorithm="fedavg", jitter=JITTER, **parts):
    privacy = None if epsilon is None else private(epsilon)
    runs = [
        done(spec(algorithm, seed, privacy=privacy, **parts), accuracy=mean + off)
        for seed, off in enumerate(jitter)
    ]
    return searched(runs, finalists)


def found(*cells):
    inverted = inversions(Results([run for cell in cells for run in cell]).cells)
    return inverted and [(each.cell.spec["privacy"], each.smaller.spec["privacy"]) for each in inverted]


def test_a_worse_result_at_a_larger_budget_is_one():
    """The best of the smaller budgets is named."""
    cells = at(1.0, 0.60), at(2.0, 0.70, jitter=JITTER[::-1]), at(8.0, 0.65), at(None, 0.80)
    assert found(*cells) == [(private(8.0), private(2.0))]
    (one,) = inversions(Results([run for cell in cells for run in cell]).cells)
    assert one.difference == pytest.approx(-0.05) and one.interval[0] < -0.05 < one.interval[1] < 0
    assert one.measure == "accuracy"


def test_without_privacy_is_the_largest_budget():
    assert found(at(8.0, 0.70), at(None, 0.60, jitter=JITTER[::-1])) == [(None, private(8.0))]


def test_within_the_interval_it_is_none():
    wide = [20 * off for off in JITTER]
    assert found(at(2.0, 0.701), at(8.0, 0.70, jitter=wide)) == []
    lucky = [(0.3, [0.64] * 10)]  # what the search of the smaller budget could have chosen as well
    assert found(at(2.0, 0.70, lucky), at(8.0, 0.65)) == []


def test_there_must_be_budgets_to_compare():
    assert found(at(8.0, 0.7)) is None and found(at(None, 0.7)) is None
    central = {**private(2.0), "placement": "central"}
    other = searched([done(spec(seed=seed, privacy=central), accuracy=0.9) for seed in range(10)])
    assert found(other, at(8.0, 0.7)) is None, "noise of another kind"
    assert found(at(2.0, 0.9), at(8.0, 0.7, algorithm="fedprox")) is None
    untuned = [done(spec(seed=seed, privacy=private(2.0)), accuracy=0.9) for seed in range(10)]
    assert found(untuned, at(8.0, 0.7)) is None
