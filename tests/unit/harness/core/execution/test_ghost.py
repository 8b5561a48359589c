"""Ghost clipping gives the sums that gradients of single samples give, layer by layer and for whole models."""

import pytest
import torch
from torch import nn

from datasets.federation import Batch
from harness import models
from harness.core.errors import Incompatible
from harness.core.execution.vectorize import ClientExecutor
from harness.core.flat_model import Ravel
from harness.problems.classify import classifier

CLIENTS, SAMPLES = 3, 5
MODELS = {
    "logistic": ("logistic", (12,), {}),
    "mlp": ("mlp", (12,), {"hidden": [9, 7]}),
    "network with convolutions": ("fedavg_cnn", (1, 28, 28), {"hidden": 16}),
    "network with group norm": ("resnet18", (3, 16, 16), {"width": 0.1}),
    "transformer": ("transformer", (6, 1), {"width": 8, "heads": 2}),
}


def batch_of(shape, symbols=False, double=True, seed=0):
    """Samples of three clients, of which the last of the second client is padding."""
    drawn = torch.Generator().manual_seed(seed)
    size = (CLIENTS, SAMPLES, *shape)
    x = torch.randint(11, size, generator=drawn) if symbols else torch.randn(size, generator=drawn)
    weight = torch.ones(CLIENTS, SAMPLES)
    weight[1, -1] = 0
    y = torch.randint(4, size[:2], generator=drawn)
    kind = torch.float64 if double else torch.float32
    return Batch(x.to(kind), y, torch.zeros_like(y), weight.to(kind))


def points_of(problem, double=True):
    start = problem.init(torch.Generator().manual_seed(1))["x"]
    other = torch.randn(CLIENTS, len(start), generator=torch.Generator().manual_seed(2))
    return (start + 0.1 * other).to(torch.float64 if double else torch.float32)


def both(problem, batch, norm, mode="vmap", by=(), points=None):
    points = points or (points_of(problem, batch.x.dtype == torch.float64),)
    rows = ClientExecutor(mode)
    return [rows.clipped_sums(problem.loss, 1, points, batch, by, norm=norm, ghost=g) for g in (False, True)]


def ghosted(module):
    """The sums of a module of which only the layout matters."""
    count = sum(one.numel() for one in module.parameters())
    points = (torch.randn(CLIENTS, count, generator=torch.Generator().manual_seed(3)).double(),)
    return ClientExecutor("vmap").clipped_sums(
        classifier(module).loss, 1, points, batch_of((4,)), norm=1.0, ghost=True
    )


def close(one, other, tolerance=1e-10):
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape
        assert float((a - b).norm() / a.norm()) < tolerance


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["vmap", "loop"])
@pytest.mark.parametrize("name", MODELS)
def test_sums_of_whole_models_are_those_of_gradients_of_single_samples(name, mode):
    """In double precision, with a norm that some samples exceed and others do not."""
    model, shape, settings = MODELS[name]
    problem = classifier(models.build(model, shape, 11 if model == "transformer" else 4, settings))
    batch = batch_of(shape, symbols=model == "transformer")
    lengths = [float(both(problem, batch, norm, mode)[0][0].norm()) for norm in (1e-3, 1e6)]
    norm = lengths[1] / CLIENTS / SAMPLES
    exact, ghost = both(problem, batch, norm, mode)
    assert lengths[0] < float(exact[0].norm()) < lengths[1]
    close(exact, ghost)


def test_in_single_precision_they_agree_to_1e_minus_6():
    problem = classifier(models.build("mlp", (30,), 4, {"hidden": [200, 100]}))
    close(*both(problem, batch_of((30,), double=False), 0.5), tolerance=1e-6)


LAYERS = {
    "linear without bias": (nn.Linear(6, 3, bias=False), (6,)),
    "linear on few places": (nn.Linear(6, 3), (2, 6)),
    "linear on many places": (nn.Linear(2, 3), (9, 2)),
    "strided convolution": (nn.Conv2d(2, 3, (3, 2), stride=2, padding=1, dilation=(1, 2)), (2, 7, 6)),
    "small convolution": (nn.Conv2d(2, 9, 5), (2, 6, 6)),
    "group norm of maps": (nn.GroupNorm(2, 4), (4, 3, 3)),
    "group norm of vectors": (nn.GroupNorm(2, 4), (4,)),
    "layer norm": (nn.LayerNorm(5), (3, 5)),
    "layer norm over two axes": (nn.LayerNorm((3, 5)), (2, 3, 5)),
    "embedding": (nn.Embedding(11, 3), (6, 1)),
}


