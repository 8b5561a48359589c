"""Personalized methods: limits in closed form, identities between methods, what stays at home."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from algorithms.personalized.fedpac import combination
from harness.core import Problem, UserError, cross_entropy, weighted_mean
from harness.core.errors import Incompatible
from harness.core.methods.derivatives import feature_distance, minimize_on_simplex, project_simplex
from harness.core.methods.gaussian_encoder import class_posteriors, divergence, variational_loss
from harness.core.settings.compression import Compression
from harness.core.settings.privacy import Privacy
from harness.problems.classify import classifier
from tests.support.wire import cohort
from tests.support.wire import privacy as mechanism
from tests.support.worlds import (
    close,
    federation_of,
    largest_difference,
    make_algorithm,
    network,
    random_federation,
    run_algorithm,
    scalar_quadratic,
    settled,
)

A, OPTIMA = (1.0, 2.0, 1.0), (0.0, 3.0, 6.0)
WORK = {"local_steps": 3, "batch_size": 4}
SIZES = [9, 12, 7]


def linear_features(squares=(1.0, 1.0, 2.0)) -> tuple[Problem, object]:
    """One sample a client: feature ``phi = u a`` with ``a^2 = s_i``, and ``f_i = a_i / 2 (u - o_i)^2``.

    The head reads the feature: with ``u = phi / a`` the loss is ``a_i / 2 (phi / a - o_i)^2``. It has one weight,
    which it does not use.
    """
    inputs = torch.tensor([[s**0.5] for s in squares], dtype=torch.float64)
    curvature, optimum = (torch.tensor(values, dtype=torch.float64) for values in (A, OPTIMA))
    reach = inputs[:, 0]

    def features(u, x):
        return u * x

    def head(v, batch):
        at = batch.x[:, 0] / reach[batch.y]
        errors = 0.5 * curvature[batch.y] * (at - optimum[batch.y]) ** 2 + 0.0 * v.sum()
        return weighted_mean(errors, batch.weight)

    problem = Problem(
        "linear features",
        "erm",
        lambda generator: {"x": torch.zeros(1), "y": torch.zeros(1)},
        lambda u, v, batch: head(v, batch._replace(x=features(u, batch.x))),
        features=features,
        head=head,
        cut=1,
    )
    problem = replace(problem, halves=lambda latent=None: problem)
    return problem, federation_of(list(inputs[:, None]), [torch.tensor([i]) for i in range(3)], classes=3)


def fedreco(problem, federation, rounds, **settings):
    return run_algorithm(
        "fedreco", problem, federation, rounds, **{"tie": 1.0, "grad_clip": None, "full_q": True} | settings
    ).state


@pytest.mark.slow
def test_fedreco_settles_where_its_objective_is_stationary():
    """``a_i (u_i - o_i) + lambda s_i (u_i - u_0) = 0`` and ``sum_i s_i (u_i - u_0) = 0``; lambda 1.

    u_0 = [sum s a o / (a + s)] / [sum s a / (a + s)] = (0 + 2 + 4) / (1/2 + 2/3 + 2/3) = 6 / (11/6) = 36/11, and
    u_i = (a o + s u_0) / (a + s).
    """
    found = fedreco(*linear_features(), 200, lr_u=0.2, lr_0=0.1, local_steps=5)
    assert close(found.u, 36 / 11, 1e-6)
    assert close(found.ui, torch.tensor([1.636364, 3.090909, 4.181818]), 1e-5)


def test_the_common_extractor_is_weighted_by_squares():
    """``sum s (u_i - u_0) = 0`` at u = (1, 2, 4), s = (1, 1, 2): u_0 = (1 + 2 + 8) / 4. One client: its own."""
    problem, federation = linear_features()
    u = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
    data = federation.pool.at(federation.splits["train"])
    distance = feature_distance(problem)

    def follow(members):
        u_0 = torch.zeros(1, dtype=torch.float64)
        for _ in range(40):
            parts = [type(data)(*(part[i] for part in data)) for i in members]
            pulls = [
                torch.func.grad(distance, 1)(u[i], u_0, part) for i, part in zip(members, parts, strict=True)
            ]
            u_0 = u_0 - 0.5 * torch.stack(pulls).mean(0)
        return u_0

    assert close(follow([0, 1, 2]), 11 / 4, 1e-8)
    assert close(follow([1]), 2.0, 1e-8)


def test_ditto_settles_between_its_optimum_and_the_common_one():
    """One step a round: w* = sum a o / sum a = 3 and p* = (a o + lambda w*) / (a + lambda) = (1, 3, 5) at .5."""
    work = {"lr": 0.1, "tie": 0.5, "local_steps": 1, "grad_clip": None}
    found = settled("ditto", *scalar_quadratic(A, OPTIMA), **work)
    assert close(found.x, 3.0, 1e-8)
    assert close(found.pi, torch.tensor([1.0, 3.0, 5.0]), 1e-8)


def test_ditto_with_lr_lambda_one_restarts_at_the_server():
    """``p - lr (g(p) + (p - w) / lr) = w - lr g(p)``, one step, g = a (p - o): from p = w = 0 it is lr a o."""
    work = {"lr": 0.1, "tie": 10.0, "local_steps": 1, "grad_clip": None}
    problem = scalar_quadratic(A, OPTIMA)
    before, after = (run_algorithm("ditto", *problem, rounds, **work).state for rounds in (4, 5))
    slope = torch.tensor(A)[:, None] * (before.pi - torch.tensor(OPTIMA)[:, None])
    assert close(after.pi, before.x - 0.1 * slope, 1e-12)


def test_ditto_without_the_tie_is_local_training_beside_fedavg():
    problem, federation = network(), random_federation(SIZES)
    work = {**WORK, "lr": 0.3, "grad_clip": 0.5}
    found = run_algorithm("ditto", problem, federation, 4, tie=0.0, **work).state
    assert torch.equal(found.pi, run_algorithm("local", problem, federation, 4, **work).state.x)
    assert torch.equal(found.x, run_algorithm("fedavg", problem, federation, 4, **work).state.x)


def changed(federation, client):
    """Give all clients but one other data."""
    x = federation.pool.x.clone()
    mine = federation.splits["train"][client]
    others = torch.ones(len(x), dtype=torch.bool)
    others[mine[mine >= 0]] = False
    x[others] = 1.0 - 2.0 * x[others]
    return replace(federation, pool=federation.pool._replace(x=x))


@pytest.mark.parametrize("name", ["fedreco", "fedreco_pvr"])
def test_without_the_tie_fedreco_is_alternating_local_training(name):
    """Whatever the others hold, and however the common extractor moves."""
    problem, federation = network(), random_federation(SIZES)
    options = {"tie": 0.0, **WORK}
    found = run_algorithm(name, problem, federation, 4, lr_0=0.001, **options).state
    other = run_algorithm(name, problem, changed(federation, 1), 4, lr_0=1.0, **options).state
    assert torch.equal(found.ui[1], other.ui[1]) and torch.equal(found.vi[1], other.vi[1])
    assert not torch.equal(found.ui[0], other.ui[0]) and not torch.equal(found.u, other.u)


@pytest.mark.parametrize("cohort_size", [None, 2])
def test_alternating_local_training_is_fedreco_without_the_tie(cohort_size):
    """The control of FedReCo: as many steps on the same batches, and nothing travels."""
    problem, federation = network(), random_federation(SIZES)
    work = {"local_epochs": 2, "batch_size": 4, "momentum": 0.5, "cohort": cohort_size}
    tied = run_algorithm(
        "fedreco", problem, federation, 3, tie=0.0, lr_u=0.2, lr_v=0.2, grad_clip=0.5, **work
    ).state
    found = run_algorithm("local", problem, federation, 3, alternate=True, lr=0.2, grad_clip=0.5, **work)
    assert close(found.state.ui, tied.ui, 1e-12) and close(found.state.vi, tied.vi, 1e-12)
    assert int(found.cost.up) == int(found.cost.down) == 0
    model = make_algorithm("local", alternate=True).model(found.state)
    assert torch.equal(model, torch.cat([found.state.ui, found.state.vi], -1))


def test_fedreco_without_the_tie_takes_the_steps_of_plain_torch():
    """Full batches: head step with the old extractor, then extractor step with the new head."""
    problem, federation = network(), random_federation([8])
    work = {"tie": 0.0, "local_steps": 1, "batch_size": None, "lr_u": 0.2, "lr_v": 0.3, "grad_clip": None}
    start = problem.halves().init(torch.Generator().manual_seed(1))
    start = {name: value.double() for name, value in start.items()}
    found = run_algorithm("fedreco", problem, federation, 3, start=start, **work).state
    w1, b1 = start["x"][:20].view(5, 4), start["x"][20:]
    w2, b2 = start["y"][:15].view(3, 5), start["y"][15:]
    layers = [part.clone().requires_grad_() for part in (w1, b1, w2, b2)]

    def step(which, lr):
        hidden = torch.tanh(functional.linear(federation.pool.x, *layers[:2]))
        loss = functional.cross_entropy(functional.linear(hidden, *layers[2:]), federation.pool.y)
        chosen = [layers[i] for i in which]
        with torch.no_grad():
            for layer, gradient in zip(chosen, torch.autograd.grad(loss, chosen), strict=True):
                layer -= lr * gradient

    for _ in range(3):
        step((2, 3), 0.3)
        step((0, 1), 0.2)
    assert close(found.ui[0], torch.cat([part.detach().flatten() for part in layers[:2]]), 1e-12)
    assert close(found.vi[0], torch.cat([part.detach().flatten() for part in layers[2:]]), 1e-12)


def test_a_server_that_stands_still_keeps_the_common_extractor():
    found = run_algorithm("fedreco", network(), random_federation(SIZES), 3, lr_0=0.0, tie=1.0, **WORK).state
    start = run_algorithm("fedreco", network(), random_federation(SIZES), 0, **WORK).state
    assert torch.equal(found.u, start.u) and not torch.equal(found.ui, start.ui)


def test_variance_reduction_does_nothing_on_full_batches():
    """The correction cancels: grad H(u_t, u_0 before) over all data is g itself."""
    options = {"tie": 1.0, "lr_0": 0.1, "local_steps": 3, "batch_size": None}
    plain = run_algorithm("fedreco", network(), random_federation(SIZES), 5, full_q=True, **options).state
    found = run_algorithm("fedreco_pvr", network(), random_federation(SIZES), 5, **options).state
    for name in ("u", "ui", "vi"):
        assert close(getattr(found, name), getattr(plain, name), 1e-10)


def test_variance_reduction_does_something_on_batches():
    """So the test above can fail: with batches the two differ."""
    options = {"tie": 1.0, "lr_0": 0.1, **WORK}
    plain = run_algorithm("fedreco", network(), random_federation(SIZES), 5, full_q=True, **options).state
    found = run_algorithm("fedreco_pvr", network(), random_federation(SIZES), 5, **options).state
    assert not close(found.ui, plain.ui, 1e-6)


def test_heads_of_equal_clients_weigh_by_inverse_spread():
    """V = (1, 2, 4) and equal h: alpha_j = (1 / V_j) / sum = (4/7, 2/7, 1/7), for every client."""
    spread, h = torch.tensor([[1.0], [2.0], [4.0]]), torch.ones(3, 6)
    assert close(combination(spread, h), torch.tensor([[4 / 7, 2 / 7, 1 / 7]] * 3), 1e-6)


def test_without_spread_different_clients_keep_their_heads():
    h = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert close(combination(torch.zeros(4, 1), h), torch.eye(4), 1e-6)


@pytest.mark.slow
def test_the_least_on_the_simplex_is_optimal():
    """M a is one number where a > 0, and at least that elsewhere; projected gradient finds the same point."""
    generator = torch.Generator().manual_seed(3)
    for rank in (3, 6, 10):
        root = torch.randn(rank, 6, dtype=torch.float64, generator=generator)
        matrix = root.T @ root + 0.1 * torch.eye(6, dtype=torch.float64)
        found = minimize_on_simplex(matrix)
        slope = matrix @ found
        level = slope[found > 1e-9]
        assert found.sum() == pytest.approx(1.0) and float(found.min()) >= 0
        assert float(level.max() - level.min()) < 1e-8 and bool((slope >= level.min() - 1e-8).all())
        point = torch.full((6,), 1 / 6, dtype=torch.float64)
        step = 1 / torch.linalg.eigvalsh(matrix)[-1]
        for _ in range(2000):
            point = project_simplex(point - step * (matrix @ point))
        assert close(found, point, 1e-6)


def test_fedpac_without_alignment_and_combination_is_fedrep():
    options = {**WORK, "lr_u": 0.1, "lr_v": 0.2}
    problem, federation = network(), random_federation(SIZES)
    found = run_algorithm(
        "fedpac", problem, federation, 4, alignment=0.0, head_combination=False, **options
    ).state
    plain = run_algorithm("fedrep", problem, federation, 4, **options).state
    assert close(found.u, plain.u, 1e-12) and close(found.vi, plain.vi, 1e-12)


def test_prototypes_are_the_means_of_all_samples_of_a_class():
    """With lr_u so small that nobody moves, features are the start's, and sizes weigh as samples do."""
    problem, federation = network(), random_federation(SIZES)
    found = run_algorithm("fedpac", problem, federation, 1, lr_u=1e-14, lr_v=1e-14, **WORK).state
    features = problem.halves().features(found.u, federation.pool.x)
    for k, row in enumerate(found.c.view(3, 5)):
        assert close(row, features[federation.pool.y == k].mean(0), 1e-10)


