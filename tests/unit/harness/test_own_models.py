"""Models of users: any module can be trained, starts as it was constructed, or is refused with the reason."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import harness
from datasets.federation import Batch
from harness.core import rng
from harness.core.clients.pruning import prunable, prune_models
from harness.core.errors import Incompatible, UserError
from harness.core.execution.ghost_layout import layout
from harness.core.execution.vectorize import ClientExecutor
from harness.core.flat_model import Ravel
from harness.core.problem import split_model
from harness.models import Net, build, complete, dense, describe, encoder, model
from harness.problems.classify import classifier
from tests.support.runs import given, table

pytestmark = pytest.mark.usefixtures("registries")


def registered(make, name="mine", inputs="tables"):
    make.__name__ = name
    return model(inputs)(make)


def built(make, shape=(6,), outputs=3, **settings):
    registered(make)
    return build("mine", shape, outputs, settings)


def normal():
    return np.random.standard_normal()  # noqa: NPY002 - the global generator, which constructors may use


class Plain(nn.Module):
    """A module that applies a function after its layers."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.function(self, x)


def gated(shape, outputs, *, hidden: int = 5):
    """Gate hidden units."""
    made = Plain(
        lambda m, x: m.last(m.norm(torch.relu(m.first(x))) * m.gate),
        first=nn.Linear(shape[0], hidden),
        norm=nn.LayerNorm(hidden),
        last=nn.Linear(hidden, outputs),
    )
    made.gate = nn.Parameter(torch.randn(hidden) + normal() + random.random())
    return made


def attentive(shape, outputs):
    def forward(m, x):
        each = m.first(x.unsqueeze(-1))
        return m.head((each + m.attention(each, each, each)[0]).mean(1))

    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    return Plain(forward, first=nn.Linear(1, 4), attention=attention, head=nn.Linear(4, outputs))


def tied(shape, outputs):
    made = Plain(
        lambda m, x: m.head(torch.tanh(m.inner(m.symbols(x.squeeze(-1).long()).mean(1)))),
        symbols=nn.Embedding(outputs, 4),
        inner=nn.Linear(4, 4),
        head=nn.Linear(4, outputs, bias=False),
    )
    made.head.weight = made.symbols.weight
    return made


def recurrent(shape, outputs):
    def forward(m, x):
        state = x.new_zeros(len(x), 4)
        for place in range(x.shape[1]):
            state = m.cell(x[:, place : place + 1], state)
        return m.head(state)

    return Plain(forward, cell=nn.GRUCell(1, 4), head=nn.Linear(4, outputs))


def twice(shape, outputs):
    """The same layer under two names."""
    layer = nn.Linear(shape[0], shape[0])
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(shape[0], outputs))


def normed(shape, outputs):
    inner = nn.utils.parametrizations.weight_norm(nn.Linear(shape[0], 4))
    return nn.Sequential(inner, nn.PReLU(), nn.Linear(4, outputs))


def layered(shape, outputs):
    return nn.Sequential(nn.Linear(shape[0], 4), nn.LayerNorm(4), nn.Linear(4, outputs))


ZOO = [(gated, (6,)), (attentive, (6,)), (tied, (6, 1)), (recurrent, (6,)), (twice, (6,)), (normed, (6,))]


