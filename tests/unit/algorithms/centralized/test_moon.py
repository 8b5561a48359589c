"""MOON against its loss written in plain torch, and its limits."""

import math

import pytest
import torch
from torch.nn import functional

from harness.core.errors import Incompatible
from harness.core.methods.derivatives import contrastive_loss
from harness.simulation.simulation import Simulation
from tests.support.worlds import (
    EXACT,
    close,
    logistic,
    make_algorithm,
    network,
    random_federation,
    run_algorithm,
)

SIZES = [9, 12, 7]


def layers(model):
    """Return weights and biases of 4 - 5 - 3."""
    first, rest = model[:25], model[25:]
    return first[:20].view(5, 4), first[20:], rest[:15].view(3, 5), rest[15:]


def features(model, x):
    weight, bias, _, _ = layers(model)
    return torch.tanh(functional.linear(x, weight, bias))


def test_moon_takes_the_rounds_of_plain_torch():
    """Cross-entropy of two logits, cosine similarities over tau, whose right answer is the global model."""
    federation, lr, mu, tau = random_federation(SIZES), 0.4, 3.0, 0.5
    work = {"lr": lr, "mu": mu, "temperature": tau, "local_steps": 3, "batch_size": None}
    run = Simulation(network(), federation, make_algorithm("moon", **work), None, EXACT, (0,))
    w = torch.cat([run.state.u, run.state.v])
    previous = [w] * 3
    data = [(federation.pool.x[i[i >= 0]], federation.pool.y[i[i >= 0]]) for i in federation.splits["train"]]
    for members in [(0, 1, 2), (0, 2), (1,), (0, 1)]:
        run.step(torch.tensor(members))
        mean = torch.zeros_like(w)
        for i in members:
            x, y = data[i]
            at = w.clone().requires_grad_()
            for _ in range(3):
                _, _, weight, bias = layers(at)
                z = features(at, x)
                pairs = [functional.cosine_similarity(z, features(one, x)) / tau for one in (w, previous[i])]
                chosen = functional.cross_entropy(torch.stack(pairs, -1), torch.zeros_like(y))
                loss = functional.cross_entropy(functional.linear(z, weight, bias), y) + mu * chosen
                (slope,) = torch.autograd.grad(loss, at)
                at = (at - lr * slope).detach().requires_grad_()
            previous[i] = at.detach()
            mean += len(y) / sum(len(data[j][1]) for j in members) * (at.detach() - w)
        w = w + mean
        assert close(torch.cat([run.state.u, run.state.v]), w, 1e-12)


def test_moon_without_contrast_is_fedavg():
    work = {"local_epochs": 1, "batch_size": 4, "lr": 0.3, "momentum": 0.5}
    problem, federation = network(), random_federation(SIZES)
    plain = run_algorithm("fedavg", problem, federation, 4, **work).state.x
    found, pulled = (run_algorithm("moon", problem, federation, 4, mu=mu, **work).state for mu in (0.0, 5.0))
    assert close(torch.cat([found.u, found.v]), plain, 1e-12)
    assert not close(torch.cat([pulled.u, pulled.v]), plain, 1e-3)


def test_features_of_zero_have_no_direction():
    """An extractor of zeros has features tanh 0 = 0 and no cosine: the contrast is ln 2, its gradient finite."""
    problem, federation = network().halves(), random_federation([6])
    zero = torch.zeros(25, dtype=torch.float64)
    v = torch.zeros(18, dtype=torch.float64)
    loss = contrastive_loss(problem, 1.0, 0.5)
    slope, value = torch.func.grad_and_value(loss)(zero, v, zero + 1.0, zero - 1.0, federation.pool)
    assert float(value) == pytest.approx(math.log(3) + math.log(2))
    assert bool(slope.isfinite().all())


def test_a_model_without_extractor_is_refused():
    with pytest.raises(Incompatible, match="no hidden layer"):
        run_algorithm("moon", logistic(), random_federation(SIZES), 1)
