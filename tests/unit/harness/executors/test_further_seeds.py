"""Which further seeds a tuned suite reports where a mean is uncertain."""

from dataclasses import replace

import pytest

from harness.config.suite import make_suite
from harness.executors import suites
from harness.executors.tuning.suite import Tuning
from harness.executors.work import Work


def tuned(seeds, **tune):
    """Return a suite of one cell."""
    settings = {"algorithm.lr": {"log_uniform": [0.01, 1]}}
    content = {
        "base": {
            "data": "breast-cancer",
            "partition": {"kind": "iid", "clients": 3, "selection": 0.2},
            "model": "logistic",
        },
        "sweep": {"algorithm": ["fedavg"], "seed": seeds},
        "tune": {"settings": settings, "standard_error": 0.01, **tune},
    }
    return make_suite(content)


def further(folder, monkeypatch, figures, skipped=(), **tune):
    """Return the further seeds, given the figures of the first ones."""
    suite = tuned(sorted({*figures, *skipped}), **tune)
    cells = [
        replace(cell, search=0) if cell.spec.seed not in skipped else replace(cell, spec=None, reason="no")
        for cell in suite.combinations
    ]
    tuning = Tuning(suite, suite.tune, Work(folder), cells)
    monkeypatch.setattr(tuning, "_metrics", lambda spec: {"accuracy": figures[spec.seed]})
    return [cell.spec.seed for cell in tuning.further(cells)]


def test_as_many_as_the_standard_error_needs(tmp_path, monkeypatch):
    """Of .8, .84: deviation .0283, so (.0283 / .01)^2 = 8 seeds in all; of .82, .82 none."""
    assert further(tmp_path, monkeypatch, {0: 0.8, 1: 0.84}) == [2, 3, 4, 5, 6, 7]
    assert further(tmp_path, monkeypatch, {0: 0.8, 1: 0.84}, most_seeds=5) == [2, 3, 4]
    assert further(tmp_path, monkeypatch, {0: 0.82, 1: 0.82}) == []


def test_runs_without_a_figure_are_expected_again(tmp_path, monkeypatch):
    """8 figures are needed; where every other run has none, 16 runs are."""
    failing = {0: 0.8, 1: None, 2: 0.84, 3: None}
    assert further(tmp_path, monkeypatch, failing) == list(range(4, 16))
    assert further(tmp_path, monkeypatch, {0: 0.8, 1: None}) == [], "the error is not known"
    assert further(tmp_path, monkeypatch, {0: 0.8, 1: float("inf"), 2: 0.84}) == list(range(3, 12))


def test_a_seed_that_is_skipped_is_not_run_after_all(tmp_path, monkeypatch):
    assert further(tmp_path, monkeypatch, {0: 0.8, 1: 0.84}, skipped=(2, 3)) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("left_out", [(), (2,)])
def test_where_seeds_are_left_out_for_want_of_time_none_are_added(tmp_path, monkeypatch, left_out):
    added = []

    def within(combinations, *_):
        return [
            replace(cell, spec=None, reason="left out") if cell.spec.seed in left_out else cell
            for cell in combinations
        ]

    monkeypatch.setattr(suites, "within_limit", within)
    monkeypatch.setattr(Tuning, "search", lambda tuning: list(tuning._combinations))
    monkeypatch.setattr(Tuning, "further", lambda *_: added.append(1))
    monkeypatch.setattr(Tuning, "try_finalists", lambda *_: False)
    monkeypatch.setattr(Work, "carry_out", lambda *_: {"running": 0})
    suites.run_suite(tuned([0, 1, 2]), Work(tmp_path), limit_hours=1, trim=True)
    assert bool(added) == (not left_out)
