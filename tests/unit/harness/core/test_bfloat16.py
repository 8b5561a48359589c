"""Precision bfloat16: networks compute in it; parameters, steps, clipping, noise and messages stay float32."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from datasets.federation import Batch
from harness import models
from harness.config.run import read_spec
from harness.core.errors import Incompatible
from harness.core.execution.vectorize import ClientExecutor
from harness.core.flat_model import Ravel
from harness.problems import PROBLEMS
from harness.problems.classify import classifier
from harness.simulation.build import prepare
from tests.support.runs import finished, given, ready

NARROW = {"precision": "bfloat16"}
MLP = {"name": "mlp", "hidden": [8]}
SHAPE, CLASSES = (1, 12, 12), 3


def network(name="fedavg_cnn", shape=SHAPE):
    net = models.build(name, shape, CLASSES)
    models.compute_in(torch.bfloat16, net)
    return net


def samples(count=5, shape=SHAPE):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, *shape, generator=generator), torch.arange(count) % CLASSES


def test_bfloat16_gradients_are_summed_in_single_precision():
    """Convert torch's module itself and let autograd differentiate it."""
    net, (x, y) = network(), samples()
    problem = classifier(net)
    start = problem.init(torch.Generator().manual_seed(1))["x"]
    leaf = start.clone().requires_grad_()
    errors = functional.cross_entropy(Ravel(net)(leaf, x), y)
    (found,) = torch.autograd.grad(errors, leaf)

    torch.nn.utils.vector_to_parameters(start, net.parameters())
    own = net.bfloat16().to(memory_format=torch.channels_last)
    scores = own(x.bfloat16())
    gradients = torch.autograd.grad(functional.cross_entropy(scores.float(), y), tuple(own.parameters()))
    by_hand = torch.cat([g.flatten() for g in gradients]).float()
    assert scores.dtype == torch.bfloat16 and found.dtype == torch.float32
    assert torch.equal(found, by_hand)

    usual = Ravel(models.build("fedavg_cnn", SHAPE, CLASSES))
    (exact,) = torch.autograd.grad(functional.cross_entropy(usual(leaf, x), y), leaf)
    assert 1e-3 < (found - exact).norm() / exact.norm() < 0.15, "it is near the exact one, and another"


def test_halves_encoders_and_pruned_networks_use_bfloat16():
    """Every Ravel made of a part of the net sees the mark; one of an unmarked net does not."""
    x, _ = samples(4, (6,))
    net = network("mlp", (6,))
    problem = classifier(net)
    for split_model in (problem.halves(), problem.halves(3)):
        u, v = split_model.init(torch.Generator().manual_seed(0)).values()
        features = split_model.features(u, x)
        assert features.dtype == torch.float32
        assert torch.equal(features, features.bfloat16().float())
        scores = split_model.scores(v, features[:, : split_model.width])
        assert torch.equal(scores, scores.bfloat16().float())
    whole = problem.init(torch.Generator().manual_seed(0))["x"]
    smaller = problem.rebuild(problem.module)
    assert torch.equal(smaller.predict(whole, x), problem.predict(whole, x))
    exact = Ravel(models.build("mlp", (6,), CLASSES))(whole, x)
    assert not torch.equal(exact, exact.bfloat16().float())


def test_clipping_holds_to_the_last_digit_of_single_precision():
    """A clipped gradient that were rounded to bfloat16 could be longer than its bound by a 256th."""
    net, (x, y) = network("mlp", (6,)), samples(1, (6,))
    problem = classifier(net)
    start = problem.init(torch.Generator().manual_seed(1))["x"]
    batch = Batch(x[None], y[None], y[None] * 0, torch.ones(1, 1))
    (found,) = ClientExecutor("vmap").clipped_sums(problem.loss, 1, (start[None],), batch, norm=1e-3)
    assert abs(float(found.norm()) - 1e-3) < 1e-9


def test_a_private_pruned_run_learns_in_it_and_is_another_run(data):
    fields = {"model": MLP, "privacy": {"placement": "local", "clip": 1.0, "noise_multiplier": 0.1}}
    fields |= {"compression": {"alpha": 0.5, "beta": 0.5}, "rounds": 6}
    plain, narrow = (ready(data, "fedavg", **fields, **more) for more in ({}, NARROW))
    assert plain.id != narrow.id
    ends = [finished(replace(setup, noise_key="one")) for setup in (plain, narrow)]  # the same noise
    assert {part.dtype for end in ends for part in end.state} == {torch.float32}
    apart = (ends[0].state.x - ends[1].state.x).norm() / ends[0].state.x.norm()
    assert 0 < apart < 0.05
    assert ends[0].statement() == ends[1].statement()


def test_a_problem_without_a_network_refuses_it():
    with pytest.raises(Incompatible, match="bfloat16 is for networks; problem quadratic_minimax"):
        read_spec(
            {
                "problem": {"kind": "quadratic_minimax", "P": [1], "B": [1], "Q": [1], "c": [0], "d": [0]},
                "algorithm": "local_sgda",
                **NARROW,
            }
        )


def test_a_problem_that_builds_its_own_network_refuses_it(monkeypatch, data):
    """Otherwise it would compute in single precision under a name that says bfloat16."""
    kind = PROBLEMS["classify"]

    def build(setting):
        return classifier(models.build("logistic", (4,), 2)), setting.federation

    monkeypatch.setitem(PROBLEMS._things, "classify", replace(kind, build=build))
    assert prepare(read_spec(given(data))).problem.module is not None
    with pytest.raises(Incompatible, match=r"does not build its network with Setting\.net, so bfloat16"):
        prepare(read_spec(given(data, **NARROW)))
