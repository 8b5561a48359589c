"""What every problem promises: padding does not count, and projections project."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import models
from harness.core.methods.derivatives import project_simplex
from harness.problems import PROBLEMS as REGISTRY
from harness.problems import Setting
from harness.problems.auroc import auroc
from harness.problems.fair import fair_classifier
from harness.problems.fair_weights import fair_weights
from harness.problems.regression import regressor
from tests.support.worlds import logistic, quadratic_bilevel, quadratic_minimax, random_federation

PROBLEMS = {
    "classify": lambda: (logistic(), random_federation([6])),
    "fair_classification": lambda: (
        fair_classifier(models.build("logistic", (4,), 3), 3, "euclidean"),
        random_federation([6]),
    ),
    "fair_weights": lambda: (fair_weights(models.build("logistic", (4,), 3), 2), random_federation([6])),
    "auroc": lambda: (
        auroc(models.build("logistic", (4,), 1), torch.tensor(0.4)),
        random_federation([6], classes=2),
    ),
    "regression": lambda: (regressor(models.build("logistic", (4,), 1)), random_federation([6])),
    "quadratic_minimax": quadratic_minimax,
    "quadratic_bilevel": quadratic_bilevel,
    "random_quadratic": lambda: REGISTRY["random_quadratic"].build(
        Setting(REGISTRY["random_quadratic"].settings(clients=3, dims=(3, 2), nonconvex=0.5), None, None)
    ),
    "random_bilevel": lambda: REGISTRY["random_bilevel"].build(
        Setting(REGISTRY["random_bilevel"].settings(clients=3, dims=(2, 3)), None, None)
    ),
}
APART = {"vertical"}  # its loss is of embeddings; tests/unit/algorithms/vertical/test_split_network.py

WRITTEN_OUT = {"quadratic_minimax", "quadratic_bilevel"}  # all their numbers are settings


def functions(problem):
    """Return the objectives of a problem."""
    return [fn for fn in (problem.loss, problem.inner) if fn is not None]


def point(problem):
    drawn = problem.init(torch.Generator().manual_seed(0))
    return [drawn[name].double() + 0.3 for name in ("x", "y") if name in drawn]


def test_every_registered_problem_is_held_to_these_promises():
    assert set(PROBLEMS) | APART == set(REGISTRY)


@pytest.mark.parametrize("name", PROBLEMS)
def test_padding_does_not_count(name):
    """The loss of the first sample is the same with two slots of padding behind it."""
    problem, federation = PROBLEMS[name]()
    plain, padded = (federation.pool.at(torch.tensor(places)) for places in ([0], [0, -1, -1]))
    for fn in functions(problem):
        assert float(fn(*point(problem), padded)) == pytest.approx(
            float(fn(*point(problem), plain)), abs=1e-12
        )


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_a_batch_of_padding_only_gives_nothing(name):
    """A client that has run out of batches must stand still."""
    problem, federation = PROBLEMS[name]()
    nothing = federation.pool.at(torch.tensor([-1, -1]))
    for fn in functions(problem):
        leaves = [value.requires_grad_() for value in point(problem)]
        value = fn(*leaves, nothing)
        assert float(value.detach()) == 0
        for gradient in torch.autograd.grad(value, leaves, allow_unused=True):
            assert gradient is None or bool((gradient == 0).all())


VECTORS = st.lists(st.floats(-5, 5), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(values=VECTORS, others=VECTORS)
def test_the_simplex_projection_is_the_nearest_point(values, others):
    """Feasible; fixed there; and <y - p, q - p> <= 0 for every feasible q, which characterizes it."""
    y = torch.tensor(values, dtype=torch.float64)
    p = project_simplex(y)
    assert bool((p >= 0).all())
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-12)
    assert torch.allclose(project_simplex(p), p, atol=1e-12)
    weights = torch.tensor((others * 6)[: len(values)], dtype=torch.float64).softmax(0)
    for q in (*torch.eye(len(values), dtype=torch.float64), weights):
        assert float((y - p) @ (q - p)) <= 1e-10


def test_the_simplex_projection_by_hand():
    """(1, .5, -1): drop the last; (1.5 - 1) / 2 = .25 off each: (.75, .25, 0). Rows are projected apart."""
    y = torch.tensor([[1.0, 0.5, -1.0], [0.2, 0.3, 0.5]])
    expected = torch.tensor([[0.75, 0.25, 0.0], [0.2, 0.3, 0.5]])
    assert torch.allclose(project_simplex(y), expected)


def test_the_simplex_projection_of_huge_single_precision_rows():
    """1 is less than the spacing of floats there; a difference of 2 ** 10 still decides. NaN stays NaN."""
    y = torch.tensor([[2.0**33, 2.0**33 - 2.0**10, -1.0], [3e38, 1.0, -3e38], [torch.nan, 1.0, 2.0]])
    found = project_simplex(y)
    assert found[:2].tolist() == [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert found[2].isnan().any()
    assert project_simplex(torch.full((4,), torch.inf)).isnan().all()


@pytest.mark.parametrize("name", sorted({*REGISTRY} - APART - WRITTEN_OUT))
def test_problems_with_equal_constants_are_shared(name):
    """A run takes the problem of an earlier one for its own if they do."""
    kind, own = REGISTRY[name], REGISTRY[name].data == "own"
    data = random_federation([24, 24], classes=2, groups=2)
    (first, federation), (second, _) = (
        kind.build(Setting(kind.settings(), None if own else data, None if own else ("logistic", {}), seed))
        for seed in (0, 1)
    )
    assert first.constants == second.constants
    batch = federation.pool.at(torch.tensor([0, 1, 2]))
    for one, other in zip(functions(first), functions(second), strict=True):
        assert torch.equal(one(*point(first), batch), other(*point(first), batch))
