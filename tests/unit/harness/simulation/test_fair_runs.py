"""Whole runs of methods for fair models: what is released, what is seen, and what nobody trains on."""

from dataclasses import replace

import pytest
import torch

from harness.config.run import read_spec
from harness.config.sweep import Combination
from harness.core.errors import Incompatible, UserError
from harness.core.methods.fairness import group_shares
from harness.simulation.build import prepare
from harness.simulation.loop import simulate
from harness.simulation.plan import plan
from harness.simulation.simulation import Simulation
from privacy.gaussian import gaussian_epsilon
from tests.support.runs import finished, given, ready
from tests.support.wire import cohort, record

STEPS = {"local_steps": 2, "batch_size": 8}
WEIGHTS = {"problem": "fair_weights", "partition": {"kind": "iid", "clients": 3}}
BILEVEL = {**STEPS, "outer_rounds": 1, "neumann_terms": 2}  # as many as are needed to see that there are some
METHODS = {  # settings, other fields of the run, releases before the first round, releases a round
    "fedreg": (STEPS, {}, 0, 1),
    "fedminmax": ({"batch_size": 8}, {}, 1, 1),
    "fcfl": ({"batch_size": 8}, {}, 0, 1),
    "afl": (STEPS, {}, 0, 1),
    "q_fedavg": (STEPS, {}, 0, 1),
    "fairfed": (STEPS, {}, 0, 3),
    "fedbio": (BILEVEL, WEIGHTS, 0, 1),
    "fedbioacc": (BILEVEL, WEIGHTS, 0, 1),
}
GATHERS = {"fcfl", "afl"}


def run(data, name, **fields):
    settings, others, *_ = METHODS[name]
    return ready(data, {"name": name, **settings}, **others, **fields)


@pytest.mark.parametrize("strict", [True, False])
def test_strict_fairfed_starts_from_no_number_of_samples(data, strict):
    """A share of all samples would tell every client, and through its messages all, of the others' numbers."""
    fields = {"partition": {"kind": "dirichlet", "alpha": 0.5, "clients": 4, "standardize": False}}
    mechanism = {"placement": "local", "noise_multiplier": 1.0, "clip": 1.0, "strict": strict}
    weights = Simulation.from_setup(run(data, "fairfed", privacy=mechanism, **fields)).state.weights
    assert bool((weights == 0.25).all()) == strict


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("placement", ["local", "central"])
def test_every_release_of_a_fair_method_is_booked(data, name, placement):
    """Weights, statistics, gradients and counts alike: 2 rounds, and what is told before the first.

    The server of central privacy sees averages only, so what it would gather is refused.
    """
    mechanism = {"placement": placement, "clip": 1.0, "noise_multiplier": 2.0}
    before, each = METHODS[name][2:]
    if placement == "central" and name in GATHERS:
        with pytest.raises(Incompatible, match="gathers every client's message"):
            run(data, name, privacy=mechanism)
        return
    claims = finished(run(data, name, privacy=mechanism)).statement()
    releases = before + 2 * each
    assert claims["releases"] == releases
    assert claims["epsilon_total"] == pytest.approx(gaussian_epsilon(2.0 / releases**0.5, 1e-5))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedbio", "fedbioacc"])
def test_weights_of_groups_train_networks_with_hidden_units_too(data, name):
    """The conformance checks solve another problem by these; they give the other methods a network."""
    state = finished(run(data, name, model={"name": "mlp", "hidden": [5]})).state
    assert all(bool(torch.isfinite(part).all()) for part in state)


@pytest.mark.parametrize("name", METHODS)
def test_group_statistics_are_refused_under_record_privacy(data, name):
    """Unit record: what is no clipped sum over samples does not leave a client, raw or averaged."""
    with pytest.raises(Incompatible, match="record-level privacy"):
        finished(run(data, name, privacy={"unit": "record", "noise_multiplier": 1.0, "clip": 1.0}))


def test_batches_under_record_level_privacy_hold_no_groups(data):
    """Even an algorithm that counts by hand what it is handed counts nothing."""
    setup = ready(data, privacy={"unit": "record", "noise_multiplier": 1.0, "clip": 1.0})
    clients = cohort(data=setup.training, problem=setup.problem, mechanism=record())
    batch = clients.data()
    assert bool((batch.group == 0).all()) and bool(batch.x.isnan().all())
    with pytest.raises(Incompatible):
        clients.each(group_shares(2), batch)


def test_fedminmax_learns_noisy_shares_under_privacy(data):
    noisy = run(data, "fedminmax", privacy={"placement": "local", "clip": 1.0, "noise_multiplier": 5.0})
    raw, told = (
        Simulation.from_setup(run(data, "fedminmax")).state.rho,
        Simulation.from_setup(noisy).state.rho,
    )
    assert float((raw - told).abs().max()) > 1e-2
    assert float(told.sum()) == pytest.approx(1.0, abs=1e-5) and bool((told >= 0).all())


