"""The section ``tune``: what it may say, which combinations share a search, and the points they try."""

import math
from itertools import combinations
from statistics import correlation, pstdev

import pytest

from harness.config.searches import Search, Trial, families, points, searches
from harness.config.suite import make_suite
from harness.config.tune import read_tune
from harness.config.tuned_runs import estimate
from harness.core.errors import UserError
from harness.executors.tuning.halving import in_order

LR = {"algorithm.lr": {"log_uniform": [0.01, 1]}}
BASE = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 3, "selection": 0.2},
    "model": "logistic",
    "rounds": 2,
}


def suite(tune, sweep=None, base=None, **parts):
    sweep = {"algorithm": ["fedavg", "local"], "seed": [0, 1]} | (sweep or {})
    tune = {"sampler": "latin"} | tune
    return make_suite({"base": BASE | (base or {}), "sweep": sweep, "tune": tune} | parts)


def found(tune, **parts):
    made = suite(tune, **parts)
    return searches(made.combinations, made.tune)


@pytest.mark.parametrize(
    ("tune", "text"),
    [
        ({"settings": LR, "budget": 0}, "tune.budget: input should be greater than or equal to 1, given 0"),
        (
            {"settings": LR, "budget": 1001},
            "tune.budget: input should be less than or equal to 1000, given 1001",
        ),
        ({"settings": LR, "budget": True}, "tune.budget: a number is needed, no truth value"),
        ({"settings": LR, "halving": 0.5}, "tune.halving: a whole number"),
        ({}, ""),
        ({"budget": 5}, "tune.settings: name what is tuned"),
        ({"settings": LR, "metric": "f1"}, "f1"),
        ({"settings": LR, "metric": "aurocc"}, "Did you mean 'auroc'"),
        ({"settings": LR, "split": "test"}, "no run trains or tests on; given 'test'"),
        ({"settings": LR, "seeds": []}, "tune.seeds: at least one is needed, given []"),
        ({"settings": LR, "seeds": [100, 100]}, "tune.seeds: a seed is given twice in [100, 100]"),
        ({"settings": LR, "seeds": "100"}, "tune.seeds: a list"),
        ({"settings": LR, "seed": 1}, "Did you mean 'seeds'"),
        ({"settings": LR, "once_for": "beta"}, "tune.once_for: a list"),
        ({"settings": LR, "once_for": ["compressio.beta"]}, "tune.once_for: compression or fields of it"),
        ({"settings": LR, "once_for": ["privacy"]}, "which cost no privacy, given 'privacy'"),
        ({"settings": LR, "sampler": 3}, "tune.sampler: a text is needed, given 3"),
        ({"settings": {"algorithm.lr": {"log_uniform": [0, 1]}}}, "above 0; given [0, 1]"),
        ({"settings": {"algorithm.lr": {"log_integer": [1, 2.5]}}}, "above 0, whole numbers; given [1, 2.5]"),
        ({"settings": {"algorithm.lr": {"uniform": [1, 0.1]}}}, "uniform takes [lowest, highest]"),
        ({"settings": {"algorithm.lr": {"choice": []}}}, "a list of values"),
        ({"settings": {"algorithm.lr": {"log_unifrm": [0.1, 1]}}}, "Did you mean 'log_uniform'"),
        ({"settings": {"algorithm.lr": [0.1, 1]}}, "named fields are needed"),
        (
            {"settings": {"algorithm.lr": {"uniform": [0, 1], "algorithms": []}}},
            "a list of algorithms, given []",
        ),
        ({"settings": {"algorithm.lr": {"uniform": [0, 1], "algorithms": ["fedavgg"]}}}, "mean 'fedavg'"),
        ({"settings": {"seed": {"integer": [0, 9]}}}, "seed says what is compared"),
        ({"settings": {"privacy.epsilon": {"uniform": [1, 8]}}}, "privacy.epsilon says what is compared"),
        ({"settings": {"partition.alpha": {"uniform": [1, 8]}}}, "partition.alpha says what is compared"),
        ({"settings": {"algorithms.lr": {"uniform": [1, 8]}}}, "'algorithms'. Did you mean 'algorithm'"),
        ({"settings": LR, "sampler": "surfaces", "repeats": [1, 2, 3]}, "'surfaces'. Did you mean 'surface'"),
        ({"settings": LR, "sampler": ["latin"]}, "tune.sampler: a text is needed"),
        ({"settings": LR, "repeats": [1, 2, 3]}, "setting of tune with sampler latin 'repeats'."),
        ({"settings": LR, "repeats": [1, 2, 3]}, " The sampler surface has it."),
        (
            {"settings": LR, "sampler": "surface", "seeds": [1]},
            " The sampler latin and samplers of Optuna have it.",
        ),
        ({"settings": LR, "sampler": "surface", "repeats": [1, 2]}, "tune.repeats: three numbers"),
        ({"settings": LR, "sampler": "surface", "repeats": 4}, "and of the finalists; given 4"),
        (
            {"settings": LR, "sampler": "surface", "most_seeds": 20},
            "tune.most_seeds bounds the further seeds of standard_error; give that too",
        ),
    ],
)
def test_what_is_no_search_is_refused_in_one_sentence(tune, text):
    if not tune:
        assert read_tune(None) is None
        return
    with pytest.raises(UserError) as refused:
        suite(tune)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)


