"""``epsilon``: privacy of a mechanism, or the noise for a budget, without a run; and claims of others."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.cli.console import out, print_rows
from harness.config.yaml import shown
from harness.core.registry import UserError, counted, unknown
from privacy.accounting import account, calibrate
from privacy.attacker import FALSE_POSITIVE_RATES, Attack, attack_bound
from privacy.claims import CLAIMS, Verdict, judge
from privacy.event import Event
from privacy.gaussian import check_budget, check_delta
from privacy.trade_off import accuracy_bound

MOST_DRAWS = 1_000_000  # of secret cohorts, also the most rounds of a run
MOST_ROUNDS = 10**12
SAMPLINGS = ("poisson", "without-replacement", "fixed", "full")
SENSITIVITY = {"add-remove": 1.0, "replace-one": 2.0}  # of a clipped message over its clip norm


@dataclass(frozen=True)
class Mechanism:
    """What is asked about. ``size`` of ``total`` units take part in each of ``rounds``."""

    clip: float
    size: int
    total: int
    rounds: int
    sampling: str
    delta: float
    releases_per_round: int
    unit: str
    placement: str

    @property
    def amplified(self) -> bool:
        """Whether a secret draw hides who takes part."""
        return self.sampling in ("poisson", "without-replacement") and self.size < self.total

    def methods(self) -> list[tuple[str, str]]:
        """Return adjacencies and accountants that bound it, the tightest of an adjacency last."""
        adjacencies = ("replace-one",) if self.placement != "central" else ("add-remove", "replace-one")
        found = []
        for adjacency in adjacencies:
            if adjacency == "add-remove" and self.sampling == "without-replacement" and self.amplified:
                continue  # a cohort of fixed size has no neighbor with a unit more
            found.append((adjacency, "exact"))
            if self.amplified:
                found.append((adjacency, "rdp"))
                if adjacency == "add-remove":
                    found.append((adjacency, "prv"))
                found.append((adjacency, "pld"))
        return found

    def event(self, noise: float, adjacency: str, accountant: str) -> Event:
        """Return all releases, of noise ``noise`` times the clip norm.

        A replaced unit in a Poisson sample is bounded by draws without replacement: absent, it contributes 0,
        which lies within the sensitivity of both of its versions.
        """
        multiplier = noise / SENSITIVITY[adjacency] / math.sqrt(self.releases_per_round)
        if accountant == "exact":
            return Event(multiplier, 1.0, self.rounds)
        sampling = "poisson" if adjacency == "add-remove" else "without-replacement"
        return Event(multiplier, self.size / self.total, self.rounds, sampling)

    def describe(self) -> str:
        """Say everything that an epsilon of it depends on, but the noise."""
        who = "everybody takes part"
        if self.size < self.total:
            who = (
                f"{self.sampling} sampling of {self.size} of {self.total} (rate {self.size / self.total:.4g})"
            )
        a_round = counted(self.releases_per_round, "release")
        return (
            f"unit {self.unit}, placement {self.placement}, {who}, "
            f"{counted(self.rounds, 'round')}, {a_round} a round, clip norm {self.clip:g}, delta {self.delta:g}"
        )


def epsilon_options(to: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    asked = to.add_mutually_exclusive_group()
    asked.add_argument(
        "--noise-multiplier",
        type=float,
        metavar="Z",
        help="standard deviation of the noise on a sum of messages over their clip norm",
    )
    asked.add_argument("--for-epsilon", type=float, metavar="E", help="print the noise multiplier instead")
    asked.add_argument(
        "--claim", metavar="NAME[:KEY=VALUE,...]", help="what a setting of another system holds"
    )
    asked.add_argument("--claims", action="store_true", help="all claims that are known, at their defaults")
    to.add_argument("--clip", type=float, default=1.0, metavar="C", help="clip norm (default: 1)")
    to.add_argument(
        "--cohort",
        default="1",
        metavar="SIZE/TOTAL",
        help="who takes part in a round, as 10/100 (default: all)",
    )
    to.add_argument("--rounds", type=int, default=1, metavar="N", help="draws of a cohort (default: 1)")
    to.add_argument(
        "--sampling",
        choices=SAMPLINGS,
        help="poisson: each by a secret coin; without-replacement: a secret cohort of fixed size; fixed: a cohort "
        "that others can see; full: everybody (default: poisson if central and there is a cohort)",
    )
    to.add_argument("--delta", type=float, default=1e-5, help="probability outside epsilon (default: 1e-5)")
    to.add_argument(
        "--releases-per-round", type=int, default=1, metavar="N", help="from one draw (default: 1)"
    )
    to.add_argument("--unit", choices=("client", "record", "user"), default="client", help="whom it protects")
    to.add_argument(
        "--placement",
        choices=("central", "local", "distributed"),
        default="central",
        help="who adds the noise",
    )
    to.add_argument("--json", action="store_true", help="print JSON")
    to.add_argument("--markdown", action="store_true", help="print claims as Markdown")


def epsilon_command(given: argparse.Namespace) -> int:
    """Answer from the numbers on the command line."""
    if given.claims or given.claim is not None:
        return _claims(given)
    if (given.noise_multiplier is None) == (given.for_epsilon is None):
        raise UserError("epsilon: give either --noise-multiplier, or --for-epsilon to get one back")
    mechanism = _mechanism(given)
    try:
        rows = _rows(mechanism, given)
    except ValueError as problem:
        raise UserError(f"epsilon: {problem}") from problem
    if given.json:
        told = [
            {**row, "epsilon": row["epsilon"] if math.isfinite(row["epsilon"]) else "inf"} for row in rows
        ]
        print(json.dumps({"mechanism": vars(mechanism), "rows": told}, indent=1))
        return 0
    out.print(mechanism.describe(), markup=False)
    asked = {row["adjacency"]: row for row in rows}  # the last of an adjacency is the tightest
    print_rows([_shown(row) for row in rows], "epsilon by adjacency and accountant")
    for row in rows:
        if row["note"]:
            out.print(f"{row['adjacency']}: {row['note']}", markup=False)
    for row in asked.values():
        out.print(_in_words(mechanism, row), markup=False)
    return 0


def _mechanism(given: argparse.Namespace) -> Mechanism:
    size, total = _cohort(given.cohort)
    sampling = given.sampling or ("poisson" if size < total and given.placement == "central" else "full")
    if sampling == "full" and size < total:
        sampling = "fixed" if given.sampling is None else sampling
    if sampling == "full" and size < total:
        raise UserError(f"epsilon: --sampling full takes everybody, but the cohort is {size} of {total}")
    if given.placement != "central" and sampling in ("poisson", "without-replacement"):
        raise UserError(
            f"epsilon: with {given.placement} placement whoever collects the messages sees who sends, so sampling "
            "hides nobody; use --sampling fixed or --placement central"
        )
    for name in ("rounds", "releases_per_round"):
        if getattr(given, name) < 1:
            raise UserError(
                f"epsilon: --{name.replace('_', '-')} is at least 1, given {getattr(given, name)}"
            )
    secret = sampling in ("poisson", "without-replacement")
    if given.rounds > (most := MOST_DRAWS if secret else MOST_ROUNDS):
        why = " where cohorts are drawn in secret, whose accounting takes minutes beyond" if secret else ""
        raise UserError(f"epsilon: --rounds is at most {most:,}{why}; given {shown(given.rounds)}")
    if not (given.clip > 0 and math.isfinite(given.clip)):
        raise UserError(f"epsilon: --clip is a number above 0, given {given.clip}")
    try:
        check_delta(given.delta)
    except ValueError as problem:
        raise UserError(f"epsilon: {problem}") from problem
    return Mechanism(
        given.clip, size, total, given.rounds, sampling, given.delta, given.releases_per_round, given.unit,
        given.placement,
    )  # fmt: skip


def _cohort(text: str) -> tuple[int, int]:
    parts = text.split("/")
    if not all(part.isdecimal() for part in parts) or not 1 <= len(parts) <= 2:
        raise UserError(
            f"epsilon: --cohort is SIZE/TOTAL, as 10/100, or TOTAL if all take part; given {text!r}"
        )
    size, total = int(parts[0]), int(parts[-1])
    if not 1 <= size <= total:
        raise UserError(f"epsilon: --cohort {text}: between 1 and {total} take part")
    return size, total


def _rows(mechanism: Mechanism, given: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    attacks: dict[Event, Attack] = {}
    for adjacency, accountant in mechanism.methods():
        noise = given.noise_multiplier
        if noise is None:
            if accountant == "prv":
                continue  # never tighter than pld, and slow to search with
            check_budget(given.for_epsilon, given.delta)
            unit = mechanism.event(1.0, adjacency, accountant)
            alone = "rdp" if accountant == "exact" else accountant
            noise = calibrate(given.for_epsilon, given.delta, [unit], alone)
        event = mechanism.event(noise, adjacency, accountant)
        found = account([event], mechanism.delta, "rdp" if accountant == "exact" else accountant)
        if event not in attacks:
            attacks[event] = attack_bound([event], mechanism.delta)
        attack = attacks[event]
        rows.append(
            {
                "adjacency": adjacency,
                "accountant": found.accountant,
                "epsilon": found.epsilon,
                "delta": mechanism.delta,
                "unit": mechanism.unit,
                "placement": mechanism.placement,
                "sampling": mechanism.sampling if accountant != "exact" else "not used",
                "releases": mechanism.rounds * mechanism.releases_per_round,
                "noise_multiplier": noise,
                "noise_over_sensitivity": noise / SENSITIVITY[adjacency],
                "standard_deviation": noise * mechanism.clip,
                "accuracy_from_epsilon": accuracy_bound(found.epsilon, mechanism.delta),
                "accuracy": attack.accuracy,
                **{
                    f"detection_at_{rate:g}": bound
                    for rate, bound in zip(FALSE_POSITIVE_RATES, attack.detection, strict=True)
                },
                "note": found.note,
            }
        )
    return rows


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "adjacency": row["adjacency"],
        "accountant": row["accountant"],
        "sampling": row["sampling"],
        "epsilon": _number(row["epsilon"]),
        "noise_/ clip": f"{row['noise_multiplier']:.5g}",
        "noise_/ sensitivity": f"{row['noise_over_sensitivity']:.5g}",
    }


def _in_words(mechanism: Mechanism, row: dict[str, Any]) -> str:
    """Say what the tightest epsilon of an adjacency means to somebody who knows no epsilons."""
    secret = f"whether one {mechanism.unit} took part"
    if row["adjacency"] == "replace-one":
        secret = f"which of two versions of one {mechanism.unit}'s data was used"
    rare, often = (_percent(row[f"detection_at_{rate:g}"]) for rate in FALSE_POSITIVE_RATES)
    kept = ""
    if row["sampling"] != "not used":
        kept = " This holds only while nobody outside learns who was drawn in which round."
    return (
        f"\nIn words ({row['adjacency']}, epsilon {_number(row['epsilon'])} by {row['accountant']}): "
        f"an attacker sees everything that is released ({counted(row['releases'], 'release')}) and "
        f"knows everything except {secret}; beforehand, the chances are even. He is then right at most "
        f"{_percent(row['accuracy'])} of the time. A blind guess is right 50 % of the time; epsilon and "
        "delta "
        f"alone would say {_percent(row['accuracy_from_epsilon'])}. If his false alarms are limited to 1 "
        "in 1,000 "
        f"cases, he detects at most {rare}; to 1 in 100, {often}.{kept}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.9995 else "100 %"


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1e4 <= value < 1e7 else f"{value:.4g}"


def _claims(given: argparse.Namespace) -> int:
    if given.claims:
        verdicts = [judge(name, {}) for name in CLAIMS]
    else:
        name, _, settings = given.claim.partition(":")
        if name not in CLAIMS:
            raise unknown("claim", name, CLAIMS)
        try:
            verdicts = [judge(name, _settings(name, settings))]
        except ValueError as problem:
            raise UserError(f"epsilon: {problem}") from problem
    if given.json:
        print(json.dumps([verdict.as_json() for verdict in verdicts], indent=1))
    elif given.markdown:
        print(markdown(verdicts))
    else:
        for verdict in verdicts:
            _print_verdict(verdict)
    return 0


def markdown(verdicts: Sequence[Verdict]) -> str:
    """Return a table of claims, and below it what is said of each."""
    lines = [
        "| claim | printed | what it composes to | adjacency | epsilon | delta | by |",
        "| :-- | --: | :-- | :-- | --: | --: | :-- |",
    ]
    for verdict in verdicts:
        name, said = f"`{verdict.claim.name}`", _said(verdict)
        for row in verdict.rows:
            cells = (
                name,
                said,
                row.what,
                row.adjacency,
                _number(row.epsilon),
                f"{row.delta:g}",
                row.accountant,
            )
            lines.append(f"| {' | '.join(cells)} |")
            name = said = ""
    for verdict in verdicts:
        claim = verdict.claim
        settings = ", ".join(f"{key} {value:g}" for key, value in verdict.values.items())
        links = ", ".join(f"[{source.rsplit('/', 1)[-1]}]({source})" for source in claim.sources)
        lines += [
            "",
            f"### {claim.name}",
            "",
            f"{claim.title}; {settings}.",
            f"Printed: {_said(verdict)}, {claim.says}.",
        ]
        lines += ["", claim.why, "", f"Sources: {links}."]
    return "\n".join(lines)


def _said(verdict: Verdict) -> str:
    return "no epsilon" if verdict.claimed is None else _number(verdict.claimed)


def _settings(name: str, text: str) -> dict[str, float]:
    found = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if key.strip() not in CLAIMS[name].settings:
            raise unknown(f"setting of {name}", key.strip(), CLAIMS[name].settings)
        try:
            found[key.strip()] = float(value)
        except ValueError:
            raise UserError(f"epsilon: {name}: {key.strip()}{equals}{value}: not a number") from None
        if key.strip() in ("rounds", "epochs", "updates") and found[key.strip()] > MOST_DRAWS:
            raise UserError(f"epsilon: {name}: {key.strip()} is at most {MOST_DRAWS:,}; given {value}")
    return found


def _print_verdict(verdict: Verdict) -> None:
    claim = verdict.claim
    settings = ", ".join(f"{key} {value:g}" for key, value in verdict.values.items())
    out.print(f"{claim.name}: {claim.title} ({settings})", markup=False)
    out.print(f"Printed: {_said(verdict)}, {claim.says}", markup=False)
    rows = [
        {
            "what it composes to": row.what,
            "adjacency": row.adjacency,
            "epsilon": _number(row.epsilon),
            "delta": f"{row.delta:g}",
            "by": row.accountant,
        }
        for row in verdict.rows
    ]
    print_rows(rows, "")
    out.print(f"Why: {claim.why}", markup=False)
    for source in claim.sources:
        out.print(f"  {source}", markup=False)
    out.print("")
