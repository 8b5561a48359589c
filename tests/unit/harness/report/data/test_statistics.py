"""Statistics of pairs against scipy, published tables and brute force; gaps between groups and their power."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats

from harness.report.data.leaderboard import leaderboard
from harness.report.data.ranks import critical_difference, ranks, ranks_by_kind
from harness.report.data.results import Results
from harness.report.data.statistics import (
    bca,
    detectable,
    gap_of,
    holm,
    largest_of,
    paired_statistics,
    sign_flip,
    undecidable,
)
from tests.support.records import done, evaluation, private, pruned, searched, spec

ROWS = np.random.default_rng(3).exponential(size=(6, 10)) - 0.6


def test_intervals_are_those_of_scipy():
    """Both are resampled, scipy's with 200,000 draws; of 5,000 an end is off by a few per cent."""
    low, high = bca(ROWS, expand=False)
    for row, ends in zip(ROWS, zip(low, high, strict=True), strict=True):
        theirs = stats.bootstrap(
            (row,), np.mean, method="BCa", n_resamples=200_000, rng=0
        ).confidence_interval
        width = theirs.high - theirs.low
        assert ends == pytest.approx((theirs.low, theirs.high), abs=0.06 * width)


@pytest.mark.parametrize("seeds", [2, 3, 7, 12])
def test_a_sign_flip_test_tries_all_signs(seeds):
    data = ROWS[:, :1] * 0 + np.random.default_rng(seeds).normal(0.3, 1, (6, seeds))
    signs = np.array(list(product((1.0, -1.0), repeat=seeds)))
    for row, p in zip(data, sign_flip(data), strict=True):
        sums = np.abs(signs @ row)
        assert p == pytest.approx((sums >= abs(row.sum()) * (1 - 1e-12)).mean())
        assert p == pytest.approx(
            stats.permutation_test((row,), np.mean, permutation_type="samples", n_resamples=np.inf).pvalue
        )
    assert sign_flip(np.abs(data)).tolist() == [2.0 ** (1 - seeds)] * 6  # the smallest there is


def test_many_seeds_are_flipped_at_random_and_the_given_signs_count():
    data = np.random.default_rng(0).normal(2.0, 1, (1, 20))
    assert sign_flip(data)[0] == pytest.approx(1 / 4097)
    middling = np.random.default_rng(1).normal(0.3, 1, (1, 20))
    exact = stats.permutation_test(
        (middling[0],), np.mean, permutation_type="samples", n_resamples=50_000, rng=0
    )
    assert sign_flip(middling)[0] == pytest.approx(exact.pvalue, abs=0.03)


def test_a_true_difference_of_nothing_is_seldom_found():
    """Of 2,000 pairs of equal methods, one in twenty has p below .05, and one in twenty an interval without 0."""
    data = np.random.default_rng(5).normal(0, 1, (2000, 10))
    found = paired_statistics(data.tolist())
    assert np.mean([one.p < 0.05 for one in found]) == pytest.approx(0.05, abs=0.015)
    assert np.mean([one.low > 0 or one.high < 0 for one in found]) == pytest.approx(
        0.08, abs=0.03
    )  # n is small


@pytest.mark.parametrize("seeds", [2, 3, 5, 10, 50])
def test_the_detectable_difference_is_found_four_times_in_five(seeds):
    data = np.random.default_rng(seeds).normal(detectable(seeds), 1, (20_000, seeds))
    assert (stats.ttest_1samp(data, 0, axis=1).pvalue < 0.05).mean() == pytest.approx(0.8, abs=0.015)
    among = np.random.default_rng(seeds).normal(detectable(seeds, 13), 1, (20_000, seeds))
    assert (stats.ttest_1samp(among, 0, axis=1).pvalue < 0.05 / 13).mean() == pytest.approx(0.8, abs=0.015)


def test_a_sign_flip_test_finds_what_is_detectable_where_it_can_decide():
    data = np.random.default_rng(0).normal(detectable(10), 1, (4000, 10))
    assert (sign_flip(data) < 0.05).mean() == pytest.approx(0.79, abs=0.03)
    assert undecidable(5, 1) and not undecidable(6, 1)
    assert undecidable(10, 26) and not undecidable(10, 25)


@pytest.mark.parametrize("seeds", [2, 5, 10, 30])
@pytest.mark.parametrize("tests", [1, 20, 1000])
def test_what_is_detectable_has_the_power_that_scipy_says(seeds, tests):
    critical = stats.t.isf(0.025 / tests, seeds - 1)
    found = stats.nct.sf(critical, seeds - 1, detectable(seeds, tests) * seeds**0.5)
    assert found == pytest.approx(0.8, abs=1e-6)


