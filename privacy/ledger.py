"""The ledger: a record of Gaussian releases and of the units that each is about.

A unit is what the guarantee protects: a client, or a record. Where participation is public, each unit is
charged for the rounds it took part in. Where it is secret, each unit is charged for every draw, at the draw's rate.

Releases are booked relative to the noise multiplier of the run, so that one ledger serves stacked runs with
different noise, and calibration. Composition does not depend on order, so equal draws are one entry with counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from privacy.accounting import check_rate, compose
from privacy.gaussian import check_delta, check_multiplier, gaussian_epsilon
from privacy.individual import Histories, largest, median
from privacy.own_mechanism import Noise

DrawKey = str | int | tuple["DrawKey", ...]
Sampling = Literal["none", "poisson", "without-replacement"]
Counts = NDArray[np.int64]
Array = NDArray[np.float64]


class Draw(NamedTuple):
    """A kind of draw of a cohort or batch, with all releases made from it.

    Attributes
    ----------
    releases : tuple of (float, int)
        Relative noise multipliers of the releases with their counts, ascending.
    sampling : {"none", "poisson", "without-replacement"}
        How units were drawn, in secret; "none" where everybody takes part or participation is public.
    rate : float or str
        Probability that a unit is drawn, or the name of the units' own rates.
    """

    releases: tuple[tuple[float, int], ...]
    sampling: Sampling = "none"
    rate: float | str = 1.0

    @property
    def noise_multiplier(self) -> float:
        """Composed relative noise multiplier of all releases of one draw."""
        return compose(multiplier / number**0.5 for multiplier, number in self.releases)


class Composed(TypedDict):
    """A kind of draw in the history of a unit: what its epsilon is computed from.

    ``noise_multiplier`` is that of all ``releases`` of a draw together, or of each under a user's mechanism.
    """

    draws: int
    sampling: str
    rate: float
    releases: int
    noise_multiplier: float


class PrivacyReport(TypedDict):
    """Result of `Ledger.report`; all epsilons at the same delta.

    ``epsilon_release``: exact value of one release without amplification, the largest if releases differ;
    ``epsilon_total``: of all releases about the unit with the largest value; ``epsilon_median``: of the median
    unit, by Renyi bounds; ``unit_most``: number of the first unit with the largest value, and ``units_most``
    how many share its history (other histories may have an equal epsilon); ``noise_multiplier``: the smallest
    of a release, None without releases; ``releases`` and ``draws``: largest numbers about one unit;
    ``composition``: all draws of the unit with the largest value, from which it can be computed again;
    ``accountant`` and ``note``: see `privacy.accounting.Account`.
    """

    epsilon_release: float
    epsilon_total: float
    epsilon_median: float
    unit_most: int
    units_most: int
    noise_multiplier: float | None
    releases: int
    draws: int
    delta: float
    composition: list[Composed]
    accountant: str
    note: str


class _Open(NamedTuple):
    """A draw of the current round; a unit that any of its releases is about is charged for all of them."""

    releases: dict[float, int]
    sampling: Sampling
    rate: float | str
    took: Counts  # part, for every unit


class Ledger:
    """All releases of a run, or of stacked runs, counted for each unit.

    Parameters
    ----------
    units : int
        Number of units.
    runs : tuple of int
        Shape of the stacked runs: empty, or one number.

    Attributes
    ----------
    counts : dict of Draw to array
        How often each unit took part, ``(*runs, units)`` or broadcastable to it.
    rates : dict of str to array
        Named rates of the units, ``(*runs, units)`` or broadcastable to it.
    made : int
        Number of bookings.
    last : int
        Largest number of releases about one unit in the last round.

    Examples
    --------
    >>> ledger = Ledger(units=100)
    >>> for number in range(100):
    ...     ledger.begin()
    ...     ledger.book(("cohort", number), sampling="poisson", rate=0.1)
    ...     ledger.book(("cohort", number), sampling="poisson", rate=0.1)
    ...     ledger.end()
    >>> report = ledger.report(1e-5, noise_multiplier=1.0)
    >>> report["releases"], report["draws"], round(report["epsilon_total"])
    (200, 100, 14)
    """

    def __init__(self, units: int = 1, runs: tuple[int, ...] = ()) -> None:
        self.shape = (*runs, units)
        self.counts: dict[Draw, Counts] = {}
        self.rates: dict[str, Array] = {}
        self.made = 0
        self.last = 0
        self._members: tuple[Counts, Counts] | None = None
        self._open: dict[DrawKey, _Open] = {}

    def begin(self, ids: Counts | None = None, mask: Counts | None = None) -> None:
        """Begin a round.

        Parameters
        ----------
        ids : array, optional
            Units that may take part, ``(*runs, C)``, different ones in a row. Default: all.
        mask : array, optional
            1 for those that do, 0 for padding, ``(*runs, C)``.
        """
        self._open, self._members = {}, None
        if ids is not None:
            ids = np.broadcast_to(ids, (*self.shape[:-1], ids.shape[-1]))
            self._members = ids, np.broadcast_to(1 if mask is None else mask, ids.shape)

    def book(
        self,
        draw: DrawKey,
        noise_multiplier: float = 1.0,
        *,
        sampling: Sampling = "none",
        rate: float | str = 1.0,
        active: Counts | None = None,
    ) -> None:
        """Book one Gaussian release.

        Parameters
        ----------
        draw : str, int or tuple of these
            Key of the draw, unique in the round. Releases of one draw compose inside one event.
        noise_multiplier : float
            Standard deviation over sensitivity, relative to the run's; 0 books a release without protection.
        sampling, rate
            As in `Draw`; equal for all releases of a draw.
        active : array, optional
            1 for the members of the round that the release is about, else 0, ``(*runs, C)``. Default: all of
            them; with secret sampling of the cohort, all units.

        Raises
        ------
        ValueError
            If a number is out of range, a rate has no name, or the draw was booked with another rate.
        """
        check_multiplier(noise_multiplier)
        if isinstance(rate, str):
            if rate not in self.rates:
                raise ValueError(f"no rates are named {rate!r}")
        else:
            check_rate(rate)
        took = self._taking_part(active)
        current = self._open.get(draw, _Open({}, sampling, rate, took))
        if (current.sampling, current.rate) != (sampling, rate):
            raise ValueError(
                f"draw {draw!r} was booked as {current.sampling} at rate {current.rate}, now as {sampling} at rate "
                f"{rate}: one draw has one rate"
            )
        current.releases[float(noise_multiplier)] = current.releases.get(float(noise_multiplier), 0) + 1
        self._open[draw] = current._replace(took=np.maximum(current.took, took))
        self.made += 1

    def charge(self, units: Counts) -> None:
        """Book one release about each of the given units, which are public; equal numbers count repeatedly."""
        took = np.bincount(units, minlength=self.shape[-1])
        self._open["charged", self.made] = _Open({1.0: 1}, "none", 1.0, took)
        self.made += 1

    def end(self) -> None:
        """End the round."""
        about_one = np.zeros((), np.int64)
        for current in self._open.values():
            draw = Draw(tuple(sorted(current.releases.items())), current.sampling, current.rate)
            self.add(draw, current.took)
            about_one = about_one + current.took * sum(current.releases.values())
        self.last = int(about_one.max())
        self._open = {}

    def add(self, draw: Draw, times: Counts) -> None:
        """Count a kind of draw ``times`` more for each unit, ``(*runs, units)`` or broadcastable to it."""
        self.counts[draw] = self.counts.get(draw, np.zeros((), np.int64)) + times

    def _taking_part(self, active: Counts | None) -> Counts:
        if self._members is None:
            return np.ones((), np.int64) if active is None else np.asarray(active, np.int64)
        ids, mask = self._members
        took = np.zeros(self.shape, np.int64)
        np.put_along_axis(took, ids, mask if active is None else mask * active, -1)
        return took

    def histories(
        self, noise_multiplier: float | Array = 1.0, run: int | None = None, noise: Noise | None = None
    ) -> Histories:
        """Return the distinct histories of the units of a run, given its noise multiplier, or one per unit.

        Parameters
        ----------
        noise_multiplier, run, noise
            As in `report`.

        Raises
        ------
        ValueError
            If releases of one draw have different noise, and the noise is a user's.
        """
        if noise is not None and any(len(draw.releases) > 1 for draw in self.counts):
            raise ValueError("releases of one draw under a user's mechanism have one noise multiplier")
        shape, units = self.shape, self.shape[-1]

        def of_run(values: Any) -> Any:
            values = np.asarray(values)
            if values.ndim == len(shape) and run is not None and len(shape) > 1:
                values = values[run if values.shape[0] > 1 else 0]
            return values

        draws = list(self.counts)
        histories = Histories.of(
            units,
            [draw.sampling for draw in draws],
            times=[of_run(self.counts[draw]) for draw in draws],
            rates=[
                of_run(self.rates[draw.rate] if isinstance(draw.rate, str) else draw.rate) for draw in draws
            ],
            multipliers=[
                of_run(noise_multiplier) * (draw.noise_multiplier if noise is None else draw.releases[0][0])
                for draw in draws
            ],
        )
        if noise is None:
            return histories
        return replace(histories, noise=noise, releases=tuple(draw.releases[0][1] for draw in draws))

    def report(
        self,
        delta: float,
        accountant: str = "pld",
        *,
        noise_multiplier: float | Array = 1.0,
        run: int | None = None,
        noise: Noise | None = None,
    ) -> PrivacyReport:
        """Account for all releases about every unit.

        Parameters
        ----------
        delta : float
            In (0, 1).
        accountant : {"rdp", "prv", "pld"}
            For secret draws; without them the total is exact. See `privacy.accounting.account`.
        noise_multiplier : float or array
            Noise multiplier of the run, or of each unit ``(units,)``.
        run : int, optional
            Number of a stacked run.
        noise : Noise, optional
            That of a user's mechanism; default: Gaussian noise.

        Raises
        ------
        ValueError
            If delta is not in (0, 1) or the accountant is unknown.
        """
        check_delta(delta)
        histories = self.histories(noise_multiplier, run, noise)
        most, total = largest(histories, delta, accountant)
        smallest = float(np.min(noise_multiplier))
        weakest = min((smallest * draw.releases[0][0] for draw in self.counts), default=None)
        numbers = [sum(number for _, number in draw.releases) for draw in self.counts]
        return PrivacyReport(
            epsilon_release=0.0 if weakest is None else _of_release(weakest, delta, noise),
            epsilon_total=total.epsilon,
            epsilon_median=median(histories, delta, accountant),
            unit_most=int((histories.which == most).argmax()),
            units_most=int((histories.which == most).sum()),
            noise_multiplier=weakest,
            releases=int((histories.times @ np.array(numbers, np.int64)).max(initial=0)),
            draws=int(histories.times.sum(-1).max(initial=0)),
            delta=delta,
            composition=self._composed(histories, most),
            accountant=total.accountant,
            note=total.note,
        )

    def _composed(self, histories: Histories, most: int) -> list[Composed]:
        """Return the draws of a history."""
        table = (part[most].tolist() for part in (histories.times, histories.rates, histories.multipliers))
        return [
            Composed(
                draws=times,
                sampling=draw.sampling,
                rate=rate,
                releases=sum(number for _, number in draw.releases),
                noise_multiplier=noise,
            )
            for draw, times, rate, noise in zip(self.counts, *table, strict=True)
            if times
        ]

    def state(self) -> tuple[list[Any], dict[str, NDArray[Any]]]:
        """Return plain values, and arrays ``(*runs, ...)``, from which `restore` rebuilds the ledger."""
        draws = [
            [[list(release) for release in draw.releases], draw.sampling, draw.rate] for draw in self.counts
        ]
        arrays: dict[str, NDArray[Any]] = {
            f"times {number}": times for number, times in enumerate(self.counts.values())
        }
        arrays |= {f"rates {name}": rates for name, rates in self.rates.items()}
        return draws, {name: self._of_runs(values) for name, values in arrays.items()}

    def restore(self, draws: Sequence[Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what `state` returned."""
        kinds = [
            Draw(tuple((float(noise), int(number)) for noise, number in releases), sampling, rate)
            for releases, sampling, rate in draws
        ]
        self.counts = {kind: arrays[f"times {number}"] for number, kind in enumerate(kinds)}
        self.rates = {name[6:]: rates for name, rates in arrays.items() if name.startswith("rates ")}

    def _of_runs(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values with all axes of runs, ``(*runs, units)`` or ``(*runs, 1)``."""
        width = values.shape[-1] if values.ndim else 1
        return np.broadcast_to(values, (*self.shape[:-1], width)).copy()


def _of_release(noise_multiplier: float, delta: float, noise: Noise | None) -> float:
    if noise is None or noise_multiplier == 0:
        return gaussian_epsilon(noise_multiplier, delta)
    return noise.epsilon(1 / noise_multiplier, delta)
