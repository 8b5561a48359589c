"""What the privacy of a search is computed from."""

import math

import pytest

from harness.config.run import read_spec
from harness.config.searches import Search, Trial
from harness.config.sweep import Combination
from harness.executors.tuning.cost import Releases, price_of
from harness.simulation import calibration
from privacy.event import Event
from privacy.gaussian import gaussian_epsilon
from tests.support.runs import given

CLIENT = {"placement": "central", "clip": 1.0}
RECORD = {"unit": "record", "placement": "local", "clip": 1.0}


@pytest.mark.parametrize("privacy", [CLIENT, RECORD])
def test_runs_of_all_budgets_share_a_dry_run(data, monkeypatch, privacy) -> None:
    calls, original = [], calibration.dry_run

    def counted(*given, **options):
        calls.append(given)
        return original(*given, **options)

    def spec(epsilon, rounds=3):
        return read_spec(given(data, rounds=rounds, privacy={**privacy, "epsilon": epsilon}))

    monkeypatch.setattr(calibration, "dry_run", counted)
    together = Releases()
    found = [together.of(spec(epsilon)) for epsilon in (8.0, 1.0)]
    assert len(calls) == 1
    assert found == [Releases().of(spec(epsilon)) for epsilon in (8.0, 1.0)]
    assert found[0] != found[1], "with less noise"
    assert together.of(spec(8.0, rounds=5)) != found[0]
    assert len(calls) == 4


def test_settings_that_decide_how_often_is_sent_have_releases_of_their_own(data):
    """FedSGDA-M sends twice a round with average_prev; step sizes and local steps change nothing."""

    def spec(**settings):
        algorithm = {"name": "fedsgda_m", "local_steps": 2, "batch_size": 8, **settings}
        privacy = {**CLIENT, "noise_multiplier": 1.0}
        return read_spec(given(data, algorithm, problem="fair_classification", privacy=privacy))

    releases = Releases()
    once, twice = releases.of(spec()), releases.of(spec(average_prev=True))
    assert once != twice
    assert releases.of(spec(lr_x=0.5, local_steps=3)) == once
    assert len(releases._events) == 2


def search(data, epsilon, trials, best=0):
    """Return a search at a budget, of runs given by their releases (None: not known) and figures, by seed."""
    privacy = None if epsilon is None else {**CLIENT, "epsilon": epsilon}
    made = []
    for runs in trials:
        trial = Trial({"rounds": 1})
        for seed, (value, *events) in enumerate(runs):
            trial.seeds.append(seed)
            trial.values.append(value)
            if events:
                trial.released[seed] = events[0]
        made.append(trial)
    return Search([Combination({}, read_spec(given(data, privacy=privacy)))], ("rounds",), made, best)


def test_the_price_of_a_search_is_that_of_all_its_runs_and_of_one_reported_at_each_budget(data):
    """Three runs with two releases at noise 8, four with one at noise 4: precision 3 x 2 / 64 + 4 / 16."""
    weak, strong = (Event(8.0, 1.0, 2),), (Event(4.0, 1.0, 1),)
    two = [
        search(data, 1, [[(0.5, weak)], [(0.4, weak)]]),
        search(data, 8, [[(0.5, strong)] * 2, [(0.4, strong)]]),
    ]
    noise = (3 * 2 / 8**2 + 4 / 4**2) ** -0.5
    price = price_of(two)
    assert (price.runs, price.unfinished) == (5, 0)
    assert price.epsilon == pytest.approx(gaussian_epsilon(noise, 1e-5), rel=1e-9)
    assert price_of(two[:1]).epsilon < price.epsilon


def test_runs_that_did_not_end_or_were_not_possible_are_not_in_the_price(data):
    one = (Event(4.0, 1.0, 1),)
    failed = price_of([search(data, 8, [[(None, None), (0.5, one)], [(None,)]])])
    assert (failed.runs, failed.unfinished) == (2, 1)
    assert failed.epsilon == pytest.approx(gaussian_epsilon(4 / 2**0.5, 1e-5), rel=1e-9)


def test_a_price_that_is_not_known_is_not_given(data):
    assert price_of([search(data, None, [[(0.5,)]])]) is None
    assert price_of([search(data, 8, [[(0.5, None)]])]).epsilon is None, "no unit is the most exposed one"
    assert price_of([search(data, 8, [[(0.5, ())]])]).epsilon == 0
    assert price_of([search(data, 8, [[(0.5, (Event(0.0, 1.0, 1),))]])]).epsilon == math.inf
    mixed = (Event(4.0, 0.5, 1), Event(4.0, 0.5, 1, "without-replacement"))
    assert price_of([search(data, 8, [[(0.5, mixed)]])]).epsilon is None
    assert price_of([search(data, 8, [[(None, None)]], best=None)]).epsilon is None