def test_fedpac_clips_the_move_of_a_head_not_the_head():
    """One client takes its own head alone. What travels is how far it moved: v_1 - v_0 is as long as the clip."""
    tight = Privacy.of(0.0, clip=1e-3, server_clip=10.0)
    states = []
    work = {**WORK, "lr_v": 1.0, "privacy": tight, "watch": states.append}
    run_algorithm("fedpac", network(), random_federation([9]), 3, **work)
    for old, new in pairwise(states):
        assert 0 < float((new.vi - old.vi).norm()) <= 1e-3 + 1e-12


def test_fedpac_keeps_prototypes_of_absent_classes():
    """Client i has class i alone, and one client takes part in a round: who has taken part leaves a prototype."""
    made = random_federation(SIZES)
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(SIZES))
    federation = replace(made, pool=made.pool._replace(y=labels))
    states = []
    run_algorithm("fedpac", network(), federation, 8, cohort=1, watch=states.append, **WORK)
    known = [(state.c.view(3, 5) != 0).any(-1) for state in states]
    assert all(bool((new | ~old).all()) for old, new in pairwise(known))
    assert not known[0].any() and int(known[-1].sum()) > 1


def test_the_product_of_gaussians():
    """N(0, 1) N(3, 2^2): precision 5/4, mean 3/4 / (5/4) = .6, std .894427; times N(0, 1): mean 1/3, std 2/3."""
    precision = torch.tensor([1.0, 1 / 4])
    weighed = precision * torch.tensor([0.0, 3.0])
    total = precision.sum()
    assert weighed.sum() / total == pytest.approx(0.6) and total.rsqrt() == pytest.approx(0.894427, abs=1e-6)
    assert weighed.sum() / (1 + total) == pytest.approx(1 / 3)
    assert (1 + total).rsqrt() == pytest.approx(2 / 3)


