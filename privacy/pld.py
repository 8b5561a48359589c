"""Privacy loss distributions: the tightest accounting of sampled Gaussian releases.

A privacy loss distribution (PLD) is discretized upward, so every epsilon here is an upper bound. The grid follows
the size of epsilon, which keeps the bound within a fraction of a percent of the exact value. Discretization
("connect the dots", Doroshenko et al. 2022) and composition are those of `dp_accounting`; the divergences of
a single draw are closed forms.

Let ``z`` be the noise multiplier, ``q`` the rate, and ``h(epsilon)`` the hockey-stick divergence of the mixture
``(1 - q) N(0, z^2) + q N(1, z^2)`` from ``N(0, z^2)``.

- Poisson sampling, add-remove: removing a unit has the profile ``h``, adding one its reverse. Both are composed;
  epsilon is the larger.
- Poisson sampling, replace-one: the pair ``(1 - q) N(0, z^2) + q N(1/2, z^2)`` and ``(1 - q) N(0, z^2) + q N(-1/2,
  z^2)``, both versions of the unit being drawn by the same coin and as far from each other as they can be
  (Zhu, Dong, Wang 2022; it is that of `dp_accounting` for REPLACE_ONE). Mirrored, the pair is the same, so there is
  one direction.
- Sampling without replacement, replace-one: both directions have the profile ``h`` for epsilon >= 0 (Balle, Barthe,
  Gaboardi 2018; attained), hence its reverse for epsilon < 0. The pair with this profile
  dominates all neighbors, so it may be composed (Zhu, Dong, Wang 2022). ``z`` is relative to the
  sensitivity under replacement, twice the clip norm.

The first and the last hold for any mechanism whose neighbors are dominated by one symmetric pair. So a user's
noise takes the place of the normal distribution, with the pair of `privacy.own_mechanism`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import scipy  # its parts are imported at their first use, as they are slow to import
from numpy.typing import NDArray

from privacy.event import Event
from privacy.own_mechanism import Noise

Array = NDArray[np.float64]
Kind = Literal["gaussian", "remove", "add", "replace", "exchange"]

# Below, rounding in the Fourier transform is no longer small against delta.
SMALLEST_DELTA = 1e-10
# Rounding of the masses of one draw, with a margin of a hundred; the errors of all draws add up.
ROUNDING = 1e-14
# Points on the grid of one draw. Longer ones get a coarser grid, whose value is still an upper bound.
_LARGEST_SIZE = 2**18
# Step of the grid over epsilon / sqrt(draws), and its largest share of epsilon.
_STEP, _LARGEST_STEP = 0.02, 1e-3
# Share of delta set aside for each of: tails of single draws, tails of compositions, rounding.
_ASIDE = 1e-5


def pld_epsilon(events: Sequence[Event], delta: float, bound: float) -> float:
    """Return an upper bound on the epsilon of a composition, within 1 % of the exact value.

    Parameters
    ----------
    events : sequence of Event
        At least one; each with noise and at least one draw.
    delta : float
        At least `SMALLEST_DELTA`.
    bound : float
        An upper bound that is known; the result is never above it.

    Raises
    ------
    ValueError
        If the distribution cannot be computed.
    """
    return _epsilon(tuple(events), delta, bound)


def pld_delta(events: Sequence[Event], epsilons: Array, delta: float, bound: float) -> Array:
    """Return upper bounds on delta at each of some epsilons, which may be negative.

    ``bound`` is an upper bound on the epsilon at ``delta``; the two size the grid. Accuracy is best near and
    above ``delta``. The arguments are those of `pld_epsilon` otherwise.
    """
    pmfs = _compose(tuple(events), delta, _step(bound, sum(event.times for event in events)))
    profiles = [[pmf.get_delta_for_epsilon(float(point)) for point in epsilons] for pmf in pmfs]
    clipped: Array = np.clip(np.max(profiles, axis=0) + 10 * _ASIDE * delta, 0.0, 1.0)
    return clipped


_LARGEST_FORMULA = 600.0  # loss up to which the library's inverse is exact
_HALVINGS = 3  # of the step of a grid without a finite epsilon


@functools.lru_cache(maxsize=1024)
def _epsilon(events: tuple[Event, ...], delta: float, bound: float) -> float:
    draws, tried = sum(event.times for event in events), math.inf
    sized_for = min(bound, _guess(events, delta))
    step, halvings = _step(sized_for, draws), 0
    while step < tried:  # too high a guess is corrected by what it finds
        tried = step
        with np.errstate(all="ignore"):  # the library's series overflow on the way, harmlessly
            epsilons = [
                _invert(pmf, delta * (1 - 10 * _ASIDE), bound) for pmf in _compose(events, delta, step)
            ]
        if not all(map(math.isfinite, epsilons)):
            if halvings == _HALVINGS:
                raise ValueError("its discretization has no finite epsilon")
            step, halvings = step / 2, halvings + 1  # too coarse a grid loses more than delta at its ends
            continue
        bound = sized_for = min(bound, max(epsilons))
        step = _step(sized_for, draws)
    return bound


def _invert(pmf: Any, delta: float, high: float) -> float:
    """Return the epsilon at delta, checked by computing its delta; infinity if there is none.

    Beyond about 700 the library's formula underflows, which may also make its result too small. Such
    distributions are inverted in logarithms.
    """
    dense = pmf.to_dense_pmf()
    losses = (dense._lower_loss + np.arange(len(dense._probs))) * dense._discretization
    epsilon: float = pmf.get_epsilon_for_delta(delta)
    if losses[-1] > _LARGEST_FORMULA:
        # Rounding leaves small negative probabilities, which have no logarithm; NaN stays.
        epsilon = _invert_logarithms(losses, np.maximum(dense._probs, 0.0), dense._infinity_mass, delta)
    epsilon = max(0.0, epsilon)
    above = losses > epsilon
    reached = dense._infinity_mass - float(dense._probs[above] @ np.expm1(epsilon - losses[above]))
    return min(high, epsilon) if reached <= delta * (1 + 1e-6) else math.inf


def _invert_logarithms(losses: Array, probs: Array, infinite: float, delta: float) -> float:
    """Return the epsilon at delta of a distribution with these losses and an infinite one."""
    mass = np.cumsum(np.append(infinite, probs[::-1]))[::-1]  # of a loss and all above
    if mass[-1] > delta:
        return math.inf
    logs = np.append(-math.inf, (np.log(probs) - losses)[::-1])
    other = np.logaddexp.accumulate(logs)[::-1]  # their mass in the other direction
    at = int((mass[1:] - np.exp(losses + other[1:]) <= delta).argmax())
    return math.log(mass[at] - delta) - float(other[at]) if mass[at] > delta else 0.0


def _guess(events: tuple[Event, ...], delta: float) -> float:
    """Return about the epsilon, by the central limit theorem."""
    single = [(event, _square(event)) for event in events]
    squares = (
        event.times * event.rate**2 * math.expm1(min(square, 100.0))
        if event.rate < 1
        else event.times * square
        for event, square in single
    )
    mu = math.sqrt(sum(squares))
    return mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))


def _square(event: Event) -> float:
    """Return the inverse square of the noise multiplier; for other noise, that of an equivalent Gaussian."""
    if event.noise is None:
        return event.noise_multiplier**-2
    half = event.noise.log_cdf(np.array([-min(0.5 / event.noise_multiplier, event.noise.end)]))[0]
    return float(4 * scipy.special.ndtri(min(0.5, math.exp(max(half, -700.0)))) ** 2)


def _step(epsilon: float, draws: int) -> float:
    """Return the step of the grid for an epsilon: a power of two, so that near values share cached draws.

    The error of a draw is quadratic in the step up to about 1/4, and linear from there on.
    """
    ideal = min(
        _STEP / math.sqrt(draws) * epsilon, _LARGEST_STEP * epsilon, max(0.25, 0.005 * epsilon / draws)
    )
    return math.ldexp(1.0, math.floor(math.log2(max(ideal, 1e-9))))


def _compose(events: tuple[Event, ...], delta: float, step: float) -> list[Any]:
    """Compose all events: one distribution if both directions are the same, else one for each."""
    from dp_accounting.pld.pld_pmf import compose_pmfs

    draws = sum(event.times for event in events)
    tail = 10.0 ** math.floor(math.log10(_ASIDE * delta / draws))  # rounded, so that near values share draws
    aside = _ASIDE * delta / len(events)
    directions: tuple[Kind, ...] = ("remove", "add")
    if all(event.rate == 1 or event.sampling != "poisson" for event in events):
        directions = ("remove",)
    composed = []
    for direction in directions:
        kinds = [(event, _kind(event, direction)) for event in events]
        ends = [_range(event, kind, tail) for event, kind in kinds]
        longest = max(high - low for low, high in ends)
        coarse = max(step, math.ldexp(1.0, math.ceil(math.log2(longest / _LARGEST_SIZE))))
        with np.errstate(all="ignore"):  # the library's Chernoff bounds overflow on the way, harmlessly
            many = [
                _single(event._replace(times=1), kind, coarse, tail).self_compose(event.times, aside)
                for event, kind in kinds
            ]
            composed.append(functools.reduce(compose_pmfs, many))
    return composed


def _kind(event: Event, direction: Kind) -> Kind:
    """Return which pair of distributions a draw is dominated by."""
    if event.rate == 1:
        return "gaussian"
    if event.sampling == "poisson":
        return direction
    return "exchange" if event.sampling == "poisson-replace" else "replace"


def _range(event: Event, kind: Kind, tail: float) -> tuple[float, float]:
    """Return losses between which one draw's distribution lies, up to a mass of ``tail`` above."""
    z, rate = event.noise_multiplier, event.rate
    if event.noise is None:
        reach = -float(scipy.special.ndtri(min(0.5, tail / rate)))  # standard deviations
        alone = (0.5 / z + reach) / z
    else:
        alone = event.noise.loss(1 / z + event.noise.above(tail / rate), 1 / z)
    high = alone + math.log(rate + (1 - rate) * math.exp(-alone))  # of the mixture, there
    low = math.log1p(-rate) if rate < 1 else -high
    if kind == "exchange":
        high = _exchanged_loss(z, rate, 0.5 - z * float(scipy.special.ndtri(min(0.5, tail))))
    return {
        "exchange": (-high, high),
        "gaussian": (-high, high),
        "replace": (-high, high),
        "remove": (low, high),
        "add": (-high, -low),
    }[kind]