def test_settings_that_no_combination_has_are_refused():
    with pytest.raises(UserError, match=r"algorithm\.lrr.*Did you mean 'algorithm\.lr'"):
        found({"settings": LR | {"algorithm.lrr": {"uniform": [0, 1]}}})


def test_reported_seeds_and_missing_selection_samples_are_refused():
    with pytest.raises(UserError, match=r"tune\.seeds: 1 is a seed of the reported runs"):
        found({"settings": LR, "seeds": [1, 100]})
    with pytest.raises(UserError, match=r"the runs need partition\.selection"):
        found({"settings": LR}, base={"partition": {"kind": "iid", "clients": 3}})


def test_a_setting_is_either_swept_or_tuned():
    with pytest.raises(UserError, match=r"of fedavg differ in nothing but what is tuned"):
        found({"settings": LR}, sweep={"algorithm.lr": [0.1, 0.2]})


def test_selection_samples_are_the_same_under_every_seed():
    made = suite({"settings": LR})
    assert {cell.spec.partition.selection_seed for cell in made.combinations} == {0}
    untuned = make_suite({"base": BASE, "sweep": {"algorithm": ["fedavg"]}})
    assert untuned.combinations[0].spec.partition.selection_seed is None


def test_a_combination_takes_the_settings_that_it_has():
    tune = {
        "settings": LR
        | {
            "algorithm.lr_u": {"log_uniform": [0.01, 1]},
            "privacy.clip": {"log_uniform": [0.1, 1]},
            "rounds": {"choice": [1, 2]},
        }
    }
    sweep = {
        "algorithm": ["fedavg", "fedrep"],
        "model": [{"name": "mlp", "hidden": [4]}],
        "privacy": [None, {"placement": "local", "clip": 1, "epsilon": 4}],
    }
    paths = [(own.cells[0].spec.algorithm["name"], own.paths) for own in found(tune, sweep=sweep)]
    assert paths == [
        ("fedavg", ("algorithm.lr", "rounds")),
        ("fedavg", ("algorithm.lr", "privacy.clip", "rounds")),
        ("fedrep", ("algorithm.lr_u", "rounds")),
        ("fedrep", ("algorithm.lr_u", "privacy.clip", "rounds")),
    ]


def test_a_setting_may_be_searched_by_named_algorithms_only():
    server = {"algorithm.server_lr": {"log_uniform": [0.01, 1], "algorithms": ["fedadam"]}}
    made = suite({"settings": LR | server}, sweep={"algorithm": ["fedavg", "fedadam"]})
    paths = {
        search.cells[0].spec.algorithm["name"]: search.paths
        for search in searches(made.combinations, made.tune)
    }
    assert paths == {"fedavg": ("algorithm.lr",), "fedadam": ("algorithm.lr", "algorithm.server_lr")}
    assert read_tune(made.tune.stored() | {"budget": 25}) == made.tune
    assert made.tune.stored()["settings"]["algorithm.lr"] == {"log_uniform": [0.01, 1]}


