"""Models with a frozen part: it is public and constant, and what is trained is a model of its own."""

from __future__ import annotations

import gc
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

import harness
from compression.graph import units
from datasets.federation import Batch, Federation, stack
from harness.config.recorded import results_folder
from harness.config.run import read_spec
from harness.core import rng
from harness.core.algorithm import ALGORITHMS
from harness.core.errors import Incompatible, UserError
from harness.core.execution.vectorize import ClientExecutor
from harness.core.flat_model import Ravel, constants_digest, freeze
from harness.core.problem import split_model
from harness.core.settings.compression import Compression
from harness.core.settings.privacy import Privacy
from harness.executors.records import Unrepeatable, repeatable
from harness.models import MODELS, Net, build, model
from harness.problems.classify import classifier
from harness.simulation.build import frozen_part, identify, prepare
from harness.simulation.room import needed
from harness.simulation.saved_model import SavedModel
from harness.simulation.simulation import Simulation
from harness.simulation.snapshot import Unmoved
from tests.support.runs import given, ready, table

pytestmark = pytest.mark.usefixtures("registries")

CLIENTS, SAMPLES, INPUTS, FEATURES, CLASSES = 4, 12, 6, 8, 3


def extractor(inputs: int = INPUTS, scale: float = 1.0) -> nn.Module:
    """Return a frozen extractor whose products and sums are exact: few binary digits in all of its numbers."""
    layer = nn.Linear(inputs, FEATURES)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        layer.weight.copy_(scale * torch.randint(-4, 5, layer.weight.shape, generator=generator) / 4)
        layer.bias.copy_(scale * torch.randint(-4, 5, layer.bias.shape, generator=generator) / 4)
    return nn.Sequential(layer, nn.ReLU()).requires_grad_(False)


def hidden(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 5), nn.Tanh())


def problems(deep: bool):
    """Return the problem of a frozen extractor with a trained part, and that of the trained part alone."""
    before, after = (hidden(FEATURES), 5) if deep else (nn.Identity(), FEATURES)
    whole = Net(nn.Sequential(extractor(), before), after, CLASSES)
    freeze(whole)
    return classifier(whole), classifier(Net(before, after, CLASSES))


def federations():
    """Return a federation of inputs, and the one whose inputs are the features of the frozen extractor."""
    generator, total = torch.Generator().manual_seed(1), CLIENTS * SAMPLES
    x = torch.randint(-16, 17, (total, INPUTS), generator=generator) / 8
    y = torch.randint(CLASSES, (total,), generator=generator)
    index = torch.arange(total).view(CLIENTS, SAMPLES)
    splits, classes = {"train": index, "test": index}, tuple("abc")
    with torch.no_grad():
        features = extractor()(x)
    return [
        Federation(Batch(each, y, torch.zeros_like(y), torch.ones(total)), splits, classes, (), "s", "s")
        for each in (x, features)
    ]


def record_privacy(ghost: bool):
    return Privacy.of(0.5, sampling="poisson", unit="record", clip=0.7, ghost=ghost)


RUNS = {
    "fedavg": {},
    "fedavg in a loop": {"executor": ClientExecutor("loop")},
    "fedavg, top-k in 8 bits": {"compression": Compression(beta=0.5, codec="q8", error_feedback=True)},
    "fedavg by record": {"privacy": record_privacy(ghost=False)},
    "fedavg by record, ghost": {"privacy": record_privacy(ghost=True)},
    "scaffold": {},
    "fedrep": {},
    "fedper": {},
    "ditto": {},
}


@pytest.mark.parametrize("case", RUNS)
def test_a_run_is_that_of_the_trained_part_on_features(case):
    """To the last bit, with the same bytes: the frozen layer is exact, so features are what it computes."""
    name = case.split()[0].rstrip(",")
    algorithm = ALGORITHMS[name](local_steps=ALGORITHMS[name].meta.steps or 2, batch_size=4)
    options = {"executor": ClientExecutor("vmap"), "noise_keys": ["key"], **RUNS[case]}
    whole, alone = (
        Simulation(problem, federation, algorithm, seeds=(3,), **options)
        for problem, federation in zip(problems(name in ("fedrep", "fedper")), federations(), strict=True)
    )
    for run in (whole, alone):
        for _ in range(3):
            run.step()
    for field, part, other in zip(whole.state._fields, whole.state, alone.state, strict=True):
        assert torch.equal(torch.as_tensor(part), torch.as_tensor(other)), field
    up, down = (whole.snapshot().cost[way] for way in ("up", "down"))
    assert (up, down) == tuple(alone.snapshot().cost[way] for way in ("up", "down"))
    assert whole.evaluate().metrics == alone.evaluate().metrics