@functools.lru_cache(maxsize=256)
def _single(event: Event, kind: Kind, step: float, tail: float) -> Any:
    """Discretize the privacy loss of one draw; whatever lies above the range counts as infinite."""
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap

    z, rate, noise = event.noise_multiplier, event.rate, event.noise
    low, high = _range(event, kind, tail)
    first, last = math.floor(low / step), math.ceil(high / step)
    losses = np.arange(first, last + 1, dtype=np.float64) * step
    if kind == "gaussian":
        profile = _unsampled(z, losses, noise)
    elif kind == "remove":
        profile = _mixture_first(z, rate, losses, noise)
    elif kind == "exchange":
        profile = _exchanged(z, rate, losses)
    elif kind == "add":
        profile = _mixture_second(z, rate, losses, noise)
    else:
        first_side = _mixture_first(z, rate, losses, noise)
        second_side = _mixture_second(z, rate, losses, noise)
        profile = np.where(losses >= 0, first_side, second_side)
    return create_pmf_pessimistic_connect_dots_fixed_gap(step, first, last, np.clip(profile, 0.0, 1.0))


def _exchanged_loss(z: float, rate: float, at: float) -> float:
    """Return the privacy loss of an exchanged unit at a point: ``log P / Q`` of the mixtures."""
    up, down = (math.log(rate) - 0.125 / z**2 + sign * 0.5 * at / z**2 for sign in (1, -1))
    rest = math.log1p(-rate)
    return float(np.logaddexp(rest, up) - np.logaddexp(rest, down))


