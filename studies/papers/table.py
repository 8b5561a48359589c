"""The table of paper claims and their verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.core.units import counted
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
    """Return the table as Markdown and, folded away, every remark once, with all claims that it is on."""
    lines = [
        _line(COLUMNS),
        _line([":--" if name not in RIGHT else "--:" for name in COLUMNS]),
        *(_line([cells[name].replace("|", "\\|") for name in COLUMNS]) for cells in rows(findings)),
    ]
    noted: dict[str, list[str]] = {}
    for finding in findings:
        for text in remarks(finding, observations, short=True):
            noted.setdefault(text, []).append(f"`{finding.claim.id}`")
    if noted:
        lines += ["", "<details><summary>Notes</summary>", ""]
        lines += [f"- {', '.join(claims)}: {text}" for text, claims in noted.items()]
        lines += ["", "</details>"]
    return "\n".join(lines)


def notes(finding: Finding, observations: Sequence[Observation]) -> str:
    """Return notes on a finding: comparison, choice, and the remarks on it."""
    claim = finding.claim
    sentences = [claim.compared]
    for arm in claim.arms:
        evidence = _of_arm(finding, arm, observations)
        if claim.along:
            points = sorted({observation.point for observation in evidence if observation.point is not None})
            sentences.append(f"{arm} at {claim.along}={', '.join(f'{point:g}' for point in points)}")
        for observation in {each.point: each for each in evidence if each.settings}.values():
            sentences.append(f"chosen for {_arm(finding, arm, observation)}: {observation.settings}")
    if claim.choose is not None:
        seeds = ", ".join(map(str, claim.choose.seeds))
        sentences.append(f"seeds {seeds} choose by {claim.choose.by} and are not counted")
    return " ".join((f"{'; '.join(sentences)}.", *remarks(finding, observations)))


def remarks(finding: Finding, observations: Sequence[Observation], *, short: bool = False) -> list[str]:
    """Return what weakens a finding: choices at the edge of a grid, runs without a value, small effects.

    Where it is short, a choice at an edge names the sides of the comparison and no settings.
    """
    claim = finding.claim
    edges: dict[str, None] = {}
    for arm in claim.arms:
        evidence = _of_arm(finding, arm, observations)
        for observation in {each.point: each for each in evidence if each.edges}.values():
            place = f"{_arm(finding, arm, observation)} ({' '.join(observation.edges)})"
            edges[arm if short else place] = None
    texts = [f"Chosen at the edge of the grid: {', '.join(edges)}."] if edges else []
    if finding.bounds:
        runs = counted(finding.bounds, "run")
        texts.append(f"{runs} did not reach the target and count with what they had spent.")
    if finding.failed:
        seeds = counted(finding.decision.seeds + finding.failed, "seed")
        texts.append(f"{finding.failed} of {seeds} have no value.")
    if finding.unpaired:
        seeds = counted(finding.unpaired, "seed")
        texts.append(f"{seeds} {'is' if finding.unpaired == 1 else 'are'} not in all sides.")
    if finding.size:
        texts.append(f"The effect {finding.size}.")
    if claim.confounded:
        texts.append(f"No verdict: {claim.confounded}")
    if claim.reading:
        texts.append(claim.reading)
    return texts


def _of_arm(finding: Finding, arm: str, observations: Sequence[Observation]) -> list[Observation]:
    return [each for each in observations if each.claim == finding.claim.id and each.arm == arm]


def _arm(finding: Finding, arm: str, observation: Observation) -> str:
    """Return the side of a comparison, with the point at which it was chosen."""
    return arm if observation.point is None else f"{arm} at {finding.claim.along}={observation.point:g}"


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
