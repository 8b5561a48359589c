"""Clipping in the rows' own precision: sums of per-sample gradients, and gradient clipping."""

import math

import pytest
import torch

from privacy.clipping import clip, clipped_sum, scale_to_norm


def test_rows_are_clipped_jointly_and_summed():
    """(3, 4) over two parts has norm 5 and becomes (0.6, 0.8); (0.3, 0.4) stays; the third does not count."""
    a, b = torch.tensor([[3.0], [0.3], [9.0]]), torch.tensor([[4.0], [0.4], [9.0]])
    found = clipped_sum((a, b), 1.0, torch.tensor([True, True, False]))
    torch.testing.assert_close(torch.cat(found), torch.tensor([0.9, 1.2]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_adds_nothing(bad):
    (found,) = clipped_sum((torch.tensor([[bad, 1.0], [0.5, 0.0]]),), 1.0, torch.tensor([True, True]))
    assert torch.equal(found, torch.tensor([0.5, 0.0]))


def test_the_sum_is_that_of_the_guaranteed_clip_up_to_rounding():
    rows = torch.randn(8, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (found,) = clipped_sum((rows,), 2.0, torch.ones(8, dtype=torch.bool))
    torch.testing.assert_close(found, clip((rows,), 2.0).parts[0].sum(0))


def test_scaling_copies_nothing_where_nothing_is_too_long():
    rows = torch.ones(2, 4)
    assert scale_to_norm([rows], 2.0)[0] is rows


def test_rows_are_scaled_down_to_the_joint_norm():
    """(3, 4) becomes (0.6, 0.8), (0.3, 0.4) stays."""
    one, two = scale_to_norm([torch.tensor([[3.0], [0.3]]), torch.tensor([[4.0], [0.4]])], 1.0)
    torch.testing.assert_close(torch.cat([one, two], -1), torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


def test_gradient_clipping_gives_the_bits_of_dividing_the_bound_by_the_norm():
    rows = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    assert torch.equal(scale_to_norm([rows], 0.7)[0], (0.7 / norm).clamp(max=1.0) * rows)
