"""Methods with several heads or with class statistics, against plain torch."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn import functional

from harness.core.errors import Incompatible
from harness.core.settings.privacy import Privacy
from harness.simulation.simulation import Simulation
from tests.support.worlds import EXACT, close, make_algorithm, network, random_federation, run_algorithm

SIZES = [9, 12, 7]
COHORTS = [(0, 1, 2), (0, 2), (1,), (1, 2)]
WORK = {"local_steps": 3, "batch_size": None, "lr": 0.3, "grad_clip": None}


def samples(federation):
    """Return features and labels of every client."""
    return [(federation.pool.x[i[i >= 0]], federation.pool.y[i[i >= 0]]) for i in federation.splits["train"]]


def features(u, x):
    return torch.tanh(functional.linear(x, u[:20].view(5, 4), u[20:]))


def scores(v, z):
    return functional.linear(z, v[:15].view(3, 5), v[15:])


def descend(loss, *parts, lr=0.3):
    """Take one step on all parts."""
    parts = [part.detach().requires_grad_() for part in parts]
    slopes = torch.autograd.grad(loss(*parts), parts)
    return [(part - lr * slope).detach() for part, slope in zip(parts, slopes, strict=True)]


def mean_of(rows, members):
    """Average the rows of a cohort by samples."""
    weights = torch.tensor([float(SIZES[i]) for i in members], dtype=torch.float64)
    return (weights / weights.sum()) @ torch.stack([rows[i] for i in members])


def generic_loss(prior, x, y, u, v):
    return functional.cross_entropy(scores(v, features(u, x)) + prior, y)


def personal_loss(at, z, y, w):
    return functional.cross_entropy(at + scores(w, z), y)


@pytest.mark.parametrize("balance", [1.0, 0.5])
def test_fedrod_takes_the_rounds_of_plain_torch(balance):
    """The generic head has log n_c^gamma added to its scores; the personal one adds to the generic scores."""
    federation = random_federation(SIZES)
    algorithm = make_algorithm("fedrod", balance=balance, **WORK)
    run = Simulation(network(), federation, algorithm, None, EXACT, (0,))
    u, v, own = run.state.u, run.state.v, [torch.zeros(18, dtype=torch.float64)] * 3
    data = samples(federation)
    counts = [torch.bincount(y, minlength=3).double() for _, y in data]
    assert all(bool((count > 0).all()) for count in counts)
    for members in COHORTS:
        run.step(torch.tensor(members))
        us, vs = [u] * 3, [v] * 3
        for i in members:
            x, y = data[i]
            for _ in range(3):
                z = features(us[i], x)
                (own[i],) = descend(partial(personal_loss, scores(vs[i], z), z, y), own[i])
                prior = balance * counts[i].log()
                us[i], vs[i] = descend(partial(generic_loss, prior, x, y), us[i], vs[i])
        u, v = mean_of(us, members), mean_of(vs, members)
        assert close(run.state.u, u, 1e-12) and close(run.state.v, v, 1e-12)
        assert close(run.state.vi, torch.stack(own), 1e-12)
    z = features(u, federation.pool.x)
    expected = scores(v, z) + scores(own[1], z)
    assert close(run.problem.predict(algorithm.model(run.state)[1], federation.pool.x), expected, 1e-12)


def test_fedrod_without_balance_is_fedavg_with_heads_on_top():
    problem, federation = network(), random_federation(SIZES)
    work = {"local_epochs": 1, "batch_size": 4, "lr": 0.3}
    plain = run_algorithm("fedavg", problem, federation, 3, **work).state.x
    found = run_algorithm("fedrod", problem, federation, 3, balance=0.0, grad_clip=None, **work).state
    assert close(torch.cat([found.u, found.v]), plain, 1e-12) and float(found.vi.abs().max()) > 1e-3


def test_records_are_protected_where_no_counts_are_used():
    records = Privacy.of(0.0, clip=1.0, unit="record", sampling="poisson")
    problem, federation = network(), random_federation(SIZES)
    with pytest.raises(Incompatible, match="gradients only"):
        run_algorithm("fedrod", problem, federation, 1, privacy=records, **WORK)
    made = run_algorithm("fedrod", problem, federation, 2, privacy=records, balance=0.0, **WORK)
    assert made.ledger.made == 2 * 2 * 3, "two gradients of every batch"


def test_a_client_without_samples_leaves_everything_finite():
    """It has no classes either, and all scores of its padding would be minus infinity."""
    made = random_federation([9, 0, 7])
    state = run_algorithm("fedrod", network(), made, 3, local_epochs=1, batch_size=4).state
    assert all(bool(part.isfinite().all()) for part in state)


def pulled_loss(c, known, x, y, u, v):
    """The mean over samples and coordinates of squared distances to known prototypes, on top of the loss."""
    z = features(u, x)
    apart = (z - c[y]).square().mean(-1) * known[y]
    return functional.cross_entropy(scores(v, z), y) + 2.0 * apart.mean()


def uneven_classes():
    """Clients with the classes {0, 1}, {0} and {1, 2}."""
    made = random_federation(SIZES)
    one, _, other = made.pool.y.split(SIZES)
    labels = torch.cat([one.clamp(max=1), torch.zeros(12, dtype=torch.int64), other.clamp(min=1)])
    return replace(made, pool=made.pool._replace(y=labels))


def test_fedproto_takes_the_rounds_of_plain_torch():
    """A prototype is the mean feature of all samples of its class in the last cohort that had one."""
    federation = uneven_classes()
    algorithm = make_algorithm("fedproto", alignment=2.0, **WORK)
    run = Simulation(network(), federation, algorithm, None, EXACT, (0,))
    us, vs = list(run.state.ui), list(run.state.vi)
    c, known = torch.zeros(3, 5, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    data = samples(federation)
    for members in [(0, 1), (0, 2), (1,), (0, 1, 2)]:
        run.step(torch.tensor(members))
        for i in members:
            for _ in range(3):
                us[i], vs[i] = descend(partial(pulled_loss, c, known, *data[i]), us[i], vs[i])
        seen = torch.cat([features(us[i], data[i][0]) for i in members])
        labels = torch.cat([data[i][1] for i in members])
        c, known = c.clone(), known.clone()
        for k in labels.unique().tolist():
            c[k], known[k] = seen[labels == k].mean(0), 1.0
        assert close(run.state.c.view(3, 5), c, 1e-12)
        assert close(run.state.ui, torch.stack(us), 1e-12) and close(run.state.vi, torch.stack(vs), 1e-12)
    assert bool((known == 1).all())


def test_fedproto_without_pull_is_local_training():
    problem, federation = network(), random_federation(SIZES)
    work = {"local_epochs": 1, "batch_size": 4, "lr": 0.3, "grad_clip": 0.5}
    state = run_algorithm("fedproto", problem, federation, 3, alignment=0.0, **work).state
    alone = run_algorithm("local", problem, federation, 3, **work).state.x
    assert close(torch.cat([state.ui, state.vi], -1), alone, 1e-12)


def test_what_fedproto_sends():
    """K = 3, d = 5: prototypes down; their moves and K shares up, also of absent classes. No number of a model."""
    cost = run_algorithm("fedproto", network(), uneven_classes(), 2, **WORK).cost
    assert int(cost.down) == 2 * 3 * 8 * 15 and int(cost.up) == 2 * 3 * 8 * (15 + 3)


def test_prototypes_travel_as_moves():
    """One client that stands still repeats its means: its second message is its shares and zeros."""
    problem, federation = network(), random_federation([8])
    algorithm = make_algorithm("fedproto", **{**WORK, "lr": 1e-14})
    run = Simulation(problem, federation, algorithm, None, EXACT, (0,))
    norms = []
    for _ in range(2):
        run.step(diagnose=True)
        norms.append(float(run.diagnostics["update_norm_mean"]))
    shares = torch.bincount(federation.pool.y, minlength=3).double() / 8
    assert norms[0] > norms[1] + 0.05 and norms[1] == pytest.approx(float(shares.norm()), abs=1e-9)


def test_prototypes_of_rare_classes_move_by_parts():
    """From zero, at least shares of 0.8: a class of share s moves to s / 0.8 of its mean, and again of the rest."""
    problem, federation = network(), random_federation([8])
    shares = torch.bincount(federation.pool.y, minlength=3).double()[:, None] / 8
    still = {**WORK, "lr": 1e-14}
    means = run_algorithm("fedproto", problem, federation, 1, **still).state.c.view(3, 5)
    for rounds in (1, 2):
        found = run_algorithm("fedproto", problem, federation, rounds, least_share=0.8, **still).state.c.view(
            3, 5
        )
        assert close(found, (1 - (1 - shares / 0.8) ** rounds) * means, 1e-10)


def whole_loss(x, y, u, v):
    return functional.cross_entropy(scores(v, features(u, x)), y)


def mixed_loss(u, kept, received, x, y, w):
    return whole_loss(x, y, u, kept + w * (received - kept))


def test_fedala_takes_the_rounds_of_plain_torch():
    """Two steps on the weights by their own gradient, held in [0, 1]; then descent from the mixture of heads."""
    federation = random_federation(SIZES)
    algorithm = make_algorithm("fedala", lr_weights=5.0, weight_epochs=2, **WORK)
    run = Simulation(network(), federation, algorithm, None, EXACT, (0,))
    u, v, own = run.state.u, run.state.v, list(run.state.vi)
    weights, data = [torch.ones(18, dtype=torch.float64)] * 3, samples(federation)
    for members in COHORTS:
        run.step(torch.tensor(members))
        us, vs = [u] * 3, list(own)
        for i in members:
            for _ in range(2):
                (moved,) = descend(partial(mixed_loss, u, own[i], v, *data[i]), weights[i], lr=5.0)
                weights[i] = moved.clamp(0, 1)
            vs[i] = own[i] + weights[i] * (v - own[i])
            for _ in range(3):
                us[i], vs[i] = descend(partial(whole_loss, *data[i]), us[i], vs[i])
        own = vs
        u, v = mean_of(us, members), mean_of(vs, members)
        assert close(run.state.u, u, 1e-12) and close(run.state.v, v, 1e-12)
        assert close(run.state.vi, torch.stack(own), 1e-12) and close(
            run.state.wi, torch.stack(weights), 1e-12
        )
    learned = torch.stack(weights)
    assert bool(((learned > 0.01) & (learned < 0.99)).any()) and bool((learned == 1).any())
    mixtures = torch.stack([own[i] + weights[i] * (v - own[i]) for i in range(3)])
    assert close(algorithm.model(run.state), torch.cat([u.expand(3, -1), mixtures], -1), 1e-12)


def test_fedala_with_fixed_weights_is_fedavg():
    problem, federation = network(), random_federation(SIZES)
    work = {"local_epochs": 1, "batch_size": 4, "lr": 0.3, "grad_clip": None}
    plain = run_algorithm("fedavg", problem, federation, 3, **work).state.x
    found = run_algorithm("fedala", problem, federation, 3, lr_weights=0.0, **work).state
    assert close(torch.cat([found.u, found.v]), plain, 1e-12)
    assert close(make_algorithm("fedala").model(found), plain.expand(3, -1), 1e-12)
