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

Nobody but the harness draws: with E standard exponential, the size of an entry is the point whose tail, of both
sides together, has probability ``exp(-E)``. So noise is independent and distributed as declared by construction.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import ClassVar, TypeVar

import numpy as np
import scipy  # its parts are imported at their first use, as they are slow to import
from numpy.typing import NDArray

from privacy.gaussian import lowest

Array = NDArray[np.float64]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
RESERVED = ("independent", "banded", "distributed", "local", "central")  # our mechanisms, and placements
LOWEST = -100.0  # logarithm of the probability up to which tails are drawn, and checked at registration
SMALLEST_DELTA = math.exp(-60)  # far above what lies in tails that are not drawn
LARGEST_LOG = 1e8  # of a density that is still computed with: others are rounded too much
HALVINGS = 70  # of an interval
CELLS = 64  # of the table of quantiles, per unit of the exponential number
DEEPEST = -LOWEST - math.log(2)  # exponential number of the outermost entry: the tails are two
MEMORY = 30.0  # largest exponential number that is drawn at once; numpy's generators end at 44
SOLVED = 4e-15  # relative error of the probability of an entry's tail
FLAT = 1e-9  # by how much a logarithm of a density may lie below a chord: rounding
REWRITE = (
    "write log_density and log_cdf so that they stay exact far out: -abs(x), not log(exp(-abs(x))); log_ndtr(x) or "
    "norm.logpdf, not log(cdf) or log(pdf); no tables"
)


class MechanismError(ValueError):
    """A mechanism contradicts its declaration, or no proof covers it."""


class OwnMechanism(ABC):
    """A user's noise; subclasses take no arguments and are registered by `mechanism`.

    Both functions are of the distribution of one entry at scale 1, and are elementwise: a value depends on its
    x only. In a run the noise is multiplied by ``noise_multiplier`` times the L1 sensitivity. The harness draws it,
    by inverting ``log_cdf``.

    Attributes
    ----------
    name : str
        Name in run files.
    """

    name: ClassVar[str]

    @abstractmethod
    def log_density(self, x: Array) -> Array:
        """Return the logarithm of the density at each x."""

    @abstractmethod
    def log_cdf(self, x: Array) -> Array:
        """Return the logarithm of the probability of at most x, accurate also far below zero."""


