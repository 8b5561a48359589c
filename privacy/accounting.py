"""Accounting: the privacy loss of many Gaussian releases.

The unit is the *event*: one draw of a cohort (or of a batch) and all releases made from it. The m releases of
one draw compose inside the event to one Gaussian (`compose`), because a unit that was not drawn is in none of
them; booking them as m independently sampled events would understate epsilon.

Bounds:

- no sampling (all rates 1): the composition is Gaussian and epsilon is exact, with either accountant;
- Poisson sampling, ``rdp``: Renyi orders from Opacus (Mironov, Talwar, Zhang 2019; conversion by Balle et al.
  2020), on a dense set of orders;
- Poisson sampling, ``prv``: Opacus's discretized privacy loss (Gopi, Lee, Wutschitz 2021), upper end of its
  error interval;
- any sampling, ``pld``: the discretized privacy loss of `privacy.pld`, within 1 % of the exact value;
- sampling without replacement, ``rdp``: twice the divergence's excess over 1 of Poisson sampling (`divergence`);
- a user's mechanism, ``pld``: the same, of its own pair of distributions (`privacy.own_mechanism`).

Sampling never increases epsilon, so the exact value without amplification is a bound too; the smallest bound is
reported. It is tight at the extremes, where Opacus's series overflow.
"""

from __future__ import annotations

import difflib
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from privacy.event import SAMPLINGS, Event
from privacy.gaussian import (
    analytic_sigma,
    check_budget,
    check_delta,
    check_multiplier,
    gaussian_epsilon,
    lowest,
)
from privacy.own_mechanism import MechanismError, Noise
from privacy.pld import ROUNDING, SMALLEST_DELTA, pld_epsilon

ACCOUNTANTS = ("rdp", "prv", "pld")

# Renyi orders, a fixed set so that the bound is monotone in all arguments: in steps of 7 % from 1 + 1e-4 (for
# epsilon in the ten thousands) to 1024, the largest whose binomials are floats. From 12 on only integer orders,
# because Opacus's series for fractional ones loses digits.
_ORDERS = (
    *(1 + 1.07**step * 1e-4 for step in range(172)),
    *sorted({float(min(round(12 * 1.07**step), 1024)) for step in range(67)}),
)
# The privacy loss is discretized on at most this many points (about 250 MB at the peak) ...
_LARGEST_DOMAIN = 2**21
# ... and up to this loss, beyond which exp(loss) overflows.
_LARGEST_LOSS = 700.0
# For smaller delta, rounding in the Fourier transform matters.
_SMALLEST_PRV_DELTA = 1e-10
# Largest logarithm of a factor of a user's noise.
_BRACKET = 50.0


class Account(NamedTuple):
    """An epsilon, its accountant (``exact``, ``rdp``, ``prv`` or ``pld``), and the reason for a fallback.

    Of a user's mechanism the fallback is ``sum``: one release whose shift is the sum of all shifts.
    """

    epsilon: float
    accountant: str
    note: str = ""


def compose(multipliers: Iterable[float]) -> float:
    """Return the noise multiplier of several Gaussian releases from the same draw: ``(sum z_i^-2)^(-1/2)``.

    Infinity without releases, 0 if one has no noise.
    """
    precision = 0.0
    for multiplier in multipliers:
        check_multiplier(multiplier)
        precision += multiplier**-2 if multiplier > 0 else math.inf
    return precision**-0.5 if precision > 0 else math.inf