class Alone(nn.Module):
    """A layer, some way to tell its outputs apart, and scores."""

    def __init__(self, layer, symbols):
        super().__init__()
        self.layer, self.symbols = layer, symbols

    def forward(self, x):
        found = self.layer(x.long() if self.symbols else x).flatten(1)
        return torch.stack([(found * (k + torch.arange(found.shape[1]).cos())).sum(1) for k in range(4)], 1)


@pytest.mark.parametrize("name", LAYERS)
def test_the_norm_of_every_layer_is_exact(name):
    layer, shape = LAYERS[name]
    problem = classifier(Alone(layer, name == "embedding"))
    batch = batch_of(shape, symbols=name == "embedding")
    for norm in (1e-2, 0.5):
        close(*both(problem, batch, norm))


def test_other_variables_are_clipped_together_with_the_network():
    network = Ravel(nn.Sequential(nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 4)))

    def loss(x, y, batch):
        errors = nn.functional.cross_entropy(network(x, batch.x) * y, batch.y, reduction="none")
        return (errors * batch.weight).sum() / batch.weight.sum() + y.square().sum()

    drawn = torch.Generator().manual_seed(4)
    points = tuple(torch.randn(CLIENTS, n, generator=drawn, dtype=torch.float64) for n in (network.size, 4))
    problem = type("Two", (), {"loss": staticmethod(loss)})
    for by in ((), (0,), (1,), (1, 0)):
        exact, ghost = both(problem, batch_of((12,)), 0.8, by=by, points=points)
        close(exact, ghost)


def test_a_sample_that_is_not_finite_counts_as_zero():
    problem = classifier(models.build("mlp", (12,), 4, {"hidden": [9]}))
    batch = batch_of((12,))
    batch.x[0, 2] = torch.nan
    exact, ghost = both(problem, batch, 0.5)
    assert bool(ghost[0].isfinite().all())
    close(exact, ghost)


def test_two_networks_in_variables_of_their_own():
    first, second = Ravel(nn.Sequential(nn.Linear(12, 5), nn.Tanh())), Ravel(nn.Linear(5, 4))

    def loss(x, y, batch):
        scores = second(y, first(x, batch.x))
        errors = nn.functional.cross_entropy(scores, batch.y, reduction="none")
        return (errors * batch.weight).sum() / batch.weight.sum()

    drawn = torch.Generator().manual_seed(4)
    sizes = first.size, second.size
    points = tuple(torch.randn(CLIENTS, n, generator=drawn, dtype=torch.float64) for n in sizes)
    problem = type("Two", (), {"loss": staticmethod(loss)})
    for by in ((), (0,), (1,), (1, 0)):
        exact, ghost = both(problem, batch_of((12,)), 0.3, by=by, points=points)
        close(exact, ghost)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.layer(x))


class Loose(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.layer(x) * self.scale


class Longer(nn.Linear):
    def forward(self, x):
        return 10 * super().forward(x)


class Standardized(nn.Conv2d):
    def forward(self, x):
        weight = (self.weight - self.weight.mean()) / self.weight.std()
        return nn.functional.conv2d(x, weight, self.bias)


class Replaces(nn.Module):
    """Changes a layer's weights before it is applied."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        self.layer.weight = 3 * self.layer.weight
        return self.layer(x)


class Mixed(nn.Module):
    """Settings of a layer are others once it was applied."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        self.layer.padding = (1, 1)
        found = self.layer(x[:, :, None, None]).sum((-2, -1))
        self.layer.padding = (0, 0)
        return found


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        weight, bias = self.layer.weight, self.layer.bias
        return nn.functional.linear(x, weight, bias)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = kind(4, 4, batch_first=True)

    def forward(self, x):
        return self.layer(x.unsqueeze(1))[0].squeeze(1)


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRUCell(4, 4)

    def forward(self, x):
        return self.layer(x, x)


def hooked(kind):
    layer = nn.Linear(4, 4)
    getattr(layer, f"register_{kind}")(lambda *given: None)
    return layer


def instead(name, value):
    layer = nn.Linear(4, 4)
    setattr(layer, name, value)
    return layer


def parametrized():
    layer = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Softplus())
    return layer