def test_posteriors_are_sums_of_precisions_by_class():
    """A client's own: precisions 1 / sigma^2, and precisions times means, summed over the samples of a class."""
    problem, federation = network().halves(latent=2), random_federation([6])
    u = problem.init(torch.Generator().manual_seed(0))["x"].double()
    data = federation.pool.at(federation.splits["train"])
    data = type(data)(*(part[0] for part in data))
    precision, weighed = (part.view(3, 2) for part in class_posteriors(problem)(u, data))
    mean, spread = problem.features(u, data.x).chunk(2, -1)
    own = functional.softplus(spread) ** -2
    for k in range(3):
        mine = data.y == k
        assert close(precision[k], own[mine].sum(0), 1e-10)
        assert close(weighed[k], (own * mean)[mine].sum(0), 1e-10)


def test_the_divergence_of_two_gaussians():
    """KL(N(1, 4) || N(0, 1)) = -ln 2 + (4 + 1) / 2 - 1/2 = 1.306853; back: ln 2 + 2 / 8 - 1/2 = .443147."""
    one, other = (torch.tensor([1.0]), torch.tensor([2.0])), (torch.tensor([0.0]), torch.tensor([1.0]))
    assert divergence(*one, *other) == pytest.approx(1.306853, abs=1e-6)
    assert divergence(*other, *one) == pytest.approx(0.443147, abs=1e-6)