def account(events: Sequence[Event], delta: float, accountant: str = "pld") -> Account:
    """Return the epsilon of all events together.

    Parameters
    ----------
    events : sequence of Event
        In any order. Those with a rate below 1 are sampled in one way, which decides the adjacency.
    delta : float
        In (0, 1).
    accountant : {"rdp", "prv", "pld"}
        Used for sampled events. ``prv`` is tighter than ``rdp``; it falls back to ``rdp``, with a note, if its
        discretization would overflow or not fit into memory (epsilon in the hundreds), delta is too small, or draws
        are without replacement. ``pld`` is tightest and falls back if delta is too small.

    Raises
    ------
    ValueError
        If delta, a multiplier, a rate, a count or a sampling is out of range, the accountant is unknown, or
        events are sampled in two ways.
    """
    check_delta(delta)
    _check_accountant(accountant)
    for event in events:
        check_event(event)
    events = [event for event in events if event.times]
    if not events:
        return Account(0.0, "exact", "nothing was released")
    if any(event.noise_multiplier == 0 for event in events):
        return Account(math.inf, "exact", "a release has no noise")
    if any(event.noise is not None for event in events):
        return _own_account(events, delta, accountant)
    together = compose([event.noise_multiplier / math.sqrt(event.times) for event in events])
    unamplified = gaussian_epsilon(together, delta)
    if all(event.rate == 1 for event in events):
        return Account(unamplified, "exact")
    events = _merge_unsampled(events)
    if len({event.sampling for event in events if event.rate < 1}) > 1:
        raise ValueError("draws by Poisson sampling and without replacement have no common adjacency")
    note = ""
    if accountant == "pld":
        tightest, note = by_pld(events, delta, unamplified)
        if not note:
            return Account(tightest, "pld")
    bound = _rdp_epsilon(events, delta)
    accountant_used = "rdp" if note else accountant
    if accountant == "prv":
        tighter, note = _prv_epsilon(events, delta, bound)
        accountant_used = "rdp" if note else "prv"
        bound = min(bound, tighter)
    return Account(max(0.0, min(bound, unamplified)), accountant_used, note)


def _own_account(events: Sequence[Event], delta: float, accountant: str) -> Account:
    """Return the epsilon of releases of a user's mechanism, at most that of one release of all shifts."""
    noise = events[0].noise
    if noise is None or any(event.noise is not noise for event in events) or accountant != "pld":
        raise ValueError(
            "releases of a user's mechanism are composed with each other only, by accountant pld"
        )
    shift = sum(event.times / event.noise_multiplier for event in events)
    if len(events) == events[0].times == events[0].rate == 1:
        return Account(noise.epsilon(shift, delta), "exact")
    together, failure = math.inf, None
    try:
        together = noise.epsilon(shift, delta)
    except MechanismError as error:  # single releases have shorter shifts
        failure = error
    tighter, note = by_pld(events, delta, together)
    if note and failure is not None:
        raise failure
    return Account(min(tighter, together), "sum" if note else "pld", note)


def epsilon(
    noise_multiplier: float,
    releases: int,
    delta: float,
    sampling_rate: float = 1.0,
    accountant: str = "pld",
    sampling: str = "poisson",
) -> float:
    """Return the epsilon of ``releases`` Gaussian releases from separate draws.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation over sensitivity.
    releases : int
        Not negative.
    delta : float
        In (0, 1).
    sampling_rate : float
        Rate of each draw, in (0, 1]; 1 gives the exact value.
    accountant : {"rdp", "prv", "pld"}
        See `account`.
    sampling : {"poisson", "without-replacement"}
        See `Event`.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    return account([Event(noise_multiplier, sampling_rate, releases, sampling)], delta, accountant).epsilon


def calibrate(epsilon: float, delta: float, events: Sequence[Event], accountant: str = "pld") -> float:
    """Return the smallest factor, to 1e-6, of the noise multipliers of all events within a budget.

    Parameters
    ----------
    epsilon, delta : float
        The budget. The epsilon of `account` at the result never exceeds it.
    events : sequence of Event
        Their noise multipliers set the proportions. Without events the factor is 0.
    accountant : {"rdp", "prv", "pld"}
        See `account`.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    check_budget(epsilon, delta)
    _check_accountant(accountant)
    for event in events:
        check_event(event)
    if not events:
        return 0.0

    def excess(log_factor: float) -> float:
        """Return the logarithm of what is spent over the budget, almost linear in that of the factor."""
        factor = math.exp(log_factor)
        scaled = [event._replace(noise_multiplier=factor * event.noise_multiplier) for event in events]
        try:
            spent = account(scaled, delta, accountant).epsilon
        except MechanismError:  # so little noise that its functions fail
            spent = math.inf
        return math.log(max(spent, 1e-300) / epsilon)

    if (noise := events[0].noise) is not None:
        return math.exp(_root(excess, _sure(noise, epsilon, delta, events), 5e-7))
    # A closed form without amplification; sampling only lowers the factor. The margin covers rounding.
    together = compose(event.noise_multiplier / math.sqrt(event.times) for event in events)
    high = math.log(analytic_sigma(epsilon, delta, 1.0) / together * (1 + 1e-9))
    if all(event.rate == 1 for event in events):
        return math.exp(high)
    return math.exp(_root(excess, high, 5e-7))