def test_seeds_share_a_search_and_so_does_what_it_is_made_once_for():
    ratios = {"compression.beta": [0, 0.5, 0.9]}
    assert [len(own.cells) for own in found({"settings": LR}, sweep=ratios)] == [2] * 6
    once = found({"settings": LR, "once_for": ["compression.beta"]}, sweep=ratios)
    assert [len(own.cells) for own in once] == [6, 6]
    assert {own.cells[0].spec.compression.beta for own in once} == {0.0}


def test_a_profile_may_search_less():
    made = suite({"settings": LR, "budget": 25}, profiles={"smoke": {"tune": {"budget": 5}}})
    assert made.tune.budget == 5
    assert made.tune.sizes() == [5, 2]
    assert len(estimate(made.combinations, made.tune).searched) == 2 * (5 + 2)


def tried(settings, budget, *paths):
    tune = read_tune({"sampler": "latin", "settings": settings, "budget": budget})
    return points(tune, paths or tuple(settings))


@pytest.mark.slow
@pytest.mark.parametrize("budget", [12, 16, 25, 32])
def test_points_fill_every_setting_and_every_pair_evenly(budget):
    """One point lies in every part of a range; of pairs no quarter has much more than its share."""
    names = ["algorithm.lr", "algorithm.lr_y", "privacy.clip", "rounds", "algorithm.mu"]
    whole = tried({name: {"uniform": [0, 1]} for name in names}, budget)
    for name in names:
        assert sorted(int(point[name] * budget) for point in whole) == list(range(budget))
    for one, other in combinations(names, 2):
        quarters = [(point[one] >= 0.5, point[other] >= 0.5) for point in whole]
        assert max(quarters.count(quarter) for quarter in quarters) <= 0.4 * budget, (one, other)
        assert abs(correlation([p[one] for p in whole], [p[other] for p in whole])) < 0.35


def test_values_are_those_of_their_ranges():
    ranges = LR | {"rounds": {"choice": [5, 10, 20, 40]}, "algorithm.local_steps": {"log_integer": [1, 64]}}
    many = tried(ranges, 32)
    assert many == tried(ranges, 32)
    rounds = [point["rounds"] for point in many]
    assert {rounds.count(value) for value in rounds} == {8}
    steps = [point["algorithm.local_steps"] for point in many]
    assert min(steps) <= 2 and max(steps) >= 48 and all(isinstance(step, int) for step in steps)
    assert pstdev([math.log(step) for step in steps]) == pytest.approx(math.log(65) / 12**0.5, rel=0.15)
    assert len(tried(LR, 1)) == 1 and len(tried(LR, 2)) == 2


def test_more_step_sizes_than_there_are_coordinates_are_refused():
    names = [f"algorithm.{name}" for name in ("lr", "lr_x", "lr_y", "lr_u", "lr_v")]
    with pytest.raises(UserError, match="at most 4 step sizes"):
        tried({name: {"uniform": [0, 1]} for name in names}, 4)


def test_step_sizes_of_all_algorithms_are_the_same_whatever_their_names():
    rate = {"log_uniform": [0.01, 1]}
    ranges = {
        "algorithm.lr": rate,
        "algorithm.lr_x": rate,
        "algorithm.lr_y": rate,
        "rounds": {"choice": [1, 2, 3]},
    }
    plain = tried(ranges, 8, "algorithm.lr", "rounds")
    minimax = tried(ranges, 8, "algorithm.lr_x", "algorithm.lr_y", "rounds")
    assert [point["algorithm.lr"] for point in plain] == [point["algorithm.lr_x"] for point in minimax]
    assert [point["rounds"] for point in plain] == [point["rounds"] for point in minimax]


def test_settings_are_distinct_even_if_ranges_hold_few():
    assert sorted(point["rounds"] for point in tried({"rounds": {"choice": [1, 2, 4]}}, 12)) == [1, 2, 4]
    assert len(tried({"rounds": {"choice": [1, 2, 4]}, "algorithm.mu": {"choice": [0, 1]}}, 40)) == 6