class Noise:
    """A declared distribution: its entries, and how well two shifts of it are distinguished.

    The declared functions are evaluated between ``-end`` and ``end``, where registration has checked them, and
    beyond only after the same checks there.

    Parameters
    ----------
    own : OwnMechanism
        Who declares it.
    """

    def __init__(self, own: OwnMechanism) -> None:
        self.own = own
        self._reach = 0.0  # up to where the functions are checked; 0: up to `end`

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
        raise MechanismError(f"log_cdf does not fall below {LOWEST:g}, as that of log-concave noise does")

    @cached_property
    def std(self) -> float:
        """Standard deviation of an entry at scale 1."""
        at = np.linspace(0.0, self.end, 2**16 + 1)
        return math.sqrt(2 * float(np.trapezoid(at**2 * np.exp(self.own.log_density(at)), at)))

    def draw(self, count: int, generator: np.random.Generator) -> Array:
        """Draw independent entries at scale 1, ``(count,)``."""
        deep, level = generator.standard_exponential(count), MEMORY
        while (far := deep > level).any():  # an exponential number forgets how large it is already
            deep[far] = level + generator.standard_exponential(int(far.sum()))
            level += MEMORY
        size = self.quantile(deep)
        return np.where(generator.random(count) < 0.5, -size, size)

    def quantile(self, deep: Array) -> Array:
        """Return the sizes beyond which, on both sides together, ``exp(-deep)`` of the noise lies."""
        table = self._quantiles
        deep = np.minimum(deep, (len(table) - 1) / CELLS)
        cell = np.minimum((deep * CELLS).astype(np.int64), len(table) - 2)
        low, high = table[cell], table[cell + 1]
        return self._solved(deep, low + (high - low) * (deep * CELLS - cell), low, high)

    @cached_property
    def _quantiles(self) -> Array:
        deep = np.arange(int(DEEPEST * CELLS) + 1) / CELLS
        low, high = np.zeros_like(deep), np.full_like(deep, self.end)
        return np.maximum.accumulate(self._solved(deep, low + (high - low) / 2, low, high))

    def _solved(self, deep: Array, size: Array, low: Array, high: Array) -> Array:
        """Invert ``log_cdf`` by Newton's method in brackets, which are halved where it leaves them."""
        unsolved = np.arange(len(size))
        for _ in range(3 * HALVINGS):
            now, target = size[unsolved], deep[unsolved]
            tail = self.log_cdf(-now)
            off = -math.log(2) - tail - target
            wrong = np.abs(off) > SOLVED * (1 + target)
            if not wrong.any():
                break
            unsolved, now, tail, off = unsolved[wrong], now[wrong], tail[wrong], off[wrong]
            high[unsolved] = above = np.where(off > 0, now, high[unsolved])
            low[unsolved] = below = np.where(off > 0, low[unsolved], now)
            with np.errstate(over="ignore"):
                newton = now - off * np.exp(tail - self.log_density(-now))
            inside = (below < newton) & (newton < above)
            size[unsolved] = np.where(inside, newton, below + (above - below) / 2)
        return size

    def normal(self, noise: Array) -> Array:
        """Map noise at scale 1 to standard normal numbers, by the declared distribution; nan stays."""
        at = np.where(np.isnan(noise), 0.0, noise)
        tail: Array = scipy.special.ndtri(np.exp(self.log_cdf(-np.minimum(np.abs(at), self.end))))
        return np.where(np.isnan(noise), np.nan, -np.sign(at) * tail)

    def divergence(self, shift: float, losses: Array) -> Array:
        """Return the hockey-stick divergence of the shifted noise from the noise, at each loss.

        Raises
        ------
        MechanismError
            If the declared functions cannot be computed with so far out.
        """
        if not self._covers(shift + self.end):
            raise MechanismError(f"the noise is not computed up to {shift + self.end:.3g} times its scale")
        sizes = np.abs(losses)
        low, high = np.full(losses.shape, shift / 2), np.full(losses.shape, shift + self.end)
        for _ in range(HALVINGS):
            middle = low + (high - low) / 2
            above = self._loss(middle, shift) >= sizes
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        with np.errstate(over="ignore", invalid="ignore"):
            upper_tail = np.exp(self.log_cdf(shift - high))
            upper = np.clip(upper_tail - np.exp(sizes + self.log_cdf(-high)), 0.0, 1.0)
            # Of a symmetric pair, the divergence below 0 follows from that above.
            divergence: Array = np.where(losses >= 0, upper, -np.expm1(losses) + np.exp(losses) * upper)
        return divergence

    def epsilon(self, shift: float, delta: float) -> float:
        """Return the exact epsilon at delta of the noise against the shifted noise.

        Infinity for a delta below `SMALLEST_DELTA`, and where densities are below ``exp(-LARGEST_LOG)``: they are
        rounded by too much.

        Raises
        ------
        MechanismError
            If the declared functions are not exact so far out.
        """
        if delta < SMALLEST_DELTA or not self._covers(shift + self.above(delta)):
            return math.inf

        def reached(at: float) -> bool:
            upper_tail, lower_tail = map(float, self.log_cdf(np.array([shift - at, -at])))
            rounding = 1e-15 * (10 + abs(lower_tail))
            return (
                math.exp(upper_tail) * (1 + rounding) - math.exp(min(0.0, self.loss(at, shift) + lower_tail))
                <= delta
            )

        first, last = shift / 2, shift + self.above(delta)
        return 0.0 if reached(first) else max(0.0, self.loss(lowest(reached, first, last), shift))

    def loss(self, at: float, shift: float) -> float:
        """Return the privacy loss at a point.

        Raises
        ------
        MechanismError
            As of `divergence`.
        """
        if not self._covers(abs(at)):
            raise MechanismError(f"the noise is not computed up to {at:.3g} times its scale")
        return float(self._loss(np.array([at]), shift)[0])

    def above(self, tail: float) -> float:
        """Return a point above which at most ``tail`` of the noise lies, and not much less."""
        if math.log(tail) <= LOWEST:
            return self.end
        return lowest(lambda at: self._log_tail(at) <= math.log(tail), 0.0, self.end)

    def log_density(self, at: Array) -> Array:
        """Return what is declared, which must be a finite number for each point."""
        return _values(self.own.log_density, at)

    def log_cdf(self, at: Array) -> Array:
        """Return what is declared, which must be a finite number for each point."""
        return _values(self.own.log_cdf, at)

    def _covers(self, needed: float) -> bool:
        """Check the declared functions up to a point beyond `end`; False if they are too small there."""
        reach = max(self._reach, self.end)
        while reach < needed:
            if self.log_density(np.array([2 * reach]))[0] < -LARGEST_LOG:
                return False
            with np.errstate(all="ignore"):
                _check_tail(self, reach)
            reach = self._reach = 2 * reach
        return True

    def _log_tail(self, at: float) -> float:
        return float(self.log_cdf(np.array([-at]))[0])

    def _loss(self, at: Array, shift: float) -> Array:
        return self.log_density(at - shift) - self.log_density(at)


