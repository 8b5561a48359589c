"""Accounting for each unit: which of many units has the largest epsilon, and how much noise all of them need.

Units differ in how often they take part and in their sampling rates. Evaluating a privacy loss distribution
for each would take minutes, so units with equal histories are counted together, and cheap upper bounds (Renyi
divergences of integer order; Mironov, Talwar, Zhang 2019) decide which histories need the accountant at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy  # its parts are imported at their first use, as they are slow to import
from numpy.typing import NDArray

from privacy.accounting import Account, account, calibrate
from privacy.event import Event, own_event
from privacy.own_mechanism import Noise

Array = NDArray[np.float64]

# Renyi orders of the bounds; a coarse set only costs more evaluations of the accountant.
_ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256)
_HISTORIES = 4096  # bounded at once


@dataclass(frozen=True)
class Histories:
    """The distinct histories of units: kinds of draws in columns, histories in rows.

    Attributes
    ----------
    sampling : tuple of str
        Of each kind of draw: "none", "poisson" or "without-replacement".
    multipliers, rates, times : array
        Composed noise multiplier, rate and number of draws, ``(H, K)``.
    which : array
        History of each unit.
    noise : Noise or None
        That of a user's mechanism; the multipliers are then those of single releases.
    releases : tuple of int
        Releases of each kind of draw, with such noise.
    """

    sampling: tuple[str, ...]
    multipliers: Array
    rates: Array
    times: NDArray[np.int64]
    which: NDArray[np.intp]
    noise: Noise | None = None
    releases: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        units: int,
        sampling: Sequence[str],
        *,
        multipliers: Sequence[Any],
        rates: Sequence[Any],
        times: Sequence[Any],
    ) -> Self:
        """Return the distinct histories of units, given one value or one per unit for each kind of draw."""
        columns = [np.asarray(column) for column in (*multipliers, *rates, *times)]
        which, first = _distinct(units, columns)
        values = [
            column.reshape(-1)[first if column.size > 1 else np.zeros_like(first)] for column in columns
        ]
        kinds = len(sampling)
        table = np.array(values, dtype=np.float64).reshape(3, kinds, len(first)).transpose(0, 2, 1)
        return cls(tuple(sampling), table[0], table[1], np.rint(table[2]).astype(np.int64), which)

    def events(self, history: int) -> tuple[Event, ...]:
        """Return the events of a history."""
        rows = zip(
            *(part[history].tolist() for part in (self.multipliers, self.rates, self.times)),
            self.sampling,
            strict=True,
        )
        if self.noise is not None:
            pairs = zip(rows, self.releases, strict=True)
            return tuple(
                own_event(self.noise, noise, number, rate, times, "poisson" if kind == "none" else kind)
                for (noise, rate, times, kind), number in pairs
                if times
            )
        return tuple(
            Event(noise, rate, times, "poisson" if sampling == "none" else sampling)
            for noise, rate, times, sampling in rows
            if times
        )

    def dominating(self) -> int | None:
        """Return a history that is at least as exposed as every other in every kind of draw; None without one."""
        participates = self.times > 0
        with np.errstate(invalid="ignore"):
            rates = np.where(participates, self.rates, 0.0).max(0, initial=0.0)
            multipliers = np.where(participates, self.multipliers, math.inf).min(0, initial=math.inf)
        most = (self.times == self.times.max(0, initial=0)).all(1)
        most &= (~participates | ((self.rates == rates) & (self.multipliers == multipliers))).all(1)
        return int(most.argmax()) if most.any() else None

    def scaled(self, factor: float) -> Histories:
        """Return the histories with ``factor`` times the noise."""
        return replace(self, multipliers=self.multipliers * factor)

    def bounds(self, delta: float) -> Array:
        """Return an upper bound on the epsilon of each history, ``(H,)``; infinity if there is no other."""
        if len(self.times) == 1 or self.noise is not None:  # bounds are there to compare
            return np.full(len(self.times), math.inf)
        pieces = [
            self._bounds(delta, slice(first, first + _HISTORIES))
            for first in range(0, len(self.times), _HISTORIES)
        ]
        return np.concatenate(pieces) if pieces else np.zeros(0)

    def exposures(self, bounds: Array) -> Array:
        """Return numbers by which histories are ranked: their bounds, or without these their expected releases."""
        if self.noise is None:
            return bounds
        expected: Array = (self.times * np.array(self.releases) * self.rates).sum(-1)
        return expected

    def _bounds(self, delta: float, rows: slice) -> Array:
        best = np.full(len(self.times[rows]), math.inf)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for order in _ORDERS:
                spent = np.zeros(len(best))
                for kind, sampling in enumerate(self.sampling):
                    logs = _log_moment(order, self.multipliers[rows, kind], self.rates[rows, kind])
                    if sampling == "without-replacement":  # A becomes 2 A - 1; see privacy.accounting
                        amplified = logs + np.log(2 - np.exp(-logs))
                        logs = np.where(self.rates[rows, kind] < 1, amplified, logs)
                    times = self.times[rows, kind]
                    spent += np.where(times > 0, times * logs, 0.0) / (order - 1)
                cost = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
                best = np.fmin(best, np.maximum(spent + cost, 0.0))
        return best


def largest(histories: Histories, delta: float, accountant: str = "pld") -> tuple[int, Account]:
    """Return the history with the largest epsilon, and that epsilon.

    A history is evaluated only if its bound exceeds the largest epsilon found, and no history that was evaluated
    has at least its rates and draws and at most its noise.
    """
    bounds = histories.bounds(delta)
    best, account_of_best = 0, Account(-math.inf, "exact")
    tried: list[int] = []
    for history in np.argsort(-histories.exposures(bounds), kind="stable").tolist():
        if tried and bounds[history] <= account_of_best.epsilon:
            break
        if any(_dominates(histories, other, history) for other in tried):
            continue
        tried.append(history)
        candidate = account(histories.events(history), delta, accountant)
        if candidate.epsilon > account_of_best.epsilon:
            best, account_of_best = history, candidate
    return best, account_of_best


def median(histories: Histories, delta: float, accountant: str = "pld") -> float:
    """Return the epsilon of the median unit, the upper one of two, in the order of `Histories.exposures`."""
    bounds = histories.bounds(delta)
    order = np.argsort(histories.exposures(bounds), kind="stable")
    reached = np.bincount(histories.which, minlength=len(bounds))[order].cumsum()
    middle = int(order[np.searchsorted(reached, len(histories.which) // 2, side="right")])
    return account(histories.events(middle), delta, accountant).epsilon


def calibrate_all(epsilon: float, delta: float, histories: Histories, accountant: str = "pld") -> float:
    """Return the smallest factor of all noise multipliers, to 1e-6, that keeps every unit within a budget.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    factor = 0.0
    history = int(histories.exposures(histories.bounds(delta)).argmax())
    while True:
        factor = max(factor, calibrate(epsilon, delta, histories.events(history), accountant))
        if factor == 0.0:  # nothing is released
            return factor
        history, total = largest(histories.scaled(factor), delta, accountant)
        if total.epsilon <= epsilon:
            return factor


