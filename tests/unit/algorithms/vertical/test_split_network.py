"""One local iteration is SGD of the joined network: cutting it changes nothing but who computes what."""

import pytest
import torch
from torch.nn import functional

from harness.core import Problem
from harness.core.losses import weighted_mean
from harness.core.settings.compression import Compression
from harness.problems import PROBLEMS, Setting
from tests.support.wire import cohort
from tests.support.worlds import close, make_algorithm, run_algorithm, settled, vertical_data


def people(n=12, parties=3, columns=2, classes=3):
    generator = torch.Generator().manual_seed(5)
    x = [torch.randn(n, columns, generator=generator, dtype=torch.float64) for _ in range(parties)]
    return vertical_data(x, torch.randint(classes, (n,), generator=generator), classes)


def joined_loss(x, y, batch):
    """Write the joined network out: relu of each party's linear layer, side by side, then a linear layer."""
    hidden = [batch.x[k] @ y[k][:8].view(4, 2).T + y[k][8:] for k in range(3)]
    logits = functional.relu(torch.cat(hidden, -1)) @ x[:36].view(3, 12).T + x[36:]
    return functional.cross_entropy(logits, batch.y[0])


ONCE = [("splitnn", {}), ("lvfl", {"iterations": 1}), ("lvfl", {"iterations": 1, "labels": "server"})]


@pytest.mark.parametrize(("name", "settings"), ONCE)
@pytest.mark.parametrize("batch_size", [None, 4])
def test_one_iteration_is_sgd_of_the_joined_network(batch_size, name, settings):
    """Three parties x 2 columns -> 4, server 12 -> 3: P = 39 and Q = 12, ten steps in two rounds."""
    federation = people()
    kind = PROBLEMS["vertical"]
    problem, _ = kind.build(Setting(kind.settings(embedding=4), federation, ("logistic", {})))
    algorithm = make_algorithm(name, lr=0.4, local_steps=5, batch_size=batch_size, **settings)
    start = {name: value.double() for name, value in problem.init(torch.Generator().manual_seed(1)).items()}
    found = run_algorithm(algorithm, problem, federation, 2, start=start).state
    x = start["x"].clone().requires_grad_()
    y = start["y"].repeat(3, 1).requires_grad_()
    optimizer = torch.optim.SGD([x, y], lr=0.4)
    for number in range(2):
        clients = cohort(data=federation, problem=problem, round=number)
        for batch in clients.batches(algorithm, aligned=True):
            assert torch.equal(batch.y, batch.y[:1].expand_as(batch.y))  # the same people everywhere
            optimizer.zero_grad()
            joined_loss(x, y, batch).backward()
            optimizer.step()
    assert close(found.x, x.detach(), 1e-12)
    assert close(found.y, y.detach(), 1e-12)
    assert not close(found.y[0], found.y[1], 1e-3)


LINEAR = [
    ("splitnn", {"lr": 0.5}, {}),
    ("lvfl", {"lr": 0.3, "iterations": 1}, {}),
    ("lvfl", {"lr": 0.1, "iterations": 4}, {}),
    ("lvfl", {"lr": 0.1, "iterations": 4, "labels": "server"}, {}),
    ("lvfl", {"lr": 0.1, "iterations": 4}, {"beta": 0.5}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings", "compression"), LINEAR)
def test_linear_parties_reach_least_squares_unless_pruned(name, settings, compression):
    """h_k = x_k theta_k, head = intercept + sum of the embeddings, squared loss: the normal equations.

    Where no variable moves, all gradients are zero at the point that was exchanged, so the number of local
    iterations does not move the end. With half of the embeddings cut to zero the residuals are others.
    """
    federation = people(n=40, classes=5)

    def loss(x, embeddings, batch):
        return weighted_mean(0.5 * (x[0] + embeddings.sum(0)[:, 0] - batch.y) ** 2, batch.weight)

    zeros = lambda generator: {  # noqa: E731
        "x": torch.zeros(1, dtype=torch.float64),
        "y": torch.zeros(2, dtype=torch.float64),
    }
    problem = Problem("least squares", "vertical", zeros, loss, embed=lambda y, batch: (batch.x @ y)[:, None])
    work = {"local_steps": 2, "batch_size": None, **settings}
    if compression:  # not affine, so it is run
        wire = Compression(codec="float64", **compression)
        state = run_algorithm(name, problem, federation, 60, compression=wire, **work).state
    else:
        state = settled(name, problem, federation, **work)
    columns = federation.pool.x.view(3, 40, 2).permute(1, 0, 2).flatten(1)
    design = torch.cat([torch.ones(40, 1, dtype=torch.float64), columns], 1)
    solved = torch.linalg.lstsq(design, federation.pool.y[:40, None].double()).solution[:, 0]
    found = torch.cat([state.x, state.y.flatten()])
    assert close(found, solved, 1e-8) != bool(compression)
    assert found.isfinite().all() and close(found, solved, 2.0)
