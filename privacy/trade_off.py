"""Bounds on an attacker's gain from one pair (epsilon, delta); `privacy.attacker` has the chances behind them."""

from __future__ import annotations

import math


def accuracy_bound(epsilon: float, delta: float) -> float:
    """Return the largest accuracy, at a prior of one half, that a single pair (epsilon, delta) allows.

    Raises
    ------
    ValueError
        If epsilon is negative or delta is not in [0, 1].
    """
    if not epsilon >= 0 or not 0 <= delta <= 1:
        raise ValueError(f"epsilon must not be negative and delta be in [0, 1], got {epsilon} and {delta}")
    return (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))


def detection_bound(epsilon: float, delta: float, false: float) -> float:
    """Return the largest detection at a false positive rate that a single pair (epsilon, delta) allows."""
    if false == 0 or epsilon > 700:
        return delta if false == 0 else 1.0
    reverse = 1 - math.exp(-epsilon) * (1 - delta - false)
    return max(0.0, min(1.0, math.exp(epsilon) * false + delta, reverse))
