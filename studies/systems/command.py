"""``epsilon --claim``: what privacy settings of other systems compose to."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from harness.cli.console import out, print_rows
from harness.core.registry import UserError, unknown
from studies.systems.claims import CLAIMS, Verdict, judge

MOST_DRAWS = 1_000_000  # of secret cohorts, also the most rounds of a run


def number(value: float) -> str:
    """Write an epsilon."""
    return f"{value:,.0f}" if 1e4 <= value < 1e7 else f"{value:.4g}"


def claims_command(given: argparse.Namespace) -> int:
    """Print what one setting, or all that are known, compose to."""
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
                number(row.epsilon),
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
            f"{claim.title}; {settings}. Version: {claim.version}.",
            f"Printed: {_said(verdict)}, {claim.says}.",
        ]
        lines += ["", claim.why, "", f"Sources: {links}."]
    return "\n".join(lines)


def _said(verdict: Verdict) -> str:
    return "no epsilon" if verdict.claimed is None else number(verdict.claimed)


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
    out.print(f"{claim.name}: {claim.title}, {claim.version} ({settings})", markup=False)
    out.print(f"Printed: {_said(verdict)}, {claim.says}", markup=False)
    rows = [
        {
            "what it composes to": row.what,
            "adjacency": row.adjacency,
            "epsilon": number(row.epsilon),
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