def test_only_the_forward_divergence_grows_with_samples():
    """N samples N(0, 1) and the standard normal expert make a prior of variance 1 / (N + 1).

    KL(N(0, 1) || prior) = -ln(N + 1) / 2 + (N + 1) / 2 - 1/2: 47.69 at N = 100, 496.55 at 1000. Times 256 latent
    numbers and beta 0.001 that is 12 and 127, beside a cross-entropy of 2.3. KL(prior || N(0, 1)) = ln(N + 1) / 2 +
    1 / (2 (N + 1)) - 1/2: 1.8125 and 2.9549, which is 0.5 and 0.8.
    """
    encoder = torch.zeros(1), torch.ones(1)
    for samples, forward, reverse in ((100, 47.6924, 1.81251), (1000, 496.5457, 2.95488)):
        prior = torch.zeros(1), torch.full((1,), (samples + 1) ** -0.5)
        assert divergence(*encoder, *prior) == pytest.approx(forward, rel=1e-4)
        assert divergence(*prior, *encoder) == pytest.approx(reverse, rel=1e-4)


def test_fedcr_without_divergence_is_the_loss_of_the_means():
    problem, federation = network().halves(latent=2), random_federation([6])
    start = problem.init(torch.Generator().manual_seed(0))
    u, v = start["x"].double(), start["y"].double()
    batch = type(federation.pool)(*federation.pool)
    loss = variational_loss(problem, draws=1, beta=0.0, forward=True)
    prior = torch.zeros(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    still = torch.zeros(1, 6, 2, dtype=torch.float64)
    scores = problem.scores(v, problem.features(u, batch.x)[:, :2])
    assert float(loss(u, v, *prior, still, batch)) == pytest.approx(
        float(cross_entropy(scores, batch.y).mean())
    )


def test_the_head_of_fedbabu_never_changes():
    before, after = (
        run_algorithm("fedbabu", network(), random_federation(SIZES), rounds, **WORK).state
        for rounds in (0, 3)
    )
    assert torch.equal(before.v, after.v) and not torch.equal(before.u, after.u)


def test_an_extractor_that_takes_no_steps_stays_and_heads_learn():
    before, after = (
        run_algorithm("fedrep", network(), random_federation(SIZES), rounds, lr_u=0.0, lr_v=0.5, **WORK).state
        for rounds in (0, 3)
    )
    assert torch.equal(before.u, after.u) and not torch.equal(before.vi, after.vi)


def test_apfl_with_all_weight_at_home_is_local_training():
    """share 1 and no step on it: the mixture is the personal model, trained at its own point."""
    problem, federation = network(), random_federation(SIZES)
    work = {**WORK, "lr": 0.1, "grad_clip": None}
    found = run_algorithm("apfl", problem, federation, 4, share=1.0, lr_share=0.0, **work).state
    assert close(found.pi, run_algorithm("local", problem, federation, 4, **work).state.x, 1e-12)
    assert close(found.x, run_algorithm("fedavg", problem, federation, 4, **work).state.x, 1e-12)


def test_pfedme_solves_its_envelope():
    """theta = (a o + lambda w) / (a + lambda); sum c (o - w) = 0 with c = a / (a + lambda).

    lambda 2: c = (1/3, 1/2, 1/3), w = (0 + 1.5 + 2) / (7/6) = 3; theta = ((0 + 6) / 3, (6 + 6) / 4, (6 + 6) / 3).
    """
    work = {"lr": 0.1, "lr_inner": 0.2, "tie": 2.0, "inner_steps": 60, "local_steps": 1, "grad_clip": None}
    found = settled("pfedme", *scalar_quadratic(A, OPTIMA), **work)
    assert close(found.x, 3.0, 1e-6)
    assert close(found.pi, torch.tensor([2.0, 3.0, 4.0]), 1e-6)


def test_per_fedavg_settles_where_gradients_ahead_cancel():
    """sum c (w - o) = 0 with c = a (1 - alpha a): the first-order method has one factor; c = (.9, 1.6, .9)."""
    optima = (0.0, 3.0, 9.0)
    work = {"lr": 0.1, "lr_inner": 0.1, "local_steps": 1, "grad_clip": None}
    found = settled("per_fedavg", *scalar_quadratic(A, optima), **work)
    assert close(found.x, (1.6 * 3 + 0.9 * 9) / 3.4, 1e-8)


HEADLESS = ["fedrep", "fedper", "fedbabu", "fedreco", "fedreco_pvr"]


@pytest.mark.parametrize("name", HEADLESS)
def test_heads_never_travel(name):
    """4 features, 5 hidden: |u| = 25 numbers each way for 3 clients; the head's 18 are not among them."""
    cost = run_algorithm(name, network(), random_federation(SIZES), 2, **WORK).cost
    assert int(cost.up) == int(cost.down) == 2 * 3 * 25 * 8


def test_what_fedpac_and_fedcr_send():
    """K = 3, d = 5: FedPAC u, K d sums, K shares, head, spread, K d means up; u, K d prototypes, a head down.

    FedCR with 2 latent: encoder 25 + 5 * 4 + 4, and 2 K latent both ways.
    """
    cost = run_algorithm("fedpac", network(), random_federation(SIZES), 1, **WORK).cost
    assert int(cost.up) == 3 * 8 * (25 + 15 + 3 + 18 + 1 + 15)
    assert int(cost.down) == 3 * 8 * (25 + 15 + 18)
    cost = run_algorithm("fedcr", network(), random_federation(SIZES), 1, latent=2, draws=2, **WORK).cost
    assert int(cost.up) == int(cost.down) == 3 * 8 * (49 + 12)


def test_step_sizes_decay_by_the_round():
    """One client, f = (w - 6)^2 / 2, lr .5 then .25: 6 - w shrinks by .5 * .75."""
    work = {"lr": 0.5, "lr_decay": 0.5, "local_steps": 1}
    assert close(
        run_algorithm("fedavg", *scalar_quadratic((1,), (6,)), 2, **work).state.x, 6 - 6 * 0.375, 1e-12
    )
    assert make_algorithm("fedreco", lr_decay=0.5).at(2).lr_0 == pytest.approx(0.001 / 4)


def test_gradients_are_clipped_jointly():
    """A bound of 5 scales (3, 4, 12), of norm 13, by 5/13, over both its parts; shorter rows stay."""
    algorithm = make_algorithm("fedper", grad_clip=5.0)
    first, second = algorithm.clip(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[12.0], [1.0]]))
    assert close(first, torch.tensor([[15 / 13, 20 / 13], [0.0, 1.0]]), 1e-6)
    assert close(second, torch.tensor([[60 / 13], [1.0]]), 1e-6)


