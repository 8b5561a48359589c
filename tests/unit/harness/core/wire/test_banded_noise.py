"""Noise that is correlated between rounds: what is released, what it protects, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.config.run import read_spec
from harness.core.errors import Incompatible, UserError
from harness.core.execution.vectorize import ClientExecutor
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.simulation import Simulation
from privacy.banded import coefficients, matrix
from tests.support.runs import finished, given, ready
from tests.support.wire import privacy

WIDE = {"name": "mlp", "hidden": [300]}
BANDED = {"placement": "central", "clip": 0.5, "mechanism": "banded", "adjacency": "zero-out"}
TURNS = {"size": 1, "kind": "balanced"}  # of 7 clients


def noisy(data, rounds=14, **fields):
    """A run in which nobody learns anything, so that the model is a sum of noise."""
    algorithm = {"name": "fedavg", "local_steps": 1, "batch_size": 8, "lr": 1e-12}
    fields = {"privacy": BANDED | {"noise_multiplier": 3.0}, "cohort": TURNS, **fields}
    return ready(data, algorithm, model=WIDE, rounds=rounds, **fields)


def released(setup):
    """Return the noise of every round, (rounds, P), of standard deviation 1 if it is independent."""
    run = Simulation.from_setup(setup)
    models = [run.state.x]
    for _ in range(setup.spec.rounds):
        run.step()
        models.append(run.state.x)
    deviation = (
        setup.privacy.noise_multiplier * setup.privacy.sensitivity / (run.cohorts.size or run.cohorts.total)
    )
    return torch.stack(models).double().diff(dim=0) / deviation


def test_encoded_noise_is_independent_with_deviation_1_though_that_of_sums_is_far_smaller(data):
    """C y are 14 rounds of independent normals; the sums of y have the error of the factorization."""
    y = released(noisy(data)).numpy()
    c = matrix(coefficients(14, 7))
    z = c @ y
    entries = z.shape[1]
    assert entries > 2000
    assert np.abs(np.cov(z) - np.eye(14)).max() < 6 / np.sqrt(entries)
    errors = np.square(np.cumsum(y, axis=0)).mean(1)
    expected = np.square(np.cumsum(np.linalg.inv(c), axis=0)).sum(1)
    assert errors == pytest.approx(expected, rel=6 * np.sqrt(2 / entries))
    assert errors.mean() < 0.4 * (14 + 1) / 2  # of independent noise


def test_one_turn_each_is_independent_noise_with_nothing_to_remember(data):
    setup = noisy(data, rounds=1)
    assert setup.privacy.bands == 1
    assert np.var(released(setup).numpy()) == pytest.approx(1, rel=0.15)
    assert not any("noise" in name for name in finished(setup).channel_state)


def test_the_claim_is_that_of_independent_noise_and_names_the_mechanism(data):
    fields = {"cohort": TURNS, "rounds": 21}
    claims = [
        finished(ready(data, privacy=BANDED | {"epsilon": 2.0, "mechanism": name}, **fields)).statement()
        for name in ("banded", "independent")
    ]
    banded, independent = claims
    assert (banded.pop("mechanism"), banded.pop("bands")) == ("banded", 7)
    assert banded == independent
    assert banded["releases"] == 3 and banded["accountant"] == "exact"


def test_a_message_of_every_second_round_begins_anew(data):
    """A gap hides rows of the factorization; what follows is a mechanism of its own."""
    setup = noisy(data)
    run = Simulation.from_setup(setup)
    run.step()
    first = {name: value.clone() for name, value in run.channel_state.items()}
    run.round = 3
    before = run.state.x
    run.step()
    jump = (run.state.x - before).double()
    assert set(first) == {"noise 1", "noise round 1"}
    alone = float(jump.std()) / (setup.privacy.noise_multiplier * setup.privacy.sensitivity)
    assert alone == pytest.approx(1 / coefficients(14, 7)[3, 0], rel=0.1)


@pytest.mark.parametrize(
    ("privacy", "fields", "text"),
    [
        ({"sampling": "fixed"}, {"cohort": 3}, "clients that pause"),
        ({}, {"cohort": {"size": 4, "kind": "balanced"}}, "at most half of the 7 clients"),
        (
            {"bands": 4},
            {"rounds": 9, "cohort": {"size": 2, "kind": "balanced"}},
            "at most 3, the rounds from one turn",
        ),
        ({}, {"cohort": TURNS, "rounds": 1001}, "use toeplitz"),
    ],
)
def test_clients_that_take_part_too_often_are_refused(data, privacy, fields, text):
    with pytest.raises(Incompatible, match=text):
        prepare(read_spec(given(data, privacy=BANDED | {"epsilon": 1.0} | privacy, **fields)))


@pytest.mark.parametrize(
    ("privacy", "text"),
    [
        ({"placement": "local", "adjacency": "replace"}, "banded is for placement central"),
        ({"sampling": "full"}, "give cohort.kind balanced"),
        ({"sampling": "poisson", "adjacency": "add-remove"}, "give cohort.kind balanced"),
        ({"mechanism": "independent", "bands": 3}, "mechanism: banded"),
        ({"mechanism": "band"}, "Did you mean 'banded'"),
        ({"bands": 1}, "greater than or equal to 2"),
    ],
)
def test_other_settings_are_refused_in_one_sentence(data, privacy, text):
    with pytest.raises(UserError, match=text):
        read_spec(given(data, cohort=TURNS, privacy=BANDED | {"epsilon": 1.0} | privacy))


def test_cohorts_of_ones_own_and_further_rounds_are_refused(data):
    run = Simulation.from_setup(noisy(data, rounds=2, privacy=BANDED | {"noise_multiplier": 1.0, "bands": 2}))
    with pytest.raises(Incompatible, match="were chosen"):
        run.step(torch.tensor([2]))
    run = finished(noisy(data, rounds=2, privacy=BANDED | {"noise_multiplier": 1.0, "bands": 2}))
    with pytest.raises(Incompatible, match="for 2 rounds"):
        run.step()


def test_diagnostics_have_the_deviation_of_correlated_noise(data):
    """The norms of the rows of the inverse of C: later rounds have more noise than independent noise."""
    setup = noisy(data)
    run = Simulation.from_setup(setup)
    alone = setup.privacy.noise_multiplier * setup.privacy.sensitivity
    rows = np.linalg.norm(np.linalg.inv(matrix(coefficients(14, 7))), axis=1)
    for expected in rows:
        run.step(diagnose=True)
        assert float(run.diagnostics["noise_std"]) / alone == pytest.approx(expected)
    assert rows[-1] > 1.05


def test_without_noise_nothing_is_remembered(data):
    setup = calibrated(
        prepare(read_spec(given(data, cohort=TURNS, privacy=BANDED | {"noise_multiplier": 0.0})))
    )
    assert not finished(setup).channel_state


def test_clients_one_by_one_get_the_same_noise(data):
    """A cohort that is computed in chunks has one memory of noise."""
    ends = []
    for executor in (ClientExecutor("vmap"), ClientExecutor("loop")):
        run = finished(replace(noisy(data), executor=executor))
        assert "noise 1" in run.channel_state
        ends.append(run.state.x)
    assert torch.allclose(*ends, atol=1e-6)


@pytest.mark.parametrize("cohort", [{"balanced": False}, {"cohort": 3}, {"cohort": None}])
def test_a_simulation_with_closer_turns_is_refused(data, cohort):
    with pytest.raises(Incompatible, match="clients may take part again after"):
        Simulation.from_setup(noisy(data), **cohort)


def test_a_message_of_zeros_is_a_short_one():
    """So under zero-out a client moves the count of adaptive clipping by 1, as if it were replaced."""
    for adjacency, moved in (("zero-out", 1.0), ("replace", 1.0)):
        made = privacy("central", "adaptive", 2.0, sampling="fixed", adjacency=adjacency)
        assert made.adaptive(4).count_multiplier(replaced=True) == pytest.approx(made.adaptive(4).count_std)
        assert made.adaptive(1e4).count_std == pytest.approx(500 * moved)
        assert made.adaptive(4).count_std == pytest.approx(2 / (1 - 1.1**-2) ** 0.5)
    added = privacy("central", "adaptive", 2.0, sampling="poisson").adaptive(4)
    assert added.count_std == pytest.approx(1 / (1 - 1.1**-2) ** 0.5)
