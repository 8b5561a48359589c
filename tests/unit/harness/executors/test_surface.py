"""The search by a surface: its posterior, its rungs, and what else it could have chosen; without real runs."""

import math
import zlib

import numpy as np
import pytest

from harness.config.searches import families, searches
from harness.config.suite import make_suite
from harness.core.errors import UserError
from harness.executors.tuning.rungs import climb
from harness.executors.tuning.surface import Surface

BUDGETS = (8.0, 2.0, 1.0)
NOISE = {8.0: 0.01, 2.0: 0.04, 1.0: 0.08, math.inf: 0.001}

RANGES = {
    "algorithm.lr": {"log_uniform": [0.01, 3]},
    "rounds": {"log_integer": [2, 100], "fixed": True},
}


def truth(settings, budget):
    """The best step size falls with the budget, and so does the best figure; long runs are bad at small ones."""
    best = 0.5 if budget == math.inf else 0.5 * min(budget / 8, 1.0) ** 0.5
    far = math.log(settings["algorithm.lr"] / best) ** 2 / 8
    long = 0.0 if budget == math.inf else 0.05 * math.log(settings["rounds"] / 5) ** 2 / budget
    return 0.9 - 0.2 / (budget + 1) - 0.3 * (1 - math.exp(-far)) - long


def family(budgets=BUDGETS, **tune):
    privacy = [{"placement": "central", "clip": 1, "epsilon": budget} for budget in budgets] or [None]
    content = {
        "base": {
            "data": "breast-cancer",
            "partition": {"kind": "iid", "clients": 3, "selection": 0.2},
            "model": "logistic",
        },
        "sweep": {"algorithm": ["fedavg"], "privacy": privacy},
        "tune": {"settings": RANGES, **tune},
    }
    made = make_suite(content)
    return families(searches(made.combinations, made.tune)), made.tune


class Answers:
    """Answers attempts by the truth and noise that settings and budgets share, as paired runs do."""

    def __init__(self, figure=truth):
        self.figure, self.asked = figure, []

    def __call__(self, attempts):
        assert len({(id(a.search), str(a.trial.settings), a.seed) for a in attempts}) == len(attempts)
        for search, trial, seed, paired in attempts:
            assert paired
            privacy = search.run.privacy
            budget = math.inf if privacy is None else privacy.epsilon
            self.asked.append((budget, str(trial.settings), seed))
            drawn = np.random.default_rng([seed, zlib.crc32(str(trial.settings).encode())]).standard_normal()
            value = self.figure(trial.settings, budget)
            trial.seeds.append(seed)
            trial.values.append(None if value is None else value + NOISE[budget] * drawn)
            trial.tests.append(value)


def searched(figure=truth, **options):
    (found,), tune = family(**options)
    answers = Answers(figure)
    climb([found], tune, answers)
    return found, answers


def chosen(search):
    return search.trials[search.best].settings


def test_quiet_means_decide_by_themselves_and_noisy_ones_by_their_neighbors():
    """One setting in twenty stands out by luck of one seed, or by merit of twenty."""
    coordinates, draws = np.linspace(0, 1, 20)[:, None], np.random.default_rng(0)
    smooth = -((coordinates[:, 0] - 0.5) ** 2)
    for seeds, noise, merit in ((1, 0.1, 0.25), (20, 0.02, 0.25)):
        figures = [value + noise * draws.standard_normal((3, 1)) for value in smooth]
        figures[2] = smooth[2] + merit + noise * draws.standard_normal((seeds, 1))
        surface = Surface(coordinates, np.zeros(1), figures)
        assert (surface.mean[:, 0].argmax() == 2) == (seeds == 20), (seeds, surface.mean[:, 0])


def test_settings_are_near_the_best_at_every_budget_and_monotone():
    found, answers = searched()
    assert found.budgets == BUDGETS
    best = {
        budget: max(truth(trial.settings, budget) for trial in found.searches[0].trials) for budget in BUDGETS
    }
    figures = [truth(chosen(search), budget) for search, budget in zip(found.searches, BUDGETS, strict=True)]
    assert all(best[budget] - figure < 0.02 for budget, figure in zip(BUDGETS, figures, strict=True)), figures
    assert figures == sorted(figures, reverse=True)
    assert 400 < len(answers.asked) < 1400


def test_the_surface_proposes_settings_that_are_better_than_all_points_of_the_first_rung():
    """The best settings lie in a region that twelve points hardly meet."""

    def narrow(settings, budget):
        far = math.log(settings["algorithm.lr"] / 0.2) ** 2 + math.log(settings["rounds"] / 30) ** 2
        return 0.9 * math.exp(-far)

    for seed in range(4):
        found, _ = searched(narrow, seed=seed, budget=12)
        for search in found.searches:
            first = max(narrow(trial.settings, 1) for trial in search.trials[:12])
            assert narrow(chosen(search), 1) > max(first, 0.85), (seed, first)


def test_proposed_settings_lie_apart():
    """What is known least lies in two gaps; the second proposal is in the other one, as the first fills its own."""
    tried, pool = np.array([[0.0], [0.1], [0.5], [0.9], [1.0]]), np.linspace(0, 1, 201)[:, None]
    draws = np.random.default_rng(0)
    values = [np.sin(9 * place) + 0.01 * draws.standard_normal((4, 1)) for place in (0.0, 0.1, 0.5, 0.1, 0.0)]
    chosen = pool[Surface(tried, np.zeros(1), values).promising(pool, 2), 0]
    assert min(chosen) < 0.5 < max(chosen) and max(chosen) - min(chosen) > 0.25, chosen


