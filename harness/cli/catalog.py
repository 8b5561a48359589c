"""Commands ``data draw``, ``check`` and ``audit``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from harness.cli.arguments import one_thread, spec_from
from harness.cli.console import out, print_rows, short
from harness.core.algorithm import ALGORITHMS
from harness.core.errors import UserError
from harness.core.units import counted
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.federations import make_federation
from harness.storage.files import output
from harness.testing.checks import audit_setup, check_named, require_checked


def draw_command(given: argparse.Namespace) -> int:
    """Draw a partition."""
    from datasets.picture import check_format, draw

    one_thread()
    given.algorithm = given.algorithm or "fedavg"
    federation = make_federation(spec_from(given))
    if federation is None:
        raise UserError("--data: missing; name the data whose partition to draw")
    check_format(given.file)
    with output(given.file) as temporary:
        draw(federation, temporary)
    out.print(f"wrote {given.file}", markup=False)
    return 0


def check_command(given: argparse.Namespace) -> int:
    """Print the results of conformance checks."""
    one_thread()
    for name in given.names:
        require_checked(name)
    rows = []
    for name in given.names or ALGORITHMS:
        own = check_named(name)
        rows += own
        if not given.json:
            _say_checked(name, own, given.verbose)
    if given.json:
        print(json.dumps(rows, indent=1))
    return 1 if any(row["result"] == "failed" for row in rows) else 0


def _say_checked(name: str, rows: Sequence[dict[str, Any]], verbose: bool) -> None:
    """Print the number of passed checks, then the failed ones and warnings, or all if `verbose`."""
    failed = [row for row in rows if row["result"] == "failed"]
    out.print(f"{name}: {len(rows) - len(failed)} of {counted(len(rows), 'check')} passed", markup=False)
    said: set[str] = set()  # an error in a round fails most checks
    for row in rows if verbose else [row for row in rows if row["result"] != "passed"]:
        why = "" if not row["why"] else " (as above)" if row["why"] in said else f" ({row['why']})"
        said.add(row["why"])
        out.print(f"  {row['result']}: {row['check']}{why}", markup=False)


def audit_command(given: argparse.Namespace) -> int:
    """Print the results of an audit; return 1 if there are findings."""
    one_thread()
    parts = audit_setup(calibrated(prepare(spec_from(given))), given.trials, given.canaries)
    if given.json:
        print(json.dumps(parts, indent=1))
    else:
        for part in parts:
            rows = [{"": key.replace("_", " "), "value": short(value)} for key, value in part.items()]
            print_rows(rows[1:-1], f"audit of the {part['part']}")
            for finding in part["findings"] or ["nothing contradicts the claim"]:
                out.print(finding, markup=False)
    return 1 if any(part["findings"] for part in parts) else 0
