"""Topologies and mixing matrices of decentralized methods.

Metropolis-Hastings weights: ``w_ij = 1 / (1 + max(deg_i, deg_j))`` on edges, and a diagonal that makes rows sum to
1. The matrix is symmetric, doubly stochastic, positive exactly on edges and diagonal.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_NODES = 5_000  # 200 MB a matrix
Adjacency = NDArray[np.bool_]

TOLERANCE = 1e-9


class TopologyError(ValueError):
    """Invalid settings of a graph, or a number of nodes that does not fit them."""


class Topology(ABC):
    """Base class of topologies.

    Attributes
    ----------
    kind : str
        Name in `TOPOLOGIES`.
    """

    kind: ClassVar[str]

    @abstractmethod
    def adjacency(self, n: int, rng: np.random.Generator | None) -> Adjacency:
        """Return the adjacency matrix, ``(n, n)``: symmetric, with an empty diagonal."""

    def mixing(self, n: int, rng: np.random.Generator | None) -> NDArray[np.float64]:
        """Return the mixing weights, ``(n, n)``; Metropolis-Hastings unless overridden."""
        edges = self.adjacency(n, rng)
        degree = edges.sum(1)
        weights = np.where(edges, 1.0 / (1.0 + np.maximum(degree[:, None], degree)), 0.0)
        np.fill_diagonal(weights, 1.0 - weights.sum(1))
        return weights

    def error(self, message: str) -> TopologyError:
        """Return an error that names this kind."""
        return TopologyError(f"topology {self.kind!r}: {message}")


@dataclass(frozen=True)
class Ring(Topology):
    """Every node has two neighbors, its predecessor and successor; two nodes share a single edge."""

    kind: ClassVar[str] = "ring"

    def adjacency(self, n: int, rng: np.random.Generator | None = None) -> Adjacency:
        """Return the cycle."""
        return _cycle(n)


@dataclass(frozen=True)
class Torus(Topology):
    """A grid whose rows and columns are rings.

    Duplicate edges on a side of length 2 are merged, so those nodes have fewer neighbors.

    Attributes
    ----------
    rows : int or None
        Number of rows, a divisor of the number of nodes; None: as square as possible.
    """

    kind: ClassVar[str] = "torus"
    rows: int | None = None

    def __post_init__(self) -> None:
        """Refuse a grid that is a line."""
        if self.rows is not None and self.rows < 2:
            raise self.error(f"rows is {self.rows}; both sides must be at least 2 (one row is a ring)")

    def adjacency(self, n: int, rng: np.random.Generator | None = None) -> Adjacency:
        """Return the product of two cycles."""
        rows = self.rows or max(side for side in range(1, math.isqrt(n) + 1) if n % side == 0)
        columns, rest = divmod(n, rows)
        if rest or min(rows, columns) < 2:
            grid = f"{self.rows} rows" if self.rows else "rows and columns, both at least 2"
            raise self.error(f"{n} nodes do not fill a grid of {grid}; use a number that does, or a ring")
        down = np.kron(_cycle(rows), np.eye(columns, dtype=bool))
        along = np.kron(np.eye(rows, dtype=bool), _cycle(columns))
        edges: Adjacency = down | along
        return edges


@dataclass(frozen=True)
class Complete(Topology):
    """All pairs of nodes are neighbors: the mixing matrix is the average, 1 / n everywhere."""

    kind: ClassVar[str] = "complete"

    def adjacency(self, n: int, rng: np.random.Generator | None = None) -> Adjacency:
        """Return all pairs."""
        return ~np.eye(n, dtype=bool)


@dataclass(frozen=True)
class Star(Topology):
    """Node 0 is the only neighbor of all other nodes."""

    kind: ClassVar[str] = "star"

    def adjacency(self, n: int, rng: np.random.Generator | None = None) -> Adjacency:
        """Return the spokes."""
        edges = np.zeros((n, n), dtype=bool)
        edges[0, 1:] = edges[1:, 0] = True
        return edges


@dataclass(frozen=True)
class ErdosRenyi(Topology):
    """Every pair is an edge with probability `p`; the draw is repeated until the graph is connected.

    Attributes
    ----------
    p : float
        Probability of an edge, in (0, 1].
    tries : int
        Draws before giving up.
    """

    kind: ClassVar[str] = "erdos-renyi"
    p: float = 0.5
    tries: int = 1000

    def __post_init__(self) -> None:
        """Refuse an invalid probability or number of draws."""
        if not 0 < self.p <= 1:
            raise self.error(f"p is {self.p}; it must be above 0 and at most 1")
        if self.tries < 1:
            raise self.error(f"tries is {self.tries}; at least 1 is needed")

    def adjacency(self, n: int, rng: np.random.Generator | None) -> Adjacency:
        """Return the first connected draw."""
        if rng is None:
            raise self.error("is drawn at random and needs a generator")
        for _ in range(self.tries):
            upper = np.triu(rng.random((n, n)) < self.p, k=1)
            edges: Adjacency = upper | upper.T
            if _connected(edges):
                return edges
        raise self.error(f"none of {self.tries} draws with p {self.p} connected {n} nodes; use a larger p")


@dataclass(frozen=True)
class Matrix(Topology):
    """A given mixing matrix.

    Attributes
    ----------
    weights : tuple of tuple of float
        Rows of the matrix, which is symmetric, doubly stochastic and connected.
    """

    kind: ClassVar[str] = "matrix"
    weights: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        """Refuse a matrix whose powers do not converge to the average."""
        n = len(self.weights)
        if n == 0 or any(len(row) != n for row in self.weights):
            raise self.error(f"{n} rows of lengths {[len(row) for row in self.weights]}; it must be square")
        weights = np.array(self.weights, dtype=np.float64)
        if not np.isfinite(weights).all() or weights.min() < 0:
            raise self.error("has entries that are negative or not finite")
        if np.abs(weights - weights.T).max() > TOLERANCE:
            i, j = np.unravel_index(np.abs(weights - weights.T).argmax(), weights.shape)
            raise self.error(
                f"is not symmetric: ({i}, {j}) is {weights[i, j]}, ({j}, {i}) is {weights[j, i]}"
            )
        sums = weights.sum(1)
        worst = np.abs(sums - 1).argmax()
        if abs(sums[worst] - 1) > TOLERANCE:
            raise self.error(f"is not doubly stochastic: row {worst} sums to {sums[worst]}, not 1")
        if not _connected(weights > 0):
            raise self.error("is not connected: some nodes never hear of each other")
        if spectral_gap(torch.from_numpy(weights)).p < TOLERANCE:
            raise self.error("does not converge (an eigenvalue is -1); give the nodes weight on themselves")

    def adjacency(self, n: int, rng: np.random.Generator | None = None) -> Adjacency:
        """Return where the matrix is positive off the diagonal."""
        edges: Adjacency = self.mixing(n, rng) > 0
        np.fill_diagonal(edges, False)
        return edges

    def mixing(self, n: int, rng: np.random.Generator | None = None) -> NDArray[np.float64]:
        """Return the matrix as given."""
        if n != len(self.weights):
            raise self.error(f"has {len(self.weights)} rows for {n} nodes")
        return np.array(self.weights, dtype=np.float64)


TOPOLOGIES: dict[str, type[Topology]] = {
    kind.kind: kind for kind in (Ring, Torus, Complete, Star, ErdosRenyi, Matrix)
}


class Gap(NamedTuple):
    """Convergence rate of a mixing matrix.

    Attributes
    ----------
    second : float
        lambda, the second largest absolute eigenvalue.
    p : float
        ``1 - lambda ** 2``: a round reduces the squared distance to the average by at least this share.
    """

    second: float
    p: float


def mixing_matrix(topology: Topology, n: int, rng: np.random.Generator | None = None) -> Tensor:
    """Return the mixing matrix of a topology.

    Parameters
    ----------
    topology : Topology
        The graph.
    n : int
        Number of nodes (clients).
    rng : numpy.random.Generator or None
        For random graphs.

    Returns
    -------
    Tensor
        ``(n, n)`` float64: symmetric, doubly stochastic, connected.

    Raises
    ------
    TopologyError
        If the graph does not fit `n` nodes.
    """
    if not 1 <= n <= MOST_NODES:
        raise topology.error(
            f"{n} nodes; at least 1 and at most {MOST_NODES:,} are possible, as the matrix is dense"
        )
    return torch.from_numpy(topology.mixing(n, rng))


def spectral_gap(mixing: Tensor) -> Gap:
    """Return the second largest absolute eigenvalue of a mixing matrix, and ``p = 1 - lambda ** 2``.

    Parameters
    ----------
    mixing : Tensor
        ``(n, n)``, symmetric.

    Returns
    -------
    Gap
        ``(second, p)``; for a single node (0, 1).
    """
    sizes = torch.linalg.eigvalsh(mixing.double()).abs().sort(descending=True).values
    second = float(sizes[1]) if len(sizes) > 1 else 0.0
    return Gap(second, 1.0 - second**2)


def directed_edges(mixing: Tensor) -> int:
    """Return the number of ordered pairs that exchange messages: nonzeros off the diagonal."""
    return int((mixing.count_nonzero() - mixing.diagonal().count_nonzero()).item())


def _cycle(n: int) -> Adjacency:
    """Return the simple cycle: a single edge for two nodes, nothing for one."""
    step: Adjacency = np.roll(np.eye(n, dtype=bool), 1, axis=1)
    edges: Adjacency = (step | step.T) & ~np.eye(n, dtype=bool)
    return edges


def _connected(edges: Adjacency) -> bool:
    reached = np.arange(len(edges)) == 0
    while (further := reached | edges[reached].any(0)).sum() > reached.sum():
        reached = further
    return bool(reached.all())
