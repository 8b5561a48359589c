"""What the privacy of a search is computed from."""

import pytest

from harness.config.run import read_spec
from harness.executors.tuning.cost import Releases
from harness.simulation import calibration
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