def _exchanged(z: float, rate: float, losses: Array) -> Array:
    """Return the divergence of ``(1 - q) N(0) + q N(1/2)`` from ``(1 - q) N(0) + q N(-1/2)``.

    The loss rises with ``x``. Where it is ``l``, ``u = exp(x / (2 z^2))`` solves ``a u^2 - b u - a e^l = 0`` with
    ``a = q exp(-1 / (8 z^2))`` and ``b = (1 - q) (e^l - 1)``, so ``x / (2 z^2)`` is
    ``l / 2 + arcsinh(b e^(-l / 2) / 2 a)``.
    """
    with np.errstate(divide="ignore"):
        size = np.log(2 * np.abs(np.sinh(losses / 2))) + math.log1p(-rate) - math.log(rate) + 0.125 / z**2
    # Of twice its argument the logarithm, as it may overflow; then arcsinh is that logarithm.
    grown = np.where(size > 300.0, size, np.arcsinh(0.5 * np.exp(np.minimum(size, 300.0))))
    at = 2 * z**2 * (losses / 2 + np.sign(losses) * grown)
    below, rest = scipy.special.log_ndtr, math.log1p(-rate)
    first, second = (
        np.logaddexp(rest + below(-at / z), math.log(rate) + below((mean - at) / z)) for mean in (0.5, -0.5)
    )
    divergence: Array = np.exp(first) - np.exp(np.minimum(losses + second, 700.0))
    return divergence


