"""Matrices of low rank: a flat vector holds tensors, and two thin factors stand for each of its matrices.

A tensor ``(rows, ...)`` is read as a matrix ``(rows, columns)``. Its factors are ``P (rows, r)``, the *left*
one, and ``Q (columns, r)``, the *right* one; they stand for ``P Q^T``. One step of subspace iteration finds them:
``P = M Q`` for the last step's Q, made orthonormal, and then ``Q = M^T P`` (Vogels, Karimireddy, Jaggi 2019).
Vectors, and matrices that have no more numbers than their factors, are kept whole: the *rest*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from compression.errors import CompressionError


class Matrix(NamedTuple):
    """A matrix in a flat vector.

    Attributes
    ----------
    offset : int
        Where it begins.
    rows, columns : int
        Its shape.
    """

    offset: int
    rows: int
    columns: int

    def of(self, vector: Tensor) -> Tensor:
        """Return the matrix in a vector ``(n,)``, a view."""
        return vector[self.offset : self.offset + self.rows * self.columns].view(self.rows, self.columns)


@dataclass(frozen=True)
class Factors:
    """The factors of the matrices in vectors of one layout.

    The factors of all matrices lie side by side in one row, each matrix's flattened. Every vector is computed by
    itself, so no result depends on how many there are.

    Attributes
    ----------
    size : int
        Length n of the vectors.
    rank : int
        Columns r of a factor.
    matrices : tuple of Matrix
        The matrices that have factors.
    """

    size: int
    rank: int
    matrices: tuple[Matrix, ...]

    @classmethod
    def of(cls, shapes: Sequence[Sequence[int]], rank: int) -> Factors:
        """Return the factors for vectors that hold tensors of these shapes, one after the other.

        Raises
        ------
        CompressionError
            If the rank is below 1.
        """
        if rank < 1:
            raise CompressionError(f"the rank of a factor must be at least 1; got {rank}")
        matrices, offset = [], 0
        for shape in shapes:
            count = math.prod(shape)
            rows, columns = (shape[0], count // max(1, shape[0])) if len(shape) > 1 else (0, 0)
            if rank * (rows + columns) < rows * columns:
                matrices.append(Matrix(offset, rows, columns))
            offset += count
        return cls(offset, rank, tuple(matrices))

    @property
    def left_size(self) -> int:
        """Length of a row of left factors."""
        return self.rank * sum(self._rows)

    @property
    def right_size(self) -> int:
        """Length of a row of right factors."""
        return self.rank * sum(self._columns)

    @property
    def rest_size(self) -> int:
        """Number of entries outside of these matrices."""
        return self.size - sum(matrix.rows * matrix.columns for matrix in self.matrices)

    def left(self, vectors: Tensor, right: Tensor) -> Tensor:
        """Return ``M Q`` of every matrix, ``(..., left_size)``.

        Parameters
        ----------
        vectors : Tensor
            ``(..., n)``.
        right : Tensor
            Right factors, ``(..., right_size)``.
        """

        def product(vector: Tensor, factor: Tensor) -> list[Tensor]:
            pairs = zip(self.matrices, self._split(factor, self._columns), strict=True)
            return [matrix.of(vector) @ q for matrix, q in pairs]

        return _map_rows(product, self.left_size, vectors, right)

    def right(self, vectors: Tensor, left: Tensor) -> Tensor:
        """Return ``M^T P`` of every matrix, ``(..., right_size)``, for left factors ``(..., left_size)``."""

        def product(vector: Tensor, factor: Tensor) -> list[Tensor]:
            pairs = zip(self.matrices, self._split(factor, self._rows), strict=True)
            return [matrix.of(vector).T @ p for matrix, p in pairs]

        return _map_rows(product, self.right_size, vectors, left)

    def left_basis(self, left: Tensor) -> Tensor:
        """Return left factors with orthonormal columns of the same span."""
        return self._basis(left, self._rows)

    def right_basis(self, right: Tensor) -> Tensor:
        """Return right factors with orthonormal columns of the same span."""
        return self._basis(right, self._columns)

    def rest(self, vectors: Tensor) -> Tensor:
        """Return the entries outside of the matrices, ``(..., rest_size)``."""
        return vectors[..., self._rest.to(vectors.device)]

    def join(self, left: Tensor, right: Tensor, rest: Tensor) -> Tensor:
        """Return the vectors of ``P Q^T`` and the rest, ``(..., n)``."""

        def vector(p_row: Tensor, q_row: Tensor, other: Tensor) -> list[Tensor]:
            whole = other.new_empty(self.size)
            whole[self._rest.to(other.device)] = other
            factors = self._split(p_row, self._rows), self._split(q_row, self._columns)
            for matrix, p, q in zip(self.matrices, *factors, strict=True):
                matrix.of(whole).copy_(p @ q.T)
            return [whole]

        return _map_rows(vector, self.size, left, right, rest)

    def revived(self, right: Tensor, fresh: Tensor) -> Tensor:
        """Replace columns of right factors that are zero or not finite, from which no iteration starts.

        Parameters
        ----------
        right, fresh : Tensor
            Right factors ``(..., right_size)``, and what columns are taken from.
        """
        sizes = [columns * self.rank for columns in self._columns]
        pairs = zip(right.split(sizes, -1), fresh.expand(right.shape).split(sizes, -1), strict=True)
        whole = []
        for old, new in pairs:
            columns = old.unflatten(-1, (-1, self.rank))
            norms = torch.linalg.vector_norm(columns, dim=-2, keepdim=True)
            alive = (norms > 0) & norms.isfinite()
            whole.append(torch.where(alive, columns, new.unflatten(-1, (-1, self.rank))).flatten(-2))
        return torch.cat(whole, -1) if whole else right

    @cached_property
    def _rest(self) -> Tensor:
        """Positions of the entries outside of the matrices."""
        outside = torch.ones(self.size, dtype=torch.bool)
        for matrix in self.matrices:
            matrix.of(outside).fill_(False)
        return outside.nonzero()[:, 0]

    @property
    def _rows(self) -> list[int]:
        return [matrix.rows for matrix in self.matrices]

    @property
    def _columns(self) -> list[int]:
        return [matrix.columns for matrix in self.matrices]

    def _split(self, row: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """Return the factors ``(length, r)`` in a row."""
        return [piece.view(-1, self.rank) for piece in row.split([n * self.rank for n in lengths])]

    def _basis(self, rows: Tensor, lengths: Sequence[int]) -> Tensor:
        def basis(row: Tensor) -> list[Tensor]:
            return [torch.linalg.qr(factor).Q for factor in self._split(row, lengths)]

        return _map_rows(basis, rows.shape[-1], rows)


def _map_rows(make: Callable[..., list[Tensor]], size: int, *stacks: Tensor) -> Tensor:
    """Apply a function of single rows to stacks of rows ``(..., k)``; it returns the pieces of a row of a size.

    Products of several matrices at once would be rounded differently from products one by one.
    """
    lead = torch.broadcast_shapes(*(stack.shape[:-1] for stack in stacks))
    flat = [stack.expand(*lead, stack.shape[-1]).reshape(lead.numel(), stack.shape[-1]) for stack in stacks]
    empty = stacks[0].new_empty(0)
    pieces = [torch.cat([empty, *map(torch.flatten, make(*rows))]) for rows in zip(*flat, strict=True)]
    whole = torch.stack(pieces) if pieces else empty
    return whole.view(*lead, size)