def test_stacked_runs_are_those_of_one_each():
    """Runs share the frozen part; torch may round stacked products otherwise, which suites do not do."""
    problem, _ = problems(deep=True)
    federation, _ = federations()
    algorithm = ALGORITHMS["fedavg"](local_steps=2, batch_size=4, lr=0.25)
    both = Simulation(problem, stack([federation] * 2), [algorithm] * 2, seeds=(1, 2))
    alone = [Simulation(problem, federation, algorithm, seeds=(seed,)) for seed in (1, 2)]
    for run in (both, *alone):
        run.step()
        run.step()
    assert torch.allclose(both.state.x, torch.stack([run.state.x for run in alone]), atol=1e-6)


def test_units_of_trained_layers_alone_are_pruned():
    whole, alone = problems(deep=True)
    assert [group.name for group in units(whole.module)] == ["extractor.1.0"]
    assert [group.size for group in units(whole.module)] == [group.size for group in units(alone.module)]
    algorithm = ALGORITHMS["fedavg"](local_steps=2, batch_size=4, lr=0.25)
    runs = [
        Simulation(problem, federation, algorithm, compression=Compression(alpha=0.4))
        for problem, federation in zip((whole, alone), federations(), strict=True)
    ]
    for run in runs:
        run.step()
    assert torch.equal(runs[0].state.x, runs[1].state.x)
    assert runs[0].pruned is not None and bool((~runs[0].pruned.models[0].mask).any())
    (smaller,) = [each.problem.module for each in runs[0].pruned.models]
    assert smaller.extractor[0][0].weight is whole.module.extractor[0][0].weight  # not copied


def test_the_cut_is_where_the_trained_part_says():
    """What is frozen belongs to no half; without a trained layer before the head there is nothing to share."""
    whole, alone = problems(deep=True)
    assert whole.cut == alone.cut == 5 * (FEATURES + 1)
    with pytest.raises(Incompatible, match="no hidden layer before a linear head of which both are trained"):
        split_model(problems(deep=False)[0])


def test_the_frozen_part_is_held_once_whatever_computes():
    """Vectors, halves and smaller models hold the same tensors; another type has one copy more."""
    net = Net(nn.Sequential(extractor(scale=0.375), hidden(FEATURES)), 5, CLASSES)  # weights of no other test
    freeze(net)
    weight = net.extractor[0][0].weight
    ravels = [Ravel(net), Ravel(net.extractor), Ravel(net)]
    x = torch.zeros(ravels[0].size)
    for dtype in (torch.float32, torch.float64):
        ravels[0](x.to(dtype), torch.zeros(2, INPUTS, dtype=dtype))
        ravels[2](x.to(dtype), torch.zeros(2, INPUTS, dtype=dtype))
    assert ravels[0]._own_module().extractor[0][0].weight is ravels[2]._own_module().extractor[0][0].weight
    assert all(ravel._constants[0][0] is weight for ravel in ravels)
    gc.collect()
    held = [one for one in gc.get_objects() if type(one) is torch.Tensor and one.shape == weight.shape]
    assert len({one.data_ptr() for one in held if not one.is_meta and torch.equal(one.float(), weight)}) == 2


def test_copies_in_another_type_are_those_of_the_whole_model():
    """A part and a deep copy of a model use the copy that the model has made, and nothing is hung on tensors."""
    whole, _ = problems(deep=True)
    net, doubles = whole.module, torch.zeros(2, INPUTS, dtype=torch.float64)
    smaller = deepcopy(net, {id(value): value for value in net.buffers()})
    ravels = [Ravel(net), Ravel(net.extractor), Ravel(smaller)]
    for ravel in ravels:
        ravel(torch.zeros(ravel.size, dtype=torch.float64), doubles)
    own = [ravel._own_module() for ravel in ravels]
    first, second, third = own[0].extractor[0][0].weight, own[1][0][0].weight, own[2].extractor[0][0].weight
    assert first.dtype == torch.float64 and first is second is third
    assert not any(vars(value) for value in net.buffers())


def test_constants_survive_vectorizing_and_differentiating():
    """A copy in another type that is made inside of vmap and grad is plain, and serves later calls."""
    problem, _ = problems(deep=True)
    x = problem.init(rng.stream(0, "start"))["x"].double().expand(2, -1).clone()
    batch = torch.randn(2, 3, INPUTS, dtype=torch.float64)
    slope = torch.func.grad(lambda x, b: problem.predict(x, b).square().sum())
    inside = torch.func.vmap(slope)(x, batch)
    assert torch.allclose(inside, torch.stack([slope(*pair) for pair in zip(x, batch, strict=True)]))
    assert torch.func.vmap(problem.predict)(x, batch).dtype == torch.float64