def test_classifiers_without_an_extractor_have_no_halves():
    assert classifier(torch.nn.Linear(4, 3)).halves is None
    assert network().halves().cut == 25


def test_the_halves_start_where_the_whole_does():
    whole = network().init(torch.Generator().manual_seed(2))["x"]
    parts = network().halves().init(torch.Generator().manual_seed(2))
    assert torch.equal(whole, torch.cat([parts["x"], parts["y"]]))
    encoder = network().halves(latent=2).init(torch.Generator().manual_seed(2))["x"]
    assert torch.equal(encoder[:25], parts["x"])


@pytest.mark.parametrize("name", ["fedpac", "fedcr"])
def test_statistics_of_a_round_take_no_error_feedback(name):
    """What was not sent of last round's class means is not to be added to this round's."""
    owed = Compression(beta=0.5, error_feedback=True, codec="float64")
    with pytest.raises(Incompatible, match="statistics of this round"):
        run_algorithm(name, network(), random_federation(SIZES), 1, compression=owed, **WORK)
    run_algorithm(
        name,
        network(),
        random_federation(SIZES),
        1,
        compression=owed.model_copy(update={"error_feedback": False}),
    )


def test_fine_tuning_leaves_the_state_alone():
    """FedBABU's evaluation changes a copy: two evaluations in between do not move the run."""
    problem, federation = network(), random_federation(SIZES)
    plain = run_algorithm("fedbabu", problem, federation, 3, **WORK)
    algorithm = make_algorithm("fedbabu", **WORK)
    home = cohort(data=federation, problem=algorithm.view(problem), round=3)
    kept = type(plain.state)(*(part.clone() for part in plain.state))
    tuned = algorithm.personal(plain.state, home)
    assert largest_difference(plain.state, kept) == 0.0
    assert tuned.shape == (3, 43) and not torch.equal(tuned[0], tuned[1])