def batch_of(shape, *lead):
    generator = torch.Generator().manual_seed(4)
    if len(shape) == 2:
        return torch.randint(3, (*lead, *shape), generator=generator).double()
    return torch.randn(*lead, *shape, generator=generator, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(("make", "shape"), ZOO)
def test_outputs_and_gradients_are_those_of_the_module(make, shape):
    """One flat vector and torch's own module agree, and rows side by side agree with rows alone."""
    torch.manual_seed(3)
    plain = make(shape, 3).double()
    net = built(make, shape)
    ravel = Ravel(net)
    order = Ravel(plain).names
    own = [
        name.removeprefix("extractor.") if name.startswith("extractor") else _head_name(order, name, net)
        for name in ravel.names
    ]
    values = dict(plain.named_parameters())
    x = torch.cat([values[name].detach().flatten() for name in own]).requires_grad_()
    inputs = batch_of(shape, 5)
    wanted = functional_call(plain, dict(plain.named_parameters()), (inputs,))
    assert torch.allclose(ravel(x, inputs), wanted, atol=1e-12)
    (slope,) = torch.autograd.grad(ravel(x, inputs).square().sum(), x)
    slopes = torch.autograd.grad(wanted.square().sum(), [values[name] for name in own])
    assert torch.allclose(slope, torch.cat([part.flatten() for part in slopes]), atol=1e-10)
    rows = torch.stack([x.detach(), -x.detach()])
    batches = batch_of(shape, 2, 5)
    both = [ClientExecutor(mode).map(ravel, 1, rows, batches) for mode in ("vmap", "loop")]
    assert torch.allclose(*both, atol=1e-12)


def _head_name(order, name, net):
    """Return the name of a parameter of the head in the module itself: its last linear layer."""
    if not isinstance(net, Net):
        return name
    return [one for one in order if one.endswith(name.removeprefix("head"))][-1]


def test_parameters_start_as_constructed_and_keyed():
    """No generator but the run's decides them, and none is moved."""
    net = Ravel(built(gated))
    first = net.init(torch.Generator().manual_seed(1))
    with rng.seeded(7):
        assert torch.equal(net.init(torch.Generator().manual_seed(1)), first)
        assert not torch.equal(net.init(torch.Generator().manual_seed(2)), first)
        after = torch.rand(1), normal(), random.random()
    with rng.seeded(7):
        assert after == (torch.rand(1), normal(), random.random())
    named = dict(zip(net.names, first.split(net.sizes), strict=True))
    assert torch.equal(named["extractor.norm.weight"], torch.ones(5))
    assert named["head.bias"].abs().max() <= 5**-0.5 < named["extractor.gate"].abs().max()


def test_a_net_of_a_user_starts_by_the_law_it_names():
    def explicit(shape, outputs, *, law: str = "own"):
        layers = [nn.Linear(shape[0], 4), nn.PReLU()]
        return Net(nn.Sequential(*layers), 4, outputs, law)

    net = Ravel(built(explicit))
    start = dict(zip(net.names, net.init(torch.Generator().manual_seed(0)).split(net.sizes), strict=True))
    assert start["extractor.1.weight"].tolist() == [0.25]  # as PReLU constructs it
    with pytest.raises(UserError, match=r"no initialization rule for PReLU.*'own' starts as constructed"):
        Ravel(build("mine", (6,), 3, {"law": "default"})).init(torch.Generator())


def test_an_encoder_of_a_users_extractor_starts_with_it():
    net = built(gated)
    cut = Ravel(net.extractor).size
    whole, start = (
        Ravel(one).init(torch.Generator().manual_seed(3)) for one in (encoder(net, 2), Ravel(net).module)
    )
    assert torch.equal(whole[:cut], start[:cut])
    assert len(whole) == cut + 4 * (5 + 1) + 3 * (2 + 1)


@pytest.mark.parametrize(
    ("make", "head"),
    [
        (lambda s, o: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, o)), True),
        (lambda s, o: Plain(lambda m, x: m.head(m.b(x)), head=nn.Linear(4, o), b=nn.Linear(6, 4)), True),
        (lambda s, o: nn.Sequential(nn.Linear(6, 4), nn.Linear(4, o), nn.LogSoftmax(-1)), False),
        (lambda s, o: Plain(lambda m, x: m.a(x) + m.head(m.b(x)), a=nn.Linear(6, o), b=nn.Linear(6, 4),
                            head=nn.Linear(4, o)), False),
        (lambda s, o: Plain(lambda m, x: m.b(x) @ m.head.weight.T, b=nn.Linear(6, 4), head=nn.Linear(4, o)), False),
    ],
)  # fmt: skip
def test_the_head_is_what_is_applied_last(make, head):
    """Where it is not, methods that divide a model say so, and others work."""
    problem = classifier(built(lambda shape, outputs: make(shape, outputs)))
    start = problem.init(torch.Generator().manual_seed(0))["x"]
    assert problem.predict(start, torch.randn(5, 6)).shape == (5, 3)
    if head:
        assert split_model(problem).width == 4 and split_model(problem).classes == 3
    else:
        with pytest.raises(Incompatible, match="no hidden layer before a linear head"):
            split_model(problem)


