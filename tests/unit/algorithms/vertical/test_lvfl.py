"""LVFL: local iterations by hand, what travels, and what pruning does to embeddings (algorithms.md, V1 to V7)."""

import math

import pytest
import torch
from torch import nn

from compression.codec import find_codec
from harness.core import Channel
from harness.core.clients.parties import linearized_loss, party_loss, with_embeddings, with_gradients
from harness.core.clients.pruning import prune_own_models
from harness.core.settings.compression import Compression
from harness.models import build
from harness.problems.vertical import split_classifier
from tests.support.wire import cohort
from tests.support.worlds import EXACT, close, make_algorithm, run_algorithm, vertical_data

PARTIES, SAMPLES, LENGTH = 3, 12, 5
HEAD = (
    PARTIES * LENGTH * 3 + 3
)  # parameters of the server's network: a weight and a bias for each of three classes


def people(shape=(2,)):
    generator = torch.Generator().manual_seed(5)
    x = [torch.randn(SAMPLES, *shape, generator=generator, dtype=torch.float64) for _ in range(PARTIES)]
    return vertical_data(x, torch.randint(3, (SAMPLES,), generator=generator), 3)


def network(party=None, activation="before"):
    party = party or nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, LENGTH))
    return split_classifier(party, nn.Linear(PARTIES * LENGTH, 3), activation)


def start(problem, seed=1):
    drawn = problem.init(torch.Generator().manual_seed(seed))
    return {name: value.double() for name, value in drawn.items()}


def world(problem, federation, compression=EXACT, **options):
    """Return a round's two sides for everybody, and a batch of all samples."""
    mode = "vmap" if problem.dense else "loop"
    clients = cohort(data=federation, problem=problem, mode=mode, **options)
    batch = next(iter(clients.batches(None, steps=1, aligned=True)))
    return clients, Channel(clients, compression=compression), batch


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["everywhere", "server"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_two_local_iterations_by_hand(labels, beta):
    """Everything stale but one's own, which is fresh and whole; the head is stale at the parties, fresh at home.

    With labels: party k differentiates the loss at (stale head, what the others sent, its own embeddings now).
    Without: it follows the gradient by its embeddings as sent. The server sees what was sent only.
    """
    federation, problem = people(), network()
    algorithm = make_algorithm("lvfl", lr=0.3, iterations=2, local_steps=1, batch_size=None, labels=labels)
    first = start(problem)
    wire = Compression(codec="float64", beta=beta)
    found = run_algorithm(algorithm, problem, federation, 1, start=first, compression=wire).state
    data = federation.pool.at(federation.splits["train"])
    own = [type(data)(*(part[k] for part in data)) for k in range(PARTIES)]
    x, y = first["x"].clone(), first["y"].repeat(PARTIES, 1)
    sent = torch.stack([problem.embed(y[k], own[k]) for k in range(PARTIES)])
    for row in sent:
        row.flatten()[row.flatten().abs().argsort()[: math.floor(beta * SAMPLES * LENGTH)]] = 0.0
    at = sent.clone().requires_grad_()
    told = torch.autograd.grad(problem.loss(first["x"], at, own[0]), at)[0]
    for _ in range(2):
        moves = []
        for k in range(PARTIES):
            theta = y[k].clone().requires_grad_()
            h = problem.embed(theta, own[k])
            if labels == "everywhere":
                joined = torch.stack([h if j == k else sent[j] for j in range(PARTIES)])
                value = problem.loss(first["x"], joined, own[k])
            else:
                value = (h * told[k]).sum()
            moves.append(torch.autograd.grad(value, theta)[0])
        head = x.clone().requires_grad_()
        (gx,) = torch.autograd.grad(problem.loss(head, sent, own[0]), head)
        x, y = x - 0.3 * gx, y - 0.3 * torch.stack(moves)
    assert close(found.x, x, 1e-12)
    assert close(found.y, y, 1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.2, 0.6])
@pytest.mark.parametrize("resend", [True, False])
def test_bytes_are_those_of_the_formula(beta, resend):
    """12 x 5 = 60 numbers a party: 60 - floor(60 beta) float32 values, and for beta > 0 a header and a bitmap.

    A bitmap of 60 entries has 8 bytes and more than an eighth of them is kept, so gaps are no shorter. Down, to
    each of three parties: 48 values of theta_0 and what all three have sent; without its own, what two have.
    """
    up = 4 * (60 - math.floor(60 * beta + 1e-9)) + (5 + 8 if beta else 0)
    down = 4 * HEAD + (3 if resend else 2) * up
    work = {"iterations": 2, "local_steps": 1, "batch_size": None, "resend": resend}
    wire = Compression(codec="float32", beta=beta)
    cost = run_algorithm("lvfl", network(), people(), 2, compression=wire, **work).cost
    assert (int(cost.up), int(cost.down)) == (2 * PARTIES * up, 2 * PARTIES * down)