def test_head_fine_tuning_clips_the_heads_gradient():
    """Head gradients g of a fixed extractor, full batches, bound c: two steps of lr min(1, c / |g|) g each.

    The extractor's gradient, which no step follows, has no say in the norm.
    """
    problem, federation = network(), random_federation([8])
    work = {"finetune": "head", "finetune_epochs": 2, "batch_size": None, "lr": 0.5, "grad_clip": 0.1}
    algorithm, halves = make_algorithm("fedbabu", **work), network().halves()
    start = {name: part.double() for name, part in halves.init(torch.Generator().manual_seed(0)).items()}
    home = cohort(data=federation, problem=algorithm.view(problem), round=0)
    found = algorithm.personal(algorithm.State(start["x"], start["y"]), home)[0]
    u, v = start["x"], start["y"]
    for _ in range(2):
        gradient = torch.func.grad(halves.loss, 1)(u, v, federation.pool)
        assert gradient.norm() > 0.1
        v = v - 0.5 * 0.1 * gradient / gradient.norm()
    assert close(found, torch.cat([u, v]), 1e-12)


NOISY = mechanism(clip=10.0, z=100.0, server_clip=10.0)


@pytest.mark.parametrize("name", ["fedreco", "fedreco_pvr"])
def test_noise_never_reaches_what_stays_at_home(name):
    """Without the tie clients' models are those of the run without noise; the server moves at most 10 lr_0."""
    options = {"tie": 0.0, "lr_0": 0.001, **WORK}
    problem, federation = network(), random_federation(SIZES)
    states = []
    found = run_algorithm(name, problem, federation, 3, privacy=NOISY, watch=states.append, **options)
    plain = run_algorithm(name, problem, federation, 3, **options).state
    assert torch.equal(found.state.ui, plain.ui) and torch.equal(found.state.vi, plain.vi)
    steps = [float((new.u - old.u).norm()) for old, new in pairwise(states)]
    assert found.ledger.made == 3 and all(0.0099 < step <= 0.01 + 1e-9 for step in steps)


