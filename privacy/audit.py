"""Audit: tests of what a mechanism released against what it claims.

Every function returns a p-value: the probability of data at least as extreme as those given if the claim is true.
For k tests, compare each p-value with the false-alarm rate divided by k.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import scipy  # its parts are imported at their first use, as they are slow to import
from torch import Tensor

Vector = npt.NDArray[np.float64]

LEAST = 8  # common entries of two rows whose correlation is tested
LAGS = 8  # distances between draws whose overlap is tested
TILTS = np.logspace(-4, 4, 60)  # slopes at which Chernoff's bounds are tried


def scale_p(noise: Tensor, std: float = 1.0) -> float:
    """Test whether noise is normal with mean zero and a standard deviation, by its sum of squares (chi-square).

    Parameters
    ----------
    noise : Tensor
        Independent draws, of any shape; nan entries do not count.
    std : float
        The claimed standard deviation, above 0.

    Returns
    -------
    float
        Two-sided p-value; 1 without draws.
    """
    sample = _array(noise).ravel()
    sample = sample[~np.isnan(sample)]
    squares = float(((sample / std) ** 2).sum())
    return (
        _two_sided(scipy.special.chdtr(len(sample), squares), scipy.special.chdtrc(len(sample), squares))
        if len(sample)
        else 1.0
    )


def normal_p(noise: Tensor) -> float:
    """Test whether draws are standard normal, by the largest distance of distribution functions.

    Parameters
    ----------
    noise : Tensor
        Independent draws, of any shape; nan entries do not count.

    Returns
    -------
    float
        An upper bound of the p-value (Dvoretzky, Kiefer, Wolfowitz; Massart); 1 without draws.
    """
    sample = _array(noise).ravel()
    sample = np.sort(sample[~np.isnan(sample)])
    if not len(sample):
        return 1.0
    cdf, steps = scipy.special.ndtr(sample), np.arange(len(sample) + 1) / len(sample)
    distance = max(float((steps[1:] - cdf).max()), float((cdf - steps[:-1]).max()))
    return float(min(1.0, 2 * np.exp(-2 * len(sample) * distance**2)))


def correlation_p(rows: Tensor) -> tuple[float, tuple[int, int]]:
    """Test whether rows of independent normal draws of mean zero are independent of each other.

    Every pair is tested by its correlation over the entries that both have (Student's t); the smallest p-value is
    multiplied by the number of pairs.

    Parameters
    ----------
    rows : Tensor
        ``(k, n)``; nan where a row has no entry.

    Returns
    -------
    float, (int, int)
        The p-value, and the pair with the strongest correlation; 1 if no two rows share `LEAST` entries.
    """
    sample = _array(rows)
    present = ~np.isnan(sample)
    sample, mask = np.where(present, sample, 0.0), present.astype(np.float64)
    number, squares = mask @ mask.T, sample**2 @ mask.T
    tested = np.triu((number >= LEAST) & (squares > 0) & (squares.T > 0), 1)
    if not tested.any():
        return 1.0, (0, 0)
    share = (sample @ sample.T)[tested] ** 2 / (squares * squares.T)[tested]
    freedom = number[tested] - 1
    p = 2 * scipy.special.stdtr(freedom, -np.sqrt(freedom * share / np.maximum(1 - share, 1e-300)))
    first, second = (axis[p.argmin()] for axis in np.nonzero(tested))
    return min(1.0, float(p.min()) * len(p)), (int(first), int(second))


def inclusion_p(drawn: Tensor, rate: float) -> Iterator[tuple[float, str]]:
    """Test whether units were drawn independently of each other and of earlier draws, at a rate.

    Fixed sizes, shuffled passes, other rates and repeated draws are Poisson sampling in some of these numbers only.

    Parameters
    ----------
    drawn : Tensor
        Boolean ``(draws, groups, units)``, in the order of the draws; groups are drawn separately.
    rate : float
        The claimed rate, in (0, 1).

    Yields
    ------
    float, str
        p-value and description of each test: the number of members (binomial), the variation of the sizes of
        draws and of the numbers of times that units were drawn (an upper bound of the p-value), and the number of
        units in two draws at every distance up to `LAGS` (binomial).
    """
    sample = drawn.numpy()
    draws, _, units = sample.shape
    yield _binomial_p(sample, rate), f"units were drawn at rate {sample.mean():.3g}, booked {rate:.3g}"
    yield (
        _variation_p(sample.sum(2), units, rate),
        f"sizes of draws vary as no Poisson sample at rate {rate:.3g}",
    )
    yield _variation_p(sample.sum(0), draws, rate), "some units were drawn more often than others"
    for lag in range(1, min(LAGS, draws - 1) + 1):
        first = np.arange(draws - lag)
        for half in (0, 1):  # pairs that share no draw
            pairs = first[first // lag % 2 == half]
            both = sample[pairs] & sample[pairs + lag]
            if both.size:
                yield _binomial_p(both, rate**2), f"draws at distance {lag} share too many or too few units"


def _binomial_p(sample: npt.NDArray[np.bool_], rate: float) -> float:
    hits, number = int(sample.sum()), sample.size
    upper = 1.0 if hits == 0 else float(scipy.special.bdtrc(hits - 1, number, rate))
    return _two_sided(float(scipy.special.bdtr(hits, number, rate)), upper)


def _variation_p(counts: npt.NDArray[np.int64], number: int, rate: float) -> float:
    """Return the two-sided p-value of the variation of binomial counts, by Chernoff's bound of each tail.

    No limit law holds for a few small counts, and the exact law takes long to compute for many.
    """
    variance, k = number * rate * (1 - rate), np.arange(number + 1)
    chances = (
        scipy.special.gammaln(number + 1)
        - scipy.special.gammaln(k + 1)
        - scipy.special.gammaln(number - k + 1)
    )
    chances = chances + k * np.log(rate) + (number - k) * np.log1p(-rate)
    squares = (k - number * rate) ** 2 / variance
    observed = float(squares[counts].sum())
    bounds = [
        slope * observed + counts.size * scipy.special.logsumexp(chances - np.outer(slope, squares), axis=1)
        for slope in (-TILTS, TILTS)
    ]
    return min(1.0, 2 * float(np.exp(min(bound.min() for bound in bounds))))


def _two_sided(lower: float, upper: float) -> float:
    return min(1.0, 2 * min(float(lower), float(upper)))


def _array(values: Tensor) -> Vector:
    array: Vector = values.detach().cpu().double().numpy()
    if np.isinf(array).any():
        raise ValueError("noise must be finite")
    return array
