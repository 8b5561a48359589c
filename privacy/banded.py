"""Noise that is correlated between rounds: banded matrix factorization (DP-FTRL).

A server adds up what it releases: the model after round t is the prefix sum of the averages so far. Let C be a
lower triangular matrix with ``bands`` diagonals and columns of norm 1, and z independent noise. Releasing
``x + C^-1 z`` instead of ``x + z`` is the Gaussian mechanism on ``C x``. If no client takes part twice within
``bands`` rounds, the rows of ``C x`` to which it contributes are distinct for each of its rounds, so the guarantee
is that of independent noise of the same size. The noise of the prefix sums, ``A C^-1 z``, is far smaller.

A round's noise is ``y_t = (z_t - sum over j of C[t, t - j] y_(t - j)) / C[t, t]``, which needs the last
``bands - 1`` vectors only.

References
----------
C. A. Choquette-Choo et al., *(Amplified) banded matrix factorization: a unified approach to private training*,
NeurIPS 2023, https://arxiv.org/abs/2306.08153 (sensitivity, optimal factorizations).

N. P. Kalinin and C. H. Lampert, *Banded square root matrix factorization for differentially private model
training*, NeurIPS 2024, https://arxiv.org/abs/2405.13763 (Toeplitz).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Factorization = Literal["optimal", "toeplitz"]
Array = NDArray[np.float64]

MOST_ROUNDS = 1000  # of an optimal factorization, whose search takes the third power of it
DIGITS = 6  # of coefficients before columns get norm 1, so that the last bits of a search do not matter
STEPS = 200  # of the search


@lru_cache(maxsize=32)
def coefficients(rounds: int, bands: int, kind: Factorization = "optimal") -> Array:
    """Return the diagonals of C.

    Parameters
    ----------
    rounds : int
        T, the number of rounds.
    bands : int
        Number of diagonals, 1 to T; 1 is independent noise.
    kind : {"optimal", "toeplitz"}
        The factorization with the least mean squared error of prefix sums, found by a search, or the square root
        of the matrix of prefix sums, cut off and with its columns scaled: simple, for any number of rounds.

    Returns
    -------
    NDArray
        ``(T, bands)``; entry ``[t, j]`` is ``C[t, t - j]``, 0 where there is no such column. Columns have norm 1.

    Raises
    ------
    ValueError
        If ``bands`` is not between 1 and ``rounds``, or there are too many rounds for a search.
    """
    if not 1 <= bands <= rounds:
        raise ValueError(f"bands must be between 1 and the {rounds} rounds, given {bands}")
    if kind == "optimal" and bands > 1 and rounds > MOST_ROUNDS:
        raise ValueError(f"an optimal factorization has at most {MOST_ROUNDS} rounds, given {rounds}")
    root = np.cumprod(np.append(1.0, 1 - 0.5 / np.arange(1, bands)))  # of 1 / (1 - x)
    columns = np.tile(root, (rounds, 1))
    columns[np.arange(rounds)[:, None] + np.arange(bands) >= rounds] = 0.0
    if kind == "optimal" and bands > 1:
        columns = np.round(_optimize(_normalize(columns)), DIGITS)
    return _rows(_normalize(columns))


def matrix(diagonals: Array) -> Array:
    """Return C, ``(T, T)``, from its diagonals."""
    rounds, bands = diagonals.shape
    whole = np.zeros((rounds, rounds))
    for j in range(bands):
        whole[np.arange(j, rounds), np.arange(rounds - j)] = diagonals[j:, j]
    return whole


@lru_cache(maxsize=32)
def deviations(rounds: int, bands: int, kind: Factorization = "optimal") -> Array:
    """Return the standard deviation of the noise of each round, ``(T,)``, for z of standard deviation 1."""
    inverse = np.linalg.inv(matrix(coefficients(rounds, bands, kind)))
    each: Array = np.sqrt(np.square(inverse).sum(1))
    return each


def _normalize(columns: Array) -> Array:
    scaled: Array = columns / np.sqrt(np.square(columns).sum(-1, keepdims=True))
    return scaled


def _rows(columns: Array) -> Array:
    """Turn columns, entry ``[s, j]`` being ``C[s + j, s]``, into rows, entry ``[t, j]`` being ``C[t, t - j]``."""
    rounds, bands = columns.shape
    rows = np.zeros_like(columns)
    for j in range(bands):
        rows[j:, j] = columns[: rounds - j, j]
    rows.flags.writeable = False
    return rows


def _optimize(start: Array) -> Array:
    """Return the columns with the least squared error of prefix sums, by L-BFGS from a start."""
    from scipy.linalg import solve_triangular
    from scipy.optimize import minimize

    rounds, bands = start.shape
    s, j = np.nonzero(np.arange(rounds)[:, None] + np.arange(bands) < rounds)

    def error(entries: Array) -> tuple[float, Array]:
        raw = np.zeros((rounds, bands))
        raw[s, j] = entries
        norms = np.sqrt(np.square(raw).sum(-1, keepdims=True))
        unit = raw / norms
        c = np.zeros((rounds, rounds))
        c[s + j, s] = unit[s, j]
        inverse = solve_triangular(c, np.eye(rounds), lower=True)
        sums = np.cumsum(inverse, axis=0)
        # d |A C^-1|^2 = -2 <C^-T A^T A C^-1 C^-T, dC>
        back = np.cumsum(sums[::-1], axis=0)[::-1]
        full = -2 * solve_triangular(c, back @ inverse.T, lower=True, trans="T")
        slope = np.zeros((rounds, bands))
        slope[s, j] = full[s + j, s]
        slope = (slope - unit * (slope * unit).sum(-1, keepdims=True)) / norms
        return float(np.square(sums).sum()), slope[s, j]

    solution = minimize(error, start[s, j], jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    best = np.zeros((rounds, bands))
    best[s, j] = solution.x
    return _normalize(best)
