"""Minimax methods that coincide where one of their parts is switched off, step by step."""

from dataclasses import dataclass

import pytest
import torch

from algorithms.minimax.codasca import CODASCA
from harness import models
from harness.problems.fair import fair_classifier
from harness.problems.quadratic import Minimax
from tests.support.worlds import (
    MM4,
    close,
    largest_difference,
    quadratic_minimax,
    random_federation,
    run_algorithm,
    weighed_logistic,
)

TINY = 1e-10
WORK = {"lr_x": 0.3, "lr_y": 0.2, "local_steps": 4, "batch_size": 3}
NO_STAGES = {"prox": 0.0, "stage_rounds": 10**6}
MEMORYLESS = {"b_x": 1.0, "b_y": 1.0}


def fair(sizes=(7, 12, 5, 9)):
    """Weights of three classes against softmax regression; the weights live on the simplex."""
    problem = fair_classifier(models.build("logistic", (4,), 3), 3, "euclidean")
    return problem, random_federation(sizes)


def agree(one, other, world=fair, rounds=6):
    """Run two methods, ``(name or instance, settings)``, and compare x and y; say that something happened."""
    first, second = (
        run_algorithm(name, *world(), rounds, **settings).state for name, settings in (one, other)
    )
    start = run_algorithm(one[0], *world(), 0, **one[1]).state
    assert float((first.x - start.x).abs().max()) > 0.05
    assert float((first.y - start.y).abs().max()) > 0.01
    return close(first.x, second.x, TINY) and close(first.y, second.y, TINY)


def test_memoryless_fedsgda_m_is_local_sgda_on_minibatches():
    """FedSGDA-M draws its first estimate from the first batch of the main stream."""
    for average_prev in (False, True):
        settings = {**WORK, "alpha": 1.0, "beta": 1.0, "average_prev": average_prev}
        assert agree(("fedsgda_m", settings), ("local_sgda", WORK))


def test_coda_plus_in_one_stage_without_prox_is_local_sgda():
    assert agree(("coda_plus", {**WORK, **NO_STAGES}), ("local_sgda", WORK))
    assert not agree(("coda_plus", {**WORK, **NO_STAGES, "prox": 0.1}), ("local_sgda", WORK))
    assert not agree(("coda_plus", {**WORK, **NO_STAGES, "stage_rounds": 3}), ("local_sgda", WORK))


@dataclass(frozen=True, kw_only=True)
class Frozen(CODASCA):
    """CODASCA whose control variates are set back to zero after every round."""

    def round(self, state, clients, channel):
        new = super().round(state, clients, channel)
        controls = {name: torch.zeros_like(getattr(new, name)) for name in ("cx", "cy", "cxi", "cyi")}
        return new._replace(**controls)


def test_codasca_without_control_variates_is_coda_plus():
    settings = {**WORK, "prox": 0.1, "stage_rounds": 2}
    assert agree((Frozen(**settings), {}), ("coda_plus", settings))
    assert not agree(("codasca", settings), ("coda_plus", settings))


@pytest.mark.parametrize("server_lr", [0.5, 1.0, 1.5])
def test_sagda_among_equals_is_local_sgda_with_server_steps(server_lr):
    """Clients with the same gradients correct nothing; the server goes ``server_lr`` of the way of Local SGDA."""
    twins = Minimax(P=[0.7] * 3, B=[1.1] * 3, Q=[1.5] * 3, c=[0.3] * 3, d=[-0.2] * 3)
    world, settings = quadratic_minimax(twins), {"lr_x": 0.1, "lr_y": 0.2, "local_steps": 4}
    at = {"x": torch.tensor([1.0], dtype=torch.float64), "y": torch.tensor([-1.0], dtype=torch.float64)}
    found = run_algorithm("sagda", *world, 5, start=dict(at), server_lr=server_lr, **settings).state
    for _ in range(5):
        there = run_algorithm("local_sgda", *world, 1, start=dict(at), **settings).state
        at = {name: at[name] + server_lr * (getattr(there, name) - at[name]) for name in ("x", "y")}
    assert close(found.x, at["x"], TINY)
    assert close(found.y, at["y"], TINY)


