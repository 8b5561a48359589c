"""A surface over settings: what a search believes of the settings that it has tried.

A Gaussian process over the coordinates of settings and of budgets, fitted by scikit-learn to the mean value of
every setting at every budget. Every setting has a part of its own beside the smooth part: a mean of many quiet runs
decides by itself, a mean of few noisy ones hardly does. The variance of a mean is known from its seeds, drawn
towards the median of its budget.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray

PRIOR_SEEDS = 4  # weight of the median variance of a budget, in seeds
LOWEST = 0.3  # quantile to which lower means are raised: a bad setting may be arbitrarily bad
LENGTHS = (0.05, 20.0)  # of the smooth part, where ranges have length 1
SINGLE = 1e-3  # length within which settings are one and the same
LEAST_NOISE = 1e-6  # variance of a mean, where the means have variance 1


class Surface:
    """The posterior of the mean value of every setting at every budget.

    Parameters
    ----------
    coordinates : ndarray
        Of the settings, ``(S, d)``.
    budgets : ndarray
        Coordinates of the budgets, ``(B,)``.
    values : sequence of ndarray
        Of each setting one row a seed, ``(n, B)``; larger ones are better.

    Attributes
    ----------
    mean, deviation : ndarray
        ``(S, B)``.
    """

    def __init__(self, coordinates: Array, budgets: Array, values: Sequence[Array]) -> None:
        self._values = values
        means = np.array([rows.mean(0) for rows in values])
        self._floor = np.quantile(means, LOWEST, axis=0)
        means = np.maximum(means, self._floor)
        self._center, self._scale = means.mean(), max(float(means.std()), 1e-9)
        points = np.hstack([np.repeat(coordinates, len(budgets), 0), np.tile(budgets, len(means))[:, None]])
        kernel, noise = _fitted(points, (means - self._center) / self._scale, _noise(values, self._scale))
        self._covariance, self._noise = kernel(points).reshape(2 * means.shape), noise
        self._kernel, self._points, self._budgets, self._means = kernel, points, budgets, means
        self.mean, self.deviation = self._posterior(np.arange(len(means)), means)

    def promising(self, coordinates: Array, most: int) -> list[int]:
        """Return which of some settings that were not tried are the best at some budget by mean and deviation.

        They are chosen one after the other, and each counts as tried for those after it, so they lie apart: the
        batches of GP-BUCB (Desautels, Krause and Burdick, JMLR 2014).

        Parameters
        ----------
        coordinates : ndarray
            Of the settings, ``(N, d)``.
        most : int
            How many of each budget.

        Returns
        -------
        list of int
            Numbers of settings.
        """
        from scipy.linalg import cho_factor, cho_solve

        size = self._means.size
        covariance = self._covariance.reshape(size, size)
        factor = cho_factor(covariance + np.diag(self._noise.ravel()), lower=True)
        explained = cho_solve(factor, ((self._means - self._center) / self._scale).ravel())
        chosen: dict[int, None] = {}
        for budget, noise in zip(self._budgets, np.median(self._noise, axis=0), strict=True):
            places = np.column_stack([coordinates, np.full(len(coordinates), budget)])
            between = self._kernel(places, self._points)
            mean = between @ explained
            left = self._kernel(places) - between @ cho_solve(factor, between.T)
            for _ in range(min(most, len(places))):
                best = int(np.argmax(mean + np.sqrt(np.maximum(np.diag(left), 0))))
                chosen[best] = None
                mean[best] = -np.inf
                left = left - np.outer(left[best], left[best]) / (left[best, best] + noise)
        return list(chosen)

    def choices(self, candidates: Array, number: int, generator: np.random.Generator) -> Array:
        """Return which candidate is the best of each budget in resampled searches.

        A resampled search has settings drawn from those tried, with replacement, and of each setting seeds drawn
        from those tried. The lengths of its surface are not fitted anew. It chooses among the candidates that it
        has; one that has none for some budget is drawn again.

        Parameters
        ----------
        candidates : ndarray of bool
            Which settings may be chosen at which budget, ``(S, B)``; one at least at each.
        number : int
            How many searches.
        generator : Generator
            Of the draws.

        Returns
        -------
        ndarray
            Numbers of settings, ``(number, B)``.
        """
        chosen: list[Array] = []
        total = len(self._values)
        while len(chosen) < number:
            settings = np.unique(generator.integers(total, size=total))
            possible = candidates[settings]
            if not possible.any(0).all():
                continue
            drawn = [self._values[n] for n in settings]
            drawn = [rows[generator.integers(len(rows), size=len(rows))] for rows in drawn]
            means = np.maximum([rows.mean(0) for rows in drawn], self._floor)
            mean, _ = self._posterior(settings, means)
            chosen.append(settings[np.where(possible, mean, -np.inf).argmax(0)])
        return np.array(chosen)

    def _posterior(self, settings: Array, means: Array) -> tuple[Array, Array]:
        """Return means and deviations of some settings, given the mean values of these alone."""
        from scipy.linalg import cho_factor, cho_solve

        size = means.size
        covariance = self._covariance[settings][:, :, settings].reshape(size, size)
        factor = cho_factor(covariance + np.diag(self._noise[settings].ravel()), lower=True)
        mean = covariance @ cho_solve(factor, ((means - self._center) / self._scale).ravel())
        explained = (covariance * cho_solve(factor, covariance)).sum(0)
        deviation = np.sqrt(np.maximum(np.diag(covariance) - explained, 0))
        return (
            mean.reshape(means.shape) * self._scale + self._center,
            deviation.reshape(means.shape) * self._scale,
        )


def _fitted(points: Array, means: Array, noise: Array | None) -> tuple[Any, Array]:
    """Return the kernel with the lengths that make means likely, and the variances of their noise.

    Where no setting has several seeds the noise is fitted as well, the same everywhere.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    smooth = ConstantKernel(1.0, (1e-2, 1e2)) * RBF([0.5] * points.shape[1], LENGTHS)
    if noise is None:
        process = GaussianProcessRegressor(smooth + WhiteKernel(0.1), alpha=LEAST_NOISE)
    else:
        single = ConstantKernel(0.05, (1e-5, 1.0)) * RBF(SINGLE, "fixed")
        process = GaussianProcessRegressor(smooth + single, alpha=noise.ravel())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lengths at their bounds: a coordinate that does not matter
        process.fit(points, means.ravel())
    if noise is not None:
        return process.kernel_, noise
    return process.kernel_.k1, np.full(means.shape, process.kernel_.k2.noise_level)


def _noise(values: Sequence[Array], scale: float) -> Array | None:
    """Return the variance of each mean, ``(S, B)``, in units of ``scale``; None if no setting has several seeds."""
    counts = np.array([len(rows) for rows in values])[:, None]
    squares = np.array([((rows - rows.mean(0)) ** 2).sum(0) for rows in values])
    several = counts[:, 0] > 1
    if not several.any():
        return None
    usual = np.median(squares[several] / (counts[several] - 1), axis=0)
    variances = (PRIOR_SEEDS * usual + squares) / (PRIOR_SEEDS + counts - 1) / counts
    noise: Array = np.maximum(variances / scale**2, LEAST_NOISE)
    return noise
