"""Command ``verify``."""

from __future__ import annotations

import argparse
import json
from collections import Counter

from harness.cli.console import out
from harness.core.registry import UserError
from harness.storage.store import Store
from harness.storage.verification import verify

STATES = ("sound", "not sealed", "unfinished", "damaged")


def verify_command(given: argparse.Namespace) -> int:
    """Compare the files of a results folder with their checksums; return 2 if something is damaged."""
    if not given.results.exists():
        raise UserError(f"no results folder {given.results}")
    found = list(verify(Store(given.results)))
    counts = Counter(verdict.state for verdict in found)
    if given.json:
        print(json.dumps([verdict._asdict() for verdict in found], indent=1))
    else:
        for verdict in found:
            for fault in verdict.faults:
                out.print(f"{given.results / verdict.place}: {fault}", markup=False, soft_wrap=True)
        counted = [f"{counts[state]} {state}" for state in STATES if counts[state]]
        out.print(f"{len(found)} runs and suites: {', '.join(counted) or 'nothing to verify'}", markup=False)
    return 2 if counts["damaged"] else 0
