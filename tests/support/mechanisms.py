"""Mechanisms as users write them, with proofs and without."""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr, logsumexp

from privacy.own_mechanism import OwnMechanism


class Laplace(OwnMechanism):
    """Laplace noise."""

    name = "laplace"

    def log_density(self, x):
        return -np.abs(x) - np.log(2)

    def log_cdf(self, x):
        return np.where(x < 0, x - np.log(2), np.log1p(-np.exp(-np.abs(x)) / 2))


class Logistic(OwnMechanism):
    """Logistic noise, with lighter shoulders than Laplace."""

    name = "logistic"

    def log_density(self, x):
        return -np.abs(x) - 2 * np.log1p(np.exp(-np.abs(x)))

    def log_cdf(self, x):
        return np.where(x < 0, x, 0.0) - np.log1p(np.exp(-np.abs(x)))


class Normal(OwnMechanism):
    """The normal distribution, for which everything is known."""

    name = "normal"

    def log_density(self, x):
        return -(x**2) / 2 - np.log(2 * np.pi) / 2

    def log_cdf(self, x):
        return log_ndtr(x)


class Mixture(OwnMechanism):
    """A wide and a narrow normal distribution: symmetric, but not log-concave."""

    name = "mixture"

    def log_density(self, x):
        bells = [np.log(share / std) - (x / std) ** 2 / 2 for share, std in ((0.9, 1.0), (0.1, 5.0))]
        return logsumexp(bells, axis=0) - np.log(2 * np.pi) / 2

    def log_cdf(self, x):
        return logsumexp([np.log(0.9) + log_ndtr(x), np.log(0.1) + log_ndtr(x / 5)], axis=0)
