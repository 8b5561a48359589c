"""Adapters: factors of low rank are trained beside frozen layers, and nothing else of the network is."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

import harness
from compression.graph import units
from datasets.federation import Batch, Federation, stack
from harness.config.run import read_spec
from harness.core import rng
from harness.core.algorithm import ALGORITHMS
from harness.core.errors import Incompatible, UserError
from harness.core.execution.vectorize import ClientExecutor
from harness.core.flat_model import Ravel, constants_digest
from harness.core.settings.compression import Compression
from harness.core.settings.privacy import Privacy
from harness.models import Adapted, Net, adapters_of, build, factors_to_share, model
from harness.problems.classify import classifier
from harness.simulation.build import frozen_part, identify, prepare
from harness.simulation.saved_model import SavedModel, save_model
from harness.simulation.simulation import Simulation
from harness.simulation.stacking import signature
from harness.testing.conformance_models import check_model
from tests.support.runs import finished, given, ready, table

pytestmark = pytest.mark.usefixtures("registries")

CLIENTS, SAMPLES, INPUTS, CLASSES, RANK = 4, 12, 6, 3, 2
LORA = {"kind": "lora", "rank": RANK, "on": ["Linear"]}
A, B, HEAD = RANK * INPUTS, 8 * RANK, CLASSES * 9  # of a hidden layer of 8 units


class Pretrained(nn.Module):
    """A network whose weights are those of a file, as far as the harness can tell."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.classes = nn.Linear(8, outputs)
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)

    def forward(self, x):
        return self.classes(self.body(x))


def pretrained(shape, outputs):
    """Network with weights of a file."""
    return Pretrained(shape[0], outputs)


class Seeing(nn.Module):
    """Convolutions of several kinds with a head."""

    def __init__(self, channels, outputs):
        super().__init__()
        self.first = nn.Conv2d(channels, 6, (3, 5), stride=2, padding=1, dilation=(1, 2))
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.third = nn.Conv2d(6, 4, 1, bias=False)
        self.head = nn.Linear(4, outputs)

    def forward(self, x):
        return self.head(torch.relu(self.third(torch.relu(self.second(self.first(x))))).mean((-2, -1)))


def seeing(shape, outputs):
    """Small network for images."""
    if len(shape) != 3:
        raise UserError("images only")
    return Seeing(shape[0], outputs)


def federation(seed=1):
    generator, total = torch.Generator().manual_seed(seed), CLIENTS * SAMPLES
    x, y = (
        torch.randn(total, INPUTS, generator=generator),
        torch.randint(CLASSES, (total,), generator=generator),
    )
    index = torch.arange(total).view(CLIENTS, SAMPLES)
    pool = Batch(x, y, torch.zeros_like(y), torch.ones(total))
    return Federation(pool, {"train": index, "test": index}, tuple("abc"), (), "s", "s")


def perceptron(hidden=(8,), **adapter):
    """Return a network of ours with an adapter on its hidden layers."""
    settings = {"hidden": list(hidden), "adapter": {**LORA, **adapter}}
    return build("mlp", (INPUTS,), CLASSES, settings)


def after(problem, name="fedavg", rounds=2, seeds=(3,), data=None, **options):
    algorithm = ALGORITHMS[name](**{"local_steps": 2, "batch_size": 4, **options.pop("settings", {})})
    options = {"executor": ClientExecutor("vmap"), "noise_keys": ["key"], **options}
    run = Simulation(problem, data or federation(), algorithm, seeds=seeds, **options)
    for _ in range(rounds):
        run.step()
    return run