def _sure(noise: Noise, epsilon: float, delta: float, events: Sequence[Event]) -> float:
    """Return the logarithm of the factor at which one release of all shifts together keeps a budget."""
    shift = sum(event.times / event.noise_multiplier for event in events)

    def kept(log_factor: float) -> bool:
        try:
            return noise.epsilon(shift * math.exp(-log_factor), delta) <= epsilon
        except MechanismError:  # so little noise that its functions fail
            return False

    low, high = -_BRACKET, _BRACKET
    if kept(low) or not kept(high):
        raise MechanismError(
            f"epsilon {epsilon:g} at delta {delta:g} is spent by no factor of the noise from {math.exp(low):.0g} "
            f"to {math.exp(high):.0g}"
        )
    return lowest(kept, low, high, 1e-9)


def _root(excess: Callable[[float], float], high: float, tolerance: float) -> float:
    """Return a point at most ``tolerance`` above the root of a decreasing function, which is below ``high``.

    Regula falsi with the Illinois rule; a bisection would need three times as many evaluations.
    """
    low, above = high - 1.0, excess(high)
    while (below := excess(low)) <= 0:
        low, high, above = low - 1.0, low, below
    last = 0  # the end that moved last
    while high - low > tolerance:
        middle = low + (high - low) * below / (below - above) if math.isfinite(below - above) else math.nan
        if not low < middle < high:
            middle = low + (high - low) / 2
        # At least half the tolerance from both ends, so that the bracket closes once the root is known.
        middle = min(max(middle, low + tolerance / 2), high - tolerance / 2)
        value = excess(middle)
        if value <= 0:
            high, above, below, last = middle, value, below / (2 if last > 0 else 1), 1
        else:
            low, below, above, last = middle, value, above / (2 if last < 0 else 1), -1
    return high


def _check_accountant(accountant: str) -> None:
    if accountant not in ACCOUNTANTS:
        close = difflib.get_close_matches(accountant, ACCOUNTANTS, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"unknown accountant {accountant!r}; known are {', '.join(ACCOUNTANTS)}; nearest: {close}"
        )


def check_rate(rate: float) -> None:
    """Refuse a sampling rate outside (0, 1].

    Raises
    ------
    ValueError
        If ``rate`` is not in (0, 1].
    """
    if not 0 < rate <= 1:
        raise ValueError(f"the sampling rate must lie in (0, 1], got {rate}")


def check_event(event: Event) -> None:
    """Refuse an event with a number out of range, or an unknown sampling.

    Raises
    ------
    ValueError
        If it is one.
    """
    check_multiplier(event.noise_multiplier)
    check_rate(event.rate)
    if event.times < 0:
        raise ValueError(f"the number of draws must not be negative, got {event.times}")
    if event.sampling not in SAMPLINGS:
        raise ValueError(f"unknown sampling {event.sampling!r}; known are {', '.join(SAMPLINGS)}")


def _merge_unsampled(events: Sequence[Event]) -> list[Event]:
    """Merge all events of rate 1 to a single Gaussian, which is exact and faster."""
    unsampled = [event.noise_multiplier / math.sqrt(event.times) for event in events if event.rate == 1]
    sampled = [event for event in events if event.rate < 1]
    return [*sampled, Event(compose(unsampled))] if unsampled else sampled


def _rdp_epsilon(events: Sequence[Event], delta: float) -> float:
    """Return the minimum over the Renyi orders, without orders that cannot be optimal.

    Below order ``1 / delta`` the conversion cost falls with the order and the divergence rises. So the search
    stops upward from order 2 once the divergence exceeds the best bound, downward once the conversion cost does.
    """

    def conversion(order: float) -> float:
        return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)

    def total(order: float) -> float:
        return sum(event.times * divergence(event, order) for event in events)

    orders = [order for order in _ORDERS if order < 1 / delta]
    best = math.inf
    for order in (order for order in orders if order >= 2):
        spent = total(order)
        best = min(best, spent + conversion(order))
        if spent + conversion(orders[-1]) >= best:
            break
    for order in (order for order in reversed(orders) if order < 2):
        if conversion(order) >= best:
            break
        best = min(best, total(order) + conversion(order))
    return best


def divergence(event: Event, order: float) -> float:
    """Return the Renyi divergence of one draw, or an upper bound of it.

    Let ``A = exp((order - 1) divergence)`` of the Poisson-sampled Gaussian. ``A - 1`` is an integral over the
    profiles of both directions at losses above 0. Without replacement both are the larger one (`privacy.pld`),
    which Poisson sampling has where it weighs most; so ``A`` is at most ``2 A - 1``.

    Raises
    ------
    ValueError
        If the noise is a user's.
    """
    if event.noise is not None:
        raise ValueError("Renyi divergences are known of Gaussian noise only")
    spent = _renyi(event.noise_multiplier, event.rate, order)
    if event.rate == 1 or event.sampling == "poisson" or spent == math.inf:
        return spent
    return spent + math.log(2 - math.exp(-(order - 1) * spent)) / (order - 1)


