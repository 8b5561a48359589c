"""Topologies: graphs, Metropolis-Hastings weights, and how fast they average."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from datasets.topology import (
    TOPOLOGIES,
    Complete,
    ErdosRenyi,
    Matrix,
    Ring,
    Star,
    Topology,
    TopologyError,
    Torus,
    directed_edges,
    mixing_matrix,
    spectral_gap,
)

OWN = Matrix(((0.5, 0.5, 0.0), (0.5, 0.25, 0.25), (0.0, 0.25, 0.75)))

SAMPLES: list[tuple[Topology, int]] = [
    (Ring(), 1),
    (Ring(), 2),
    (Ring(), 3),
    (Ring(), 8),
    (Torus(), 4),
    (Torus(), 16),
    (Torus(rows=2), 10),
    (Complete(), 8),
    (Star(), 6),
    (ErdosRenyi(0.4), 12),
    (OWN, 3),
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def rows(matrix: Tensor) -> list[list[float]]:
    return [[round(float(weight), 12) for weight in row] for row in matrix]


def test_every_registered_topology_is_sampled() -> None:
    assert {topology.kind for topology, _ in SAMPLES} == set(TOPOLOGIES)


@pytest.mark.parametrize(("topology", "n"), SAMPLES)
def test_mixing_matrices_are_symmetric_and_doubly_stochastic(topology: Topology, n: int) -> None:
    mixing = mixing_matrix(topology, n, rng())
    assert mixing.dtype == torch.float64
    assert mixing.shape == (n, n)
    assert torch.equal(mixing, mixing.T)
    torch.testing.assert_close(mixing.sum(1), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-14)
    edges = torch.from_numpy(topology.adjacency(n, rng()))
    assert not edges.diagonal().any()
    assert torch.equal(mixing > 0, edges | torch.eye(n, dtype=torch.bool))


@pytest.mark.parametrize(("topology", "n"), SAMPLES)
def test_one_round_contracts_the_distance_to_the_mean_by_p(topology: Topology, n: int) -> None:
    """``||X W - Xbar||_F^2 <= (1 - p) ||X - Xbar||_F^2`` for every X."""
    mixing = mixing_matrix(topology, n, rng())
    x = torch.from_numpy(rng(1).normal(size=(20, n)))
    mean = x.mean(1, keepdim=True)
    before, after = (x - mean).square().sum(), (x @ mixing - mean).square().sum()
    assert after <= (1 - spectral_gap(mixing).p) * before + 1e-12


def test_ring_weights_are_thirds_and_those_of_two_nodes_halves() -> None:
    third = round(1 / 3, 12)
    assert rows(mixing_matrix(Ring(), 4)) == [
        [third, third, 0, third],
        [third, third, third, 0],
        [0, third, third, third],
        [third, 0, third, third],
    ]
    assert rows(mixing_matrix(Ring(), 2)) == [[0.5, 0.5], [0.5, 0.5]]
    assert rows(mixing_matrix(Ring(), 1)) == [[1.0]]


def test_torus_weights_are_fifths() -> None:
    """Node 0 of a 3 x 4 grid: itself, 1 and 3 along its row, 4 and 8 down its column."""
    mixing = mixing_matrix(Torus(rows=3), 12)
    assert set(mixing[mixing > 0].numpy().round(12)) == {0.2}
    assert torch.nonzero(mixing[0]).flatten().tolist() == [0, 1, 3, 4, 8]


def test_torus_with_a_side_of_two_is_the_simple_graph() -> None:
    """2 x 5: two neighbors in the row, one across: degree 3, weights 1/4. 2 x 2: the cycle, weights 1/3."""
    mixing = mixing_matrix(Torus(rows=2), 10)
    assert set(mixing[mixing > 0].numpy().round(12)) == {0.25}
    assert directed_edges(mixing) == 30
    square = mixing_matrix(Torus(), 4)
    assert set(square[square > 0].numpy().round(12)) == {round(1 / 3, 12)}


def test_torus_is_as_near_to_square_as_it_can_be() -> None:
    assert torch.equal(mixing_matrix(Torus(), 24), mixing_matrix(Torus(rows=4), 24))


@pytest.mark.parametrize(("rows_given", "n"), [(None, 7), (None, 2), (3, 16), (4, 4)])
def test_nodes_that_fill_no_grid_are_refused(rows_given: int | None, n: int) -> None:
    with pytest.raises(TopologyError, match=f"{n} nodes do not fill a grid"):
        mixing_matrix(Torus(rows_given), n)


def test_complete_graph_is_the_plain_average() -> None:
    average = torch.full((8, 8), 1 / 8, dtype=torch.float64)
    torch.testing.assert_close(mixing_matrix(Complete(), 8), average, rtol=0, atol=1e-15)


def test_star_weights() -> None:
    """Four nodes: the hub has degree 3, so every spoke and the hub itself weigh 1/4, a leaf keeps 3/4."""
    assert rows(mixing_matrix(Star(), 4)) == [
        [0.25, 0.25, 0.25, 0.25],
        [0.25, 0.75, 0, 0],
        [0.25, 0, 0.75, 0],
        [0.25, 0, 0, 0.75],
    ]


@pytest.mark.parametrize(
    ("topology", "n", "second", "p"),
    [
        (Ring(), 4, 1 / 3, 8 / 9),
        (Ring(), 8, 0.804738, 0.352397),
        (Ring(), 16, 0.949253, 0.098919),
        (Torus(rows=4), 16, 0.6, 0.64),
        (Complete(), 8, 0.0, 1.0),
        (Star(), 4, 0.75, 1 - 0.75**2),
        (Ring(), 1, 0.0, 1.0),
    ],
)
def test_spectral_gaps(topology: Topology, n: int, second: float, p: float) -> None:
    """Ring: eigenvalues ``(1 + 2 cos(2 pi k / n)) / 3``. Torus 4 x 4: ``(1 + 2 cos a + 2 cos b) / 5``: 3/5.

    Star of 4: a vector with sum zero on the leaves and 0 on the hub has eigenvalue 3/4; the remaining two are
    1 and 0 (trace 1/4 + 3 * 3/4 = 2.5 = 1 + 2 * 3/4 + 0).
    """
    gap = spectral_gap(mixing_matrix(topology, n))
    assert gap.second == pytest.approx(second, abs=5e-7)
    assert gap.p == pytest.approx(p, abs=5e-7)


@settings(max_examples=20, deadline=None)
@given(n=st.integers(3, 24))
def test_ring_gap_follows_the_formula(n: int) -> None:
    """The second largest absolute value is at k = 1, except for n = 3 where all but one eigenvalue vanish."""
    formula = max(abs(1 + 2 * math.cos(2 * math.pi * k / n)) / 3 for k in range(1, n))
    assert spectral_gap(mixing_matrix(Ring(), n)).second == pytest.approx(formula, abs=1e-12)


@pytest.mark.parametrize(
    ("topology", "n", "edges"),
    [(Ring(), 8, 16), (Torus(rows=4), 16, 64), (Complete(), 8, 56), (Ring(), 2, 2)],
)
def test_directed_edges(topology: Topology, n: int, edges: int) -> None:
    """Ring 2 n, torus 4 n, complete n (n - 1); two nodes share one edge, used both ways."""
    assert directed_edges(mixing_matrix(topology, n)) == edges


def test_erdos_renyi_is_connected_and_follows_its_seed() -> None:
    """With p = 0.25 a first draw over 8 nodes is mostly not connected: 1 - lambda must still be positive."""
    graphs = [mixing_matrix(ErdosRenyi(0.25), 8, rng(seed)) for seed in range(10)]
    assert all(spectral_gap(graph).p > 1e-3 for graph in graphs)
    assert torch.equal(graphs[0], mixing_matrix(ErdosRenyi(0.25), 8, rng(0)))
    assert len({directed_edges(graph) for graph in graphs}) > 1


def test_erdos_renyi_gives_up_and_wants_a_generator() -> None:
    with pytest.raises(TopologyError, match=r"none of 5 draws with p 0.001 connected 20 nodes"):
        mixing_matrix(ErdosRenyi(0.001, tries=5), 20, rng())
    with pytest.raises(TopologyError, match="needs a generator"):
        mixing_matrix(ErdosRenyi(), 4)


def test_own_matrix_is_used_as_given() -> None:
    assert rows(mixing_matrix(OWN, 3)) == [list(row) for row in OWN.weights]
    assert directed_edges(mixing_matrix(OWN, 3)) == 4
    with pytest.raises(TopologyError, match="has 3 rows for 4 nodes"):
        mixing_matrix(OWN, 4)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ((), "square"),
        (((1.0, 0.0),), "square"),
        (((0.5, 0.5), (0.4, 0.6)), r"not symmetric: \(0, 1\) is 0.5, \(1, 0\) is 0.4"),
        (((0.5, 0.5), (0.5, 0.4)), "row 1 sums to 0.9, not 1"),
        (((1.5, -0.5), (-0.5, 1.5)), "negative"),
        (((float("nan"), 1.0), (1.0, 0.0)), "not finite"),
        (((1.0, 0.0), (0.0, 1.0)), "not connected"),
        (((0.0, 1.0), (1.0, 0.0)), "does not converge"),
    ],
)
def test_own_matrices_that_do_not_average_are_refused(
    weights: tuple[tuple[float, ...], ...], reason: str
) -> None:
    with pytest.raises(TopologyError, match=reason):
        Matrix(weights)


def test_settings_out_of_range_and_unknown_kinds_are_refused() -> None:
    for make in (
        lambda: Torus(1),
        lambda: ErdosRenyi(0.0),
        lambda: ErdosRenyi(1.5),
        lambda: ErdosRenyi(tries=0),
    ):
        with pytest.raises(TopologyError):
            make()
    with pytest.raises(TopologyError, match="at least 1"):
        mixing_matrix(Ring(), 0)
