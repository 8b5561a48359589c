"""Methods that share a part of the model and keep the rest at home, against plain torch."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from harness import models
from harness.core.errors import Incompatible
from harness.core.execution.vectorize import ClientExecutor
from harness.core.flat_model import Ravel
from harness.core.problem import set_apart
from harness.core.settings.compression import Compression
from harness.problems.classify import classifier
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

WORK = {"local_steps": 3, "batch_size": None, "lr": 0.3, "grad_clip": None}
SIZES = [9, 12, 7]
HEAD = torch.arange(43) >= 25  # of the network 4 - 5 - 3: what is no extractor


def scores(model, x):
    """Return the logits of the network 4 - 5 - 3 with tanh."""
    hidden = torch.tanh(functional.linear(x, model[:20].view(5, 4), model[20:25]))
    return functional.linear(hidden, model[25:40].view(3, 5), model[40:])


@pytest.mark.parametrize(("name", "shared"), [("lg_fedavg", HEAD), ("fedper", ~HEAD)])
def test_what_is_shared_is_averaged_and_the_rest_stays(name, shared):
    """Joint descent on full batches; the mean of a cohort, by samples, replaces the shared coordinates."""
    federation = random_federation(SIZES)
    run = Simulation(network(), federation, make_algorithm(name, **WORK), None, EXACT, (0,))
    start = network().init(torch.Generator().manual_seed(0))["x"].double()
    models = torch.zeros(3, 43, dtype=torch.float64)
    models[:, shared], models[:, ~shared] = run.state.u, run.state.vi
    assert run.state.u.shape == start[shared].shape and bool((models == models[0]).all())
    data = [(federation.pool.x[i[i >= 0]], federation.pool.y[i[i >= 0]]) for i in federation.splits["train"]]
    for members in [(0, 1, 2), (1, 2), (0,), (0, 2)]:
        run.step(torch.tensor(members))
        for i in members:
            at = models[i].clone().requires_grad_()
            for _ in range(3):
                (slope,) = torch.autograd.grad(
                    functional.cross_entropy(scores(at, data[i][0]), data[i][1]), at
                )
                at = (at - 0.3 * slope).detach().requires_grad_()
            models[i] = at.detach()
        weights = torch.tensor([float(SIZES[i]) for i in members], dtype=torch.float64)
        models[:, shared] = (weights / weights.sum()) @ models[list(members)][:, shared]
        assert close(run.state.u, models[0][shared], 1e-12) and close(run.state.vi, models[:, ~shared], 1e-12)


def test_lg_fedavg_sends_the_head():
    """5 hidden units, 3 classes: 18 numbers each way for 3 clients."""
    cost = run_algorithm("lg_fedavg", network(), random_federation(SIZES), 2, **WORK).cost
    assert int(cost.up) == int(cost.down) == 2 * 3 * 18 * 8


def test_a_part_set_apart_leaves_the_model_as_it_is():
    """Start, scores and loss are those of the whole, whose order is kept: the extractor precedes the head."""
    whole = network()
    problem, pool = set_apart(whole, "extractor"), random_federation([6]).pool
    start = problem.init(torch.Generator().manual_seed(3))
    x, y = start["x"].double(), start["y"].double()
    model = whole.init(torch.Generator().manual_seed(3))["x"].double()
    assert torch.equal(torch.cat([y, x]), model)
    assert torch.equal(problem.predict(torch.cat([x, y]), pool.x), whole.predict(model, pool.x))
    assert torch.equal(problem.loss(x, y, pool), whole.loss(model, pool))


def test_parts_of_units_cannot_be_pruned():
    with pytest.raises(Incompatible, match=r"compression\.alpha: .* shares parts of the model only"):
        run_algorithm("lg_fedavg", network(), random_federation(SIZES), 1, compression=Compression(alpha=0.5))


@pytest.mark.parametrize(
    ("name", "problem", "reason"),
    [("lg_fedavg", logistic(), "no hidden layer"), ("fedbn", network(), "has none; try model resnet18")],
)
def test_models_without_the_part_are_refused(name, problem, reason):
    with pytest.raises(Incompatible, match=reason):
        run_algorithm(name, problem, random_federation(SIZES), 1)


def residual():
    """A network of two blocks on images of 1 x 4 x 4, whose norm layers lie between and beside convolutions."""
    net = models.build("resnet18", (1, 4, 4), 3, {"width": 0.03125})
    made = random_federation(SIZES, features=16)
    return classifier(net), replace(made, pool=made.pool._replace(x=made.pool.x.view(-1, 1, 4, 4)))


def test_norm_layers_differ_and_all_else_is_shared():
    """After a round every client's model has the common weights, and scales and shifts of its own."""
    problem, federation = residual()
    algorithm = make_algorithm("fedbn", lr=0.1, local_steps=2, batch_size=None)
    state = run_algorithm(algorithm, problem, federation, 2, executor=ClientExecutor("loop")).state
    ravel = Ravel(problem.module)
    norms = torch.cat(
        [
            torch.full((n,), len(shape) == 1 and "head" not in name)
            for name, n, shape in zip(ravel.names, ravel.sizes, ravel.shapes, strict=True)
        ]
    )
    assert int(norms.sum()) == state.vi.shape[-1] and int((~norms).sum()) == state.u.shape[-1]
    assert bool((state.vi[0] - state.vi[1]).abs().max() > 1e-4)
    joined = algorithm.model(state)[1]
    model = torch.empty_like(joined)
    model[~norms], model[norms] = state.u, state.vi[1]
    seen = algorithm.view(problem).predict(joined, federation.pool.x)
    assert torch.equal(seen, problem.predict(model, federation.pool.x))


def test_fedbn_of_one_client_is_fedavg():
    """One client alone: norm layers at home or not, it is plain descent."""
    problem, _ = residual()
    work = {
        "lr": 0.1,
        "local_steps": 2,
        "batch_size": None,
        "executor": ClientExecutor("loop"),
        "grad_clip": None,
    }
    one = random_federation([8], features=16)
    alone = replace(one, pool=one.pool._replace(x=one.pool.x.view(-1, 1, 4, 4)))
    plain = run_algorithm("fedavg", problem, alone, 3, **work).state.x
    algorithm = make_algorithm("fedbn", **{k: v for k, v in work.items() if k != "executor"})
    state = run_algorithm(algorithm, problem, alone, 3, executor=ClientExecutor("loop")).state
    seen = algorithm.view(problem).predict(algorithm.model(state)[0], alone.pool.x)
    assert close(seen, problem.predict(plain, alone.pool.x), 1e-10)