def test_with_server_labels_only_embedding_gradients_go_down():
    """60 float32 values each way and party, for SplitNN and for it with more iterations alike."""
    for name, settings in (("splitnn", {}), ("lvfl", {"labels": "server", "iterations": 3})):
        wire = Compression(codec="float32")
        cost = run_algorithm(
            name, network(), people(), 2, compression=wire, local_steps=1, batch_size=None, **settings
        ).cost
        assert (int(cost.up), int(cost.down)) == (2 * PARTIES * 4 * 60, 2 * PARTIES * 4 * 60)


def test_slots_without_a_sample_do_not_travel():
    """12 samples in batches of 5, 5 and 2: 12 x 5 values a party and pass, not 15 x 5."""
    wire = Compression(codec="float32")
    cost = run_algorithm(
        "splitnn", network(), people(), 1, compression=wire, local_epochs=1, batch_size=5
    ).cost
    assert int(cost.up) == int(cost.down) == PARTIES * 4 * SAMPLES * LENGTH


@pytest.mark.parametrize("beta", [0.2, 0.6])
def test_what_the_server_reads_is_what_was_written(beta):
    """Values and bitmap, written and read as bytes."""
    federation, problem = people(), network(activation="after")
    clients, channel, batch = world(problem, federation, Compression(codec="float32", beta=beta))
    h = clients.embed(clients.rows(start(problem)["y"]), batch)
    seen = channel.gather(h, per_sample=batch)
    codec = find_codec("float32")
    for own, arrived in zip(h.flatten(-2), seen.flatten(-2), strict=True):
        code = codec.encode(own, arrived != 0)
        assert torch.equal(codec.decode(code, 60, sparse=True, dtype=torch.float64), arrived)
    assert int(clients.cost.up) == PARTIES * len(code)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lvfl", "splitnn"])
def test_where_the_relu_is_matters_to_pruned_messages_only(name):
    """Both forms are one network; with its ReLU at the parties, a fifth of zeros is dropped and nothing is lost."""
    ends = {}
    for activation, beta in [(form, beta) for form in ("before", "after") for beta in (0.0, 0.2, 0.8)]:
        work = {"local_steps": 3, "batch_size": None, "lr": 0.3}
        wire = Compression(codec="float64", beta=beta)
        ends[activation, beta] = run_algorithm(
            name, network(activation=activation), people(), 1, compression=wire, **work
        ).state
    whole = ends["before", 0.0]
    for other, same in [(("after", 0.0), True), (("before", 0.2), True), (("before", 0.8), False)]:
        assert close(ends[other].y, whole.y, 1e-12) == same
    assert not close(ends["after", 0.8].y, ends["before", 0.8].y, 1e-3)


def test_zeros_of_the_relu_are_dropped_first():
    """Dropping less than the share of zeros is exact; sent before the ReLU, the same share costs values."""
    wire = Compression(codec="float64", beta=0.1)
    for activation in ("before", "after"):
        problem = network(activation=activation)
        clients, channel, batch = world(problem, people(), wire)
        h = clients.embed(clients.rows(start(problem)["y"]), batch)
        assert bool((h < 0).any()) == (activation == "after")
        assert float((h <= 0).double().mean((-2, -1)).min()) > 0.1
        channel.gather(h, per_sample=batch)
        assert bool((clients.errors["omega"] > 0).any()) == (activation == "after")


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_omega_is_at_most_beta_of_the_embeddings_energy(beta):
    """Dropped are the floor(60 beta) smallest squares of 60: no more than that share of their sum."""
    problem = network(activation="after")
    clients, channel, batch = world(problem, people(), Compression(codec="float64", beta=beta))
    h = clients.embed(clients.rows(start(problem)["y"]), batch)
    seen = channel.gather(h, per_sample=batch)
    omega = clients.errors["omega"]
    assert close(omega, (h - seen).square().sum((-2, -1)) / SAMPLES, 1e-12)
    assert bool((omega > 0).all())
    assert bool((omega <= beta * h.square().sum((-2, -1)) / SAMPLES).all())


def test_models_are_pruned_between_exchange_and_iterations():
    """What was sent came from the whole models; psi compares them with the pruned; the step is of the pruned.

    Half of ten hidden neurons go, those with the least incoming weight; so for one iteration theta = masked
    start - lr masked gradient, at the embeddings that the whole models have sent.
    """
    federation, problem = people(), network()
    first = start(problem)
    clients, channel, _ = world(problem, federation, alpha=0.5)
    work = make_algorithm("lvfl", lr=0.3, iterations=1, local_steps=1, batch_size=None)
    state = work.round(work.init(first, clients, channel), clients, channel)
    data = federation.pool.at(federation.splits["train"])
    own = [type(data)(*(part[k] for part in data)) for k in range(PARTIES)]
    sent = torch.stack([problem.embed(first["y"], one) for one in own])
    least = first["y"][:20].view(10, 2).abs().sum(1).argsort()[:5]
    mask = torch.ones(20 + 10 + 50 + 5, dtype=torch.bool)
    mask[:20].view(10, 2)[least], mask[20:30][least], mask[30:80].view(5, 10)[:, least] = False, False, False
    for k in range(PARTIES):
        theta = (first["y"] * mask).requires_grad_()
        h = problem.embed(theta, own[k])
        joined = torch.stack([h if j == k else sent[j] for j in range(PARTIES)])
        (gradient,) = torch.autograd.grad(problem.loss(first["x"], joined, own[k]), theta)
        assert close(state.y[k], (theta - 0.3 * gradient * mask).detach(), 1e-12)
        assert close(clients.errors["psi"][k], (sent[k] - h).detach().square().sum() / SAMPLES, 1e-12)
    assert close(clients.errors["omega"], torch.zeros(PARTIES), 0.0)


