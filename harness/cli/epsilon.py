"""``epsilon``: privacy of a mechanism, or the noise for a budget, without a run."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from typing import Any

from harness.cli.console import out, print_rows
from harness.cli.statement import statement_command
from harness.config.yaml import shown
from harness.core.registry import UserError, counted
from privacy.accounting import account, calibrate
from privacy.attacker import FALSE_POSITIVE_RATES, Attack, attack_bound
from privacy.event import Event
from privacy.trade_off import accuracy_bound

MOST_DRAWS = 1_000_000  # of secret cohorts
MOST_ROUNDS = 10**12
SENSITIVITY = {"add-remove": 1.0, "replace-one": 2.0}  # of a clipped message over its clip norm


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

    def describe(self) -> str:
        """Return in words everything that its epsilon depends on, except the noise."""
        who = "everybody takes part"
        if self.rate < 1:
            of = f" of {self.size} of {self.total}" if self.total else ""
            who = f"{self.sampling} sampling{of} (rate {self.rate:.4g})"
        a_round = counted(self.releases_per_round, "release")
        return (
            f"unit {self.unit}, placement {self.placement}, {who}, "
            f"{counted(self.rounds, 'round')}, {a_round} a round, clip norm {self.clip:g}, delta {self.delta:g}"
        )


def number(value: float) -> str:
    """Write an epsilon."""
    return f"{value:,.0f}" if 1e4 <= value < 1e7 else f"{value:.4g}"


def epsilon_command(args: argparse.Namespace) -> int:
    """Answer from the numbers on the command line."""
    if args.statement is not None:
        return statement_command(args)
    if (args.noise_multiplier is None) == (args.for_epsilon is None):
        raise UserError("epsilon: give either --noise-multiplier, or --for-epsilon to get one back")
    mechanism = _mechanism(args)
    try:
        rows = _rows(mechanism, args)
    except ValueError as problem:
        raise UserError(f"epsilon: {problem}") from problem
    if args.json:
        finite_rows = [
            {**row, "epsilon": row["epsilon"] if math.isfinite(row["epsilon"]) else "inf"} for row in rows
        ]
        print(json.dumps({"mechanism": vars(mechanism), "rows": finite_rows}, indent=1))
        return 0
    out.print(mechanism.describe(), markup=False)
    tightest = {row["adjacency"]: row for row in rows}  # the last of an adjacency is the tightest
    print_rows([_table_row(row) for row in rows], "epsilon by adjacency and accountant")
    for row in rows:
        if row["note"]:
            out.print(f"{row['adjacency']}: {row['note']}", markup=False)
    for row in tightest.values():
        out.print(_in_words(mechanism, row), markup=False)
    return 0


def _mechanism(args: argparse.Namespace) -> Mechanism:
    size, total, rate = _cohort_and_rate(args)
    hidden = args.placement == "central" or args.unit != "client"  # a client draws its records itself
    sampling = args.sampling or ("full" if rate == 1 else "poisson" if hidden else "fixed")
    if sampling == "full" and rate < 1:
        raise UserError(f"epsilon: --sampling full takes everybody, but the rate of a unit is {rate:.4g}")
    if not hidden and sampling in ("poisson", "without-replacement"):
        raise UserError(
            f"epsilon: with {args.placement} placement whoever collects the messages sees who sends, so sampling "
            "hides nobody; use --sampling fixed, --placement central, or --unit record or user for batches that a "
            "client draws"
        )
    if args.unit != "client" and sampling == "without-replacement":
        raise UserError(f"epsilon: batches of unit {args.unit} are Poisson batches; use --sampling poisson")
    for name in ("rounds", "releases_per_round"):
        if getattr(args, name) < 1:
            raise UserError(f"epsilon: --{name.replace('_', '-')} is at least 1, given {getattr(args, name)}")
    secret = sampling in ("poisson", "without-replacement")
    if args.rounds > (most := MOST_DRAWS if secret else MOST_ROUNDS):
        why = " where cohorts are drawn in secret, whose accounting takes minutes beyond" if secret else ""
        raise UserError(f"epsilon: --rounds is at most {most:,}{why}; given {shown(args.rounds)}")
    if not (args.clip > 0 and math.isfinite(args.clip)):
        raise UserError(f"epsilon: --clip is a number above 0, given {args.clip}")
    return Mechanism(
        args.clip, size, total, rate, args.rounds, sampling, args.delta, args.releases_per_round, args.unit,
        args.placement,
    )  # fmt: skip


def _cohort_and_rate(args: argparse.Namespace) -> tuple[int, int, float]:
    """Return size and total of a cohort, and the probability of a unit to be in it."""
    if args.rate is not None:
        if args.cohort != "1":
            raise UserError("epsilon: give either --cohort or --rate")
        if not 0 < args.rate <= 1:
            raise UserError(f"epsilon: --rate is a probability above 0, given {args.rate:g}")
        return 0, 0, args.rate
    parts = args.cohort.split("/")
    if not all(part.isdecimal() for part in parts) or not 1 <= len(parts) <= 2:
        raise UserError(
            f"epsilon: --cohort is SIZE/TOTAL, as 10/100, or TOTAL if all take part; given {args.cohort!r}"
        )
    size, total = int(parts[0]), int(parts[-1])
    if not 1 <= size <= total:
        raise UserError(f"epsilon: --cohort {args.cohort}: between 1 and {total} take part")
    return size, total, size / total


def _rows(mechanism: Mechanism, args: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    attacks: dict[Event, Attack] = {}
    for adjacency, accountant in mechanism.methods():
        noise = args.noise_multiplier
        if noise is None:
            if accountant == "prv":
                continue  # never tighter than pld, and slow to search with
            unit = mechanism.event(1.0, adjacency, accountant)
            alone = "rdp" if accountant == "exact" else accountant
            noise = calibrate(args.for_epsilon, args.delta, [unit], alone)
        event = mechanism.event(noise, adjacency, accountant)
        result = account([event], mechanism.delta, "rdp" if accountant == "exact" else accountant)
        if event not in attacks:
            attacks[event] = attack_bound([event], mechanism.delta)
        attack = attacks[event]
        rows.append(
            {
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
        )
    return rows


def _table_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "adjacency": row["adjacency"],
        "accountant": row["accountant"],
        "sampling": row["sampling"],
        "epsilon": number(row["epsilon"]),
        "noise_/ clip": f"{row['noise_multiplier']:.5g}",
        "noise_/ sensitivity": f"{row['noise_over_sensitivity']:.5g}",
    }


def _in_words(mechanism: Mechanism, row: dict[str, Any]) -> str:
    """Return the meaning of the tightest epsilon of an adjacency in plain words."""
    secret = f"whether one {mechanism.unit} took part"
    if row["adjacency"] == "replace-one":
        secret = f"which of two versions of one {mechanism.unit}'s data was used"
    rare, often = (_percent(row[f"detection_at_{rate:g}"]) for rate in FALSE_POSITIVE_RATES)
    condition = ""
    if row["sampling"] != "not used":
        condition = " This holds only while nobody outside learns who was drawn in which round."
    return (
        f"\nIn words ({row['adjacency']}, epsilon {number(row['epsilon'])} by {row['accountant']}): "
        f"an attacker sees everything that is released ({counted(row['releases'], 'release')}) and "
        f"knows everything except {secret}; beforehand, the chances are even. He is then right at most "
        f"{_percent(row['accuracy'])} of the time, from the mechanism; from epsilon and delta alone, as pages of "
        f"results say it, {_percent(row['accuracy_from_epsilon'])}. A blind guess is right 50 % of the time. "
        f"If his false alarms are limited to 1 in 1,000 cases, he detects at most {rare}; to 1 in 100, "
        f"{often}.{condition}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.9995 else "100 %"
