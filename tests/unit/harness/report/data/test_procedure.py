"""Intervals over searches and seeds, against brute force and cases that can be seen."""

import numpy as np
import pytest

from harness.report.data.procedure import Procedures, WeightedFinalist, procedure_interval
from harness.report.data.results import Results
from harness.report.data.statistics import paired_statistics
from tests.support.records import done, evaluation, searched, spec


def values(mean, deviation=0.02, seeds=10, key=0):
    draws = np.random.default_rng(key).standard_normal(seeds)
    draws = (draws - draws.mean()) / draws.std(ddof=1)
    return dict(enumerate((mean + deviation * draws).tolist()))


def test_with_one_choice_it_is_the_interval_of_the_seeds():
    own = values(0.8, seeds=20)
    low, high = procedure_interval([WeightedFinalist(1.0, own)])
    (seeds,) = paired_statistics([list(own.values())])
    assert low == pytest.approx(seeds.low, abs=0.003) and high == pytest.approx(seeds.high, abs=0.003)


def test_what_could_have_been_chosen_as_well_widens_it():
    best, other = values(0.8), values(0.7, key=1)
    alone = procedure_interval([WeightedFinalist(1.0, best)])
    rarely = procedure_interval([WeightedFinalist(0.998, best), WeightedFinalist(0.002, other)])
    often = procedure_interval([WeightedFinalist(0.7, best), WeightedFinalist(0.3, other)])
    assert alone[0] > 0.78 and rarely[0] > 0.76 and often[0] < 0.71
    assert alone[1] == pytest.approx(often[1], abs=0.005)


def test_of_a_difference_both_searches_count_and_seeds_are_paired():
    noise = values(0.0, 0.1)
    row = {seed: 0.8 + value for seed, value in noise.items()}
    baseline = {seed: 0.75 + value for seed, value in noise.items()}
    low, high = procedure_interval([WeightedFinalist(1.0, row)], [WeightedFinalist(1.0, baseline)])
    assert low == pytest.approx(0.05) and high == pytest.approx(0.05), "the noise of a seed is in both"
    worse = {seed: value - 0.1 for seed, value in row.items()}
    low, _ = procedure_interval(
        [WeightedFinalist(0.6, row), WeightedFinalist(0.4, worse)], [WeightedFinalist(1.0, baseline)]
    )
    assert low < 0


def test_few_seeds_have_none():
    assert procedure_interval([WeightedFinalist(1.0, values(0.8, seeds=4))]) is None
    assert (
        procedure_interval(
            [WeightedFinalist(1.0, values(0.8, seeds=9)), WeightedFinalist(0.5, values(0.8, seeds=4))]
        )
        is None
    )


@pytest.mark.slow
def test_it_covers_the_mean_of_independent_searches():
    """Searches choose between settings of 0.80 and 0.76 by a noisy comparison; seeds have noise of their own."""
    generator, covered, trials = np.random.default_rng(0), 0, 400
    chance = 0.7
    expected = chance * 0.80 + (1 - chance) * 0.76
    for trial in range(trials):
        better = {seed: 0.80 + 0.02 * value for seed, value in enumerate(generator.standard_normal(10))}
        other = {seed: 0.76 + 0.02 * value for seed, value in enumerate(generator.standard_normal(10))}
        low, high = procedure_interval(
            [WeightedFinalist(0.7, better), WeightedFinalist(0.3, other)], key=str(trial)
        )
        covered += low <= expected <= high
    assert covered / trials > 0.95


def test_cells_that_share_a_search_have_no_interval_of_it_beside_one_that_has():
    """The finalists of a search for several cells are not run with the reported seeds (`once_for`)."""

    def cell(name, finalists):
        runs = [done(spec(name, seed), evaluation(20, 100, accuracy=0.7 + seed / 100)) for seed in range(10)]
        return searched(runs, finalists)

    cells = Results([*cell("fedavg", [(0.4, [])]), *cell("fednova", [(0.4, [0.6] * 10)])]).cells
    shared, alone = sorted(cells, key=lambda cell: cell.records[0].id)
    procedures = Procedures("accuracy")
    assert procedures.mean(alone) is not None and procedures.mean(shared) is None
    assert procedures.of_means(shared, alone) is None and procedures.difference(shared, alone) is None