PARTY_NETS = {
    "mlp": (nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, LENGTH)), (2,)),
    "filters": (build("vgg_small", (1, 4, 4), LENGTH, {"width": 0.5}), (1, 4, 4)),
    "group norm": (build("vgg_small", (1, 4, 4), LENGTH, {"width": 0.5, "norm": "group"}), (1, 4, 4)),
}


@pytest.mark.parametrize("net", PARTY_NETS)
@pytest.mark.parametrize("ratio", [0.5, [0.0, 0.5, 0.75]])
def test_the_really_smaller_models_are_the_masked_ones(net, ratio):
    """Embeddings, gradients of the loss and gradients of what the server told, for every party's own model."""
    party, shape = PARTY_NETS[net]
    federation, problem = people(shape), network(party)
    y = torch.stack([start(problem, seed)["y"] for seed in range(PARTIES)])
    left = prune_own_models(problem, y, torch.as_tensor(ratio, dtype=torch.float64), None)
    masks, y = torch.stack([model.mask for model in left.models]), left.masked(y)
    whole, _, batch = world(problem, federation)
    small, _, _ = world(problem, federation, pruned=left)
    h = whole.embed(y, batch)
    assert close(small.embed(y, batch), h, 1e-12)
    x, told = whole.rows(start(problem)["x"]), with_embeddings(batch, h)
    for objective, points, place, given in (
        (party_loss, (x, y), 1, told),
        (linearized_loss, (y,), 0, with_gradients(batch, h)),
    ):
        expected = whole.gradient(objective, *points, batch=given, by=place)
        found = small.gradient(objective, *points, batch=given, by=place)
        assert close(found, expected * masks, 1e-12) and bool(found.any())
    assert int(small.cost.flops) < int(whole.cost.flops)


def test_ratios_count_from_the_whole_width_and_never_fall():
    """Ten neurons: 0.25 leaves 8, 0.99 leaves 1; 0.29 of a hundred is 28.999... in floating point and takes 29."""
    problem, y = network(), start(network())["y"].repeat(PARTIES, 1)
    hidden = lambda left: [int(model.mask[20:30].sum()) for model in left.models]  # noqa: E731
    first = prune_own_models(problem, y, 0.25, None)
    assert hidden(first) == [8, 8, 8]
    assert prune_own_models(problem, y, 0.2, first) is first
    more = prune_own_models(
        problem, first.masked(y), torch.tensor([0.1, 0.5, 0.99], dtype=torch.float64), first
    )
    assert hidden(more) == [8, 5, 1]
    for earlier, later in zip(first.models, more.models, strict=True):
        assert not (later.mask & ~earlier.mask).any()
    wide = network(nn.Sequential(nn.Linear(2, 100), nn.ReLU(), nn.Linear(100, LENGTH)))
    rows = start(wide)["y"].repeat(PARTIES, 1)
    assert [int(model.mask[200:300].sum()) for model in prune_own_models(wide, rows, 0.29, None).models] == [
        71
    ] * 3


def test_the_embedding_layer_stays_whole():
    """All five outputs of every party, however much is pruned: 1 of 10 neurons leaves 2 + 1 + 5 + 5 parameters."""
    problem, y = network(activation="after"), start(network())["y"].repeat(PARTIES, 1)
    left = prune_own_models(problem, y, 0.9, None)
    assert [int(model.mask.sum()) for model in left.models] == [2 + 1 + 5 + 5] * PARTIES
    batch = world(problem, people())[2]
    small = world(problem, people(), pruned=left)[0].embed(left.masked(y), batch)
    assert small.shape == (PARTIES, SAMPLES, LENGTH) and bool(small.any(-2).all())


def test_schedules_of_zero_are_no_pruning_at_all():
    """L with schedules that never begin is NL, number by number and byte by byte."""
    work = {"iterations": 2, "local_steps": 2, "batch_size": 4}
    runs = [
        run_algorithm(
            "lvfl", network(), people(), 3, compression=Compression(codec="float32", **given), **work
        )
        for given in ({}, {"beta": ((0, 0.0), (2, (0.0, 0.0, 0.0)))})
    ]
    assert all(torch.equal(one, other) for one, other in zip(runs[0].state, runs[1].state, strict=True))
    assert runs[0].cost.state() == runs[1].cost.state()