def shared():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer)


def as_image(layer):
    return nn.Sequential(nn.Unflatten(1, (4, 1, 1)), layer, nn.Flatten())


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (lambda: Twice(), "each of its layers, once"),
        (shared, "each of its layers, once"),
        (lambda: Loose(), "no formula for a layer Loose"),
        (
            lambda: nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 4, 1), nn.Flatten()),
            "no formula for a layer Conv1d",
        ),
        (lambda: as_image(nn.Conv2d(4, 4, 1, groups=2)), "Conv2d with these"),
        (
            lambda: Longer(4, 4),
            "no formula for a layer Longer, only for Linear, .* themselves, not for classes",
        ),
        (lambda: as_image(Standardized(4, 4, 1)), "no formula for a layer Standardized"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), "layer ParametrizedLinear"),
        (parametrized, "layer ParametrizedLinear"),
        (lambda: hooked("forward_hook"), "layer Linear with hooks"),
        (lambda: hooked("forward_pre_hook"), "layer Linear with hooks"),
        (lambda: hooked("full_backward_hook"), "layer Linear with hooks"),
        (lambda: hooked("full_backward_pre_hook"), "layer Linear with hooks"),
        (lambda: instead("forward", lambda x: 10 * x), "layer Linear of which a method was replaced"),
        (lambda: instead("_call_impl", lambda x: 10 * x), "layer Linear of which a method was replaced"),
        (lambda: Replaces(), "layer Linear whose parameters are replaced"),
        (lambda: Half(), "whose parameters are all in layers that are used"),
        (lambda: Recurrent(nn.LSTM), "no formula for a layer LSTM"),
        (lambda: Recurrent(nn.GRU), "no formula for a layer GRU"),
        (lambda: Cell(), "no formula for a layer GRUCell"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU()), "no formula for a layer PReLU"),
        (lambda: Mixed(), "cannot be computed|gives other norms"),
    ],
)
def test_networks_without_a_formula_are_refused(module, text):
    with pytest.raises(Incompatible, match=f"^privacy.ghost: ghost clipping .*({text})"):
        ghosted(module())


COMPARED = {
    nn.Linear: lambda: nn.Linear(4, 4),
    nn.LayerNorm: lambda: nn.LayerNorm(4),
    nn.GroupNorm: lambda: nn.GroupNorm(2, 4),
    nn.Conv2d: lambda: as_image(nn.Conv2d(4, 4, 1)),
}


@pytest.mark.parametrize(
    ("kind", "factor"), [(nn.Linear, 1.01), (nn.LayerNorm, 0.5), (nn.GroupNorm, 2.0), (nn.Conv2d, 10.0)]
)
def test_norms_are_compared_with_gradients_of_single_samples(monkeypatch, kind, factor):
    """What no description shows: torch's own class computes something else."""
    plain = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, x: factor * plain(self, x))
    with pytest.raises(Incompatible, match="gives other norms than the gradients of single samples"):
        ghosted(COMPARED[kind]())


class Odd(nn.Module):
    """Layers that are given constants, a sample without its axis, or their input by its name."""

    def __init__(self):
        super().__init__()
        self.constant, self.rows = nn.Linear(3, 4), nn.Linear(2, 4)
        self.named, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.filter, self.groups, self.place = nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4), nn.Embedding(3, 4)

    def forward(self, x):
        bias = self.norm(self.constant(torch.ones(3, dtype=x.dtype)))
        bias = bias + self.place(torch.tensor(1)) + self.rows(torch.ones(5, 2, dtype=x.dtype)).sin().sum(0)
        found = self.groups(self.named(input=x))
        return bias + torch.stack([self.filter(found[0, :, None, None])[:, 0, 0], *found[1:]])


def test_layers_on_constants_and_by_keyword_have_exact_norms():
    problem = classifier(Odd())
    batch = batch_of((4,))
    points = (torch.randn(CLIENTS, Ravel(Odd()).size, generator=torch.Generator().manual_seed(5)).double(),)
    ghost = ClientExecutor("vmap").clipped_sums(problem.loss, 1, points, batch, (), norm=0.5, ghost=True)
    for client in range(CLIENTS):
        total = 0
        for number in range(SAMPLES):
            x = points[0][client].clone().requires_grad_()
            one = Batch(*(part[client, number : number + 1] for part in batch))
            (slope,) = torch.autograd.grad(problem.loss(x, one), x)
            total = total + one.weight * slope * (0.5 / slope.norm()).clamp(max=1)
        close([total], [ghost[0][client]])