def test_a_search_follows_from_its_keys(monkeypatch):
    """So an interrupted one takes the runs that it has made and goes on where it was."""
    (one, first), (other, second) = searched(), searched()
    assert first.asked == second.asked
    assert [search.best for search in one.searches] == [search.best for search in other.searches]
    assert [search.finalists for search in one.searches] == [search.finalists for search in other.searches]
    _, third = searched(seed=1)
    assert third.asked[0] != first.asked[0]


def test_all_budgets_try_the_same_settings_with_the_same_seeds():
    found, answers = searched()
    assert len(answers.asked) == len(set(answers.asked))
    tried = [[(trial.settings, trial.seeds) for trial in search.trials] for search in found.searches]
    assert tried[0] == tried[1] == tried[2]
    counts = {len(trial.seeds) for trial in found.searches[0].trials}
    assert counts == {1, 4, 16}
    assert len({trial.seeds[0] for trial in found.searches[0].trials}) == 4, "settings have different seeds"


def test_what_is_chosen_has_all_seeds_and_stands_among_the_finalists():
    found, _ = searched()
    for search in found.searches:
        assert len(search.trials[search.best].seeds) == 16
        assert search.best in [finalist.trial for finalist in search.finalists]
        assert sum(finalist.share for finalist in search.finalists) == pytest.approx(1, abs=0.1)


def test_a_range_that_binds_is_widened():
    def rising(settings, budget):
        return 0.5 + 0.05 * math.log(settings["algorithm.lr"])

    found, _ = searched(rising, budgets=())
    (search,) = found.searches
    assert chosen(search)["algorithm.lr"] > 6, "two thirds of a range above its end at 3"
    assert max(trial.settings["rounds"] for trial in search.trials) <= 100, "which is fixed"
    inside, _ = searched(budgets=())
    assert max(trial.settings["algorithm.lr"] for trial in inside.searches[0].trials) <= 3


def test_a_range_that_binds_at_both_ends_is_widened_at_both():
    """Small budgets may want the lowest values, and large ones the highest."""

    def apart(settings, budget):
        return 0.5 + 0.05 * math.log(settings["algorithm.lr"]) * (1 if budget > 1 else -1)

    found, _ = searched(apart, budget=32)
    large, _, small = map(chosen, found.searches)
    assert large["algorithm.lr"] > 6 and small["algorithm.lr"] < 0.005


def test_a_range_whose_lower_end_is_not_valid_is_widened_at_the_other(monkeypatch):
    """Step sizes must be above 0, so the range of small budgets cannot grow; that of large budgets can."""

    def apart(settings, budget):
        return 0.5 + 0.3 * settings["algorithm.lr"] * (1 if budget > 1 else -1)

    monkeypatch.setitem(RANGES, "algorithm.lr", {"uniform": [0, 1]})
    found, _ = searched(apart, budget=32)
    large, _, small = map(chosen, found.searches)
    assert large["algorithm.lr"] > 1.5 and 0 < small["algorithm.lr"] < 0.1
    assert min(trial.settings["algorithm.lr"] for trial in found.searches[0].trials) > 0


def test_settings_without_a_figure_are_never_chosen():
    def failing(settings, budget):
        return None if settings["algorithm.lr"] > 0.1 else truth(settings, budget)

    found, _ = searched(failing, budget=32)
    assert all(chosen(search)["algorithm.lr"] <= 0.1 for search in found.searches)
    nothing, _ = searched(lambda settings, budget: None, budget=8)
    assert {search.best for search in nothing.searches} == {None}
    lowest = min(trial.settings["algorithm.lr"] for trial in found.searches[0].trials)
    single, _ = searched(
        lambda settings, budget: (
            None if budget == 1 and settings["algorithm.lr"] != lowest else truth(settings, budget)
        )
    )
    assert chosen(single.searches[2])["algorithm.lr"] == lowest
    assert [finalist.trial for finalist in single.searches[2].finalists] == [single.searches[2].best]
    half, _ = searched(lambda settings, budget: truth(settings, budget) if budget > 1 else None)
    assert [search.best is None for search in half.searches] == [False, False, True]


def test_lower_is_better_where_the_measure_says_so():
    found, _ = searched(lambda settings, budget: -truth(settings, budget), metric="loss")
    figures = [truth(chosen(search), budget) for search, budget in zip(found.searches, BUDGETS, strict=True)]
    assert min(figures) > 0.65, figures


STEPS = {"settings": RANGES | {"algorithm.local_steps": {"choice": [1, 5]}}}


def test_no_run_is_longer_than_the_search_allows():
    """As many settings are tried, and the same ones where none is too long."""

    def tried(found):
        return [trial.settings for trial in found.searches[0].trials]

    def steps(settings):
        return settings["rounds"] * settings["algorithm.local_steps"]

    free, _ = searched(**STEPS)
    bounded, _ = searched(**STEPS, most_steps=50)
    assert max(map(steps, tried(free))) > 50 >= max(map(steps, tried(bounded)))
    short = [settings for settings in tried(free)[:64] if steps(settings) <= 50]
    assert tried(bounded)[: len(short)] == short and len(short) < 64, "further points follow"
    assert len(tried(bounded)) >= 64
    same, _ = searched(**STEPS, most_steps=500)
    assert tried(same) == tried(free)


def test_a_search_without_a_run_that_is_short_enough_is_refused():
    with pytest.raises(UserError, match="no run in these ranges of fedavg has at most 1 local step"):
        searched(**STEPS, most_steps=1)


def test_epochs_are_not_counted_as_steps():
    with pytest.raises(
        UserError, match=r"runs of fedavg take epochs; set algorithm\.local_steps, or search it"
    ):
        searched(most_steps=100)
