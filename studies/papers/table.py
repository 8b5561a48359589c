"""The table of paper claims and their verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.core.registry import counted
from harness.report.tables.text import quantity
from studies.papers.observations import Observation
from studies.papers.verdicts import Finding

DIGITS = 3  # of values in the table
COLUMNS = ("claim", "says", "expected", "found", "95 % interval", "seeds", "detectable", "paper", "verdict")
RIGHT = frozenset({"found", "95 % interval", "seeds", "detectable", "paper"})


def rows(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """Return a row of the table for every claim."""
    return [row(finding) for finding in findings]


def markdown(findings: Sequence[Finding], observations: Sequence[Observation]) -> str:
    """Return the table as Markdown and, folded away, a line for every claim: what was compared, and its reading."""
    lines = [
        _line(COLUMNS),
        _line([":--" if name not in RIGHT else "--:" for name in COLUMNS]),
        *(_line([cells[name].replace("|", "\\|") for name in COLUMNS]) for cells in rows(findings)),
        "",
        "<details><summary>What was compared, claim by claim</summary>",
        "",
        *(f"- `{finding.claim.id}`: {notes(finding, observations)}" for finding in findings),
        "",
        "</details>",
    ]
    return "\n".join(lines)


def notes(finding: Finding, observations: Sequence[Observation]) -> str:
    """Return notes on a finding: comparison, choice, missing runs and its reading."""
    claim = finding.claim
    sentences = [claim.compared]
    for arm in claim.arms:
        evidence = [
            observation
            for observation in observations
            if observation.claim == claim.id and observation.arm == arm
        ]
        if claim.along:
            points = sorted({observation.point for observation in evidence if observation.point is not None})
            sentences.append(f"{arm} at {claim.along}={', '.join(f'{point:g}' for point in points)}")
        chosen = {observation.point: observation for observation in evidence if observation.settings}
        for point, observation in chosen.items():
            at = "" if point is None else f" at {claim.along}={point:g}"
            edges = f" (at the edge of the grid: {' '.join(observation.edges)})" if observation.edges else ""
            sentences.append(f"chosen for {arm}{at}: {observation.settings}{edges}")
    if claim.choose is not None:
        seeds = ", ".join(map(str, claim.choose.seeds))
        sentences.append(f"seeds {seeds} choose by {claim.choose.by} and are not counted")
    if finding.bounds:
        runs = counted(finding.bounds, "run")
        sentences.append(f"{runs} did not reach the target and count with what they had spent")
    if finding.failed:
        sentences.append(
            f"{finding.failed} of {counted(finding.decision.seeds + finding.failed, 'seed')} have no value"
        )
    if finding.unpaired:
        sentences.append(
            f"{counted(finding.unpaired, 'seed')} {'is' if finding.unpaired == 1 else 'are'} not in all sides"
        )
    if finding.size:
        sentences.append(f"the effect {finding.size}")
    text = "; ".join(sentences) + "."
    if claim.confounded:
        text += f" No verdict: {claim.confounded}"
    return f"{text} {claim.reading}" if claim.reading else text


def as_json(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON writes it; numbers are in units of the value, logarithms on a log scale."""
    claim = finding.claim
    return {
        "claim": claim.id,
        "says": claim.says,
        "where": claim.where,
        "measured": claim.compared,
        "scale": claim.scale,
        "expected": {**asdict(claim.expect), "text": claim.expected},
        **finding.decision._asdict(),
        "failed": finding.failed,
        "unpaired": finding.unpaired,
        "bounds": finding.bounds,
        "written": claim.verdict,
        "paper_value": claim.paper_value,
        "reading": claim.reading,
    }


def row(finding: Finding) -> dict[str, str]:
    """Return the row of the table for a claim, by column."""
    claim = finding.claim
    ends = [_value(finding, end) for end in (finding.decision.low, finding.decision.high)]
    return {
        "claim": claim.id,
        "says": f"{claim.says} ({claim.where})" if claim.where else claim.says,
        "expected": claim.expected,
        "found": _value(finding, finding.decision.mean),
        "95 % interval": f"{ends[0]} to {ends[1]}" if all(ends) else "",
        "seeds": str(finding.decision.seeds),
        "detectable": _value(finding, finding.decision.detectable, "a factor "),
        "paper": claim.paper_value,
        "verdict": finding.decision.verdict,
    }


def _value(finding: Finding, value: float | None, sign: str = "") -> str:
    if value is None:
        return ""
    ratio = finding.claim.ratio
    return f"{sign if ratio else ''}{quantity(math.exp(value) if ratio else value, DIGITS)}"


def _line(fields: Sequence[str]) -> str:
    return f"| {' | '.join(fields)} |"