@pytest.mark.parametrize("name", ["fedreg", "fedminmax", "fcfl", "fairfed"])
def test_comparing_groups_needs_groups(data, name):
    fields = given(data, {"name": name, **METHODS[name][0]})
    fields["data"].pop("sensitive")
    with pytest.raises(Incompatible, match=f"algorithm {name} compares sensitive groups"):
        prepare(read_spec(fields))


def test_weights_of_groups_need_groups(data):
    fields = given(data, "fedbio", problem="fair_weights")
    fields["data"].pop("sensitive")
    with pytest.raises(UserError, match="weighs sensitive groups"):
        prepare(read_spec(fields))


SELECTION = {"kind": "iid", "clients": 3, "selection": 0.2}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "afl", "fairfed", "fcfl", "fedbio"])
def test_nobody_trains_on_selection_samples(data, name):
    """Their labels turned around: the state is the same, the figures of the selection samples are not.

    Batches, losses and statistics of all data, gradients of groups, and validation samples.
    """
    settings, others, *_ = METHODS.get(name, (STEPS, {}))
    setup = ready(data, {"name": name, **settings}, **{**others, "partition": SELECTION})
    chosen = setup.federation.splits["selection"]
    pool, chosen = setup.federation.pool, chosen[chosen >= 0]
    labels = pool.y.clone()
    labels[chosen] = 1 - labels[chosen]
    other = replace(setup.federation, pool=pool._replace(y=labels))
    turned = replace(setup, federation=other)
    runs = [finished(one) for one in (setup, turned)]
    states = [run.state for run in runs]
    assert all(torch.equal(one, two) for one, two in zip(*states, strict=True))
    figures = [run.evaluate(final=True).metrics for run in runs]
    accuracy = [found["selection_accuracy"] for found in figures]
    assert sum(accuracy) == pytest.approx(1.0) and accuracy[0] != accuracy[1]
    assert figures[0]["accuracy"] == figures[1]["accuracy"]


def test_the_training_data_are_looked_at_once_at_the_end(data):
    setup = ready(data, "fedavg", partition=SELECTION)
    run = finished(setup)
    assert "train_eqopp" not in run.evaluate().metrics
    last = run.evaluate(final=True).metrics
    assert {"train_eqopp", "train_accuracy", "selection_eqopp", "selection_loss"} <= set(last)


def test_the_outer_loss_is_that_of_the_clients_own_models(data):
    """Each on its own validation samples; in the second stage it stays what the first has come to."""
    setup = run(data, "fedbio")
    batch = setup.federation.pool.at(setup.federation.splits["validation"])
    for rounds in (1, 2):
        done = finished(setup, rounds)
        state = done.state
        own = [
            setup.problem.loss(state.x, state.y[k], type(batch)(*(part[k] for part in batch)))
            for k in range(3)
        ]
        assert done.evaluate().metrics["outer_loss"] == pytest.approx(
            float(torch.stack(own).mean()), rel=1e-5
        )


@pytest.mark.slow
def test_the_weights_found_are_told_and_not_the_clients_models(data):
    """Two weights of sum 2; a client's y, 14 numbers, stays at home under privacy."""
    final = simulate(run(data, "fedbio"))
    assert len(final["solution"]["x"]) == 2 and sum(final["solution"]["x"]) == pytest.approx(2.0, abs=1e-5)
    private = simulate(
        run(data, "fedbio", privacy={"placement": "local", "clip": 1.0, "noise_multiplier": 1.0})
    )
    assert set(private["solution"]) == {"x"}


@pytest.mark.slow
def test_a_plan_counts_the_stages_of_a_run_apart(data):
    """One round of 2 weights each way, one with the model of 14 numbers both ways and 2 weights down; 3 clients."""
    fields = given(data, {"name": "fedbio", **METHODS["fedbio"][0]}, **WEIGHTS)
    (row,) = plan([Combination({}, read_spec(fields))])
    done = simulate(prepare(read_spec(fields)))
    assert (row["bytes_up"], row["bytes_down"]) == (3 * 4 * (2 + 14), 3 * 4 * (2 + 16))
    assert (done["bytes_up"], done["bytes_down"]) == (row["bytes_up"], row["bytes_down"])
    assert (done["flops"], done["oracle_calls"]) == (row["flops"], row["oracle_calls"])


def test_what_was_left_unsent_of_weights_is_not_added_to_a_model(data):
    """Residuals of the first stage are 2 numbers long, the second stage's messages 14."""
    sparse = {"beta": 0.5, "error_feedback": True}
    state = finished(run(data, "fedbio", compression=sparse, rounds=4)).state
    assert bool(torch.isfinite(state.theta).all()) and bool(state.theta.any())


@pytest.mark.slow
def test_a_two_stage_run_resumes_in_either_stage(data):
    setup = run(data, "fedbioacc", rounds=4)
    setup = replace(setup, algorithm=replace(setup.algorithm, outer_rounds=2))
    straight = finished(setup)
    for rounds in (1, 3):
        resumed = Simulation.from_setup(setup)
        resumed.load_state_dict(finished(setup, rounds).state_dict())
        while resumed.round < 4:
            resumed.step()
        assert all(torch.equal(a, b) for a, b in zip(resumed.state, straight.state, strict=True))
