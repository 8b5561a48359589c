"""Command ``papers``: whether the runs of a results folder confirm what papers claim."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from harness.cli import grammar
from harness.cli.console import log, out, print_rows
from harness.config.recorded import results_folder
from harness.core.errors import UserError, unknown
from harness.core.units import counted
from harness.report.data.results import Results
from harness.storage.files import write_text
from studies.papers import pages, table
from studies.papers.claims import FILE as CLAIMS
from studies.papers.claims import PaperClaims, read_claims
from studies.papers.curves import FILE as CURVES
from studies.papers.curves import curves_csv, gather_curves
from studies.papers.evidence import gather
from studies.papers.observations import (
    FILE,
    Observation,
    count_differences,
    read_observations,
    stale,
    write_observations,
)
from studies.papers.tables import evidence, from_tables
from studies.papers.verdicts import Finding, judge

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


def papers_options(to: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    to.add_argument(
        "folders",
        nargs="*",
        metavar="FOLDER",
        help="folders that hold claims.yaml, or such folders (default: results/reference)",
    )
    to.add_argument(
        "--from",
        dest="runs",
        type=grammar.path,
        metavar="DIR",
        help="results folder to read the runs from",
    )
    to.add_argument("--update", action="store_true", help="with --from: write claims.csv of every folder")
    to.add_argument("--markdown", action="store_true", help="print the table of the pages in docs/papers")
    to.add_argument(
        "--pages", action="store_true", help="write tables and pictures of the pages in docs/papers"
    )
    to.add_argument("--json", action="store_true", help="print JSON")


def papers_command(args: argparse.Namespace) -> int:
    """Print the verdicts; 1 if one differs from the written one, or the evidence is stale."""
    if args.update and args.runs is None:
        raise UserError("--update: needs --from DIR, whose runs are the evidence")
    if args.json and args.markdown:
        raise UserError("--json, --markdown: one of them")
    if args.pages and args.folders:
        raise UserError("--pages: the pages rest on all claims of the checkout, name no folder")
    judged: dict[str, pages.Judged] = {}
    wrong: list[str] = []
    for folder in _folders(args.folders):
        claims = read_claims(folder)
        read = _evidence(claims, args.runs, args.update, wrong)
        wrong += [f"stale evidence: {reason}" for reason in stale(claims, read)]
        ids = {observation.claim for observation in read}
        found = [judge(claim, read) for claim in claims.claims if claim.id in ids]
        judged[folder.name] = pages.Judged(found, read)
    findings = [finding for each in judged.values() for finding in each.findings]
    wrong += _differences(findings)
    if args.pages:
        pages.write(judged)
    if not args.folders:
        wrong += pages.misstated(judged)
    _show(findings, [each for of in judged.values() for each in of.observations], args)
    for fault in wrong:
        log.print(fault, markup=False)
    return 1 if wrong else 0


def _folders(names: Sequence[str]) -> list[Path]:
    """Return the folders that have claims, of those named or below them; by default all of the checkout."""
    folders = []
    for name in names or [str(REFERENCE)]:
        path = Path(name)
        if not path.is_dir() and (REFERENCE / name).is_dir():
            path = REFERENCE / name
        if not path.is_dir():
            places = {file.parent.name for file in REFERENCE.glob(f"*/{CLAIMS}")}
            raise unknown("folder of claims", name, places)
        with_claims = (
            [path] if (path / CLAIMS).exists() else sorted(file.parent for file in path.glob(f"*/{CLAIMS}"))
        )
        if not with_claims and names:
            raise UserError(f"{path}: there is no {CLAIMS} in it or in its folders")
        folders += with_claims
    return folders


def _evidence(claims: PaperClaims, runs: Path | None, update: bool, wrong: list[str]) -> list[Observation]:
    """Return the observations of the runs, or those written down, and note where these two differ."""
    path = claims.folder / FILE
    if runs is None:
        return evidence(claims)
    results = Results(results_folder(runs).some_records(claims.suite))
    gathered = gather(claims, results)
    if update:
        write_observations(path, gathered)
        log.print(f"wrote {path}", markup=False)
        if claims.curves:
            write_text(claims.folder / CURVES, curves_csv(gather_curves(claims, results)))
    elif not path.exists():
        log.print(f"{path} is missing; --update writes it", markup=False)
    elif count := count_differences(read_observations(path), gathered):
        wrong.append(f"{path}: {counted(count, 'observation')} not as in {runs}; --update writes them")
    return [*gathered, *from_tables(claims)]


def _differences(findings: Sequence[Finding]) -> list[str]:
    """Return a sentence for every verdict that is not the written one."""
    sentences = []
    for finding in findings:
        written = finding.claim.verdict
        if finding.decision.verdict != written:
            contrast = f"not {written!r}, as written" if written else f"and none is written in {CLAIMS}"
            sentences.append(f"{finding.claim.id}: the verdict is {finding.decision.verdict!r}, {contrast}")
    return sentences


def _show(findings: Sequence[Finding], observations: Sequence[Observation], args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps([table.as_json(finding) for finding in findings], indent=1))
    elif args.markdown:
        print(table.markdown(findings, observations))
    else:
        print_rows(
            table.rows(findings),
            f"{counted(len(findings), 'claim')} of papers",
            ("paper", "says", "detectable", "expected"),
        )
        for finding in findings:
            out.print(f"{finding.claim.id}: {table.notes(finding, observations)}", soft_wrap=False)
