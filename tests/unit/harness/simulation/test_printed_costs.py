"""Bytes and operations that a run prints do not depend on what its mechanism protects."""

from dataclasses import replace
from typing import Any

import pytest

from harness.core.errors import Incompatible
from harness.core.settings.privacy import Privacy
from harness.simulation.calibration import recalibrated
from harness.simulation.dry_run import expected_cost
from harness.simulation.loop import simulate
from harness.simulation.simulation import Simulation
from tests.support.runs import RAW, finished, ready, with_features

COSTS = ("bytes_up", "bytes_down", "flops", "oracle_calls")
CENTRAL = {"placement": "central", "clip": 1.0, "noise_multiplier": 5.0}


def costs(setup) -> dict[str, int]:
    done = simulate(setup)
    return {name: done[name] for name in COSTS}


@pytest.mark.parametrize("cohort", [{}, {"cohort": {"size": 6}}])
@pytest.mark.parametrize(
    "compression", [{"select": "threshold", "threshold": 0.01}, {"beta": 0.9, "select": "top_k"}]
)
def test_codes_made_before_the_clip_tell_nothing_about_messages(data, compression, cohort: dict) -> None:
    """What a client sends to a trusted server is encoded before it is protected, and its length varies."""
    privacy = {**CENTRAL, **({"sampling": "fixed"} if cohort else {})}
    fields: dict[str, Any] = {"model": {"name": "mlp", "hidden": [32]}, "compression": compression}
    setup = ready(data, privacy=privacy, rounds=3, eval_every=1, **fields, **cohort, **RAW)
    empty = with_features(setup, 0.0)
    assert costs(setup) == costs(empty)
    actual = [int(finished(one).cost.up) for one in (setup, empty)]
    assert actual[0] != actual[1], "so counted, they would differ"


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fairfed", "ditto"])
def test_without_codes_of_varying_length_expected_costs_are_the_actual_ones(data, name: str) -> None:
    fields = {"partition": {"kind": "dirichlet", "alpha": 0.5, "clients": 7}, "rounds": 3}
    setup = ready(data, name, privacy=CENTRAL, **fields)
    after = expected_cost(setup)
    assert after is not None
    assert after(0, 3) == finished(setup).snapshot().cost


def test_public_cohorts_are_counted_at_their_expected_size(data) -> None:
    fields = {"partition": {"kind": "dirichlet", "alpha": 0.5, "clients": 7}, "cohort": {"size": 3}}
    setup = ready(
        data,
        {"name": "fedavg", "local_epochs": 1, "batch_size": 4},
        privacy={**CENTRAL, "sampling": "fixed"},
        **fields,
    )
    done = simulate(setup)
    everybody = int(setup.federation.counts().sum())
    assert done["oracle_calls"] == round(2 * everybody * 3 / 7)
    assert done["bytes_up"] == 2 * 3 * 4 * setup.start["x"].numel()
    assert "bytes and operations, as expected values" in done["public"]


def with_samples(setup, held: int, client: int = 0):
    """Return the run with fewer training samples of one client, with its noise and expected costs."""
    federation = setup.federation
    index = federation.splits["train"].clone()
    index[client, held:] = -1
    changed = replace(setup, federation=replace(federation, splits={**federation.splits, "train": index}))
    return recalibrated(changed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "model", "expected", "sampling"),
    [
        ("fedavg", "logistic", 2 * 32, "full"),
        ("fedavg", "logistic", 2 * 32, "poisson"),
        ("fedavg", "logistic", 2 * 32, "without-replacement"),
        ("fedavg", {"name": "mlp", "hidden": [4]}, 2 * 32, "poisson"),
        ("scaffold", "logistic", 2 * 32, "full"),
        ("q_fedavg", "logistic", 3 * 32, "poisson"),  # the loss on all data counts as a batch
    ],
)
def test_private_numbers_of_samples_are_not_in_counts_of_work(
    data, algorithm: str, model, expected: int, sampling: str
) -> None:
    """Batches are larger than what most clients hold."""
    privacy = {**CENTRAL, "sampling": sampling, "strict": True}
    cohort = {} if sampling == "full" else {"cohort": {"size": 3}}
    settings = {"name": algorithm, "local_steps": 2, "batch_size": 32}
    setup = ready(data, settings, model=model, privacy=privacy, rounds=3, **cohort, **RAW)
    many, few, none = (costs(with_samples(setup, held)) for held in (14, 5, 0))
    assert many == few == none
    assert many["oracle_calls"] == 3 * expected * (3 if cohort else 7)
    free = ready(data, settings, model=model, privacy={**privacy, "strict": False}, rounds=3, **cohort, **RAW)
    assert costs(with_samples(free, 14)) != costs(with_samples(free, 5)), "public, they show"


def test_local_placement_counts_nominal_batches_too(data) -> None:
    privacy = {**CENTRAL, "placement": "local", "strict": True}
    setup = ready(data, {"name": "fedavg", "local_steps": 2, "batch_size": 32}, privacy=privacy, **RAW)
    many, few = (costs(with_samples(setup, held)) for held in (14, 5))
    assert many == few and many["oracle_calls"] == 2 * 7 * 2 * 32


def test_without_a_batch_size_private_counts_are_refused(data) -> None:
    algorithm = {"name": "fedavg", "local_steps": 2, "batch_size": None}
    with pytest.raises(Incompatible, match=r"counts of samples are private.*algorithm\.batch_size.*give it"):
        ready(data, algorithm, privacy={**CENTRAL, "strict": True}, **RAW)
    ready(data, algorithm, privacy=CENTRAL, **RAW)


def test_epochs_over_private_numbers_of_samples_are_refused_everywhere(data) -> None:
    """Also where a simulation is made by hand: the steps of others would depend on one client's samples."""
    setup = ready(data, {"name": "scaffold", "local_epochs": 1, "batch_size": 4}, **RAW)
    mechanism = Privacy.of(1.0, clip=1.0, placement="central", strict=True)
    parts = setup.problem, setup.federation, setup.algorithm, mechanism
    with pytest.raises(Incompatible, match=r"local_epochs: numbers of samples are private.*local_steps"):
        Simulation(*parts).step()


def test_default_noise_keys_tell_models_apart(data) -> None:
    """Two models of equal size, which would share their noise."""
    names = []
    for activation in ("relu", "tanh"):
        setup = ready(data, model={"name": "mlp", "hidden": [4], "activation": activation}, **RAW)
        mechanism = Privacy.of(1.0, clip=1.0, placement="central")
        names.append(
            Simulation(setup.problem, setup.federation, setup.algorithm, mechanism).cohorts.noise_keys
        )
    assert names[0] != names[1]
