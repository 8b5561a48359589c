"""Rule 5: with unit "record" data leave a client through clipped, noisy sums of per-record gradients only."""

from dataclasses import replace

import pytest
import torch
from opacus import GradSampleModule
from torch import nn
from torch.nn import functional

from datasets.federation import Batch, Federation
from harness.config.run import read_spec
from harness.core.algorithm import ALGORITHMS
from harness.core.errors import Incompatible
from harness.core.flat_model import Ravel
from harness.core.problem import Problem
from harness.core.wire.channel import Channel
from harness.problems.auroc import auroc
from harness.problems.classify import classifier
from harness.simulation.build import privacy_terms
from harness.simulation.simulation import Simulation
from privacy.accounting import epsilon
from tests.support.runs import finished, given, ready
from tests.support.wire import booked, cohort, record
from tests.support.worlds import COUNTS, EXACT, iid_federation

FEDAVG, FEDSGDA_M = ALGORITHMS["fedavg"], ALGORITHMS["fedsgda_m"]


def gradient(mechanism, *, data=None, problem=None, counts=COUNTS, point=None, batch_size=None):
    """Return the private gradients of all clients at one point on one full batch, and the cohort."""
    clients = cohort(mechanism=mechanism, data=data, problem=problem, counts=counts)
    problem = clients.problem
    x = problem.init(torch.Generator().manual_seed(0))["x"].double() if point is None else point
    (batch,) = clients.batches(FEDAVG(local_steps=1, batch_size=batch_size))
    return clients.grad(clients.rows(x), batch), clients


def per_record(x, data, client):
    """Compute each record's gradient of the logistic model by autograd, one by one."""
    problem = classifier(nn.Linear(3, 2))
    places = data.splits["train"][client]
    found = []
    for place in places[places >= 0]:
        leaf = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(problem.loss(leaf, data.pool.at(place[None])), leaf)
        found.append(g)
    return torch.stack(found)


