"""Factors of matrices in flat vectors: layout, one step of subspace iteration, and what is kept whole."""

import pytest
import torch

from compression.errors import CompressionError
from compression.low_rank import Factors

SHAPES = (
    (6, 5),
    (6,),
    (4, 2, 3, 3),
    (2, 2),
    (3,),
)  # dense, bias, convolution, a matrix that factors lengthen


def vectors(*lead, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*lead, 30 + 6 + 72 + 4 + 3, generator=generator, dtype=torch.float64)


def step(factors, rows, right):
    """Return what one step makes of rows, and the next right factors."""
    basis = factors.left_basis(factors.left(rows, factors.right_basis(right)))
    right = factors.right(rows, basis)
    return factors.join(basis, right, factors.rest(rows)), right


def test_a_layout_by_hand():
    """Filters (4, 2, 3, 3) are a matrix 4 x 18. (2, 2) has 4 numbers, and as many in its factors."""
    factors = Factors.of(SHAPES, 1)
    assert [tuple(matrix) for matrix in factors.matrices] == [(0, 6, 5), (36, 4, 18)]
    assert (factors.left_size, factors.right_size, factors.rest_size) == (6 + 4, 5 + 18, 6 + 4 + 3)
    wide = Factors.of(SHAPES, 3)
    assert [tuple(matrix) for matrix in wide.matrices] == [(36, 4, 18)], "33 numbers are no shorter than 30"
    assert Factors.of(SHAPES, 4).matrices == ()
    with pytest.raises(CompressionError, match="at least 1; got 0"):
        Factors.of(SHAPES, 0)


def test_products_are_those_of_the_matrices():
    factors, row = Factors.of(SHAPES, 2), vectors()
    dense, filters = row[:30].view(6, 5), row[36:108].view(4, 18)
    q = torch.arange(float(factors.right_size), dtype=torch.float64)
    p = factors.left(row, q)
    torch.testing.assert_close(p[:12].view(6, 2), dense @ q[:10].view(5, 2))
    torch.testing.assert_close(p[12:].view(4, 2), filters @ q[10:].view(18, 2))
    torch.testing.assert_close(factors.right(row, p)[10:].view(18, 2), filters.T @ p[12:].view(4, 2))
    whole = factors.join(p, q, factors.rest(row))
    torch.testing.assert_close(whole[:30].view(6, 5), p[:12].view(6, 2) @ q[:10].view(5, 2).T)
    assert torch.equal(whole[30:36], row[30:36]) and torch.equal(whole[108:], row[108:])


def test_a_matrix_of_that_rank_arrives_after_one_step():
    factors, row = Factors.of(((7, 9), (4,)), 2), vectors()[:67].clone()
    thin = vectors(seed=1)
    row[:63] = (thin[:14].view(7, 2) @ thin[14:32].view(2, 9)).flatten()
    found, _ = step(factors, row, vectors(seed=2)[: factors.right_size])
    torch.testing.assert_close(found, row)


def test_steps_tend_to_the_nearest_matrix_of_that_rank():
    factors, row = Factors.of(((7, 9),), 2), vectors()[:63]
    u, s, v = torch.linalg.svd(row.view(7, 9))
    nearest = (u[:, :2] * s[:2] @ v[:2]).flatten()
    right = vectors(seed=1)[:18]
    found, right = step(factors, row, right)
    assert (found - nearest).norm() > 0.1
    for _ in range(200):
        found, right = step(factors, row, right)
    torch.testing.assert_close(found, nearest)


def test_every_row_is_computed_by_itself():
    """Bit for bit: a stack of runs, and a cohort of other clients, change nothing."""
    factors = Factors.of(SHAPES, 2)
    for dtype in (torch.float32, torch.float64):
        rows, right = vectors(3, 5).to(dtype), vectors(3, 5, seed=1).to(dtype)[..., : factors.right_size]
        together = step(factors, rows, right)
        for place in ((0, 0), (2, 4)):
            alone = step(factors, rows[place], right[place])
            assert all(torch.equal(one[place], other) for one, other in zip(together, alone, strict=True))


def test_columns_from_which_nothing_starts_are_replaced():
    """A message of zeros leaves zeros behind, with which every later product would be zero."""
    factors = Factors.of(((3, 4),), 1)
    _, right = step(factors, torch.zeros(12), torch.ones(4))
    assert torch.equal(right, torch.zeros(4))
    fresh = torch.arange(1.0, 5.0)
    assert torch.equal(factors.revived(right, fresh), fresh)
    assert torch.equal(factors.revived(torch.full((4,), torch.nan), fresh), fresh)
    assert torch.equal(factors.revived(torch.ones(4), fresh), torch.ones(4))
    two = Factors.of(((4, 5),), 2)
    half = torch.tensor([[1.0, 0.0]] * 5).flatten()
    mended = two.revived(half, torch.full((10,), 7.0)).view(5, 2)
    assert torch.equal(mended, torch.tensor([[1.0, 7.0]] * 5))
