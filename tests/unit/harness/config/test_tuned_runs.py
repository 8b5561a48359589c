"""What a tuned suite is expected to run, beside what its searches really make."""

from collections import Counter

import pytest

from harness.config.searches import families, searches
from harness.config.suite import make_suite
from harness.config.tuned_runs import estimate
from harness.executors.suites import within_limit
from harness.executors.tuning.rungs import climb

RANGES = {
    "algorithm.lr": {"log_uniform": [0.01, 1]},
    "algorithm.local_steps": {"log_integer": [1, 50]},
    "rounds": {"log_integer": [5, 100], "fixed": True},
}


def tuned(budgets=(8.0, 1.0), seeds=(0, 1), sweep=None, **tune):
    content = {
        "base": {
            "data": "breast-cancer",
            "partition": {"kind": "iid", "clients": 3, "selection": 0.2},
            "model": "logistic",
            "rounds": 500,
        },
        "sweep": {
            "algorithm": ["fedavg"],
            "privacy": [{"placement": "central", "clip": 1, "epsilon": budget} for budget in budgets],
            "seed": list(seeds),
            **(sweep or {}),
        },
        "tune": {"settings": RANGES, **tune},
    }
    suite = make_suite(content)
    return suite.combinations, suite.tune


def bounds(*made):
    """Return the runs of all searches at least, and the bounds of what comes on top, by reason."""
    expected = estimate(*made)
    counts = Counter()
    for why, _, most in expected.further:
        counts[why] += most
    return len(expected.searched), dict(counts)


def test_settings_that_are_tuned_have_the_mean_of_their_ranges():
    """Of whole numbers: (101 - 5) / log(101 / 5) - 1/2 = 31.4 rounds, 50 / log(51) - 1/2 = 12.2 steps."""
    cells, tune = tuned()
    expected = estimate(cells, tune)
    for cell in (*expected.reported, *expected.searched):
        assert (cell.spec.rounds, cell.spec.algorithm["local_steps"]) == (31, 12)
    assert [cell.spec.seed for cell in expected.reported] == [cell.spec.seed for cell in cells]
    assert estimate(cells, None).reported == list(cells)


def test_runs_have_the_mean_length_of_those_that_a_search_may_try():
    """2 or 10 rounds of 5 or 100 steps: runs of 10, 200 and 50 steps are tried, 1,000 not; 260 / 3 / 52 rounds."""
    ranges = {"algorithm.local_steps": {"choice": [5, 100]}, "rounds": {"choice": [2, 10]}}
    expected = estimate(*tuned(settings=ranges, most_steps=200))
    assert {(cell.spec.rounds, cell.spec.algorithm["local_steps"]) for cell in expected.searched} == {(2, 52)}
    expected = estimate(*tuned(settings=ranges))
    assert {cell.spec.rounds for cell in expected.searched} == {6}


def test_runs_are_counted_for_every_budget():
    """With budget 12 and repeats 1, 2, 4, three steps of a tried and a new one: 15 + 6 + 2 * 2 = 25 runs at least.

    At most, with two budgets: 18 + 12 + 4 * 2 = 38; after widening, four ends with four settings each, twice:
    settings 18, 46, 80, better ones 12, 30, 60, finalists 4, 8, 12, so 80 + 60 + 12 * 2 = 164. Of 12 finalists 11
    are not chosen.
    """
    small = {"budget": 12, "repeats": [1, 2, 4], "finalists": 2}
    least, most = bounds(*tuned(**small))
    assert least == 2 * 25
    assert most == {
        "of settings that another budget prefers": 2 * (38 - 25),
        "in widened ranges": 2 * (164 - 38),
        "of other finalists": 2 * 11 * 2,
    }
    fixed = {path: {**over, "fixed": True} for path, over in RANGES.items()}
    assert bounds(*tuned(budgets=(1.0,), settings=fixed, **small)) == (25, {"of other finalists": 2})


def test_further_seeds_are_counted_up_to_the_most():
    small = {"budget": 12, "repeats": [1, 2, 4], "finalists": 2, "standard_error": 0.01, "most_seeds": 10}
    _, most = bounds(*tuned(budgets=(1.0,), **small))
    assert most["with further seeds"] == 8
    ratios = {"compression.beta": [0, 0.5]}
    _, shared = bounds(*tuned(budgets=(1.0,), sweep=ratios, once_for=["compression.beta"], **small))
    assert shared["with further seeds"] == 16 and "of other finalists" not in shared


def test_ranges_of_few_values_are_tried_once():
    least, most = bounds(*tuned(budgets=(1.0,), settings={"rounds": {"choice": [2, 4]}}, finalists=1))
    assert (least, most) == (2 + 2 * 3 + 1 * 12, {})


@pytest.mark.parametrize("shift", [1.0, 1e-3])
def test_a_search_makes_no_fewer_and_no_more(shift):
    """Where the best is in the middle of the ranges, and where it is at their ends, other ones for every budget."""
    cells, tune = tuned(budgets=(8.0, 2.0, 1.0), budget=16, repeats=[1, 2, 3], finalists=2)
    found = searches(cells, tune)
    made = Counter()

    def carry_out(attempts):
        for search, trial, seed, _ in attempts:
            made["runs"] += 1
            low = search.run.privacy.epsilon < 2
            trial.seeds.append(seed)
            trial.values.append(-abs(trial.settings["algorithm.lr"] - (shift if low else 0.1)) + seed * 1e-12)
            trial.tests.append(0.0)

    climb(families(found), tune, carry_out)
    least, most = bounds(cells, tune)
    upper = least + most["of settings that another budget prefers"] + most["in widened ranges"]
    assert least <= made["runs"] <= upper


def test_a_limit_on_time_is_one_on_runs_at_the_means_of_the_ranges(monkeypatch):
    seen = []
    monkeypatch.setattr("harness.simulation.plan._seconds", lambda spec, _: seen.append(spec.rounds) or 36.0)
    cells, tune = tuned(seeds=(0, 1, 2), budget=3, repeats=[1, 1, 1], finalists=1)  # 2 x 6 runs of the search
    assert within_limit(cells, tune, 0.181, False) == list(cells)
    trimmed = within_limit(cells, tune, 0.161, True)
    assert [cell.spec is None for cell in trimmed] == [False, False, True] * 2
    assert trimmed[0] == cells[0] and trimmed[2].given["rounds"] == 500
    assert set(seen) == {31}
