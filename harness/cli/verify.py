"""Commands ``verify`` and ``archive``."""

from __future__ import annotations

import argparse
import json
import secrets
from collections import Counter

from harness.cli.console import log, out
from harness.config.recorded import results_folder
from harness.core.errors import UserError
from harness.core.units import counted
from harness.storage.archive import open_results, write_archive
from harness.storage.manifest import MANIFEST, Portable
from harness.storage.store import Store
from harness.storage.verification import verify

STATES = ("sound", "not sealed", "unfinished", "damaged")
REPLAYS = ("identical", "within tolerance", "different", "not compared")


def verify_command(args: argparse.Namespace) -> int:
    """Compare files with their checksums, and runs with their repetition; return 2 if something is wrong."""
    bounds(args)
    with open_results(args.dir) as root:
        store = results_folder(root)
        verdicts = list(verify(store))
        counts = Counter(verdict.state for verdict in verdicts)
        if not args.json:
            for verdict in verdicts:
                for fault in verdict.faults:
                    out.print(f"{args.dir / verdict.place}: {fault}", markup=False, soft_wrap=True)
            runs = sum(verdict.place.startswith("runs/") for verdict in verdicts)
            manifests = sum(verdict.place == MANIFEST for verdict in verdicts)
            what = f"{counted(runs, 'run')} and {counted(len(verdicts) - runs - manifests, 'suite')}"
            what += " and the manifest" if manifests else ""
            states = [f"{counts[state]} {state}" for state in STATES if counts[state]]
            out.print(f"{what}: {', '.join(states) or 'nothing to verify'}", markup=False)
        wrong = counts["damaged"]
        replays = _replays(store, args) if args.sample else []
        wrong += sum(repetition["state"] == "different" for repetition in replays)
        if args.json:
            print(
                json.dumps(
                    {"files": [verdict._asdict() for verdict in verdicts], "replays": replays}, indent=1
                )
            )
    return 2 if wrong else 0


def bounds(args: argparse.Namespace) -> None:
    """Choose a seed where none is given, and refuse a sample or a tolerance out of range."""
    if args.sample < 0:
        raise UserError(f"--sample: a number of runs of at least 0, given {args.sample}")
    if not args.tolerance >= 0:
        raise UserError(f"--tolerance: a number of at least 0, given {args.tolerance:g}")
    if args.seed is None:  # whoever makes the runs must not know it before
        args.seed = secrets.randbits(32)


def _replays(store: Store, args: argparse.Namespace) -> list[dict[str, object]]:
    """Repeat a sample of the finished runs, and print each result."""
    from harness.cli.arguments import one_thread
    from harness.executors.replay import chosen, replay  # torch and all algorithms

    one_thread()
    done = [folder.path.name for folder in store.run_folders() if folder.status == "done"]
    repetitions = []
    for id in chosen(done, args.sample, args.seed):
        repetition = replay(store, id, args.tolerance, args.device)
        repetitions.append(repetition)
        if not args.json:
            out.print(f"runs/{id}: {repetition}", markup=False, soft_wrap=True)
    counts = Counter(repetition.state for repetition in repetitions)
    states = ", ".join(f"{counts[state]} {state}" for state in REPLAYS if counts[state])
    if not args.json:
        runs = counted(len(done), "finished run")
        out.print(
            f"{len(repetitions)} of {runs} repeated (--seed {args.seed}): {states or 'none'}", markup=False
        )
    return [repetition.as_json() for repetition in repetitions]


def archive_command(args: argparse.Namespace) -> int:
    """Pack the results of a folder."""
    report_written(write_archive(results_folder(args.dir), args.file), str(args.file))
    return 0


def report_written(portable: Portable, where: str) -> None:
    """Print the runs written and those left out."""
    rest = ", ".join(f"{count} {status}" for status, count in sorted(portable.left_out.items()))
    log.print(
        f"wrote {counted(len(portable.ids), 'run')} to {where}{f'; left out: {rest}' if rest else ''}",
        markup=False,
    )