def calibrate_each(epsilon: float, delta: float, histories: Histories, accountant: str = "pld") -> Array:
    """Return each unit's smallest factor of its noise multipliers, to 1e-6, within a budget, ``(units,)``.

    Units without releases get the largest factor of the others.
    """
    numbers = range(len(histories.times))
    factors = np.array(
        [calibrate(epsilon, delta, histories.events(history), accountant) for history in numbers]
    )
    factors = np.where(factors > 0, factors, factors.max(initial=0.0))
    return factors[histories.which]


def _distinct(units: int, columns: Sequence[NDArray[Any]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the number of each unit's combination of values, and the first unit of each combination."""
    which = np.zeros(units, np.intp)
    for column in columns:
        if column.size > 1:  # column by column, which is much faster than sorting rows
            codes = np.unique(np.broadcast_to(column.reshape(-1), (units,)), return_inverse=True)[1].reshape(
                -1
            )
            which = np.unique(which * (int(codes.max()) + 1) + codes, return_inverse=True)[1].reshape(-1)
    return which, np.unique(which, return_index=True)[1]


def _dominates(histories: Histories, history: int, other: int) -> bool:
    """Return whether ``history`` is at least as exposed as ``other`` in every kind of draw."""
    participates = histories.times[other] > 0
    return bool(
        (histories.times[history] >= histories.times[other]).all()
        and (histories.rates[history] >= histories.rates[other])[participates].all()
        and (histories.multipliers[history] <= histories.multipliers[other])[participates].all()
    )


def _log_moment(order: int, noise: Array, rate: Array) -> Array:
    """Return ``log A`` of the Poisson-sampled Gaussian at an integer Renyi order, elementwise."""
    k = np.arange(order + 1)
    binomial = (
        scipy.special.gammaln(order + 1) - scipy.special.gammaln(k + 1) - scipy.special.gammaln(order - k + 1)
    )
    q = np.minimum(rate, 1 - 1e-16)[:, None]
    terms = binomial + (order - k) * np.log1p(-q) + k * np.log(q) + k * (k - 1) / (2 * noise[:, None] ** 2)
    terms[:, :2] = (binomial + (order - k) * np.log1p(-q) + k * np.log(q))[:, :2]  # 0 / 0 without noise
    top = terms.max(axis=1)  # scipy's logsumexp takes ten times as long for a few rows
    sampled = top + np.log(np.exp(terms - top[:, None]).sum(axis=1))
    moment: Array = np.where(rate < 1, sampled, order * (order - 1) / (2 * noise**2))
    return np.where(np.isnan(moment), math.inf, moment)
