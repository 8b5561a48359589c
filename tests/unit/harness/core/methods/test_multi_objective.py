"""Combinations of gradients against an exhaustive search over the simplex."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.methods.multi_objective import best_of_two, common_descent, smooth_maximum


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_best_of_two_is_the_best_on_the_line_between_them(seed):
    first, second = draw(seed, 2, 3).unbind(0)
    t = torch.linspace(0, 1, 20001, dtype=torch.float64)[:, None]
    line = (1 - t) * first + t * second
    free = best_of_two(first, second, first)
    assert float(free @ first) >= float((line @ first).max()) - 1e-9
    kept = best_of_two(first, second, second, keep=first)
    allowed = line[line @ first >= 0]
    assert float(kept @ first) >= -1e-9
    assert float(kept @ second) >= float((allowed @ second).max()) - 1e-9


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_common_descent_goes_farthest_of_all_that_raise_nothing(seed):
    """Three gradients in the plane, all mixtures in steps of 1/60."""
    gradients = draw(seed, 3, 2)
    towards = gradients.mean(0)
    found = common_descent(gradients, towards)
    assert bool((gradients @ found >= -1e-9).all())
    i, j = torch.meshgrid(torch.arange(61), torch.arange(61), indexing="ij")
    mixtures = torch.stack([i, j, 60 - i - j], -1).view(-1, 3)
    mixtures = mixtures[mixtures.min(-1).values >= 0] / 60
    ways = mixtures.double() @ gradients
    feasible = ways[(ways @ gradients.T >= 0).all(-1)]
    best = float((feasible @ towards).max()) if len(feasible) else 0.0
    assert float(found @ towards) >= best - 1e-9


def test_where_nothing_agrees_the_shortest_combination_is_taken():
    """Opposite gradients (1, 0) and (-3, 0): 3/4 of the first and 1/4 of the second are 0."""
    gradients = torch.tensor([[1.0, 0.0], [-3.0, 0.0]], dtype=torch.float64)
    assert float(common_descent(gradients, gradients.mean(0)).abs().max()) < 1e-9


def test_stacked_runs_get_their_own_combination():
    gradients, towards = draw(1, 4, 3, 5), draw(2, 4, 5)
    together = common_descent(gradients, towards)
    apart = torch.stack([common_descent(g, t) for g, t in zip(gradients, towards, strict=True)])
    assert torch.allclose(together, apart, atol=1e-12)


def test_a_sharp_maximum_has_the_gradient_of_the_largest():
    """Widths 1e-3 and 1e3: the largest alone, and the mean."""
    values, gradients = torch.tensor([0.1, 0.4, 0.3]).double(), draw(3, 3, 4)
    sharp, flat = (smooth_maximum(values, gradients, torch.tensor([w]).double()) for w in (1e-3, 1e6))
    assert torch.allclose(sharp, gradients[1]) and torch.allclose(flat, gradients.mean(0), atol=1e-5)