def _unsampled(z: float, losses: Array, noise: Noise | None) -> Array:
    """Return the divergence of the noise shifted by the sensitivity from the noise."""
    return _gaussian(z, losses) if noise is None else noise.divergence(1 / z, losses)


def _gaussian(z: float, losses: Array) -> Array:
    """Return the divergence of ``N(1, z^2)`` from ``N(0, z^2)``; see `privacy.gaussian` for the formula."""
    shift = losses * z - 0.5 / z
    positive = np.maximum(shift, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        far = 0.5 * np.exp(-0.5 * shift**2) * scipy.special.erfcx((shift + 1 / z) / math.sqrt(2))
        near = 0.5 * np.exp(-0.5 * positive**2) * scipy.special.erfcx(positive / math.sqrt(2))
        # Far to the left, the second term is exp(loss) to within rounding, and erfcx overflows.
        below = scipy.special.ndtr(-shift) - np.exp(losses + scipy.special.log_ndtr(-(shift + 1 / z)))
    divergence: Array = np.where(shift >= 0, near - far, below)
    return divergence


def _mixture_first(z: float, rate: float, losses: Array, noise: Noise | None = None) -> Array:
    """Return the divergence of the mixture from ``N(0, z^2)``: ``h`` of the module's description."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # log(1 + (exp(loss) - 1) / rate), where that is a number
        small = np.log1p(np.expm1(np.minimum(losses, 1.0)) / rate)
        large = losses + np.log1p(-(1 - rate) * np.exp(-np.maximum(losses, 1.0))) - math.log(rate)
        inner = np.where(losses < 1.0, small, large)
        inside = losses > math.log1p(-rate)
        value = rate * _unsampled(z, np.where(inside & np.isfinite(inner), inner, 0.0), noise)
        divergence: Array = np.where(inside & np.isfinite(inner), value, -np.expm1(losses))
    return divergence


def _mixture_second(z: float, rate: float, losses: Array, noise: Noise | None = None) -> Array:
    """Return the divergence of ``N(0, z^2)`` from the mixture."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        weight = -np.expm1(losses + math.log1p(-rate))  # 1 - exp(loss) (1 - rate)
        inside = weight > 0
        inner = losses + math.log(rate) - np.log(np.where(inside, weight, 1.0))
        divergence: Array = np.where(inside, weight * _unsampled(z, inner, noise), 0.0)
    return divergence