#: Mechanisms of users by name.
MECHANISMS: dict[str, Noise] = {}

Own = TypeVar("Own", bound=type[OwnMechanism])


def mechanism(cls: Own) -> Own:
    """Register a subclass of `OwnMechanism` under its name, after checking what it declares.

    The density must be positive, symmetric and log-concave, and the probabilities those of the density. These are
    checks on some hundred thousand points: a logarithm of the density may lie 1e-9 below a chord, and a probability
    may be off by a millionth of itself.

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
    if name in RESERVED:
        raise MechanismError(f"the name {name!r} is reserved; reserved are {', '.join(RESERVED)}")
    if hasattr(cls, "sample"):
        raise MechanismError(f"mechanism {name!r}: remove sample: the harness draws, by inverting log_cdf")
    registered = MECHANISMS.get(name)
    redefined = registered is not None and registered.defined.__module__ == "__main__"
    if registered is not None and not redefined:
        raise MechanismError(f"two mechanisms are called {name!r}")
    try:
        with np.errstate(all="ignore"):
            noise = Noise(cls())
            _check_declared(noise)
    except MechanismError as error:
        raise MechanismError(f"mechanism {name!r}: {error}") from error
    except Exception as error:  # a user's functions may raise anything
        raise MechanismError(f"mechanism {name!r}: {type(error).__name__}: {error}") from error
    MECHANISMS[name] = noise
    return cls


def _values(function: Callable[[Array], Array], at: Array) -> Array:
    values = function(at.copy())
    numbers = isinstance(values, np.ndarray) and values.shape == at.shape and values.dtype == np.float64
    if numbers and np.isfinite(values).all():
        return values
    raise MechanismError(
        f"{function.__name__} must return a finite number, as float64, for each of an array of points, also at "
        f"{np.abs(at).max():.3g}: {REWRITE}. Noise without a positive density everywhere has no finite epsilon"
    )


def _check_declared(noise: Noise) -> None:
    """Raise MechanismError if the declared distribution is invalid, or one without a proof."""
    end, draws = noise.end, np.random.default_rng(1)
    below = np.linspace(-end, 0.0, 2**13 + 1)
    at = np.concatenate([below, -below[-2::-1]])
    _check_elementwise(noise, draws.uniform(-end, end, 1000))
    logs, cdf = noise.log_density(at), np.exp(noise.log_cdf(at))
    if np.abs(logs - logs[::-1]).max() > 1e-6 or np.abs(cdf + cdf[::-1] - 1).max() > 1e-9:
        raise MechanismError(
            "the noise is not symmetric about 0, as densities or probabilities of x and -x say"
        )
    points, weights = np.polynomial.legendre.leggauss(5)
    middle, half = (below[1:] + below[:-1]) / 2, (below[1:] - below[:-1]) / 2
    nodes = (middle[:, None] + half[:, None] * points).ravel()
    for line in (at, nodes):
        _check_bends(noise, line[:-2], line[1:-1], line[2:])
    _check_bends(noise, *_triples(draws, -end, end))
    for shift in end * 10.0 ** draws.uniform(-7, 0, 20):
        moved = np.sort(draws.uniform(shift - end, end, 2**12))
        losses = noise.log_density(moved - shift) - noise.log_density(moved)
        if (np.diff(losses) < -2 * FLAT).any():
            raise MechanismError(
                f"the density is not log-concave: the privacy loss of a shift by {shift:.3g} falls at "
                f"{moved[np.diff(losses).argmin()]:.3g}; privacy is proved for log-concave noise only"
            )
    mass = np.exp(noise.log_cdf(below))
    dense = np.exp(noise.log_density(nodes)).reshape(len(half), -1)
    _check_mass(np.diff(mass), half * (dense @ weights), mass[1:], below[1:])
    deep = draws.uniform(0, DEEPEST - 1, 2**12)
    recovered = -math.log(2) - noise.log_cdf(-noise.quantile(deep))
    if (np.abs(recovered - deep) > 1e-9 * (1 + deep)).any():
        raise MechanismError("log_cdf cannot be inverted: it does not rise continuously")


def _check_tail(noise: Noise, reach: float) -> None:
    """Check the tails between a point and twice that point, where only logarithms are numbers."""
    draws = np.random.default_rng(1)
    inner = np.geomspace(reach, 2 * reach, 2**10)[:-10]
    at = noise.log_density(np.concatenate([-inner, inner])).reshape(2, -1)
    if (np.abs(at[0] - at[1]) > 1e-6 + 1e-12 * np.abs(at[0])).any():
        raise MechanismError(f"the density is not symmetric about 0 beyond {reach:g}: {REWRITE}")
    _check_bends(noise, *_triples(draws, reach / 2, 2 * reach))
    # A step of one over the hazard rate; of log-concave noise so unlikely it is less than a hundredth of the point.
    tail = noise.log_cdf(-inner)
    step = np.minimum(np.exp(tail - at[1]), inner / 128)
    points, weights = np.polynomial.legendre.leggauss(9)
    nodes = inner[:, None] + step[:, None] * (points + 1) / 2
    dense = np.exp(noise.log_density(nodes.ravel()).reshape(nodes.shape) - tail[:, None])
    mass = -np.expm1(noise.log_cdf(-(inner + step)) - tail)
    _check_mass(mass, step / 2 * (dense @ weights), mass, inner)


def _check_mass(mass: Array, integral: Array, of: Array, at: Array) -> None:
    off = np.abs(mass - integral) / of
    if not (off <= 1e-6).all():  # nan is off, too
        raise MechanismError(
            f"log_cdf is not that of log_density: they differ by {np.nanmax(off):.2g} of the probability beyond "
            f"{at[off.argmax()]:.3g}; {REWRITE}"
        )


def _triples(draws: np.random.Generator, low: float, high: float) -> tuple[Array, Array, Array]:
    """Return points between others, at random places and at distances of all sizes."""
    middle = draws.uniform(low, high, 2**17)
    widths = (high - low) * 10.0 ** draws.uniform(-8, 0, (2, len(middle)))
    return np.maximum(middle - widths[0], low), middle, np.minimum(middle + widths[1], high)


def _check_bends(noise: Noise, left: Array, middle: Array, right: Array) -> None:
    """Raise MechanismError if the logarithm of the density lies below a chord."""
    ends, value = (noise.log_density(left), noise.log_density(right)), noise.log_density(middle)
    share = (middle - left) / (right - left)
    bends = ends[0] + share * (ends[1] - ends[0]) - value
    if (bends > FLAT + 1e-12 * np.abs(value)).any():
        raise MechanismError(
            f"the density is not log-concave (at {middle[bends.argmax()]:.3g}); privacy is proved for log-concave "
            f"noise only; {REWRITE}"
        )


def _check_elementwise(noise: Noise, at: Array) -> None:
    """Raise MechanismError if a value depends on anything but its point."""
    for function in (noise.log_density, noise.log_cdf):
        values = function(at)
        parts = np.concatenate([function(at[:1]), function(at[1:5]), function(at[5:])])
        if not all(np.allclose(other, values, 1e-12, 1e-12) for other in (parts, function(at[::-1])[::-1])):
            raise MechanismError(
                f"{function.__name__} is not elementwise: a value depends on others, or on earlier calls"
            )