def test_a_head_that_shares_its_weights_is_not_divided():
    with pytest.raises(Incompatible, match="no hidden layer before a linear head"):
        split_model(classifier(built(tied, (6, 1))))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda s, o: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, o)), "use GroupNorm or LayerNorm"),
        (lambda s, o: nn.BatchNorm1d(3, track_running_stats=False), "BatchNorm1d ''"),
        (lambda s, o: Plain(lambda m, x: m.a(x - x.mean(0)), a=nn.Linear(6, o)), "depends on the others"),
        (lambda s, o: nn.Sequential(nn.Dropout(0.1), nn.Linear(6, o)), "Dropout '0' drops.*set dropout to 0"),
        (lambda s, o: nn.TransformerEncoderLayer(6, 2), "MultiheadAttention 'self_attn' drops"),
        (lambda s, o: Plain(lambda m, x: functional.dropout(m.a(x)), a=nn.Linear(6, o)), "draws random numbers"),
        (lambda s, o: nn.LazyLinear(o), "give lazy layers the size of their inputs"),
        (lambda s, o: nn.Linear(6, o).double(), "'weight' is torch.float64"),
        (lambda s, o: nn.Flatten(), "no parameters"),
        (lambda s, o: "net", "returned str; return an nn.Module"),
        (lambda s, o: nn.Linear(6, o + 1), r"must give outputs \(3, 3\), given \(3, 4\)"),
        (lambda s, o: nn.Linear(5, o), r"on inputs \(3, 6\): RuntimeError: "),
        (lambda s, o: 1 / 0, "ZeroDivisionError: division by zero"),
        (
            lambda s, o: Plain(lambda m, x: m.a(x) if x.sum() > -1e9 else x, a=nn.Linear(6, o)),
            "vmap cannot vectorize forward.*avoid branches on values",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused_with_the_mend(make, says):
    with pytest.raises(UserError, match=f"model 'mine': .*{says}"):
        built(lambda shape, outputs: make(shape, outputs))


def test_layers_without_a_rule_of_vmap_run_in_loops():
    def lasting(shape, outputs):
        return Plain(
            lambda m, x: m.head(m.memory(x.unsqueeze(-1))[0][:, -1]),
            memory=nn.LSTM(1, 4, batch_first=True),
            head=nn.Linear(4, outputs),
        )

    assert dense(built(gated)) and not classifier(build_as("lasting", lasting)).dense


def unrolled(kind):
    def make(shape, outputs):
        return Plain(
            lambda m, x: m.head(m.memory(x.unsqueeze(-1))[0][:, -1]),
            memory=kind(1, 4, batch_first=True),
            head=nn.Linear(4, outputs),
        )

    return make


def rectified(shape, outputs):
    return nn.Sequential(nn.Linear(shape[0], 4), nn.PReLU(4), nn.Linear(4, outputs))


@pytest.mark.parametrize(
    ("make", "unit"),
    [
        *((made, None) for made in (unrolled(nn.GRU), unrolled(nn.RNN), unrolled(nn.LSTM), rectified)),
        (unrolled(nn.GRU), "record"),
        (rectified, "record"),
    ],
)
def test_models_that_torch_cannot_vectorize_train_in_loops(make, unit, tmp_path):
    registered(make)
    privacy = {"privacy": {"unit": unit, "noise_multiplier": 1.0, "clip": 1.0}} if unit else {}
    run = given(
        table(tmp_path), {"name": "fedavg", "local_steps": 2, "batch_size": 4}, model="mine", **privacy
    )
    with pytest.raises(Incompatible, match=r"vectorize: torch\.func\.vmap cannot"):
        harness.run(run, tmp_path / "out", execution=harness.Execution(vectorize="vmap"))
    assert harness.run(run, tmp_path / "out").reason is None


def test_losses_of_samples_are_computed_in_a_loop_too(tmp_path):
    registered(unrolled(nn.GRU))
    run = given(table(tmp_path), {"name": "fedminmax"}, model="mine")
    run["data"]["sensitive"] = "group"
    assert harness.run(run, tmp_path / "out").reason is None


@pytest.mark.parametrize("group", [1, 2])
def test_samples_in_a_loop_are_clipped_as_samples_side_by_side(group):
    net = classifier(built(layered))
    drawn = torch.Generator().manual_seed(1)
    x = net.init(drawn)["x"].double() + torch.randn(2, 1, generator=drawn)
    batch = Batch(batch_of((6,), 2, 4), *torch.zeros(2, 2, 4).long(), torch.ones(2, 4).double())
    batch.weight[1, 3] = 0
    sums = [
        ClientExecutor("loop", singly=singly).clipped_sums(net.loss, 1, [x], batch, norm=0.5, group=group)[0]
        for singly in (False, True)
    ]
    assert torch.allclose(*sums, atol=1e-12)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_that_a_hook_computes_are_refused():
    with pytest.raises(UserError, match=r"Linear '' keeps 'weight'.*use torch\.nn\.utils\.parametrizations"):
        built(lambda shape, outputs: nn.utils.weight_norm(nn.Linear(shape[0], outputs)))


def build_as(name, make):
    registered(make, name)
    return build(name, (6,), 3)


def test_units_of_a_users_layers_can_be_pruned():
    def relu(shape, outputs):
        return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, outputs))

    problem = classifier(built(relu))
    x = problem.init(torch.Generator().manual_seed(0))["x"]
    (small,) = prune_models(problem, x, 0.5, None).models
    assert small.mask.sum() == 2 * (6 + 1) + 3 * (2 + 1)