def test_a_network_starts_as_it_was_and_its_head_with_it():
    """B is zero, so factors add nothing; names of a plugin's layers are those of its own module."""
    model("tables")(pretrained)
    x, plain = torch.randn(5, INPUTS), Pretrained(INPUTS, CLASSES)
    net = build("pretrained", (INPUTS,), CLASSES, {"adapter": {**LORA, "on": ["body.*"], "alpha": 8}})
    ravel = Ravel(net)
    start = ravel.init(rng.stream(0, "start"))
    assert torch.allclose(ravel(start, x), plain(x), atol=1e-6)
    assert [name.split(".", 1)[1] for name in ravel.names] == [
        *("body.0.down.weight", "body.0.up.weight", "body.2.down.weight", "body.2.up.weight"),
        *("weight", "bias"),
    ]
    other = ravel.init(rng.stream(1, "start"))
    assert not torch.equal(start[:A], other[:A]) and torch.equal(start[-HEAD:], other[-HEAD:])
    assert float(start[:A].abs().max()) <= INPUTS**-0.5 and not bool(start[A : A + B].any())


def test_networks_of_ours_start_by_their_rule():
    """Frozen weights are those of the rule, for all seeds; a VGG without norms would die with those of torch."""
    adapter = {"kind": "lora", "rank": 1, "on": ["Conv2d"]}
    net = build("vgg_small", (3, 16, 16), CLASSES, {"adapter": adapter})
    second = list(adapters_of(net))[1].base.weight
    assert float(second.std()) == pytest.approx((2 / second[0].numel()) ** 0.5, rel=0.05)
    assert not any(bool(layer.base.bias.any()) for layer in adapters_of(net))
    first, other = (Ravel(net).init(rng.stream(seed, "start")) for seed in (0, 1))
    assert not torch.equal(first, other)


@pytest.mark.parametrize("name", ["linear", "convolution"])
def test_factors_are_another_weight(name):
    """With `weight`, which code may read as that of any layer."""
    base = nn.Linear(5, 4) if name == "linear" else nn.Conv2d(5, 4, 3, stride=2, padding=1)
    model("tables")(pretrained)
    (layer, *_) = adapters_of(build("pretrained", (5,), CLASSES, {"adapter": {**LORA, "alpha": 6}}))
    layer = Adapted(base, layer.adapter)
    nn.init.normal_(layer.up.weight)
    merged = deepcopy(base)
    with torch.no_grad():
        merged.weight.copy_(layer.weight)
    x = torch.randn(2, 5) if name == "linear" else torch.randn(2, 5, 9, 9)
    assert layer.scale == 3.0 and not torch.allclose(base(x), merged(x), atol=1e-2)
    assert torch.allclose(layer(x), merged(x), atol=1e-5)


def test_check_tries_adapters_on_tables_and_images(monkeypatch):
    model("images")(seeing)
    model("tables")(pretrained)
    assert [row["why"] for row in check_model("seeing")] == [None] * 6
    failed = [row["check"] for row in check_model("pretrained") if row["why"]]
    assert failed == ["Start values follow the seed"]  # without an adapter: they are those of a file
    monkeypatch.setattr(Adapted, "forward", lambda self, x: self.base(x) + self.up(self.down(x)))
    wrong = {row["check"]: row["why"] for row in check_model("seeing")}
    assert "an adapted Conv2d (6, 1, 3, 5) is off" in wrong.pop(
        "Layers with an adapter compute what weights W + alpha / rank B A do"
    )
    assert set(wrong.values()) == {None}


