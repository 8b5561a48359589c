"""Rule 11: Poisson cohorts differ in size, absent rows count for nothing, an empty cohort releases noise."""

from dataclasses import replace

import pytest
import torch

from harness.core import ALGORITHMS
from harness.core.errors import Incompatible
from harness.core.settings.compression import Compression
from harness.core.settings.privacy import Privacy
from harness.simulation.simulation import Simulation
from tests.support.runs import finished, ready
from tests.support.wire import channel, cohort, privacy, rows
from tests.support.worlds import logistic, random_federation

CENTRAL = {"placement": "central", "clip": 1.0}


@pytest.mark.parametrize("shape", [(4,), (2, 1), (2, 4, 1)])
def test_what_is_no_table_of_all_clients_is_refused(shape) -> None:
    """A number per client, the rows of a cohort, and rows of two runs."""
    clients = cohort(ids=[0, 2])
    for verb in (clients.take, lambda full: clients.put(full, torch.zeros(2, 1))):
        with pytest.raises(ValueError, match=r"rows of all clients have shape \(4, P\)"):
            verb(torch.zeros(shape))


def test_a_gradient_at_the_rows_of_all_clients_names_take() -> None:
    clients = cohort(ids=[0, 2])
    (batch,) = clients.batches(None, steps=1, batch_size=2)
    with pytest.raises(ValueError, match=r"clients\.take selects their rows"):
        clients.grad(torch.zeros(4, 8), batch)


def test_poisson_cohorts_vary_in_size_around_the_expected_one(data) -> None:
    """7 clients at rate 3/7: mean 3, variance 12/7; 300 rounds: mean good to 0.08 (one sigma).

    Nobody is drawn in one round of 50, and 6 or 7 clients in one of 36.
    """
    run = Simulation.from_setup(ready(data, privacy={**CENTRAL, "noise_multiplier": 1.0}, cohort={"size": 3}))
    sizes = []
    for round in range(300):
        run.round = round
        clients = run.cohort()
        assert clients.n == 3
        sizes.append(float(clients.participation_mask.sum()))
    drawn = torch.tensor(sizes)
    assert abs(drawn.mean() - 3) < 0.4 and abs(drawn.var() - 12 / 7) < 0.7
    assert drawn.min() == 0 and drawn.max() >= 6


def test_other_cohorts_have_their_size(data) -> None:
    run = Simulation.from_setup(
        ready(data, privacy={**CENTRAL, "noise_multiplier": 1.0, "sampling": "fixed"}, cohort={"size": 3})
    )
    for round in range(20):
        run.round = round
        ids = run.cohort().ids
        assert ids.shape == (3,) and len(ids.unique()) == 3


def test_an_empty_cohort_releases_noise_and_costs_nothing(data) -> None:
    setup = ready(data, privacy={**CENTRAL, "noise_multiplier": 1.0}, cohort={"size": 1})
    run = Simulation.from_setup(setup)
    while int(run.cohort().participation_mask.sum()):
        run.round += 1
    before = run.state.x
    run.step()
    assert not torch.equal(run.state.x, before), "noise"
    assert run.ledger.made == 1
    assert (int(run.cost.up), int(run.cost.down), int(run.cost.flops)) == (0, 0, 0)


def test_absent_rows_are_not_averaged_and_keep_no_state() -> None:
    setting = Compression(beta=0.5, codec="float64", error_feedback=True)
    way = channel(privacy("central"), setting, ids=[0, 2], participation_mask=[1, 0], expected=2)
    messages = rows(8, clients=2)
    found = way.mean(messages)
    alone = channel(privacy("central"), setting, ids=[0], participation_mask=[1], expected=2).mean(
        messages[:1]
    )
    torch.testing.assert_close(found, alone)
    residual = way.state["residual 0"]
    assert (residual[0] != 0).any() and not residual[1:].any()
    assert int(way.cost.up) == int(channel_bytes(messages[:1], setting))


def channel_bytes(messages, setting):
    way = channel(privacy("central"), setting, ids=[0])
    way.mean(messages)
    return way.cost.up


def test_put_leaves_the_absent_client_s_row_alone() -> None:
    clients = cohort(ids=[0, 2], participation_mask=[1, 0], expected=2)
    full = torch.zeros(4, 3, dtype=torch.float64)
    after = clients.put(full, torch.ones(2, 3, dtype=torch.float64))
    assert after.sum(-1).tolist() == [3, 0, 0, 0]
    whole = cohort(participation_mask=[1, 0, 1, 1], expected=4)
    assert whole.put(full, torch.ones(4, 3, dtype=torch.float64)).sum(-1).tolist() == [3, 0, 3, 3]


def test_clients_who_were_not_asked_keep_their_control_variates(data) -> None:
    setup = ready(data, "scaffold", privacy={**CENTRAL, "noise_multiplier": 1.0}, cohort={"size": 2}, seed=3)
    run = Simulation.from_setup(setup)
    asked: set[int] = set()
    for _ in range(2):
        clients = run.cohort()
        asked |= set(clients.ids[clients.participation_mask.bool()].tolist())
        run.step()
    moved = {n for n, row in enumerate(run.state.ci) if row.any()}
    assert moved == asked and len(asked) < 7


def test_an_adaptive_norm_counts_only_who_is_there() -> None:
    """One absent client: (b - 1/2) of it must not enter, so it is as if the row were not there."""
    mechanism = privacy("central", clip="adaptive")
    two = channel(mechanism, ids=[0, 2], participation_mask=[1, 0], expected=2)
    two.mean(rows(5, clients=2))
    one = channel(mechanism, ids=[0], participation_mask=[1], expected=2)
    one.mean(rows(5, clients=2)[:1])
    assert torch.equal(two.state["clip 0"], one.state["clip 0"])


def test_a_poisson_run_goes_through(data) -> None:
    run = finished(ready(data, privacy={**CENTRAL, "epsilon": 4.0}, cohort={"size": 2}, rounds=6))
    assert run.statement()["draws"] == 6


@pytest.mark.parametrize(
    ("sampling", "rate", "cohort", "right"),
    [("poisson", 0.05, 10, 0.5), ("poisson", 0.5, None, 1.0), ("without-replacement", 0.25, 10, 0.5)],
)
def test_a_claim_at_another_rate_than_the_draws_is_refused(sampling, rate, cohort, right) -> None:
    """At rate 0.05 a run of cohorts of 10 of 20 clients printed an epsilon of 0.5 and spent 5.7."""
    work, federation = ALGORITHMS["fedavg"](), random_federation([8] * 20)
    mechanism = Privacy.of(2.0, sampling=sampling, rate=rate)
    with pytest.raises(Incompatible, match=rf"Privacy\.rate: .* by {rate}, .* give rate {right:g}$"):
        Simulation(logistic(), federation, work, mechanism, cohort=cohort)
    run = Simulation(logistic(), federation, work, replace(mechanism, rate=right), cohort=cohort)
    run.step()
    assert run.statement()["sampling_rate"] == right


def test_balanced_cohorts_are_not_amplified_as_secret_ones() -> None:
    """They take turns, which all can foresee: amplified they printed 2.9 and spent 5.0."""
    work, federation = ALGORITHMS["fedavg"](), random_federation([8] * 20)
    mechanism = Privacy.of(2.0, sampling="without-replacement", rate=0.25)
    with pytest.raises(Incompatible, match="balanced cohorts are public and not drawn"):
        Simulation(logistic(), federation, work, mechanism, cohort=5, balanced=True)
