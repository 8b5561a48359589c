"""Noise that clients add together: discrete Gaussians on integers that are summed modulo a power of two.

Each client rotates its clipped message by a public random rotation, scales it to integers, adds discrete Gaussian
noise, and takes the result modulo ``2^bits``. Only the sum is revealed (secure aggregation), so every client adds
its share of the noise, not all of it.

The sum is accounted for as a Gaussian release. By Poisson summation, the sum of ``exp(-(k - c)^2 / (2 v^2))``
over the integers k is ``v sqrt(2 pi) (1 + t)``, ``|t| <= e(v) = 2.1 exp(-2 pi^2 v^2)``, for every center c and v of
at least 1/2. Two facts follow, up to factors of such ``1 + t`` in the probability of each integer:

- the sum of discrete Gaussians of parameters a and b is one of parameter ``sqrt(a^2 + b^2)``; four factors, all
  within ``e(v)`` for ``v = a b / sqrt(a^2 + b^2)``;
- a discrete Gaussian of parameter s around an integer is a Gaussian of variance ``s^2 - r^2`` around it, rounded to
  an integer by a discrete Gaussian of parameter r; two factors, within ``e(r)``.

So the sum of h clients' noise of parameter sigma is, coordinate by coordinate, post-processing of a Gaussian of
variance ``h sigma^2 - r^2``, but for a factor. With r and sigma not too small (`_least`) the factor of a whole
release is at most ``exp(CLOSE)``. A run of T releases then has ``epsilon + 2 T CLOSE`` at ``exp(T CLOSE) delta``,
which no printed digit shows.

References
----------
P. Kairouz, Z. Liu and T. Steinke, *The distributed discrete Gaussian mechanism for federated learning with secure
aggregation*, ICML 2021, https://arxiv.org/abs/2102.06387 (Algorithms 1 and 2; they account by concentrated
privacy, which takes 6 to 9 % more noise at epsilon .5 to 8).

C. Peikert, *An efficient and parallel Gaussian sampler for lattices*, CRYPTO 2010,
https://doi.org/10.1007/978-3-642-14623-7_5 (convolutions of discrete and continuous Gaussians).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.gaussian import lowest

Array = NDArray[np.float64]
Uniforms = Callable[[int], Array]  # gives so many numbers in [0, 1)

MOST_BITS = 20  # of a coordinate; the noise is drawn from a table of as many numbers as it may take
#: Bound on the expected number of coordinates of a release that are wrapped around, as if rounding were independent
#: of length; wrapping costs accuracy, not privacy.
WRAPS = 1e-6
GROWTH = 1.01  # of the noise, by which the number of bits is chosen
ROUNDING = math.exp(-0.5)  # beta: bound on the probability that a rounded vector is too long
TRIES = 64  # to round a vector so that it is not too long
CLOSE = 1e-12  # bound on the log ratio between a release and post-processing of a Gaussian one


class Grid(NamedTuple):
    """Grid that turns messages into integers, in units of the clip norm.

    Attributes
    ----------
    step : float
        Distance of neighboring integers (gamma over the clip norm).
    bits : int
        Integers are taken modulo ``2^bits``.
    longest : float
        Bound on the L2 norm of a message's integers.
    sigma : float
        Parameter of each client's discrete Gaussian, about its standard deviation, in steps; 0 for no noise.
    noise : float
        Standard deviation of the sum's noise over the clip norm, with the noise of all clients.
    """

    step: float
    bits: int
    longest: float
    sigma: float
    noise: float


@lru_cache(maxsize=1024)
def grid(
    noise_multiplier: float,
    factor: float,
    clients: int,
    length: int,
    bits: int | None = None,
    dropouts: float = 0.0,
) -> Grid:
    """Choose the grid and the noise of a sum.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation over sensitivity of the Gaussian release that is to protect as much, or 0.
    factor : float
        Sensitivity of a clipped message over its clip norm: 1, or 2 if a message is replaced by another.
    clients : int
        Number of clients in the sum.
    length : int
        Number of coordinates, a power of two.
    bits : int, optional
        Bits of a coordinate. Default: the fewest with at most 1 % more noise than without rounding.
    dropouts : float
        Share of the clients, in [0, 1), whose noise may be missing: they have dropped out, or are dishonest.

    Raises
    ------
    ValueError
        If that many bits cannot hold the sum.
    """
    if bits is None:
        if noise_multiplier == 0:
            return _grid(0.0, factor, clients, length, 16, dropouts)
        best = _grid(noise_multiplier, factor, clients, length, MOST_BITS, dropouts)
        for number in range(4, MOST_BITS):
            try:
                coarser = _grid(noise_multiplier, factor, clients, length, number, dropouts)
            except ValueError:
                continue
            if coarser.noise <= GROWTH * best.noise:
                return coarser
        return best
    return _grid(noise_multiplier, factor, clients, length, bits, dropouts)


def _grid(z: float, factor: float, clients: int, length: int, bits: int, dropouts: float) -> Grid:
    honest = max(1, math.ceil((1 - dropouts) * clients - 1e-9))
    # Rotated sums, noise and rounding are sub-Gaussian: 2 length exp(-k^2 / 2) coordinates lie beyond k deviations.
    deviations = math.sqrt(2 * math.log(2 * length / WRAPS))

    def at(step: float) -> tuple[Grid, bool]:
        longest = _longest(step, length)
        sigma = _sigma(z, factor * longest, honest, length)
        noise = sigma * step * math.sqrt(clients)
        spread = math.sqrt(clients**2 / length + noise**2 + clients * step**2 / 4)
        candidate = Grid(step, bits, longest, sigma, noise)
        return candidate, step * 2 ** (bits - 1) >= deviations * spread

    low = deviations * math.sqrt(clients**2 / length + (z * factor) ** 2) / 2 ** (bits - 1)
    high = low
    while not at(high)[1]:
        high *= 2
        if high > 1e6 * low:
            raise ValueError(
                f"{bits} bits a coordinate cannot hold the sum of {clients} messages of {length} coordinates with "
                f"noise multiplier {z:.4g}; "
                + ("give more" if bits < MOST_BITS else "use less noise, a larger cohort or a smaller model")
            )
    return at(lowest(lambda step: at(step)[1], low / 2, high, 1e-9 * high))[0]


def _longest(step: float, length: int) -> float:
    """Return the bound on the norm of a rounded message of norm 1, in steps (Kairouz et al., Algorithm 1)."""
    norm, root = 1 / step, math.sqrt(length)
    likely = norm**2 + length / 4 + math.sqrt(2 * math.log(1 / ROUNDING)) * (norm + root / 2)
    return math.sqrt(min(likely, (norm + root) ** 2))


def _least(clients: int, length: int) -> tuple[float, float]:
    """Return r and the least sigma for which a release of ``length`` coordinates is as close as `CLOSE`.

    Each takes half of it. r: twice ``-log(1 - e(r))`` in every coordinate. sigma: four times ``-log(1 - e(v))`` in
    every coordinate for each client that is added, with v at least ``sigma / sqrt(2)``.
    """
    r = math.sqrt(math.log(2.1 * 4.1 * length / CLOSE) / (2 * math.pi**2))
    sigma = math.sqrt(math.log(2.1 * 8.2 * length * clients / CLOSE) / math.pi**2)
    return r, sigma


def _sigma(z: float, sensitivity: float, clients: int, length: int) -> float:
    """Return the parameter of each client's noise for a noise multiplier of the sum."""
    if z == 0:
        return 0.0
    r, least = _least(clients, length)
    return max(least, math.sqrt(((z * sensitivity) ** 2 + r**2) / clients))