def test_fed_norm_sgda_with_equal_steps_is_local_sgda():
    """Clients of one size and no constraint: a point's increment is lr tau times the mean of its gradients."""
    assert agree(("fed_norm_sgda", WORK), ("local_sgda", WORK), weighed_logistic)
    for normalize in (True, False):
        settings = {**WORK, "own_steps": (4,), "local_steps": 9, "normalize": normalize}
        assert agree(("fed_norm_sgda", settings), ("local_sgda", WORK), weighed_logistic)
    assert not agree(("fed_norm_sgda", {**WORK, "own_steps": (4, 3)}), ("local_sgda", WORK), weighed_logistic)


@pytest.mark.parametrize("snapshot_rounds", [1, 3])
def test_fed_norm_sgda_with_equal_steps_is_local_sgda_plus(snapshot_rounds):
    settings = {**WORK, "snapshot_rounds": snapshot_rounds}
    assert agree(("fed_norm_sgda", settings), ("local_sgda_plus", settings), weighed_logistic)


@pytest.mark.parametrize("steps", [1, 4])
def test_memoryless_momentum_local_sgda_is_local_sgda(steps):
    settings = {**WORK, "local_steps": steps}
    memoryless = {**settings, **MEMORYLESS}
    assert agree(
        ("momentum_local_sgda", {**memoryless, "recompute_after_sync": True}), ("local_sgda", settings)
    )
    assert not agree(("momentum_local_sgda", memoryless), ("local_sgda", settings))


def test_the_factor_a_scales_steps_and_weights_alike():
    """Steps a lr and weights a b: (a, b, lr) = (.5, .8, .4) is (1, .4, .2)."""
    half = {**WORK, "a": 0.5, "b_x": 0.8, "b_y": 0.6, "lr_x": 0.4, "lr_y": 0.3}
    whole = {**WORK, "a": 1.0, "b_x": 0.4, "b_y": 0.3, "lr_x": 0.2, "lr_y": 0.15}
    assert agree(("momentum_local_sgda", half), ("momentum_local_sgda", whole))


@pytest.mark.parametrize("svrg", [True, False])
def test_fednest_ascends_as_often_as_it_has_inner_rounds(svrg):
    """T = 3 steps in y at the old x, then one in x, on the averages of MM4, (.5, 1, 2, 1, 1)."""
    x, y = 0.0, 0.0
    for _ in range(4):
        for _ in range(3):
            y = y + 0.2 * (x - 2 * y + 1)
        x = x - 0.1 * (0.5 * x + y + 1)
    settings = {"lr_x": 0.1, "lr_y": 0.2, "local_steps": 1, "inner_rounds": 3, "svrg": svrg}
    state = run_algorithm("fednest", *quadratic_minimax(), 4, **settings).state
    assert close(torch.cat([state.x, state.y]), (x, y), TINY)


def test_the_order_of_clients_does_not_move_the_limit():
    order = [2, 0, 3, 1]
    mixed = Minimax(*([getattr(MM4, name)[i] for i in order] for name in "PBQcd"))
    settings = {"lr_x": 0.05, "lr_y": 0.05}
    own = (1, 2, 4, 3)
    found = [
        run_algorithm("fed_norm_sgda", *quadratic_minimax(world), 7, own_steps=steps, **settings).state
        for world, steps in ((MM4, own), (mixed, tuple(own[i] for i in order)))
    ]
    assert largest_difference(*found) < 1e-12


def test_mean_steps_are_of_the_clients_not_of_the_pattern():
    """Steps (1, 3, 2) dealt to four clients are 1, 3, 2, 1; from (0, 0) with lr 1e-6 a step barely moves, so the
    normalized directions are the gradients there, with means c = 1 and d = 1: x = -tau lr, tau = 7 / 4."""
    settings = {"own_steps": (1, 3, 2), "lr_x": 1e-6, "lr_y": 1e-6}
    state = run_algorithm("fed_norm_sgda", *quadratic_minimax(), 1, **settings).state
    assert close(1e6 * torch.cat([state.x, state.y]), (-1.75, 1.75), 1e-4)
