"""Chances of an attacker under a privacy guarantee.

The attacker sees everything that is released and knows everything but one bit: which of two neighboring data sets
was used. A privacy guarantee limits how well he can tell.

- *Accuracy* at a prior of one half: the share of right guesses if a coin chose the data set. Half is a blind guess.
- *Detection*: the probability of a right accusation (true positive rate) for a test that accuses at most a given
  share of the innocent (false positive rate).

Both follow from the trade-off between the two errors, which the divergences ``delta(epsilon)`` at all epsilons
describe (Wasserman, Zhou 2010; Dong, Roth, Su 2022): accuracy is at most ``(1 + delta(0)) / 2``, detection at most
the least ``exp(epsilon) false + delta(epsilon)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported at their first use, as they are slow to import

from privacy.accounting import account, compose
from privacy.event import Event
from privacy.pld import SMALLEST_DELTA, pld_delta
from privacy.trade_off import accuracy_bound, detection_bound

FALSE_POSITIVE_RATES = (0.001, 0.01)
_POINTS = 400  # epsilons at which the trade-off is bounded


class Attack(NamedTuple):
    """Upper bounds on success: at a prior of one half, and of detection at `FALSE_POSITIVE_RATES`."""

    accuracy: float
    detection: tuple[float, ...]


def attack_bound(events: Sequence[Event], delta: float) -> Attack:
    """Return what an attacker can gain from a composition of releases.

    Exact where nothing is sampled, within about 1 % above it elsewhere, and from epsilon alone where
    the privacy loss cannot be computed.

    Parameters
    ----------
    events : sequence of Event
        All releases; see `privacy.accounting.account`.
    delta : float
        Down to which probability losses matter; only sizes the computation.
    """
    events = [event for event in events if event.times]
    if any(event.noise_multiplier == 0 for event in events):
        return Attack(1.0, (1.0,) * len(FALSE_POSITIVE_RATES))
    if all(event.rate == 1 and event.noise is None for event in events):
        return _gaussian(compose(event.noise_multiplier / math.sqrt(event.times) for event in events))
    result = account(events, max(delta, SMALLEST_DELTA), "pld")
    if result.accountant != "pld":
        alone = accuracy_bound(result.epsilon, delta)
        return Attack(
            alone, tuple(detection_bound(result.epsilon, delta, rate) for rate in FALSE_POSITIVE_RATES)
        )
    epsilons = np.linspace(0.0, result.epsilon, _POINTS)
    deltas = pld_delta(events, epsilons, max(delta, SMALLEST_DELTA), result.epsilon)
    detection = []
    for rate in FALSE_POSITIVE_RATES:
        forward = np.exp(np.minimum(epsilons, 700.0)) * rate + deltas
        reverse = 1 - np.exp(-epsilons) * (1 - deltas - rate)
        detection.append(float(min(1.0, forward.min(), reverse.min())))
    return Attack(float((1 + deltas[0]) / 2), tuple(detection))


def _gaussian(noise_multiplier: float) -> Attack:
    mu = 1 / noise_multiplier
    detection = (float(scipy.special.ndtr(scipy.special.ndtri(rate) + mu)) for rate in FALSE_POSITIVE_RATES)
    return Attack(float(scipy.special.ndtr(mu / 2)), tuple(detection))