def test_a_network_that_is_applied_twice_is_refused():
    network = Ravel(nn.Linear(4, 4))

    def loss(x, batch):
        return (network(x, batch.x) * network(x, -batch.x)).mean()

    with pytest.raises(Incompatible, match="applies every network"):
        ClientExecutor("vmap").clipped_sums(
            loss, 1, (torch.randn(CLIENTS, network.size).double(),), batch_of((4,)), norm=1.0, ghost=True
        )


def penalized(network, norm):
    def loss(x, batch):
        errors = nn.functional.cross_entropy(network(x, batch.x), batch.y, reduction="none")
        return (errors * batch.weight).sum() / batch.weight.sum() + norm(x)

    return loss


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) @ self.layer.weight


@pytest.mark.parametrize("tied", [False, True])
def test_a_loss_that_uses_parameters_outside_the_layers_is_refused(tied):
    """Also where its gradient is zero at the start."""
    network = Ravel(Tied() if tied else nn.Linear(4, 4))
    loss = penalized(network, lambda x: 0 * x.sum() if tied else x.square().sum() / 2)
    points = (torch.zeros(CLIENTS, network.size, dtype=torch.float64),)
    with pytest.raises(Incompatible, match="through its layers alone"):
        ClientExecutor("vmap").clipped_sums(loss, 1, points, batch_of((4,)), norm=1.0, ghost=True)


class Large(nn.Module):
    """A network that uses a layer's parameters itself, for features that no trial has; another layer follows."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        by_hand = nn.functional.linear(x, 10 * self.layer.weight)
        return self.head(torch.where(x.abs() > 50, by_hand, self.layer(x)).tanh())


def test_parameters_used_outside_the_layers_for_some_features_only_are_refused():
    with pytest.raises(Incompatible, match="through its layers alone"):
        ghosted(Large())


def test_terms_that_cancel_do_not_lengthen_a_contribution():
    """The gradient of a difference of two places is small, and the products it is made of are large."""
    network = Ravel(nn.Linear(3, 4, bias=False))

    def loss(x, batch):
        found = network(x, batch.x)
        return nn.functional.cross_entropy(found[:, 0] - found[:, 1], batch.y)

    drawn = torch.Generator().manual_seed(0)
    start = 1e5 + torch.randn(200, 1, 1, 3, generator=drawn)
    x = torch.cat([start + 30 * torch.randn(200, 1, 1, 3, generator=drawn), start], 2)
    y = torch.randint(4, (200, 1), generator=drawn)
    batch = Batch(x, y, torch.zeros_like(y), torch.ones(200, 1))
    points = (0.01 * torch.randn(200, network.size, generator=drawn),)
    (found,) = ClientExecutor("vmap").clipped_sums(loss, 1, points, batch, norm=1.0, ghost=True)
    assert float(found.norm(dim=-1).max()) <= 1 + 1e-3
    assert bool((found.norm(dim=-1) > 0).all())


def test_batches_of_other_shapes_have_a_layout_of_their_own():
    network, rows = Ravel(nn.Linear(3, 4)), ClientExecutor("vmap")

    def loss(x, batch):
        scores = network(x, batch.x).flatten(1, -2).sum(1)
        errors = nn.functional.cross_entropy(scores, batch.y, reduction="none")
        return (errors * batch.weight).sum() / batch.weight.sum()

    points = (torch.randn(CLIENTS, network.size, generator=torch.Generator().manual_seed(1)).double(),)
    for shape in ((1, 3), (2, 3), (5, 3)):
        given = loss, 1, points, batch_of(shape)
        close(rows.clipped_sums(*given, norm=0.1), rows.clipped_sums(*given, norm=0.1, ghost=True))


def test_lower_precision_is_refused():
    net = models.build("mlp", (12,), 4, {"hidden": [9]})
    models.compute_in(torch.bfloat16, net)
    problem = classifier(net)
    with pytest.raises(Incompatible, match="precision float32 or float64"):
        both(problem, batch_of((12,), double=False), 1.0)