def test_the_gradient_is_a_sum_of_clipped_record_gradients() -> None:
    data = iid_federation()
    x = torch.randn(8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found, _ = gradient(record(clip=0.5), data=data, point=x)
    for client, count in enumerate(COUNTS):
        single = per_record(x, data, client)
        assert (single.norm(dim=-1) > 0.5).any(), "something is clipped"
        by_hand = (single * (0.5 / single.norm(dim=-1, keepdim=True)).clamp(max=1)).sum(0) / count
        torch.testing.assert_close(found[client], by_hand)


def test_one_record_moves_the_sum_by_at_most_the_clip_norm() -> None:
    """Take a record away, or put in a monster: before the noise the sum moves by C and 2 C at most."""
    data = iid_federation()
    x = torch.randn(8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    usual, _ = gradient(record(clip=0.5), data=data, point=x)
    for value in (0.0, 1e6, -1e6, torch.inf, torch.nan):
        features = data.pool.x.clone()
        features[5] = value  # a record of client 1, which has 8
        other, _ = gradient(
            record(clip=0.5), data=replace(data, pool=data.pool._replace(x=features)), point=x
        )
        moved = (other - usual) * torch.tensor(COUNTS)[:, None]
        assert moved[1].norm() <= 2 * 0.5 + 1e-9
        assert torch.equal(moved[[0, 2, 3]], torch.zeros(3, 8, dtype=torch.float64))


def test_a_clipped_out_record_changes_no_release() -> None:
    """Scale the loss of one record so that its gradient is just the clipped one: the same sum."""

    def loss_of(weights: torch.Tensor) -> Problem:
        plain = classifier(nn.Linear(3, 2))
        ravel = Ravel(nn.Linear(3, 2))

        def loss(x: torch.Tensor, batch: Batch) -> torch.Tensor:
            errors = functional.cross_entropy(ravel(x, batch.x[..., :3]), batch.y, reduction="none")
            return (errors * batch.x[..., 3] * batch.weight).sum() / batch.weight.sum().clamp(min=1)

        return replace(plain, loss=loss)

    base = iid_federation()
    x = torch.randn(8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    norms = torch.cat([per_record(x, base, client) for client in range(4)]).norm(dim=-1)
    released = []
    for factors in (torch.ones_like(norms), (0.5 / norms).clamp(max=1)):
        features = torch.cat([base.pool.x, factors[:, None]], -1)
        data = replace(base, pool=base.pool._replace(x=features))
        released.append(gradient(record(clip=0.5), data=data, problem=loss_of(factors), point=x)[0])
    torch.testing.assert_close(released[0], released[1])


def test_both_minimax_gradients_are_clipped_together() -> None:
    """loss = 3 x + 4 y for every record: norm 5, clipped to 1 the gradients are 0.6 and 0.8."""

    def loss(x: torch.Tensor, y: torch.Tensor, batch: Batch) -> torch.Tensor:
        return (batch.weight * (3 * x.sum() + 4 * y.sum())).sum() / batch.weight.sum().clamp(min=1)

    problem = Problem("line", "minimax", lambda generator: {}, loss)
    clients = cohort(mechanism=record(clip=1.0), problem=problem)
    (batch,) = clients.batches(FEDAVG(local_steps=1, batch_size=None))
    zero = torch.zeros(4, 1, dtype=torch.float64)
    gx, gy = clients.grads(zero, zero, batch)
    torch.testing.assert_close(gx, torch.full_like(gx, 0.6))
    torch.testing.assert_close(gy, torch.full_like(gy, 0.8))


def test_losses_that_couple_records_are_refused(data) -> None:
    """AUROC with each client's own share of positives: of 1 positive and 99 negatives, take the positive away.
    The share falls from 1/100 to 0, and with it all 99 gradients of negatives: 100 clip norms, where 1 is booked.
    With one public share nothing of the others changes."""
    one = auroc(nn.Linear(3, 1), torch.tensor(0.3))
    cohort(mechanism=record(z=1.0), problem=one)
    with pytest.raises(Incompatible, match="problem auroc a sample also changes"):
        cohort(mechanism=record(z=1.0), problem=auroc(nn.Linear(3, 1), torch.full((4,), 0.3)))
    fields = {"problem": {"kind": "auroc", "own_p": True}}
    ready(
        data, "local_sgda", **fields, privacy={"placement": "local", "clip": 1.0, "epsilon": 4.0}
    )  # a client's message is clipped whole
    with pytest.raises(Incompatible, match="a sample also changes"):
        ready(data, "local_sgda", **fields, privacy={"unit": "record", "clip": 1.0, "epsilon": 4.0})


def test_two_gradients_on_one_batch_are_two_releases_of_one_draw() -> None:
    """FedSGDA-M evaluates every batch at two points."""
    clients = cohort(mechanism=record(z=1.0))
    problem = Problem("sum", "minimax", lambda g: {}, lambda x, y, b: x.sum() * y.sum() + 0 * b.x.sum())
    clients.problem = problem
    work = FEDSGDA_M(local_steps=3, batch_size=2)
    start = {"x": torch.zeros(2, dtype=torch.float64), "y": torch.zeros(2, dtype=torch.float64)}
    way = Channel(clients, compression=EXACT)
    state = work.init(start, clients, way)
    work.round(state, clients, way)
    report = booked(way)
    assert (report["draws"], report["releases"]) == (3, 6)


def test_a_first_batch_of_its_own_is_accounted_for_once(data) -> None:
    """Noise is calibrated with the rates of every round: the budget is used up, neither missed nor left over."""
    work = {"name": "fedsgda_m", "local_steps": 2, "batch_size": 2, "first_batch": 50}
    budget = {"unit": "record", "clip": 1.0, "epsilon": 4.0}
    run = finished(ready(data, work, problem="auroc", rounds=6, privacy=budget))
    assert run.statement()["epsilon_total"] == pytest.approx(4.0, rel=1e-3)


def test_the_noise_is_z_clip_over_the_expected_batch() -> None:
    """Features 5000 x 2 classes: 10002 numbers a client, 0.7 % (one sigma)."""
    data = iid_federation(COUNTS, features=5000)
    problem = classifier(nn.Linear(5000, 2))
    noisy, _ = gradient(record(clip=0.5, z=2.0), data=data, problem=problem)
    quiet, _ = gradient(record(clip=0.5), data=data, problem=problem)
    for client, count in enumerate(COUNTS):
        assert (noisy - quiet)[client].std().item() == pytest.approx(2.0 * 0.5 / count, rel=0.03)


def test_batches_are_poisson_samples_of_the_expected_size() -> None:
    """400 steps of q = 2/8: mean 2 (one sigma 0.06), sizes from 0 up; every record as often as any other."""
    clients = cohort(mechanism=record(), counts=(8, 8))
    batches = clients.batches(FEDAVG(local_steps=400, batch_size=2))
    drawn = batches.positions[:, 0]
    sizes = (drawn >= 0).sum(-1).double()
    assert sizes.mean().item() == pytest.approx(2.0, abs=0.25)
    assert sizes.var().item() == pytest.approx(8 * 0.25 * 0.75, rel=0.3)
    assert sizes.min() == 0 and len(sizes.unique()) >= 5
    often = torch.bincount(drawn[drawn >= 0], minlength=8)
    assert (often > 60).all() and (often < 140).all()
    other = batches.positions[:, 1]
    assert not torch.equal((other >= 0).sum(-1).double(), sizes), "each client draws for itself"


def test_an_empty_batch_still_releases_noise_and_still_is_a_step() -> None:
    clients = cohort(mechanism=record(clip=1.0, z=1.0), counts=(10, 10))
    x = clients.rows(torch.zeros(8, dtype=torch.float64))
    seen = 0
    for batch in clients.batches(FEDAVG(local_steps=30, batch_size=1)):
        empty = (batch.revealed().weight > 0.5).sum(-1) == 0
        found = clients.grad(x, batch)
        assert (found != 0).all(), "noise, whether or not anybody was drawn"
        seen += int(empty.sum())
        assert bool((batch.active == 1).all())
    assert seen > 5
    assert clients.ledger.made == 30


def test_a_record_whose_gradient_is_not_finite_is_left_out() -> None:
    data = iid_federation()
    features = data.pool.x.clone()
    features[5] = torch.inf
    found, _ = gradient(record(), data=replace(data, pool=data.pool._replace(x=features)))
    assert torch.isfinite(found).all()


def test_epsilon_is_that_of_the_client_with_the_fewest_records(data) -> None:
    """q_i = batch / n_i, composed over steps and rounds; the maximum over clients is what is claimed."""
    setup = ready(data, privacy={"unit": "record", "clip": 1.0, "noise_multiplier": 1.0})
    counts = setup.federation.counts().tolist()
    own = [epsilon(1.0, 2 * 2, 1e-5, min(1.0, 8 / n)) for n in counts]
    assert finished(setup).statement()["epsilon_total"] == pytest.approx(max(own))


def test_full_batches_are_not_amplified(data) -> None:
    work = {"name": "fedavg", "local_steps": 2, "batch_size": None}
    setup = ready(data, work, privacy={"unit": "record", "clip": 1.0, "noise_multiplier": 3.0})
    assert setup.privacy.rate == 1.0
    assert finished(setup).statement()["accountant"] == "exact"


def test_poisson_batches_leave_the_cohort_its_size(data) -> None:
    """The sampling of a record-level mechanism is that of its batches."""
    setup = ready(data, privacy={"unit": "record", "clip": 1.0, "noise_multiplier": 1.0}, cohort={"size": 3})
    run = Simulation.from_setup(setup)
    for round in range(20):
        run.round = round
        clients = run.cohort()
        assert clients.ids.shape == (3,) and bool(clients.participation_mask.all())


def test_a_step_without_noise_and_clipping_is_a_plain_sgd_step(data) -> None:
    work = {"name": "fedavg", "local_steps": 3, "batch_size": None}
    plain = finished(ready(data, work, precision="float64"))
    private = finished(
        ready(data, work, privacy={"unit": "record", "clip": 1e9, "noise_multiplier": 0}, precision="float64")
    )
    torch.testing.assert_close(private.state.x, plain.state.x)


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(27, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    )


def small_dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 3))


def by_opacus(module: nn.Module, x, images, labels):
    """Return what Opacus' hooks compute: each sample's gradient, ``(B, P)``."""
    torch.nn.utils.vector_to_parameters(x, module.parameters())
    wrapped = GradSampleModule(module, loss_reduction="sum")
    functional.cross_entropy(wrapped(images), labels, reduction="sum").backward()
    return torch.cat([p.grad_sample.flatten(1) for p in module.parameters()], -1)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("make", [small_dense, small_cnn])
@pytest.mark.parametrize("mode", ["vmap", "loop"])
def test_opacus_clips_and_sums_the_same_gradients(make, mode: str) -> None:
    """And so does one DP-SGD step of FedAvg without noise: x - lr * sum / batch."""
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(12, 1, 8, 8, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (12,), generator=generator)
    index = torch.arange(12).view(2, 6)
    pool = Batch(images, labels, torch.zeros_like(labels), torch.ones(12, dtype=torch.float64))
    data = Federation(pool, {"train": index, "test": index}, ("0", "1", "2"), (), "made up", "made up")
    problem = classifier(make())
    x = problem.init(generator)["x"].double()
    every = torch.stack([by_opacus(make().double(), x, images[who], labels[who]) for who in index])
    norms = every.norm(dim=-1, keepdim=True)
    norm = float(norms.median())  # half of the samples are clipped
    expected = (every * (norm / norms).clamp(max=1)).sum(1)
    clients = cohort(mechanism=record(clip=norm), data=data, problem=problem, counts=(6, 6), mode=mode)
    (batch,) = clients.batches(FEDAVG(local_steps=1, batch_size=None))
    found = clients.grad(clients.rows(x), batch)
    torch.testing.assert_close(found * 6, expected)
    clients = cohort(mechanism=record(clip=norm), data=data, problem=problem, counts=(6, 6), mode=mode)
    way = Channel(clients, compression=EXACT)
    stepped = FEDAVG(lr=0.3, local_steps=1, batch_size=None).round(FEDAVG.State(x), clients, way)
    torch.testing.assert_close(stepped.x, x - 0.3 * expected.mean(0) / 6)


def test_class_means_cannot_be_protected_record_by_record(data) -> None:
    """Clipped sample by sample, means of classes become sums: the first step was off by half, without noise."""
    work = {"name": "fedsgda_m", "local_steps": 2, "batch_size": 8}
    with pytest.raises(Incompatible, match="a sample also changes the contributions of others"):
        ready(data, work, problem="fair_classification", privacy={"unit": "record", "epsilon": 8.0})


def test_neighbors_of_records_keep_the_counts_unless_asked_otherwise(data) -> None:
    spec = read_spec(given(data, privacy={"unit": "record", "clip": 1.0, "epsilon": 1.0}))
    made = privacy_terms(spec, iid_federation((16, 40)))
    assert (made.rate, made.adjacency) == (1.0, "zero-out")