def test_frozen_weights_are_not_drawn_by_the_seed():
    """A net whose start is drawn by rule has that of its trained layers alone."""
    (whole, alone), stream = problems(deep=True), rng.stream(7, "start")
    assert torch.equal(whole.init(stream)["x"], alone.init(rng.stream(7, "start"))["x"])


@pytest.mark.parametrize("rule", ["xavier", "kaiming", "default"])
def test_layers_that_are_frozen_in_part_start_by_rule(rule):
    net = Net(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), 4, 2, rule)
    net.extractor[0].weight.requires_grad_(False)
    net.extractor[1].bias.requires_grad_(False)
    freeze(net)
    start = Ravel(net).init(rng.stream(0, "start"))
    assert len(start) == 4 + 4 + 2 * 4 + 2 and start[4:8].tolist() == [1.0] * 4


def test_ghost_clipping_refuses_a_layer_that_is_frozen_in_part():
    net = Net(nn.Sequential(nn.Linear(INPUTS, 5), nn.Tanh()), 5, CLASSES)
    net.extractor[0].weight.requires_grad_(False)
    freeze(net)
    algorithm = ALGORITHMS["fedavg"](local_steps=1, batch_size=4, lr=0.25)
    run = Simulation(classifier(net), federations()[0], algorithm, privacy=record_privacy(ghost=True))
    with pytest.raises(Incompatible, match="Linear of which a part is frozen; freeze or train all of it"):
        run.step()


def headed(shape, outputs, *, scale: float = 1.0):
    """Frozen extractor with a linear head."""
    return nn.Sequential(extractor(shape[0], scale), nn.Linear(FEATURES, outputs))


def normalized(shape, outputs):
    """Batch normalization with public statistics, and a table of constants."""
    norm = nn.BatchNorm1d(shape[0]).eval().requires_grad_(False)
    norm.running_mean.fill_(0.5)
    return nn.Sequential(norm, nn.Dropout(0.5).eval(), nn.Linear(shape[0], outputs))


def test_statistics_that_stay_are_allowed():
    model("tables")(normalized)
    net = build("normalized", (4,), 3)
    ravel, x = Ravel(net), torch.randn(5, 4)
    weight, bias = torch.randn(3, 4), torch.randn(3)
    expected = (x - 0.5) / (1 + 1e-5) ** 0.5 @ weight.T + bias
    assert torch.allclose(ravel(torch.cat([weight.flatten(), bias]), x), expected, atol=1e-5)


class Counting(nn.Module):
    """A module with a buffer that grows in every pass."""

    def __init__(self, outputs):
        super().__init__()
        self.last = nn.Linear(6, outputs)
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x):
        self.passes += 1
        return self.last(x)


class Detached(nn.Module):
    """A module whose hidden layer is trained by mistake of no gradient."""

    def __init__(self, outputs):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, outputs)
        self.first.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            x = self.middle(self.first(x))
        return self.last(x)


REFUSED = {
    "buffer 'passes' changes in a forward pass.*such as GroupNorm": lambda s, o: Counting(o),
    "BatchNorm1d '0' mixes the samples": lambda s, o: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, o)),
    "all parameters are frozen, so there is nothing to train": lambda s, o: nn.Linear(6, o).requires_grad_(False),
    "parameter 'middle.weight' is trained and has no effect": lambda s, o: Detached(o),
}  # fmt: skip


@pytest.mark.parametrize("says", REFUSED)
def test_what_is_no_constant_or_not_trained_is_refused(says):
    make = REFUSED[says]
    make.__name__ = "refused"
    model("tables")(make)
    with pytest.raises(UserError, match=f"model 'refused': .*{says}"):
        build("refused", (6,), 3)


class Averaging(nn.Module):
    """A module that keeps a mean of what it has seen in large batches."""

    def __init__(self, inputs, outputs, least):
        super().__init__()
        self.last, self.least = nn.Linear(inputs, outputs), least
        self.register_buffer("mean", torch.zeros(inputs))

    def forward(self, x):
        if len(x) > self.least:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.last(x - self.mean)