@functools.lru_cache(maxsize=4096)
def _renyi(noise_multiplier: float, rate: float, order: float) -> float:
    """Return the Renyi divergence of one Poisson-sampled Gaussian, or infinity where Opacus cannot compute it."""
    # Imported here because Opacus takes a second to import.
    from opacus.accountants.analysis.rdp import compute_rdp

    try:
        with np.errstate(all="ignore"):
            value = float(compute_rdp(q=rate, noise_multiplier=noise_multiplier, steps=1, orders=order))
    except (OverflowError, ValueError, ZeroDivisionError):
        return math.inf
    return value if value > 0 else math.inf  # divergences are positive, other values are rounding errors


def by_pld(events: Sequence[Event], delta: float, bound: float) -> tuple[float, str]:
    """Return epsilon by privacy loss distributions and an empty text, or infinity and the reason.

    ``bound`` is an upper bound that is known.
    """
    instead = "rdp" if all(event.noise is None for event in events) else "a sum of shifts"
    fallback = f"pld accountant not usable here, {instead} instead: "
    if delta < SMALLEST_DELTA:
        return math.inf, f"{fallback}delta below {SMALLEST_DELTA}"
    if (draws := sum(event.times for event in events)) * ROUNDING > delta:
        return (
            math.inf,
            f"{fallback}the masses of {draws:,} draws are rounded by too much for delta {delta:g}",
        )
    try:
        return pld_epsilon(events, delta, bound), ""
    except (ValueError, IndexError, OverflowError, ZeroDivisionError, MemoryError) as failure:
        return math.inf, f"{fallback}{failure or type(failure).__name__}"


def _prv_epsilon(events: Sequence[Event], delta: float, bound: float) -> tuple[float, str]:
    """Return the upper end of the PRV accountant's interval, or infinity and the reason why it cannot be computed.

    The domain is sized with the Renyi bound as in remark 5.6 of Gopi et al.; its mesh follows the size of
    epsilon, to within 0.5 %, instead of Opacus's fixed 0.01.
    """
    from opacus.accountants.analysis import prv
    from scipy.integrate import IntegrationWarning

    fallback = "prv accountant not usable here, rdp instead: "
    if delta < _SMALLEST_PRV_DELTA:
        return math.inf, f"{fallback}delta below {_SMALLEST_PRV_DELTA}"
    if any(event.rate < 1 and event.sampling != "poisson" for event in events):
        return math.inf, f"{fallback}it knows no draws without replacement"
    draws, delta_error = sum(event.times for event in events), delta / 1000
    epsilon_error = min(max(0.005 * bound, 1e-3), 0.5)
    single = [_rdp_epsilon([event._replace(times=1)], delta_error / (8 * draws)) for event in events]
    loss = max(_rdp_epsilon(events, delta_error / 4), *single, epsilon_error) + 3
    mesh = epsilon_error / math.sqrt(draws * math.log(12 / delta_error) / 2)
    if loss > _LARGEST_LOSS or 2 * loss / mesh > _LARGEST_DOMAIN:
        return math.inf, f"{fallback}privacy losses up to {loss:.3g} do not fit its discretization"
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error", IntegrationWarning)
            domain = prv.Domain.create_aligned(-loss, loss, mesh)
            variables = [
                prv.PoissonSubsampledGaussianPRV(event.rate, event.noise_multiplier) for event in events
            ]
            truncated = [
                prv.TruncatedPrivacyRandomVariable(variable, domain.t_min, domain.t_max)
                for variable in variables
            ]
            composed = prv.compose_heterogeneous(
                dprvs=[prv.discretize(variable, domain) for variable in truncated],
                num_self_compositions=[event.times for event in events],
            )
            upper = float(composed.compute_epsilon(delta, delta_error, epsilon_error)[2])
    except (IntegrationWarning, RuntimeError, ValueError, IndexError, OverflowError) as failure:
        return math.inf, f"{fallback}{failure or type(failure).__name__}"
    return (upper, "") if math.isfinite(upper) else (math.inf, f"{fallback}it does not converge")
