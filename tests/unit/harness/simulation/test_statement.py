"""What a privacy statement says besides its epsilon."""

from __future__ import annotations

import pytest

from harness.config.run import read_spec
from harness.report.tables.privacy import in_words
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.loop import simulate
from harness.simulation.simulation import Simulation
from harness.simulation.statement import large_delta, not_covered, statement
from tests.support.runs import RAW, given, ready
from tests.support.wire import privacy, record

CENTRAL = {"placement": "central", "clip": 1.0, "epsilon": 4.0}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "protects nobody if the id is published"),
        ({"secure_rng": True}, "seeded by the system's entropy"),
        ({"strict": True}, "a secret of the user"),
    ],
)
def test_the_generator_is_named(data, settings, said: str) -> None:
    claim = Simulation.from_setup(ready(data, privacy={**CENTRAL, **settings}, **RAW)).statement()
    assert claim is not None and said in claim["generator"] and "not a cryptographic" in claim["generator"]


@pytest.mark.parametrize(("epsilon", "ends"), [(20.0, False), (30.0, True)])
def test_where_the_tails_of_normals_end_is_said_of_loud_releases(data, epsilon: float, ends: bool) -> None:
    mechanism = {"placement": "central", "clip": 1.0, "epsilon_release": epsilon}
    setup = ready(data, privacy=mechanism)
    assert setup.privacy is not None and setup.dry is not None
    text = statement(setup.privacy, setup.dry.ledger)["arithmetic"]
    assert "not hardened" in text and ("8.2 standard deviations" in text) == ends


def test_arithmetic_of_integers_is_another(data) -> None:
    setup = ready(data, privacy={**CENTRAL, "placement": "distributed"})
    claim = Simulation.from_setup(setup).statement()
    assert claim is not None and claim["arithmetic"].startswith("sums of integers")


@pytest.mark.parametrize(
    ("mechanism", "units", "warned"),
    [
        (privacy("central", delta=0.05), 100, True),
        (privacy("central", delta=0.01), 100, True),
        (privacy("central", delta=0.009), 100, False),
        (record(), 100_001, True),
        (record(), 99_999, False),
    ],
)
def test_a_delta_of_one_over_the_units_is_warned_of(mechanism, units: int, warned: bool) -> None:
    assert bool(large_delta(mechanism, units)) == warned


def test_a_large_delta_is_in_statement_words_and_log(data, caplog) -> None:
    """Seven clients: .2 is above 1 / 7; of the records there are more than ten."""
    setup = prepare(read_spec(given(data, privacy={**CENTRAL, "delta": 0.2})))
    claim = Simulation.from_setup(calibrated(setup)).statement()
    assert claim is not None and "delta 0.2 is not below 1 / 7 clients" in claim["warning"]
    assert next(iter(claim)) == "warning" and "Warning: delta 0.2" in in_words(claim)
    assert any("delta 0.2 is not below" in message for message in caplog.messages)
    small = Simulation.from_setup(ready(data, privacy={**CENTRAL, "delta": 0.1})).statement()
    assert small is not None and "warning" not in small
    records = ready(data, privacy={"unit": "record", "clip": 1.0, "epsilon": 4.0, "delta": 0.05})
    found = Simulation.from_setup(records).statement()
    assert found is not None and "records" in found["warning"]


def test_what_is_not_covered_names_what_the_run_has(data) -> None:
    plain = ready(data, privacy=CENTRAL)
    assert "data of the clients themselves" in not_covered(plain)[0]
    assert not any("selection" in fact or "attacks" in fact for fact in not_covered(plain))
    part = {"kind": "iid", "clients": 7, "selection": 0.3}
    chosen = ready(data, privacy=CENTRAL, partition=part)
    assert any(fact.startswith("selection_*") for fact in not_covered(chosen))
    assert "selection_accuracy" in simulate(chosen)["metrics"]  # what a search needs
    assert not_covered(ready(data)) == [] and "not_covered" not in simulate(ready(data))
    public = simulate(plain)["public"]
    assert "the number of clients" in public and not any("test data" in fact for fact in public)
