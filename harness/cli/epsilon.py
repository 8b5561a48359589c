"""``epsilon``: privacy of a mechanism, or the noise for a budget, without a run."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from harness.cli.console import out, print_rows
from harness.cli.statement import statement_command
from harness.core.errors import UserError
from harness.core.units import counted
from privacy.attacker import FALSE_POSITIVE_RATES
from privacy.calculator import Mechanism, epsilons, mechanism


def described(mechanism: Mechanism) -> str:
    """Return in words everything that its epsilon depends on, except the noise."""
    who = "everybody takes part"
    if mechanism.rate < 1:
        of = f" of {mechanism.size} of {mechanism.total}" if mechanism.total else ""
        who = f"{mechanism.sampling} sampling{of} (rate {mechanism.rate:.4g})"
    a_round = counted(mechanism.releases_per_round, "release")
    return (
        f"unit {mechanism.unit}, placement {mechanism.placement}, {who}, "
        f"{counted(mechanism.rounds, 'round')}, {a_round} a round, clip norm {mechanism.clip:g}, delta "
        f"{mechanism.delta:g}"
    )


def number(value: float) -> str:
    """Write an epsilon."""
    return f"{value:,.0f}" if 1e4 <= value < 1e7 else f"{value:.4g}"


def epsilon_command(args: argparse.Namespace) -> int:
    """Answer from the numbers on the command line."""
    if args.statement is not None:
        return statement_command(args)
    try:
        given = _mechanism(args)
        rows = epsilons(given, args.noise_multiplier, args.for_epsilon)
    except ValueError as problem:
        raise UserError(f"epsilon: {problem}") from problem
    if args.json:
        finite_rows = [
            {**row, "epsilon": row["epsilon"] if math.isfinite(row["epsilon"]) else "inf"} for row in rows
        ]
        print(json.dumps({"mechanism": vars(given), "rows": finite_rows}, indent=1))
        return 0
    out.print(described(given), markup=False)
    tightest = {row["adjacency"]: row for row in rows}  # the last of an adjacency is the tightest
    print_rows([_table_row(row) for row in rows], "epsilon by adjacency and accountant")
    for row in rows:
        if row["note"]:
            out.print(f"{row['adjacency']}: {row['note']}", markup=False)
    for row in tightest.values():
        out.print(_in_words(given, row), markup=False)
    return 0


def _mechanism(args: argparse.Namespace) -> Mechanism:
    size, total, rate = _cohort_and_rate(args)
    return mechanism(
        clip=args.clip, size=size, total=total, rate=rate, rounds=args.rounds, sampling=args.sampling,
        delta=args.delta, releases_per_round=args.releases_per_round, unit=args.unit, placement=args.placement,
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