def test_few_seeds_have_what_they_can():
    one, two, four, five = paired_statistics(
        [[0.1], [0.1, 0.3], [0.1, 0.2, 0.3, 0.2], [0.1, 0.2, 0.3, 0.2, 0.2]]
    )
    assert one == (0.1, None, None, None, None, None, None, 1)
    assert two.low is two.high is four.low is None
    assert two.p == 0.5 and two.half == pytest.approx(12.7062 * 0.1, rel=1e-4)
    assert five.low < five.mean < five.high
    assert four.effect == pytest.approx(0.2 / np.std([0.1, 0.2, 0.3, 0.2], ddof=1))
    (equal,) = paired_statistics([[0.1 + 0.2 - 0.2] * 6])
    assert equal.effect is None
    assert (equal.low, equal.high, equal.half) == pytest.approx((0.1, 0.1, 0.0))


def test_holm():
    """By hand: .01 * 4; .02 * 3; .03 * 2 = .06; .5."""
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(("algorithms", "quantile"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_is_that_of_the_published_table(algorithms, quantile):
    """Demsar 2006, table 5a."""
    expected = quantile * math.sqrt(algorithms * (algorithms + 1) / (6 * 14))
    assert critical_difference(algorithms, 14) == pytest.approx(expected, rel=1e-3)


def ranked(values, **parts):
    """Return runs: algorithm -> accuracy of each seed."""
    return [
        done(spec(name, seed, **parts), accuracy=value)
        for name, own in values.items()
        for seed, value in enumerate(own)
    ]


def federations(*values, **parts):
    return [
        run for number, own in enumerate(values) for run in ranked(own, data={"name": f"d{number}"}, **parts)
    ]


def test_ranks_over_federations():
    """Two data sets; c is first in one and second in the other, d is in one only, ties share their ranks."""
    one = {"a": [0.5, 0.5], "b": [0.5, 0.5], "c": [0.9, 0.9], "d": [1.0, 1.0]}
    other = {"a": [0.8, 0.8], "b": [0.1, 0.1], "c": [0.7, 0.7]}
    found = ranks(Results(federations(one, other)).cells, "accuracy")
    assert found.methods == ("c", "a", "b")
    assert found.means == pytest.approx((1.5, 1.75, 2.75))
    assert found.p is found.critical is None and not found.distinct  # two seeds, two federations
    assert (found.federations, found.tasks, found.seeds) == (2, 2, 2) and "d" not in found.methods
    assert ranks(Results(federations(one)).cells, "accuracy") is None  # one task
    assert ranks(Results(federations(one, other)).cells, "loss") is None


def test_tasks_of_one_federation_count_once():
    """Three tasks on one data set, where a is first, and one on another, where it is last: a mean rank of 2."""
    first, last = {"a": [0.9], "b": [0.8], "c": [0.7]}, {"a": [0.1], "b": [0.8], "c": [0.7]}
    runs = federations(first, last)
    runs += [
        run for beta in (0.5, 0.9) for run in ranked(first, data={"name": "d0"}, compression=pruned(beta))
    ]
    found = ranks(Results(runs).cells, "accuracy")
    assert (found.federations, found.tasks) == (2, 4)
    assert dict(zip(found.methods, found.means, strict=True)) == {"a": 2.0, "b": 1.5, "c": 2.5}


def test_five_federations_are_tested():
    values = [{"a": [0.9], "b": [0.8], "c": [0.7]}] * 5
    found = ranks(Results(federations(*values)).cells, "accuracy")
    assert found.critical == pytest.approx(critical_difference(3, 5))
    assert found.p == pytest.approx(stats.friedmanchisquare([1] * 5, [2] * 5, [3] * 5).pvalue)


@pytest.mark.slow
def test_equal_methods_on_correlated_tasks_are_seldom_told_apart():
    """Five federations of eight tasks that share half their variance: no false difference in 95 of 100 trials."""
    random, false = np.random.default_rng(0), []
    for _ in range(40):
        runs = []
        for number in range(5):
            shared = random.normal(0, 1, 6)
            for beta in range(8):
                own = 0.5 + 0.01 * (shared + random.normal(0, 1, 6))
                values = {name: [value] for name, value in zip("abcdef", own.tolist(), strict=True)}
                runs += ranked(values, data={"name": f"d{number}"}, compression=pruned(beta / 10))
        found = ranks(Results(runs).cells, "accuracy")
        false.append(max(found.means) - min(found.means) > found.critical)
    assert np.mean(false) <= 0.15


def test_models_are_methods_and_problems_are_their_own_affair():
    one = ranked({"a": [0.5], "b": [0.6], "c": [0.9]})
    one += ranked({"a": [0.95]}, model={"name": "mlp"})
    one += ranked({"e": [0.99]}, problem={"kind": "fair_classification"})
    other = ranked({"a": [0.5], "b": [0.6], "c": [0.7], "e": [0.8]}, compression=pruned(0.9))
    found = ranks(Results([*one, *other]).cells, "accuracy")
    assert dict(zip(found.methods, found.means, strict=True)) == {
        "e": 1.0,
        "c": 2.0,
        "b": 3.0,
        "a logistic": 4.0,
    }
    assert "a mlp" not in found.methods


def test_of_several_settings_a_search_chooses_and_not_the_test_samples():
    def tuned(lr, selection, test):
        search = {"number": 0, "paths": [], "chosen": 0, "epsilon": None, "tune": {"metric": "accuracy"}}
        search["trials"] = [{"settings": {}, "values": [selection], "tests": [test]}]
        return replace(done(spec("a", lr=lr), accuracy=test), search=search)

    others = [done(spec(name), accuracy=value) for name, value in (("b", 0.6), ("c", 0.4))]
    other = ranked({"a": [0.5], "b": [0.6], "c": [0.7]}, data={"name": "d1"})
    records = [tuned(0.1, 0.9, 0.5), tuned(0.2, 0.8, 0.99), *others, *other]
    found = ranks(Results(records).cells, "accuracy")
    assert dict(zip(found.methods, found.means, strict=True))["a"] == 2.5  # second of .6, .5, .4; third


def of_three(values, **parts):
    return ranks(Results(federations(*values, **parts)).cells, "accuracy")


def test_seeds_tell_ranks_apart_where_federations_are_few():
    """Of normal figures without a difference nothing is told apart; of far ones, each rank."""
    values = np.random.default_rng(0).normal(0, 1, (3, 12))
    own = dict(zip("abc", values.tolist(), strict=True))
    found = of_three([own, own])
    assert found.of_federations is None and found.critical == found.of_searches > 1 and not found.distinct
    far = {name: (row + 10 * n).tolist() for n, (name, row) in enumerate(zip("abc", values, strict=True))}
    found = of_three([far, far])
    assert (found.methods, found.of_searches, found.distinct) == (("c", "b", "a"), 0.0, True)
    few = {name: row[:4] for name, row in far.items()}
    assert of_three([few, few]).of_searches is None and not of_three([few, few]).distinct


def test_the_largest_of_three_differences_is_critical():
    """Five federations of far figures: Nemenyi's difference of three methods, and none of searches."""
    far = {"a": [0.9] * 5, "b": [0.8] * 5, "c": [0.7] * 5}
    found = of_three([far] * 5)
    assert (found.of_searches, found.of_namesakes) == (0.0, None)
    assert (
        found.critical == found.of_federations == pytest.approx(critical_difference(3, 5)) and found.distinct
    )
    mixed = [far, far, far, {"a": [0.7] * 5, "b": [0.8] * 5, "c": [0.9] * 5}, far]
    assert not of_three(mixed).distinct, "ranks 1.4, 2, 2.6: Friedman's test finds no difference"


def test_what_a_search_could_have_chosen_widens_the_difference_of_ranks():
    def tuned(name, mean, finalists, data):
        return searched(
            [done(spec(name, seed, data={"name": data}), accuracy=mean) for seed in range(10)], finalists
        )

    def found(finalists):
        own = [("a", 0.9, finalists), ("b", 0.8, []), ("c", 0.7, [])]
        return ranks(
            Results([run for data in ("d0", "d1") for each in own for run in tuned(*each, data)]).cells,
            "accuracy",
        )

    sure, lucky = found([]), found([(0.4, [0.6] * 10)])
    assert (sure.of_searches, sure.distinct) == (0.0, True)
    assert sure.means == lucky.means and lucky.of_searches > 1 and not lucky.distinct


def test_one_method_under_two_names_shares_its_rank():
    """a and b are one method and differ by .02; c is within that of b."""
    values = {"a": [0.90] * 5, "b": [0.88] * 5, "c": [0.87] * 5, "d": [0.5] * 5}
    runs = [replace(run, same=(("a", "b"),)) for run in federations(values, values)]
    found = ranks(Results(runs).cells, "accuracy")
    assert dict(zip(found.methods, found.means, strict=True)) == {"a": 1.5, "b": 2.0, "c": 2.5, "d": 4.0}
    assert found.of_namesakes == pytest.approx(0.5)


def test_tasks_near_chance_are_left_out():
    """AUROC .55 with a deviation of .05 is not clearly above one half."""
    near = [0.6, 0.5, 0.55, 0.6, 0.5]
    runs = []
    for data, best in (("d0", [0.9] * 5), ("d1", [0.8] * 5), ("d2", near)):
        for name, off in (("a", 0.0), ("b", 0.01), ("c", 0.02)):
            runs += [
                done(spec(name, seed, data={"name": data}), auroc=value - off)
                for seed, value in enumerate(best)
            ]
    found = ranks(Results(runs).cells, "auroc")
    assert (found.tasks, found.federations, found.by_chance) == (2, 2, 1)


def test_methods_are_ranked_among_those_of_their_objective():
    values = {"fedavg": [0.9] * 5, "fedprox": [0.8] * 5, "afl": [0.7] * 5}
    fair = {"local_sgda": [0.9] * 5, "fedsgda_m": [0.8] * 5, "sagda": [0.7] * 5}
    runs = federations(values, values) + federations(fair, fair, problem={"kind": "fair_classification"})
    found = ranks_by_kind(Results(runs).cells, "accuracy")
    assert {kind: result.methods for kind, result in found.items()} == {
        "A model for everybody, classify": ("fedavg", "fedprox", "afl"),
        "A model for everybody, fair_classification": ("local_sgda", "fedsgda_m", "sagda"),
    }


def groups(*rates):
    return [{"group": str(n), "n": 2 * k, "positives": k, "tpr": rate} for n, (rate, k) in enumerate(rates)]


def test_the_error_of_a_gap_is_that_of_its_two_groups():
    """Rates .9 of 18 and .5 of 8 become 17.2 / 20 and 5 / 10."""
    gap = gap_of(groups((0.9, 18), (0.7, 400), (0.5, 8)))
    assert (gap.groups, gap.positives) == (3, 8)
    assert gap.error == pytest.approx(math.sqrt(0.86 * 0.14 / 20 + 0.5 * 0.5 / 10))
    assert gap_of(groups((0.9, 18))) is None
    assert gap_of([*groups((0.9, 18)), {"group": "x", "n": 3, "positives": 0, "tpr": None}]) is None


def test_the_interval_of_a_gap_covers_the_true_one():
    """Of many draws of test samples, the interval of the gap of two groups holds the true gap 95 times in 100."""
    random, records = np.random.default_rng(0), []
    for number in range(400):
        rates = [(random.binomial(40, 0.8) / 40, 40), (random.binomial(25, 0.6) / 25, 25)]
        records.append(done(spec(lr=number + 1.0), accuracy=0.5, eqopp=abs(rates[0][0] - rates[1][0])))
        records[-1].final["groups"] = groups(*rates)
    frame = leaderboard(Results(records))
    covered = (frame["eqopp_low"] <= 0.2) & (frame["eqopp_high"] >= 0.2)
    assert covered.mean() == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize("number", [2, 4, 6])
def test_the_most_different_of_equal_groups_are_seldom_told_apart(number):
    random, apart, records = np.random.default_rng(number), [], []
    for one in range(400):
        rates = [(random.binomial(100, 0.8) / 100, 100) for _ in range(number)]
        gap = max(rates)[0] - min(rates)[0]
        apart.append(gap > largest_of(number) * gap_of(groups(*rates)).error)
        records.append(done(spec(lr=one + 1.0), accuracy=0.5, eqopp=gap))
        records[-1].final["groups"] = groups(*rates)
    assert np.mean(apart) == pytest.approx(0.05, abs=0.035)
    frame = leaderboard(Results(records))
    assert (frame["eqopp_low"] > 0).mean() == pytest.approx(np.mean(apart))


@pytest.mark.parametrize(("positives", "ranked"), [(30, False), (5000, True)])
def test_gaps_that_the_test_samples_cannot_tell_are_not_ranked(positives, ranked):
    records = []
    for name, gap in (("fedavg", 0.10), ("fairfed", 0.02)):
        record = done(spec(name), accuracy=0.5, eqopp=gap)
        record.final["groups"] = groups((0.8, positives), (0.8 - gap, positives))
        records.append(record)
    frame = leaderboard(Results(records), by="eqopp").set_index("algorithm")
    assert frame["rank"].notna().all() == ranked
    assert frame["unranked"].isna().all() == ranked
    if not ranked:
        assert "with 30 positive test samples in the smallest group" in frame["unranked"].iloc[0]
    assert leaderboard(Results(records))["rank"].notna().all()


def test_a_missing_pair_is_said():
    records = [
        done(spec("fedavg", 0), accuracy=0.6),
        done(spec("ditto", 0), accuracy=0.9),
        done(spec("ditto", 1), accuracy=0.9),
        done(spec("apfl", 5), accuracy=0.9),
        done(spec("afl", 0)),
        done(spec("ditto", privacy=private(8.0)), evaluation(20, epsilon=8.0, accuracy=0.5)),
        done(spec("fedsgda_m", problem={"kind": "fair_classification"}), accuracy=0.7),
    ]
    frame = leaderboard(Results(records), baseline="fedavg")
    said = {
        (row["algorithm"], bool(row["dp_unit"] == "client")): row["compared"] for _, row in frame.iterrows()
    }
    assert said == {
        ("fedavg", False): "baseline",
        ("ditto", False): "1 seed, 1 without a pair",
        ("apfl", False): "not comparable: no seed in common with fedavg",
        ("afl", False): "not comparable: no finished run with accuracy",
        ("ditto", True): "not comparable: no finished run of fedavg in the same setting",
        ("fedsgda_m", False): "1 seed, with classify",
    }


def test_adjusted_for_the_comparisons_of_a_setting():
    """Four methods against fedavg in each of two settings: Holm over four, not over eight."""
    random = np.random.default_rng(0)
    records = []
    for parts in ({}, {"compression": pruned(0.9)}):
        base = random.normal(0.7, 0.02, 10)
        for name, better in (("fedavg", 0.0), ("ditto", 0.1), ("apfl", 0.0), ("pfedme", 0.1), ("afl", 0.1)):
            own = base + better + random.normal(0, 0.005, 10)
            records += ranked({name: own.tolist()}, **parts)
    frame = leaderboard(Results(records), baseline="fedavg").set_index("algorithm")
    assert frame.loc["ditto", "paired_p"].tolist() == [2.0**-9] * 2
    assert frame.loc["ditto", "paired_p_holm"].tolist() == [4 * 2.0**-9] * 2
    assert (frame.loc["ditto", "paired_low"] > 0.08).all()
    assert (frame.loc["ditto", "detectable"] < 0.02).all()
    few = [record for record in records if record.spec["seed"] < 6]
    said = leaderboard(Results(few), baseline="fedavg").set_index("algorithm").loc["ditto"]
    assert said["detectable"].isna().all()
    assert said["compared"].tolist() == ["6 seeds, too few for a p below .05 among 4 comparisons"] * 2


def test_bytes_are_told_relative_to_plain_fedavg():
    records = [
        done(spec("fedavg"), evaluation(20, 1000, accuracy=0.7)),
        done(spec("fedavg", lr=0.9), evaluation(20, 9000, accuracy=0.1)),
        done(spec("ditto", compression=pruned(0.9)), evaluation(20, 100, accuracy=0.8)),
        done(spec("ditto", privacy=private(8.0)), evaluation(20, 2000, 8.0, accuracy=0.5)),
        done(spec("ditto", data={"name": "credit"}), evaluation(20, 2000, accuracy=0.5)),
    ]
    frame = leaderboard(Results(records))
    own = frame[frame["algorithm"] == "ditto"].set_index("accuracy_mean")["bytes_relative"]
    assert own[0.8] == pytest.approx(0.1)
    assert own.sort_values().tolist()[:2] == pytest.approx([0.1, 2.0])
    assert own.isna().sum() == 1


def test_whom_a_model_is_for():
    pooled, alone = spec("centralized"), done(spec("local"), evaluation(20, 0, accuracy=0.5))
    records = [
        done(spec("fedavg"), accuracy=0.5),
        done(spec("ditto"), accuracy=0.5),
        done(pooled, accuracy=0.5),
        alone,
    ]
    frame = leaderboard(Results(records)).set_index("algorithm")["model_for"]
    assert frame.to_dict() == {
        "fedavg": "everybody",
        "ditto": "each client",
        "centralized": "everybody, from pooled data",
        "local": "each client alone, nothing shared",
    }


def test_the_largest_gap_of_two_groups_is_a_normal_difference():
    """It needs no studentized range, whose import takes as long as a small table."""
    assert largest_of(2) == pytest.approx(
        stats.studentized_range.ppf(0.95, 2, np.inf) / math.sqrt(2), rel=1e-6
    )
