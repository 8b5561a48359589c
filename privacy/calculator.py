"""Epsilons of a mechanism by adjacency and accountant, or the noise for a budget, without a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from privacy.accounting import account, calibrate
from privacy.attacker import FALSE_POSITIVE_RATES, Attack, attack_bound
from privacy.event import Event
from privacy.trade_off import accuracy_bound

MOST_DRAWS = 1_000_000  # of secret cohorts
MOST_ROUNDS = 10**12
SENSITIVITY = {"add-remove": 1.0, "replace-one": 2.0}  # of a clipped message over its clip norm

UNITS = ("client", "record", "user")
PLACEMENTS = ("central", "local", "distributed")
SAMPLINGS = ("poisson", "without-replacement", "fixed", "full")


@dataclass(frozen=True)
class Mechanism:
    """A mechanism in whose ``rounds`` each unit takes part with probability ``rate``.

    Of clients, it is one of ``size`` of ``total``; of records and users drawn at a client, the two are 0 if
    only the rate is given.
    """

    clip: float
    size: int
    total: int
    rate: float
    rounds: int
    sampling: str
    delta: float
    releases_per_round: int
    unit: str
    placement: str

    @property
    def amplified(self) -> bool:
        """Whether a secret draw hides who takes part."""
        return self.sampling in ("poisson", "without-replacement") and self.rate < 1

    def methods(self) -> list[tuple[str, str]]:
        """Return adjacencies and accountants that bound it, the tightest of an adjacency last."""
        methods = []
        for adjacency in SENSITIVITY:
            if adjacency == "add-remove" and self.placement == "local" and self.unit == "client":
                continue  # whoever collects the messages sees who sends
            if adjacency == "add-remove" and self.sampling == "without-replacement" and self.amplified:
                continue  # a cohort of fixed size has no neighbor with a unit more
            methods.append((adjacency, "exact"))
            if self.amplified:
                methods.append((adjacency, "rdp"))
                if adjacency == "add-remove":
                    methods.append((adjacency, "prv"))
                methods.append((adjacency, "pld"))
        return methods

    def event(self, noise: float, adjacency: str, accountant: str) -> Event:
        """Return all releases, of noise ``noise`` times the clip norm."""
        multiplier = noise / SENSITIVITY[adjacency] / math.sqrt(self.releases_per_round)
        if accountant == "exact":
            return Event(multiplier, 1.0, self.rounds)
        replaced = adjacency == "replace-one" and self.sampling == "poisson"
        return Event(multiplier, self.rate, self.rounds, "poisson-replace" if replaced else self.sampling)


def mechanism(
    *,
    clip: float,
    size: int,
    total: int,
    rate: float,
    rounds: int,
    sampling: str | None,
    delta: float,
    releases_per_round: int,
    unit: str,
    placement: str,
) -> Mechanism:
    """Return the mechanism of some settings; without `sampling` the one that is usual for them.

    Raises
    ------
    ValueError
        If they do not go together. Settings are named like the options of the command ``epsilon``.
    """
    for what, given, allowed in (
        ("placement", placement, PLACEMENTS), ("unit", unit, UNITS), ("sampling", sampling, (*SAMPLINGS, None)),
    ):  # fmt: skip
        if given not in allowed:
            raise ValueError(f"--{what} is {given!r}; allowed: {', '.join(filter(None, allowed))}")
    hidden = placement == "central" or unit != "client"  # a client draws its records itself
    sampling = sampling or ("full" if rate == 1 else "poisson" if hidden else "fixed")
    if sampling == "full" and rate < 1:
        raise ValueError(f"--sampling full takes everybody, but the rate of a unit is {rate:.4g}")
    if not hidden and sampling in ("poisson", "without-replacement"):
        raise ValueError(
            f"with {placement} placement whoever collects the messages sees who sends, so sampling hides nobody; "
            "use --sampling fixed, --placement central, or --unit record or user for batches that a client draws"
        )
    if unit != "client" and sampling == "without-replacement":
        raise ValueError(f"batches of unit {unit} are Poisson batches; use --sampling poisson")
    for name, number in (("rounds", rounds), ("releases-per-round", releases_per_round)):
        if number < 1:
            raise ValueError(f"--{name} is at least 1, given {number}")
    secret = sampling in ("poisson", "without-replacement")
    if rounds > (most := MOST_DRAWS if secret else MOST_ROUNDS):
        why = " where cohorts are drawn in secret, whose accounting takes minutes beyond" if secret else ""
        raise ValueError(f"--rounds is at most {most:,}{why}")
    if not (clip > 0 and math.isfinite(clip)):
        raise ValueError(f"--clip is a number above 0, given {clip}")
    return Mechanism(clip, size, total, rate, rounds, sampling, delta, releases_per_round, unit, placement)


def epsilons(
    mechanism: Mechanism, noise_multiplier: float | None = None, for_epsilon: float | None = None
) -> list[dict[str, Any]]:
    """Return a row for each adjacency and accountant, the tightest of an adjacency last.

    Parameters
    ----------
    mechanism : Mechanism
        All but its noise.
    noise_multiplier : float, optional
        Standard deviation of the noise on a sum of messages over their clip norm.
    for_epsilon : float, optional
        A budget to find the noise for, where no noise is given.

    Raises
    ------
    ValueError
        If noise, budget or delta are out of range.
    """
    if (noise_multiplier is None) == (for_epsilon is None):
        raise ValueError("give either --noise-multiplier, or --for-epsilon to get one back")
    rows: list[dict[str, Any]] = []
    attacks: dict[Event, Attack] = {}
    for adjacency, accountant in mechanism.methods():
        if noise_multiplier is not None:
            noise = noise_multiplier
        elif for_epsilon is None or accountant == "prv":
            continue  # which is never tighter than pld, and slow to search with
        else:
            alone = "rdp" if accountant == "exact" else accountant
            noise = calibrate(
                for_epsilon, mechanism.delta, [mechanism.event(1.0, adjacency, accountant)], alone
            )
        event = mechanism.event(noise, adjacency, accountant)
        if event not in attacks:
            attacks[event] = attack_bound([event], mechanism.delta)
        rows.append(_row(mechanism, adjacency, accountant, noise, attacks[event]))
    return rows


def _row(
    mechanism: Mechanism, adjacency: str, accountant: str, noise: float, attack: Attack
) -> dict[str, Any]:
    """Return the row of an adjacency and an accountant, and what an attacker can gain."""
    event = mechanism.event(noise, adjacency, accountant)
    result = account([event], mechanism.delta, "rdp" if accountant == "exact" else accountant)
    return {
        "adjacency": adjacency,
        "accountant": result.accountant,
        "epsilon": result.epsilon,
        "delta": mechanism.delta,
        "unit": mechanism.unit,
        "placement": mechanism.placement,
        "sampling": mechanism.sampling if accountant != "exact" else "not used",
        "releases": mechanism.rounds * mechanism.releases_per_round,
        "noise_multiplier": noise,
        "noise_over_sensitivity": noise / SENSITIVITY[adjacency],
        "standard_deviation": noise * mechanism.clip,
        "accuracy_from_epsilon": accuracy_bound(result.epsilon, mechanism.delta),
        "accuracy": attack.accuracy,
        **{
            f"detection_at_{rate:g}": bound
            for rate, bound in zip(FALSE_POSITIVE_RATES, attack.detection, strict=True)
        },
        "note": result.note,
    }