@pytest.mark.parametrize("least", [4, 10])
def test_a_buffer_that_changes_in_large_batches_is_refused(least):
    """When the model is built, or in the round in which it happens: it would carry samples past the clipping."""

    def averaging(shape, outputs):
        return Averaging(shape[0], outputs, least)

    model("tables")(averaging)
    if least < 9:
        with pytest.raises(UserError, match="buffer 'mean' changes in a forward pass"):
            build("averaging", (INPUTS,), CLASSES)
        return
    problem = classifier(build("averaging", (INPUTS,), CLASSES))
    algorithm = ALGORITHMS["fedavg"](local_steps=1, batch_size=SAMPLES)
    run = Simulation(problem, federations()[0], algorithm, executor=ClientExecutor("loop"))
    with pytest.raises(UserError, match="buffer 'mean' of Averaging changes in forward"):
        run.step()


class Loose(nn.Module):
    """A module with a frozen layer, or a tensor, that is not registered."""

    def __init__(self, inputs, outputs, what):
        super().__init__()
        self.last, layer = nn.Linear(FEATURES, outputs), extractor(inputs)
        self.kept = {"layer": [layer], "mapping": {"first": (layer,)}, "tensor": layer[0].weight.detach()}[
            what
        ]
        self.registered = [self.last, self.last.weight]

    def forward(self, x):
        return self.last(torch.zeros(len(x), FEATURES))


@pytest.mark.parametrize("what", ["layer", "mapping", "tensor"])
def test_weights_that_no_digest_covers_are_refused(what):
    def loose(shape, outputs):
        return Loose(shape[0], outputs, what)

    model("tables")(loose)
    kind = "a tensor" if what == "tensor" else "Sequential"
    with pytest.raises(
        UserError, match=f"Loose '' keeps {kind} in attribute 'kept', which is not registered"
    ):
        build("loose", (INPUTS,), CLASSES)


def test_sparse_buffers_are_refused_in_a_sentence():
    def graph(shape, outputs):
        made = nn.Linear(shape[0], outputs)
        made.register_buffer("adjacency", torch.eye(3).to_sparse())
        return made

    model("tables")(graph)
    with pytest.raises(UserError, match="buffer 'adjacency' is sparse; keep it dense"):
        build("graph", (INPUTS,), CLASSES)


def test_weights_that_change_are_refused_however_many_models_came_between(tmp_path):
    """Ids found by preparing a run and without agree, as both name the weights that were there first."""
    scales = [1.0]

    def drifts(shape, outputs, *, width: int = 4):
        return nn.Sequential(
            nn.Linear(shape[0], width), extractor(width, scales[0]), nn.Linear(FEATURES, outputs)
        )

    model("tables")(drifts)
    spec = read_spec(given(table(tmp_path), model={"name": "drifts"}))
    first = prepare(spec).id
    for width in range(5, 10):
        build("drifts", (INPUTS,), CLASSES, {"width": width})
    assert identify(spec) == first
    scales[0] = 2.0
    with pytest.raises(UserError, match="are others than when it was first built"):
        prepare(spec)


