"""FedMP: its rounds written out, what travels, and who gets the smaller models."""

import pytest
import torch

from compression.graph import units
from compression.structured import prune
from harness.core import UserError
from harness.core.errors import Incompatible
from harness.core.methods.bandit import Agents, choose, learn
from harness.core.settings.compression import Compression
from harness.core.settings.privacy import Privacy
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

SIZES = (6, 4, 5, 3)
WORK = {"lr": 0.3, "local_steps": 2, "batch_size": None}
BANDIT = ("pulls", "gains", "edges")


def simulation(*, cohort=None, privacy=None, compression=EXACT, sizes=SIZES, problem=None, **settings):
    algorithm = make_algorithm("fedmp", **{**WORK, "speeds": (1.0, 0.25), **settings})
    data = random_federation(sizes)
    return Simulation(problem or network(), data, algorithm, privacy, compression, (0,), cohort=cohort)


def masks_of(run, arms, step):
    groups = units(network().module)
    return [prune(run.state.x, groups, arm * step) for arm in arms]


def drawn(run, agents):
    """The arms of the next round, whose cohort is asked for the public draws."""
    clients = run.cohort()
    draws = torch.special.ndtr(clients.normal("ratio", 0, 1)).squeeze(-1)
    return clients.ids.tolist(), choose(Agents(*(part[clients.ids] for part in agents)), draws)


@pytest.mark.slow
def test_fedmp_is_its_recursion_on_partial_cohorts():
    """x + sum of n_i / n times the increments of what each has; rewards are the drop of the loss over the gap."""
    run, problem, data = (
        simulation(cohort=2, cells=4, max_ratio=0.8, discount=0.9),
        network(),
        random_federation(SIZES),
    )
    batches = list(zip(data.pool.x.split(SIZES), data.pool.y.split(SIZES), strict=True))
    shapes = [(name, part.shape) for name, part in problem.module.named_parameters()]

    def loss(x, client):
        inputs, labels = batches[client]
        parts = x.split([shape.numel() for _, shape in shapes])
        named = {name: part.view(shape) for (name, shape), part in zip(shapes, parts, strict=True)}
        scores = torch.func.functional_call(problem.module, named, (inputs,))
        return torch.nn.functional.cross_entropy(scores, labels)

    x, agents, best = run.state.x.clone(), Agents(*(getattr(run.state, name) for name in BANDIT)), 0.0
    widths = set()
    for _ in range(8):
        who, arms = drawn(run, agents)
        masks = masks_of(run, arms.tolist(), 0.2)
        run.step()
        shares = [SIZES[client] / sum(SIZES[one] for one in who) for client in who]
        moved, drop = torch.zeros_like(x), 0.0
        for client, mask, share in zip(who, masks, shares, strict=True):
            local = x * mask
            for _ in range(2):
                local = local - 0.3 * torch.func.grad(loss)(local, client) * mask
            moved += share * (local - x * mask)
            drop += share * float(loss(x * mask, client) - loss(local, client))
            widths.add(int(mask.sum()))
        x = x + moved
        times = torch.stack(
            [mask.double().mean() / (1.0, 0.25)[client % 2] for client, mask in zip(who, masks, strict=True)]
        )
        rewards = max(drop, 0.0) / (times / times.mean() - 1).abs().clamp(min=0.1)
        best = max(0.9 * best, float(rewards.max()))
        mine = learn(Agents(*(part[who] for part in agents)), arms, rewards / best, 0.9)
        agents = Agents(
            *(part.index_copy(0, torch.tensor(who), new) for part, new in zip(agents, mine, strict=True))
        )
        assert close(run.state.x, x, 1e-12) and close(run.state.best, best, 1e-12)
        assert all(
            close(getattr(run.state, name), part, 1e-12) for name, part in zip(BANDIT, agents, strict=True)
        )
    assert len(widths) > 2