@lru_cache(maxsize=64)
def _cumulative(sigma: float) -> tuple[int, Array]:
    """Return the smallest number that is drawn, and the distribution function from there."""
    reach = math.ceil(12 * sigma) + 1  # beyond are 1e-32 of all
    numbers = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (numbers / sigma) ** 2)
    return -reach, np.cumsum(weights) / weights.sum()


def discrete_gaussian(sigma: float, uniform: Array) -> NDArray[np.int64]:
    """Turn uniform numbers into integers with probabilities in proportion to ``exp(-k^2 / (2 sigma^2))``.

    Probabilities are those of 53-bit arithmetic: this simulates the mechanism, and is not hardened against
    attacks on floating-point numbers.

    Parameters
    ----------
    sigma : float
        Above 0.
    uniform : ndarray
        Numbers in [0, 1), of any shape.
    """
    first, cumulative = _cumulative(sigma)
    return first + np.searchsorted(cumulative[:-1], uniform, side="right")


def rounded(row: Array, longest: float, uniform: Uniforms) -> Array:
    """Round each coordinate up or down at random, again until the norm is at most ``longest``.

    If that takes too long, coordinates are rounded toward 0, which never makes a vector longer.

    Parameters
    ----------
    row : ndarray
        ``(length,)``, of norm below ``longest``.
    longest : float
        Bound on the norm of the result.
    uniform : callable
        Returns that many numbers in [0, 1).
    """
    below = np.floor(row)
    for _ in range(TRIES):
        whole: Array = below + (uniform(len(row)) < row - below)
        if np.square(whole).sum() <= longest**2:
            return whole
    return np.trunc(row)


def rotate(rows: Tensor, signs: Tensor) -> Tensor:
    """Apply the orthogonal map of random signs and a Walsh-Hadamard transform, ``(..., n)``, n a power of two."""
    return _hadamard(rows * signs)


def rotate_back(rows: Tensor, signs: Tensor) -> Tensor:
    """Apply the inverse of `rotate`."""
    return _hadamard(rows) * signs


def _hadamard(rows: Tensor) -> Tensor:
    lead, n = rows.shape[:-1], rows.shape[-1]
    half = 1
    while half < n:
        pairs = rows.reshape(*lead, n // (2 * half), 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        rows = torch.stack([first + second, first - second], -2).reshape(*lead, n)
        half *= 2
    return rows / math.sqrt(n)


def padded_length(length: int) -> int:
    """Return the smallest power of two that is not below a length."""
    return 1 << max(0, length - 1).bit_length()