@pytest.mark.parametrize(("make", "says"), [(layered, "LayerNorm behind it"), (twice, "share parameters")])
def test_what_cannot_be_pruned_is_refused(make, says):
    with pytest.raises(Incompatible, match=f"compression.alpha: .*{says}"):
        prunable(classifier(built(make)))


def test_ghost_clipping_refuses_tied_parameters():
    """The norm of a sum of two gradients does not follow from the norms of both."""
    problem = classifier(built(tied, (6, 1)))
    x = problem.init(torch.Generator().manual_seed(0))["x"]
    sample = Batch(torch.zeros(1, 6, 1), *torch.zeros(2, 1).long(), torch.ones(1))
    with pytest.raises(Incompatible, match="ghost clipping has no formula for parameters that layers share"):
        layout(problem.loss, [x], sample, (0,))


def test_settings_are_checked_by_annotation_or_default():
    def tuned(
        shape, outputs, depth=2, *, widths=(4,), slope: float = -0.5, rate: float = 0.5, skip: bool = False,
        kind: str = "a",
    ):  # fmt: skip
        """Has settings of every type."""
        return nn.Linear(shape[0], outputs)

    registered(tuned)
    assert complete("mine", {"widths": [3, 2], "slope": 0, "skip": True})["widths"] == (3, 2)
    assert describe("mine")["summary"] == "Has settings of every type."
    for setting, value, says in [
        ("depth", 0, "a positive integer, not 0"),
        ("rate", -1.0, "a positive number, not -1.0"),
        ("slope", float("nan"), "a finite number, not nan"),
        ("skip", 1, "true or false, not 1"),
        ("kind", 3, "a text, not 3"),
        ("widths", [0], "a list of positive integers"),
        ("deep", 2, "Did you mean 'depth'"),
    ]:
        with pytest.raises(UserError, match=says):
            complete("mine", {setting: value})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda shape, outputs, width: None, "setting 'width' needs a default"),
        (lambda shape, outputs, device=None: None, "setting 'device' must be of type int, float, bool, str"),
        (lambda shape: None, r"takes \(shape, outputs\) and settings by name, given \(shape\)"),
        (lambda shape, outputs, **others: None, "settings by name"),
    ],
)
def test_a_function_that_is_no_model_is_refused(make, says):
    with pytest.raises(UserError, match=says):
        registered(make)


def test_a_model_needs_a_description_and_a_free_name():
    with pytest.raises(UserError, match=r"@model\('tables'\), not @model above"):
        model(gated)
    with pytest.raises(UserError, match="two models are called 'mlp'"):
        registered(lambda shape, outputs: None, "mlp")