def test_with_one_ratio_it_is_federated_averaging():
    task = network(), random_federation(SIZES)
    work = {**WORK, "batch_size": 2, "momentum": 0.5}
    found = run_algorithm("fedmp", *task, 5, cells=1, cohort=2, **work).state
    assert close(found.x, run_algorithm("fedavg", *task, 5, cohort=2, **work).state.x, 1e-12)


def test_bytes_are_those_of_the_smaller_models():
    """4 bytes a parameter that is left, down and up, and 4 up for the loss."""
    run, seen = simulation(compression=Compression(), cells=4), set()
    for _ in range(6):
        agents = Agents(*(getattr(run.state, name) for name in BANDIT))
        _, arms = drawn(run, agents)
        sizes = [int(mask.sum()) for mask in masks_of(run, arms.tolist(), 0.2)]
        before = int(run.cost.up), int(run.cost.down)
        run.step()
        assert int(run.cost.down) - before[1] == 4 * sum(sizes)
        assert int(run.cost.up) - before[0] == 4 * sum(sizes) + 4 * 4
        seen |= set(sizes)
    assert len(seen) > 2


def test_the_server_keeps_what_nobody_trained():
    """Every client lacks units: these do not move, and are not lost."""
    run = simulation(cells=4)
    for _ in range(4):
        _, arms = drawn(run, Agents(*(getattr(run.state, name) for name in BANDIT)))
        held = torch.stack(masks_of(run, arms.tolist(), 0.2)).any(0)
        before = run.state.x
        run.step()
        assert torch.equal(run.state.x[~held], before[~held]) and bool(before[~held].all())
        assert bool((run.state.x != before)[held].any())


@pytest.mark.slow
def test_slow_clients_learn_to_take_smaller_models():
    """Speeds 1 and 1/4: the latter's mean ratio over the second half is larger by a sixth or more."""
    run = simulation(sizes=(20,) * 4, problem=network(hidden=(20,)), lr=0.1)
    totals = torch.zeros(4, dtype=torch.float64)
    for number in range(240):
        before = run.state.pulls
        run.step()
        arms = (run.state.pulls - 0.995 * before).argmax(-1)
        totals += arms * 0.1 / 120 if number >= 120 else 0.0
    fast, slow = totals[[0, 2]], totals[[1, 3]]
    assert float(slow.min()) > float(fast.max()) + 1 / 12


def test_noise_is_on_what_a_client_has():
    """With one client, x has noise on its model alone."""
    run = simulation(sizes=(6,), privacy=Privacy.of(1.0, placement="local", clip=1.0), cells=4)
    for _ in range(4):
        _, arms = drawn(run, Agents(*(getattr(run.state, name) for name in BANDIT)))
        (mask,) = masks_of(run, arms.tolist(), 0.2)
        before = run.state.x
        run.step()
        assert torch.equal(run.state.x != before, mask)
        assert run.ledger.last == 1


@pytest.mark.parametrize(
    ("refused", "match"),
    [
        ({"compression": EXACT.model_copy(update={"alpha": 0.5})}, "compression.alpha"),
        ({"compression": EXACT.model_copy(update={"beta": 0.5, "error_feedback": True})}, "error_feedback"),
        ({"compression": EXACT.model_copy(update={"beta": 0.5, "select": "random_k"})}, "random_k"),
        (
            {"privacy": Privacy.of(1.0, sampling="poisson", rate=0.5, clip=1.0), "cohort": 2},
            "central privacy",
        ),
        ({"privacy": Privacy.of(1.0, unit="record", sampling="poisson", clip=1.0)}, "record-level"),
        ({"problem": logistic()}, "no hidden units"),
    ],
)
def test_what_does_not_go_with_it_is_refused(refused, match):
    with pytest.raises(Incompatible, match=match):
        simulation(**refused).step()


@pytest.mark.parametrize(
    "settings", [{"speeds": ()}, {"speeds": (0.0,)}, {"max_ratio": 1.0}, {"cells": 0}, {"discount": 1.5}]
)
def test_fedmp_refuses_what_makes_no_sense(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        make_algorithm("fedmp", **settings)
