"""Runs of several seeds share their seed's features in one stack, and get the gradients that they get alone."""

import pytest
import torch

from datasets.federation import Batch, Federation, stack
from harness import models
from harness.core.clients.clients import Clients
from harness.core.cost import Cost
from harness.core.execution.vectorize import ClientExecutor
from harness.problems.classify import classifier

CLIENTS, COLUMNS, SAMPLES = 3, 6, 8


class Work:
    local_steps, local_epochs, batch_size = 2, None, 4


def dealt(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(CLIENTS * SAMPLES, COLUMNS, generator=generator)
    y, ones = (x[:, 0] > 0).long(), torch.ones(len(x))
    index = torch.randperm(len(x), generator=generator).view(CLIENTS, SAMPLES)
    pool = Batch(x, y, torch.zeros_like(y), ones)
    return Federation(pool, {"train": index, "test": index}, ("0", "1"), (), "made", "made")


def cohort(federation, seeds, problem):
    ids = torch.arange(CLIENTS)
    ids = ids.expand(len(seeds), -1) if len(seeds) > 1 else ids
    return Clients(
        federation,
        problem,
        ClientExecutor("vmap"),
        seeds=seeds,
        round=0,
        ids=ids,
        cost=Cost((len(seeds),)[: ids.ndim - 1]),
    )


@pytest.mark.parametrize(
    "seeds", [(0, 0, 0, 1, 1, 1), (0, 0, 0), (4, 4, 2, 2, 3, 3), (0, 0, 1), (0, 1, 0, 1)]
)
@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_gradients_are_those_of_the_runs_alone(name, seeds):
    problem = classifier(models.build(name, (COLUMNS,), 2))
    each = {seed: dealt(seed) for seed in seeds}
    size = problem.init(torch.Generator())["x"].numel()
    points = torch.randn(len(seeds), CLIENTS, size, generator=torch.Generator().manual_seed(1))
    together = cohort(stack([each[seed] for seed in seeds]), seeds, problem)
    runs = {seed: seeds.count(seed) for seed in seeds}
    alike = len(set(runs.values())) == 1 and list(seeds) == sorted(seeds, key=seeds.index)
    for step, batch in enumerate(together.batches(Work())):
        assert len(batch.samples.x) == (len(each) if alike else len(seeds)) and len(batch.weight) == len(
            seeds
        )
        gradients = together.grad(points, batch)
        sums = together.each(summed, points, batch)
        for number, seed in enumerate(seeds):
            alone = cohort(each[seed], (seed,), problem)
            own = list(alone.batches(Work()))[step]
            assert torch.equal(gradients[number], alone.grad(points[number], own))
            assert torch.equal(sums[number], alone.each(summed, points[number], own))
            assert int(together.cost.flops[number]) == (step + 1) * int(alone.cost.flops)


def summed(point, batch):
    return batch.x.sum(0)[:2] * point[:2]