REFUSED = {
    "unknown layer in .* 'body.1'.*'body.2'.* Allowed: Linear, body.0, body.2, classes": {"on": ["body.1"]},
    "adapter.rank: at most 6 in layer 'body.0', whose weights are \\(8, 6\\), given 7": {"rank": 7},
    "adapter.rank must be a positive integer": {"rank": 0},
    "unknown .*adapter.kind 'lore'. Did you mean 'lora'": {"kind": "lore"},
    "adapter.on: missing": {"on": None},
    "adapter.on: at least one name": {"on": []},
    "'classes' is adapted \\(on\\) and trained whole \\(train\\)": {"on": ["classes"], "train": ["classes"]},
    "unknown field of .*'alfa'. Did you mean 'alpha'": {"alfa": 1},
    "unknown layer in .*train 'class'. Did you mean 'classes'": {"train": ["class"]},
    "unknown layer in .*train 'body.1'": {"train": ["body.1"]},
    "'Linear' is adapted \\(on\\) and trained whole \\(train\\)": {"train": ["body", "classes"]},
    "adapter.on must be a list of names": {"on": [1]},
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_an_adapter_cannot_be_is_refused(says):
    model("tables")(pretrained)
    with pytest.raises(UserError, match=says):
        build("pretrained", (INPUTS,), CLASSES, {"adapter": {**LORA, **REFUSED[says]}})


def test_other_layers_are_refused_by_name():
    def grouped(shape, outputs):
        network = Seeing(shape[0], outputs)
        network.second = nn.Conv2d(6, 6, 3, groups=3)
        return network

    model("images")(grouped)
    model("images")(seeing)
    with pytest.raises(UserError, match="'second' is a convolution in 3 groups"):
        build("grouped", (3, 9, 9), CLASSES, {"adapter": {**LORA, "on": ["second"]}})
    with pytest.raises(UserError, match="needs fields such as"):
        build("seeing", (3, 9, 9), CLASSES, {"adapter": "lora"})

    def taken(shape, outputs, *, adapter: int = 1):
        return nn.Linear(shape[0], outputs)

    with pytest.raises(UserError, match="'adapter' is a setting of every model"):
        model("tables")(taken)


def test_what_is_trained_whole_is_a_choice():
    """The head unless told otherwise; nothing; a layer by name; not a head that the network has frozen."""
    assert Ravel(perceptron()).size == A + B + HEAD
    assert Ravel(perceptron(train=[])).size == A + B
    net = perceptron((8, 8), on=["extractor.1"], train=["extractor.3", "head"])
    assert Ravel(net).size == A + B + 8 * 9 + HEAD
    assert Ravel(perceptron(on=["head"])).size == 8 * RANK + CLASSES * RANK

    def fixed(shape, outputs):
        return Pretrained(shape[0], outputs).requires_grad_(False)

    model("tables")(fixed)
    assert not isinstance(build("fixed", (INPUTS,), CLASSES, {"adapter": LORA}), Net)


WAYS = {
    "loop": {"executor": ClientExecutor("loop")},
    "codec": {"compression": Compression(beta=0.5, codec="q8", error_feedback=True)},
    "record": {"privacy": Privacy.of(0.5, sampling="poisson", unit="record", clip=0.7)},
    "ghost": {"privacy": Privacy.of(0.5, sampling="poisson", unit="record", clip=0.7, ghost=True)},
    "pruned": {"compression": Compression(alpha=0.5)},
    "factors": {"compression": Compression(rank=1)},
}


@pytest.mark.parametrize("kind", ["lora", "ffa_lora"])
def test_adapters_run_in_every_way(kind):
    """Loops and ghost clipping compute what vectorized and plain runs do; messages have the trained part alone."""
    problem = classifier(perceptron(kind=kind))
    size = (A if kind == "lora" else 0) + B + HEAD
    plain = after(problem)
    assert plain.snapshot().cost["up"] == plain.snapshot().cost["down"] == 2 * 4 * CLIENTS * size
    runs = {
        way: after(problem, **options) for way, options in WAYS.items() if way != "pruned" or kind == "lora"
    }
    assert torch.allclose(runs["loop"].state.x, plain.state.x, atol=1e-6)
    assert torch.allclose(runs["ghost"].state.x, runs["record"].state.x, atol=1e-5)
    assert all(run.state.x.shape == (size,) for run in runs.values())
    for run in runs.values():
        assert bool((run.state.x != run.start["x"]).any())


@pytest.mark.parametrize("kind", ["lora", "ffa_lora", "fedsa_lora"])
@pytest.mark.parametrize("mode", ["vmap", "loop"])
def test_clipped_gradients_are_those_of_single_samples(kind, mode):
    """Where an adapted layer is used twice: its contributions are clipped together."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, CLASSES)

        def forward(self, x):
            return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))

    def twice(shape, outputs):
        return Twice()

    model("tables")(twice)
    problem = classifier(build("twice", (INPUTS,), CLASSES, {"adapter": {**LORA, "kind": kind}}))
    samples = Batch(*(field[:SAMPLES] for field in federation().pool))
    x = problem.init(rng.stream(0, "start"))["x"] + 0.3
    single = [
        torch.func.grad(problem.loss)(x, Batch(*(f[n : n + 1] for f in samples))) for n in range(SAMPLES)
    ]
    limit = float(torch.stack([one.norm() for one in single]).median())
    expected = sum(one * min(1.0, limit / float(one.norm())) for one in single)
    batch = Batch(*(field[None] for field in samples))
    (clipped,) = ClientExecutor(mode).clipped_sums(problem.loss, 1, [x[None]], batch, norm=limit)
    assert torch.allclose(clipped[0], expected, atol=1e-5)
    with pytest.raises(Incompatible, match="each of its layers, once"):
        ClientExecutor(mode).clipped_sums(problem.loss, 1, [x[None]], batch, norm=limit, ghost=True)


def test_pruning_removes_ranks():
    """A unit is a row of A with a column of B."""
    net = perceptron()
    (group,) = units(net)
    assert (group.name, group.size) == ("extractor.1.down", RANK)
    run = after(classifier(net), compression=Compression(alpha=0.5))
    assert run.pruned is not None
    (smaller,) = [each.problem.module for each in run.pruned.models]
    assert smaller.extractor[1].down.weight.shape == (1, INPUTS)
    assert smaller.extractor[1].base.weight is net.extractor[1].base.weight


@pytest.mark.parametrize("seeds", [(1, 2), (1, 1)])
def test_stacked_runs_have_the_bits_that_they_have_alone(seeds):
    problem, data = classifier(perceptron((8, 5))), [federation(seed) for seed in seeds]
    both = Simulation(
        problem, stack(data), [ALGORITHMS["fedavg"](local_steps=2, batch_size=4)] * 2, seeds=seeds
    )
    both.step()
    both.step()
    for number, (seed, own) in enumerate(zip(seeds, data, strict=True)):
        assert torch.equal(both.state.x[number], after(problem, seeds=(seed,), data=own).state.x)


def test_fixed_factors_are_drawn_by_the_seed_and_in_no_digest(tmp_path):
    """Seeds of one cell keep one digest and share weights; runs of different seeds are never stacked."""
    ours = {"name": "mlp", "hidden": [8], "adapter": {**LORA, "kind": "ffa_lora"}}
    path = table(tmp_path)
    first, again, other = (ready(path, model=ours, seed=seed) for seed in (0, 0, 1))
    layers = [next(adapters_of(setup.problem.module)) for setup in (first, again, other)]
    assert torch.equal(layers[0].down.weight, layers[1].down.weight)
    assert not torch.equal(layers[0].down.weight, layers[2].down.weight)
    assert layers[0].base.weight is layers[2].base.weight
    assert first.problem.frozen == other.problem.frozen == constants_digest(first.problem.module)
    assert signature(first) == signature(again) != signature(other)
    assert not any("down" in name for name, _ in first.problem.module.named_parameters())
    x = torch.randn(3, first.federation.pool.x.shape[1], dtype=torch.float64)
    outputs = [setup.problem.predict(setup.start["x"].double(), x) for setup in (first, other)]
    assert outputs[0].dtype == torch.float64


def test_shared_factors_travel_and_the_others_stay():
    """FedPer under FedSA-LoRA: A is one for all, B and the head are each client's own."""
    problem = classifier(perceptron(kind="fedsa_lora"))
    assert factors_to_share(problem.module) == ("extractor.1.down.weight",)
    run = after(problem, "fedper", settings={"lr": 0.3})
    assert run.state.u.shape == (A,) and run.state.vi.shape == (CLIENTS, B + HEAD)
    assert len(run.state.vi.unique(dim=0)) == CLIENTS
    assert bool((run.state.u != run.start["x"]).any())
    assert run.snapshot().cost["up"] == 2 * 4 * CLIENTS * A


def test_fedper_under_shared_factors_is_its_own_round():
    """One client whose batch is all of its samples: in two steps A and B each move by -lr times their gradients."""
    problem = classifier(perceptron(kind="fedsa_lora"))
    data = federation()
    index = {name: split[:1] for name, split in data.splits.items()}
    alone = Federation(data.pool, index, data.classes, (), "s", "s")
    lr, settings = 0.3, {"batch_size": SAMPLES, "grad_clip": None}
    run = after(problem, "fedper", rounds=1, data=alone, settings={"lr": lr, **settings})
    assert torch.equal(run.start["x"], Ravel(problem.module).init(rng.stream(3, "start"))[:A])
    x = torch.cat([run.start["x"], run.start["y"]])
    batch = Batch(*(field[:SAMPLES] for field in data.pool))
    for _ in range(2):
        x = x - lr * torch.func.grad(problem.loss)(x, batch)
    assert torch.allclose(run.state.u, x[:A], atol=1e-6) and not torch.equal(run.state.u, run.start["x"])
    assert torch.allclose(run.state.vi[0], x[A:], atol=1e-6)


@pytest.mark.parametrize("name", ["fedavg", "ditto", "lg_fedavg", "fedproto", "fedala", "fedbabu"])
def test_methods_that_do_not_divide_at_the_factors_are_refused(name, tmp_path):
    shared = {"name": "mlp", "hidden": [8], "adapter": {**LORA, "kind": "fedsa_lora"}}
    with pytest.raises(Incompatible, match="kind lora"):
        finished(ready(table(tmp_path), {"name": name, "local_steps": 2, "batch_size": 8}, model=shared))


def test_settings_are_in_the_identity_and_the_statement(tmp_path):
    path = table(tmp_path)

    def spec(**adapter):
        return read_spec(given(path, model={"name": "mlp", "hidden": [8], "adapter": {**LORA, **adapter}}))

    plain = spec()
    assert plain.model["adapter"] == LORA == spec(alpha=None).model["adapter"]
    assert "adapter" not in read_spec(given(path, model="mlp")).model
    ids = {
        identify(one) for one in (plain, spec(rank=3), spec(alpha=2), spec(kind="ffa_lora"), spec(train=[]))
    }
    assert len(ids) == 5 and identify(plain) == prepare(plain).id
    assert frozen_part(plain) == prepare(plain).problem.frozen != ""
    privacy = {"placement": "central", "noise_multiplier": 1.0, "clip": 1.0}
    run = given(path, model=dict(plain.model), privacy=privacy)
    record = harness.run(run, tmp_path / "out")
    said = [line for line in record.final["public"] if "adapter" in line]
    assert len(said) == 1 and "{kind: lora, rank: 2, on: [Linear]}" in said[0]
    assert any(record.versions["model"] in line for line in record.final["public"])


@pytest.mark.parametrize(
    ("name", "kind"), [("fedavg", "ffa_lora"), ("fedper", "fedsa_lora"), ("lg_fedavg", None)]
)
def test_saved_models_are_in_the_order_of_their_names(name, kind, tmp_path):
    """Whichever way a method divides a model: a file's function is that of the run."""
    adapter = {} if kind is None else {"adapter": {**LORA, "kind": kind}}
    algorithm = {"name": name, "local_steps": 2, "batch_size": 8, "lr": 0.3}
    setup = ready(table(tmp_path), algorithm, model={"name": "mlp", "hidden": [8, 8], **adapter}, seed=3)
    run = finished(setup)
    save_model(setup, run, 0, {"metrics": {}, "privacy": None}, tmp_path / "model.safetensors")
    own = run.personal(0)
    ravel, vector = SavedModel.read(tmp_path / "model.safetensors").function(None if own.ndim == 1 else "2")
    x = torch.randn(5, setup.federation.pool.x.shape[1])
    expected = setup.algorithm.view(setup.problem).predict(own if own.ndim == 1 else own[2], x)
    assert torch.equal(ravel(vector, x), expected)