def test_the_best_is_the_one_tried_most_and_best_on_average():
    trials = [
        Trial({"n": 0}, [100], [0.9]),
        Trial({"n": 1}, [100, 101], [0.8, 0.7]),
        Trial({"n": 2}, [100, 101], [0.7, 0.9]),
        Trial({"n": 3}, [100, 101], [0.95, None]),
        Trial({"n": 4}, [100], [None]),
    ]
    search = Search([], (), trials)
    assert in_order(search, "selection_accuracy") == [2, 1, 3, 0]
    assert in_order(search, "selection_loss") == [1, 2, 0, 3]
    assert in_order(Search([], (), trials[4:]), "selection_accuracy") == []


def test_a_search_by_a_surface_says_how_many_runs_it_takes():
    tune = read_tune({"settings": LR, "budget": 60, "repeats": [2, 4, 12], "finalists": 5})
    assert tune.sampler == "surface" and tune.sizes() == [120, (1 + 1 + 2) * 2 + (3 + 3 + 3) * 4, 5 * 8]
    with pytest.raises(UserError, match=r"tune\.repeats: .* none fewer than before; given \[2, 1, 12\]"):
        read_tune({"settings": LR, "repeats": [2, 1, 12]})
    with pytest.raises(UserError, match=r"seeds"):
        read_tune({"settings": LR, "seeds": [100]})


def test_searches_by_a_surface_have_seeds_of_their_own():
    """Two names of one method would otherwise find the same, and their difference would measure nothing."""
    tune, other = (read_tune({"settings": LR, "seed": seed}) for seed in (0, 1))
    seeds = [*tune.seeds_of("fedavg"), *tune.seeds_of("fednova"), *other.seeds_of("fedavg")]
    assert len(set(seeds)) == 3 * 16 and min(seeds) >= 10**6
    assert tune.seeds_of("fedavg") == tune.seeds_of("fedavg")


def test_budgets_are_one_family_and_other_privacy_is_another():
    budgets = [{"placement": "central", "clip": 1, "epsilon": epsilon} for epsilon in (2, 8)]
    privacies = [None, *budgets, {"placement": "local", "clip": 1, "epsilon": 8}]
    privacies.append({"placement": "central", "clip": 1, "noise_multiplier": 2})
    made = suite({"settings": LR}, sweep={"algorithm": ["fedavg"], "privacy": privacies})
    assert [family.budgets for family in families(searches(made.combinations, made.tune))] == [
        (math.inf,),
        (8.0, 2.0),
        (8.0,),
        (2.0,),
    ]


def test_budgets_are_one_family_though_seeds_or_searched_values_differ():
    """A search replaces both, so they say nothing of what is tried."""
    given = ({"epsilon": 8, "clip": 1}, [0, 1]), ({"epsilon": 2, "clip": 0.5}, [2, 3])
    blocks = [
        {"algorithm": ["fedavg"], "privacy": [{"placement": "central"} | privacy], "seed": seeds}
        for privacy, seeds in given
    ]
    tune = {"settings": LR | {"privacy.clip": {"log_uniform": [0.1, 1]}}}
    made = make_suite({"base": BASE, "sweep": blocks, "tune": tune})
    assert [family.budgets for family in families(searches(made.combinations, made.tune))] == [(8.0, 2.0)]


def test_no_noise_is_a_family_of_its_own():
    privacies = [{"placement": "central", "clip": 1, "noise_multiplier": noise} for noise in (0, 1, 2)]
    made = suite({"settings": LR}, sweep={"algorithm": ["fedavg"], "privacy": privacies})
    assert [family.budgets for family in families(searches(made.combinations, made.tune))] == [
        (0.0,),
        (2.0, 1.0),
    ]


def test_runs_of_a_search_by_a_surface_are_paired():
    made = suite(
        {"settings": LR},
        sweep={"algorithm": ["fedavg"], "privacy": [None, {"placement": "central", "clip": 1, "epsilon": 2}]},
    )
    plain, private = searches(made.combinations, made.tune)
    assert private.spec({"algorithm.lr": 0.1}, 7, paired=True).privacy.draws == "paired"
    assert private.spec({"algorithm.lr": 0.1}, 7).privacy.draws == "own"
    assert plain.spec({"algorithm.lr": 0.1}, 7, paired=True).privacy is None
