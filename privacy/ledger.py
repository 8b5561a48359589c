"""The ledger: a record of Gaussian releases and their draws, and its privacy report.

A ledger is immutable: booking returns a new one. Composition does not depend on order, so equal draws are one entry
with a count, and the size of a ledger does not grow with the number of rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypedDict

from privacy.accounting import account, check_rate, compose
from privacy.event import Event
from privacy.gaussian import check_delta, check_multiplier, gaussian_epsilon

DrawKey = str | int | tuple["DrawKey", ...]


class Draw(NamedTuple):
    """``times`` equal draws.

    Attributes
    ----------
    releases : tuple of (float, int)
        Noise multipliers of the releases from one draw with their counts, ascending.
    rate : float
        Poisson sampling rate; 1 where amplification by sampling cannot be claimed.
    approximate_rate : float or None
        For cohorts of fixed size: the rate of a Poisson cohort of this expected size.
    times : int
        Number of such draws.
    """

    releases: tuple[tuple[float, int], ...]
    rate: float = 1.0
    approximate_rate: float | None = None
    times: int = 1

    @property
    def noise_multiplier(self) -> float:
        """Composed noise multiplier of all releases of one draw."""
        return compose(multiplier / math.sqrt(number) for multiplier, number in self.releases)


class PrivacyReport(TypedDict):
    """Result of `Ledger.report`; all epsilons at the same delta.

    ``epsilon_release``: exact value of one release without amplification, the largest if releases differ;
    ``epsilon_total``: of all releases; ``epsilon_approximate``: the total with fixed-size cohorts treated as
    Poisson cohorts, not a guarantee, None without such cohorts; ``noise_multiplier``: the smallest of a release,
    None without releases; ``accountant`` and ``note``: see `privacy.accounting.Account`.
    """

    epsilon_release: float
    epsilon_total: float
    epsilon_approximate: float | None
    noise_multiplier: float | None
    releases: int
    draws: int
    delta: float
    accountant: str
    note: str


@dataclass(frozen=True)
class Ledger:
    """All releases of a run, by draw.

    Attributes
    ----------
    closed : tuple of Draw
        Finished draws, equal ones counted together.
    key : str, int, tuple or None
        Key of the most recent draw; a booking under the same key joins it.
    current : Draw or None
        The most recent draw.

    Examples
    --------
    >>> ledger = Ledger()
    >>> for round_number in range(100):
    ...     ledger = ledger.book(("cohort", round_number), 1.0, rate=0.1)
    ...     ledger = ledger.book(("cohort", round_number), 1.0, rate=0.1)
    >>> ledger.releases, ledger.draws, round(ledger.report(1e-5)["epsilon_total"], 1)
    (200, 100, 16.1)
    """

    closed: tuple[Draw, ...] = ()
    key: DrawKey | None = None
    current: Draw | None = None

    def book(
        self, draw: DrawKey, noise_multiplier: float, rate: float = 1.0, approximate_rate: float | None = None
    ) -> Ledger:
        """Return the ledger with one more Gaussian release.

        Parameters
        ----------
        draw : str, int or tuple of these
            Key of the draw of the cohort (or batch). Releases of one draw must be booked consecutively, to compose
            inside one event.
        noise_multiplier : float
            Standard deviation over sensitivity; 0 records a release without protection.
        rate : float
            Poisson sampling rate of the draw in (0, 1]; 1 for local placement and for cohorts of fixed size.
        approximate_rate : float, optional
            For cohorts of fixed size, cohort / clients; used only for ``epsilon_approximate`` of the report.

        Raises
        ------
        ValueError
            If a number is out of range, or the rates differ from those of the draw's first booking.
        """
        check_multiplier(noise_multiplier)
        check_rate(rate)
        if approximate_rate is not None:
            check_rate(approximate_rate)
        noise_multiplier = float(noise_multiplier)
        if self.current is None or draw != self.key:
            opened = Draw(((noise_multiplier, 1),), float(rate), approximate_rate)
            return Ledger(self.all_draws, draw, opened)
        if (self.current.rate, self.current.approximate_rate) != (rate, approximate_rate):
            raise ValueError(
                f"draw {draw!r} was booked at rate {self.current.rate} (approximate "
                f"{self.current.approximate_rate}), now at {rate} (approximate {approximate_rate}): "
                "one draw has one rate"
            )
        releases = dict(self.current.releases)
        releases[noise_multiplier] = releases.get(noise_multiplier, 0) + 1
        return replace(self, current=self.current._replace(releases=tuple(sorted(releases.items()))))

    def repeat(self, times: int) -> Ledger:
        """Return the ledger of ``times`` repetitions, to project a plan from a single round.

        Raises
        ------
        ValueError
            If ``times`` is negative.
        """
        if times < 0:
            raise ValueError(f"the number of repetitions must not be negative, got {times}")
        draws = self.all_draws if times else ()
        return Ledger(tuple(draw._replace(times=draw.times * times) for draw in draws))

    def merge(self, other: Ledger) -> Ledger:
        """Return the union of two ledgers; their draws count as different, also with equal keys."""
        draws = self.all_draws
        for draw in other.all_draws:
            draws = _add(draws, draw)
        return Ledger(draws)

    @property
    def draws(self) -> int:
        """Number of draws."""
        return sum(draw.times for draw in self.all_draws)

    @property
    def releases(self) -> int:
        """Number of Gaussian releases."""
        return sum(draw.times * number for draw in self.all_draws for _, number in draw.releases)

    def report(self, delta: float, accountant: str = "rdp") -> PrivacyReport:
        """Account for all releases.

        Parameters
        ----------
        delta : float
            In (0, 1).
        accountant : {"rdp", "prv", "pld"}
            For Poisson draws; without them the total is exact. See `privacy.accounting.account`.

        Raises
        ------
        ValueError
            If delta is not in (0, 1) or the accountant is unknown.
        """
        check_delta(delta)
        draws = self.all_draws
        total = account([_event(draw) for draw in draws], delta, accountant)
        approximate = None
        if any(draw.approximate_rate is not None for draw in draws):
            amplified = [_event(draw, approximate=True) for draw in draws]
            approximate = account(amplified, delta, accountant).epsilon
        weakest = min((draw.releases[0][0] for draw in draws), default=None)
        return PrivacyReport(
            epsilon_release=0.0 if weakest is None else gaussian_epsilon(weakest, delta),
            epsilon_total=total.epsilon,
            epsilon_approximate=approximate,
            noise_multiplier=weakest,
            releases=self.releases,
            draws=self.draws,
            delta=delta,
            accountant=total.accountant,
            note=total.note,
        )

    def exchanged(self, multipliers: Mapping[float, float]) -> Ledger:
        """Return the ledger with other noise; ``multipliers`` maps old noise multipliers to new ones."""

        def other(draw: Draw) -> Draw:
            releases = ((float(multipliers.get(noise, noise)), count) for noise, count in draw.releases)
            return draw._replace(releases=tuple(sorted(releases)))

        current = None if self.current is None else other(self.current)
        return Ledger(tuple(map(other, self.closed)), self.key, current)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: dictionaries, lists, numbers, strings, None."""
        return {
            "closed": [_draw_to_json(draw) for draw in self.closed],
            "key": _plain(self.key),
            "current": None if self.current is None else _draw_to_json(self.current),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Ledger:
        """Rebuild a ledger from the result of `to_json`, also after a round trip through JSON text.

        Raises
        ------
        ValueError
            If a field is missing.
        """
        try:
            current = value["current"]
            return cls(
                closed=tuple(_draw_from_json(draw) for draw in value["closed"]),
                key=_hashable(value["key"]),
                current=None if current is None else _draw_from_json(current),
            )
        except KeyError as missing:
            raise ValueError(f"not a ledger: field {missing} is missing") from missing

    @property
    def all_draws(self) -> tuple[Draw, ...]:
        """Finished draws and the most recent one."""
        return self.closed if self.current is None else _add(self.closed, self.current)


def _add(draws: tuple[Draw, ...], draw: Draw) -> tuple[Draw, ...]:
    """Add ``draw`` to the count of an equal entry, searching from the newest, or append it."""
    for position in reversed(range(len(draws))):
        entry = draws[position]
        if entry[:-1] == draw[:-1]:
            return (*draws[:position], entry._replace(times=entry.times + draw.times), *draws[position + 1 :])
    return (*draws, draw)


def _event(draw: Draw, *, approximate: bool = False) -> Event:
    rate = draw.approximate_rate if approximate and draw.approximate_rate is not None else draw.rate
    return Event(draw.noise_multiplier, rate, draw.times)


def _draw_to_json(draw: Draw) -> dict[str, Any]:
    return {**draw._asdict(), "releases": [list(release) for release in draw.releases]}


def _draw_from_json(value: Mapping[str, Any]) -> Draw:
    releases = tuple((float(multiplier), int(number)) for multiplier, number in value["releases"])
    return Draw(releases, value["rate"], value["approximate_rate"], value["times"])


def _plain(key: DrawKey | None) -> Any:
    return [_plain(part) for part in key] if isinstance(key, tuple) else key


def _hashable(key: Any) -> Any:
    return tuple(_hashable(part) for part in key) if isinstance(key, list) else key