class Masked(nn.Module):
    """Attention with a mask of minus infinity, and buffers that share memory."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 4), nn.Linear(4, outputs)
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        self.register_buffer("rows", self.mask[2:])

    def forward(self, x):
        h = self.first(x)
        weights = (h.unsqueeze(-1) * h.unsqueeze(-2) + self.mask).softmax(-1)
        return self.last((weights @ h.unsqueeze(-1)).squeeze(-1))


def test_masks_and_views_are_saved_and_read(tmp_path):
    def masked(shape, outputs):
        return Masked(shape[0], outputs)

    model("tables")(masked)
    path = table(tmp_path)
    record = harness.run(given(path, model={"name": "masked"}), tmp_path / "out", save_model=True)
    assert record.status == "done"
    saved = SavedModel.read(tmp_path / "out" / "runs" / record.id)
    assert np.isfinite(saved.predict(saved.rows(path))["p(l0)"]).all()
    saved.tensors["first.weight" if "first.weight" in saved.tensors else "extractor.first.weight"][0] = (
        torch.nan
    )
    with pytest.raises(UserError, match="holds parameters that are not finite numbers"):
        saved.predict(saved.rows(path))


def test_equal_models_share_constants_and_other_ones_are_refused():
    weights = [1.0]

    def drifting(shape, outputs):
        return nn.Sequential(extractor(shape[0], weights[0]), nn.Linear(FEATURES, outputs))

    model("tables")(drifting)
    first, second = build("drifting", (6,), 3), build("drifting", (6,), 3)
    assert next(first.buffers()) is next(second.buffers())
    weights[0] = 2.0
    with pytest.raises(UserError, match="are others than when it was first built"):
        build("drifting", (6,), 3)


def spec_of(path, **fields):
    return read_spec(given(path, model={"name": "headed"}, **fields))


def test_frozen_weights_are_in_the_identity(tmp_path):
    """Another digest is another run, and ids found without preparing a run agree."""
    model("tables")(headed)
    spec = spec_of(table(tmp_path))
    setup = prepare(spec)
    assert frozen_part(spec) == setup.problem.frozen == constants_digest(setup.problem.module) != ""
    assert identify(spec) == setup.id
    plain = read_spec(given(table(tmp_path)))
    assert frozen_part(plain) == prepare(plain).problem.frozen == ""
    first = {seed: prepare(spec_of(table(tmp_path), seed=seed)) for seed in (0, 1)}
    assert first[0].problem.frozen == first[1].problem.frozen
    assert not torch.equal(first[0].start["x"], first[1].start["x"])
    weights = setup.problem.module.extractor[0][0].weight
    before = weights.clone()
    weights += 1  # the same code, other weights
    assert constants_digest(setup.problem.module) != setup.problem.frozen
    weights.copy_(before)


def test_a_run_is_repeated_with_its_frozen_part_alone(tmp_path):
    def scaled(factor):
        def lasting(shape, outputs):
            return nn.Sequential(extractor(shape[0], factor), nn.Linear(FEATURES, outputs))

        return lasting

    model("tables")(scaled(1.0))
    record = harness.run(given(table(tmp_path), model={"name": "lasting"}), tmp_path / "out")
    folder = results_folder(tmp_path / "out").folder(record.id)
    assert repeatable(folder).model["name"] == "lasting"
    del MODELS["lasting"]
    model("tables")(scaled(2.0))
    with pytest.raises(Unrepeatable, match="the frozen part of the model here differs"):
        repeatable(folder)


def test_memory_counts_the_frozen_part_once(tmp_path):
    def wide(shape, outputs, *, width: int = 1000):
        body = nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, FEATURES)).requires_grad_(False)
        return nn.Sequential(body, nn.Linear(FEATURES, outputs))

    model("tables")(wide)
    small, large = (needed(ready(table(tmp_path), model={"name": "wide", "width": w})) for w in (1000, 2000))
    assert large.data - small.data == 4 * 1000 * (6 + 1 + FEATURES)  # of six inputs
    assert large.usual == small.usual and large.least == small.least


def test_a_statement_says_what_is_assumed_of_the_frozen_part(tmp_path):
    model("tables")(headed)
    privacy = {"placement": "central", "noise_multiplier": 1.0, "clip": 1.0}
    run = given(table(tmp_path), model={"name": "headed"}, privacy=privacy)
    record = harness.run(run, tmp_path / "out")
    (said,) = [line for line in record.final["public"] if "frozen part" in line]
    assert "assumed to be trained on data other than the clients'" in said
    assert record.versions["model"] in said


def test_a_saved_model_holds_both_parts(tmp_path):
    """Predictions follow from the file, also if the code would now make other frozen weights."""
    model("tables")(headed)
    path = table(tmp_path)
    record = harness.run(given(path, model={"name": "headed"}), tmp_path / "out", save_model=True)
    assert record.status == "done"
    saved = SavedModel.read(tmp_path / "out" / "runs" / record.id)
    assert {"extractor.0.0.weight", "head.weight"} <= saved.tensors.keys()
    ravel, vector = saved.function()
    assert ravel.size == len(vector) == 2 * (FEATURES + 1)
    first = saved.predict(saved.rows(path))
    saved.tensors["extractor.0.0.weight"].mul_(2.0)
    second = saved.predict(saved.rows(path))
    assert not np.allclose(first["p(l0)"], second["p(l0)"])


def test_a_trained_part_that_does_not_move_fails_the_run(tmp_path):
    """A head whose gradient is zero where it starts: the saddle of a product of zeros."""

    class Saddle(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.body = extractor(inputs)
            self.a, self.b = nn.Parameter(torch.zeros(FEATURES, 2)), nn.Parameter(torch.zeros(2, outputs))

        def forward(self, x):
            return self.body(x) @ self.a @ self.b

    def saddle(shape, outputs):
        return Saddle(shape[0], outputs)

    model("tables")(saddle)
    record = harness.run(given(table(tmp_path), model={"name": "saddle"}), tmp_path / "out")
    assert (record.status, record.reason) == ("failed", str(Unmoved(1)))
    assert record.reason == "the trained part of the model did not move in round 1"
