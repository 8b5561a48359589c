"""Mechanisms of users: additive noise with a declared distribution, from which epsilon is computed.

A message is clipped in its L1 norm, and every entry gets independent noise of one distribution, which must be
symmetric about zero and log-concave. Two such releases are told apart best by a single shift:

Let ``T_a`` be the trade-off function between the noise and the noise shifted by ``a >= 0``. As the noise is
log-concave, likelihood ratios of shifts are monotone, so the best tests are thresholds, and ``T_(a + b)`` is what
group privacy (Dong, Roth, Su 2022) allows for a step ``a`` after a step ``b``. A message whose entries move by
``v_1, ..., v_d`` is such a chain of steps, one entry after the other, so its trade-off is at least
``T_(|v_1| + ... + |v_d|)``. The pair of the noise and the noise shifted by the whole L1 sensitivity hence dominates
all neighbors, and it may be composed and sampled like any other (Zhu, Dong, Wang 2022). The same argument over
releases bounds what several of them from one secret cohort tell together.

Nothing of this holds for noise that is not log-concave (mixtures, staircases, Student's t), so that it is refused.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri, pdtr, pdtrc

from privacy.audit import correlation_p, scale_p
from privacy.gaussian import lowest

Array = NDArray[np.float64]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
OURS = ("independent", "banded")
LOWEST = -60.0  # logarithm of the probability up to which tails are computed, and checked
ALARM = 1e-9  # level of each test of a sampler: an honest one is refused once in about ten million times
ROWS, LENGTH = 64, 8192  # draws of a sampler that are tested, and their entries
SHORT = (1, 3)  # lengths of further draws
RARE = 1e-4  # probability of the entries that are counted in the tails
LAGS = 8  # distances between entries whose dependence is tested
HALVINGS = 70  # of an interval


class MechanismError(ValueError):
    """A mechanism is not what it declares, or nothing is proved for what it declares."""


class OwnMechanism(ABC):
    """A user's noise; subclasses take no arguments and are registered by `mechanism`.

    Both functions are of the distribution of one entry at scale 1. In a run it is multiplied by
    ``noise_multiplier`` times the L1 sensitivity.

    Attributes
    ----------
    name : str
        Name in run files.
    """

    name: ClassVar[str]

    @abstractmethod
    def sample(self, count: int, generator: np.random.Generator) -> Array:
        """Draw independent entries, ``(count,)`` float64, from the generator only; count may be 0."""

    @abstractmethod
    def log_density(self, x: Array) -> Array:
        """Return the logarithm of the density at each x."""

    @abstractmethod
    def log_cdf(self, x: Array) -> Array:
        """Return the logarithm of the probability of at most x, accurate also far below zero."""


class Noise:
    """A declared distribution, and how well two shifts of it are told apart.

    Parameters
    ----------
    own : OwnMechanism
        Who declares and draws it.
    """

    def __init__(self, own: OwnMechanism) -> None:
        self.own = own

    @property
    def defined(self) -> type:
        """The class that somebody wrote."""
        return type(self.own)

    @cached_property
    def end(self) -> float:
        """A point above which less than ``exp(LOWEST)`` of the noise lies: a power of two."""
        for power in range(-30, 60):
            if self._log_tail(math.ldexp(1.0, power)) <= LOWEST:
                return math.ldexp(1.0, power)
        raise MechanismError("log_cdf does not fall below -60, as that of log-concave noise does")

    @cached_property
    def std(self) -> float:
        """Standard deviation of an entry at scale 1."""
        at = np.linspace(0.0, self.end, 2**16 + 1)
        return math.sqrt(2 * float(np.trapezoid(at**2 * np.exp(self.own.log_density(at)), at)))

    def draw(self, count: int, generator: np.random.Generator) -> Array:
        """Draw entries, and hold the sampler to their number and kind."""
        drawn = self.own.sample(count, generator)
        if not isinstance(drawn, np.ndarray) or drawn.shape != (count,) or drawn.dtype != np.float64:
            given = (drawn.dtype, drawn.shape) if isinstance(drawn, np.ndarray) else type(drawn).__name__
            raise MechanismError(f"sample must return {count} numbers as a float64 array, given {given}")
        if not np.isfinite(drawn).all():
            raise MechanismError("sample returned numbers that are not finite")
        return drawn

    def normal(self, noise: Array) -> Array:
        """Map noise at scale 1 to standard normal numbers, by the declared distribution; nan stays."""
        at = np.where(np.isnan(noise), 0.0, noise)
        tail: Array = ndtri(np.exp(self.own.log_cdf(-np.abs(at))))
        return np.where(np.isnan(noise), np.nan, -np.sign(at) * tail)

    def divergence(self, shift: float, losses: Array) -> Array:
        """Return the hockey-stick divergence of the shifted noise from the noise, at each loss."""
        wanted = np.abs(losses)
        low, high = np.full(losses.shape, shift / 2), np.full(losses.shape, shift + self.end)
        for _ in range(HALVINGS):
            middle = low + (high - low) / 2
            above = self._loss(middle, shift) >= wanted
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        with np.errstate(over="ignore", invalid="ignore"):
            kept = np.exp(self.own.log_cdf(shift - high))
            upper = np.clip(kept - np.exp(wanted + self.own.log_cdf(-high)), 0.0, 1.0)
            # Of a symmetric pair, the divergence below 0 follows from that above.
            divergence: Array = np.where(losses >= 0, upper, -np.expm1(losses) + np.exp(losses) * upper)
        return divergence

    def epsilon(self, shift: float, delta: float) -> float:
        """Return the exact epsilon at delta of the noise against the shifted noise."""

        def reached(at: float) -> bool:
            points = np.array([shift - at, -at])
            kept, other = self.own.log_cdf(points)
            return math.exp(kept) - math.exp(min(0.0, self.loss(at, shift) + float(other))) <= delta

        first, last = shift / 2, shift + self.above(delta)
        return 0.0 if reached(first) else max(0.0, self.loss(lowest(reached, first, last), shift))

    def loss(self, at: float, shift: float) -> float:
        """Return the privacy loss at a point."""
        return float(self._loss(np.array([at]), shift)[0])

    def above(self, tail: float) -> float:
        """Return a point above which at most ``tail`` of the noise lies, and not much less."""
        if math.log(tail) <= LOWEST:
            return self.end
        return lowest(lambda at: self._log_tail(at) <= math.log(tail), 0.0, self.end)

    def _log_tail(self, at: float) -> float:
        return float(self.own.log_cdf(np.array([-at]))[0])

    def _loss(self, at: Array, shift: float) -> Array:
        return self.own.log_density(at - shift) - self.own.log_density(at)


#: Mechanisms of users by name.
MECHANISMS: dict[str, Noise] = {}

Own = TypeVar("Own", bound=type[OwnMechanism])


def mechanism(cls: Own) -> Own:
    """Register a subclass of `OwnMechanism` under its name, after checking what it declares.

    The density must be positive, symmetric and log-concave, the probabilities those of the density, and half a
    million drawn entries must be independent and distributed as declared. These are checks on points and on draws:
    a scale that is 2 % off is found, a deviation that shows in fewer than one of 10,000 entries is not.

    Raises
    ------
    MechanismError
        If the name is taken or not valid, or a check fails.
    """
    if not (isinstance(cls, type) and issubclass(cls, OwnMechanism)):
        raise MechanismError(
            f"a mechanism is a subclass of privacy.own_mechanism.OwnMechanism, given {cls!r}"
        )
    name = getattr(cls, "name", "")
    if not NAME.fullmatch(name):
        raise MechanismError(f"invalid mechanism name {name!r}; use letters, digits, '-', '_' and '.'")
    known = MECHANISMS.get(name)
    again = known is not None and known.defined.__module__ == cls.__module__ == "__main__"
    if name in OURS or (known is not None and not again):
        raise MechanismError(f"two mechanisms are called {name!r}")
    noise = Noise(cls())
    try:
        with np.errstate(all="ignore"):
            _check_declared(noise)
            _check_drawn(noise)
    except MechanismError as error:
        raise MechanismError(f"mechanism {name!r}: {error}") from error
    except Exception as error:  # a user's functions may raise anything
        raise MechanismError(f"mechanism {name!r}: {type(error).__name__}: {error}") from error
    MECHANISMS[name] = noise
    return cls


def _check_declared(noise: Noise) -> None:
    """Raise MechanismError if the declared distribution is none, or one for which nothing is proved."""
    own, end = noise.own, noise.end
    below = np.linspace(-end, 0.0, 2**13 + 1)
    at = np.concatenate([below, -below[-2::-1]])
    for function in (own.log_density, own.log_cdf):
        values = function(at.copy())
        if not isinstance(values, np.ndarray) or values.shape != at.shape or not np.isfinite(values).all():
            raise MechanismError(
                f"{function.__name__} must return a finite number for each of an array of points "
                f"from {-end:g} to {end:g}; noise without a positive density everywhere has no finite epsilon"
            )
    logs, cdf = own.log_density(at), np.exp(own.log_cdf(at))
    if np.abs(logs - logs[::-1]).max() > 1e-6 or np.abs(cdf + cdf[::-1] - 1).max() > 1e-9:
        raise MechanismError(
            "the noise is not symmetric about 0, as densities or probabilities of x and -x say"
        )
    bends = logs[:-2] - 2 * logs[1:-1] + logs[2:]
    if (bends > 1e-9 * (1 + np.abs(logs[1:-1]))).any():
        where = at[1:-1][bends.argmax()]
        raise MechanismError(
            f"the density is not log-concave (at {where:.3g}); privacy is proved for log-concave noise only"
        )
    mass = np.exp(own.log_cdf(below))
    points, weights = np.polynomial.legendre.leggauss(5)
    middle, half = (below[1:] + below[:-1]) / 2, (below[1:] - below[:-1]) / 2
    dense = np.exp(own.log_density((middle[:, None] + half[:, None] * points).ravel())).reshape(len(half), -1)
    off = np.abs(np.diff(mass) - half * (dense @ weights)) / mass[1:]
    if off.max() > 1e-6:
        raise MechanismError(
            f"log_cdf is not that of log_density: they differ by {off.max():.2g} of the probability of at most "
            f"{below[1:][off.argmax()]:.3g}"
        )


def _check_drawn(noise: Noise) -> None:
    """Raise MechanismError if what is drawn is not distributed as declared, or not independent."""
    if len(noise.draw(0, _generator(0))):
        raise MechanismError("sample(0, generator) must return no numbers")
    drawn = np.stack([noise.draw(LENGTH, _generator(seed)) for seed in range(ROWS)])
    again = noise.draw(LENGTH, _generator(0))
    if not np.array_equal(drawn[0], again) or (drawn[0] == drawn[1]).mean() > 0.5:
        raise MechanismError(
            "sample must draw from its generator only: equal ones give equal noise, others other"
        )
    short = [
        np.concatenate([noise.draw(count, _generator(seed, count)) for seed in range(2000)])
        for count in SHORT
    ]
    for what, sample in (("draws", drawn.ravel()), *zip(("draws of 1", "draws of 3"), short, strict=True)):
        _check_fit(noise, np.sort(sample), what)
    normals = np.clip(noise.normal(drawn), -9.0, 9.0)
    tests = [min(scale_p(torch.from_numpy(row)) for row in normals) * ROWS]
    tests.append(correlation_p(torch.from_numpy(normals))[0])
    for figures in (normals, (normals**2 - 1) / math.sqrt(2)):
        for lag in range(1, LAGS + 1):
            products = figures[:, lag:] * figures[:, :-lag]
            tests.append(math.erfc(abs(float(products.mean())) * math.sqrt(products.size / 2)))
    if min(tests) < ALARM:
        raise MechanismError("the entries that sample draws are not independent of each other")


def _check_fit(noise: Noise, sample: Array, what: str) -> None:
    """Compare sorted draws with the declared distribution: Kolmogorov-Smirnov, and both tails."""
    n = len(sample)
    lower, upper = noise.own.log_cdf(sample), noise.own.log_cdf(-sample)
    cdf, steps = np.exp(lower), np.arange(n + 1) / n
    distance = max(float((steps[1:] - cdf).max()), float((cdf - steps[:-1]).max()))
    allowed = math.sqrt(-math.log(ALARM / 2) / (2 * n))
    # The logarithm of the probability beyond an entry, of both tails together, is exponential.
    beyond = -float((np.minimum(lower, upper) + math.log(2)).mean())
    spread = -float(ndtri(ALARM / 2)) * 1.1 / math.sqrt(n)  # sums of exponentials are not quite normal
    far = int((np.minimum(lower, upper) <= math.log(RARE / 2)).sum())
    rare = 2 * min(float(pdtr(far, RARE * n)), float(pdtrc(far - 1, RARE * n)) if far else 1.0)
    if distance > allowed or abs(beyond - 1) > spread or rare < ALARM:
        ratio = math.sqrt(float((sample**2).mean())) / noise.std
        raise MechanismError(
            f"{n} {what} are not distributed as declared: the largest distance between the distribution functions "
            f"is {distance:.3g} (allowed {allowed:.3g}), the standard deviation {ratio:.3g} times the declared "
            f"one, and {far} entries are rarer than one in {1 / RARE:,.0f} (expected {RARE * n:.3g})"
        )


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(key))