def test_records_are_protected_in_means_not_in_sums():
    """DP-SGD divides a sum of clipped gradients by the batch's size: of a sum over samples it makes a mean.

    With no noise and a clip out of reach, the mean is FedReCo's own on full batches, and the sum is refused.
    """
    records = Privacy.of(0.0, clip=1e6, unit="record", sampling="poisson")
    problem, federation = network(), random_federation(SIZES)
    options = {"tie": 1.0, "lr_0": 0.1, "local_steps": 2, "batch_size": None}
    found = run_algorithm("fedreco", problem, federation, 3, privacy=records, **options).state
    plain = run_algorithm("fedreco", problem, federation, 3, **options).state
    assert close(found.u, plain.u, 1e-10) and close(found.ui, plain.ui, 1e-10)
    with pytest.raises(Incompatible, match="not a mean over samples"):
        run_algorithm("fedreco", problem, federation, 1, privacy=records, total=True, **options)


@pytest.mark.parametrize(
    ("name", "field"),
    [("ditto", "personal_epochs"), ("fedala", "weight_epochs")]
    + [(name, "head_epochs") for name in ("fedpac", "fedreco", "fedreco_pvr", "fedrep")],
)
def test_passes_over_the_data_are_at_least_one(name, field):
    """Zero passes were one step on full batches, and none on smaller ones."""
    for value in (0, -1):
        with pytest.raises(UserError, match=f"{field} must be above 0, given {value}"):
            make_algorithm(name, **{field: value})


def test_fedavg_under_a_mechanism_that_does_nothing_is_fedavg():
    """No noise, no client clip, a server clip out of reach, clients of one size."""
    silent = Privacy.of(0.0, clip=float("inf"), server_clip=1e9)
    problem, federation = network(), random_federation([8, 8, 8])
    found = run_algorithm("fedavg", problem, federation, 3, privacy=silent, **WORK).state
    assert close(found.x, run_algorithm("fedavg", problem, federation, 3, **WORK).state.x, 1e-12)
