"""Commands ``verify`` and ``archive``."""

from __future__ import annotations

import argparse
import json
import secrets
from collections import Counter

from harness.cli.console import log, out
from harness.config.recorded import results_folder
from harness.core.registry import UserError, counted
from harness.storage.archive import opened, write_archive
from harness.storage.manifest import MANIFEST, Portable
from harness.storage.store import Store
from harness.storage.verification import verify

STATES = ("sound", "not sealed", "unfinished", "damaged")
REPLAYS = ("identical", "within tolerance", "different", "not compared")


def verify_command(given: argparse.Namespace) -> int:
    """Compare files with their checksums, and runs with their repetition; return 2 if something is wrong."""
    if given.results is not None:
        raise UserError(f"verify: the option --results is gone; write: verify {given.results}")
    bounds(given)
    with opened(given.dir) as root:
        store = results_folder(root)
        found = list(verify(store))
        counts = Counter(verdict.state for verdict in found)
        if not given.json:
            for verdict in found:
                for fault in verdict.faults:
                    out.print(f"{given.dir / verdict.place}: {fault}", markup=False, soft_wrap=True)
            runs = sum(verdict.place.startswith("runs/") for verdict in found)
            listed = sum(verdict.place == MANIFEST for verdict in found)
            what = f"{counted(runs, 'run')} and {counted(len(found) - runs - listed, 'suite')}"
            what += " and the manifest" if listed else ""
            states = [f"{counts[state]} {state}" for state in STATES if counts[state]]
            out.print(f"{what}: {', '.join(states) or 'nothing to verify'}", markup=False)
        wrong = counts["damaged"]
        replays = _replays(store, given) if given.sample else []
        wrong += sum(one["state"] == "different" for one in replays)
        if given.json:
            print(
                json.dumps({"files": [verdict._asdict() for verdict in found], "replays": replays}, indent=1)
            )
    return 2 if wrong else 0


def bounds(given: argparse.Namespace) -> None:
    """Choose a seed where none is given, and refuse a sample or a tolerance out of range."""
    if given.sample < 0:
        raise UserError(f"--sample: a number of runs of at least 0, given {given.sample}")
    if not given.tolerance >= 0:
        raise UserError(f"--tolerance: a number of at least 0, given {given.tolerance:g}")
    if given.seed is None:  # whoever makes the runs must not know it before
        given.seed = secrets.randbits(32)


def _replays(store: Store, given: argparse.Namespace) -> list[dict[str, object]]:
    """Repeat a sample of the finished runs, and say what came of each."""
    from harness.cli.arguments import one_thread
    from harness.executors.replay import chosen, replay  # torch and all algorithms

    one_thread()
    done = [folder.path.name for folder in store.run_folders() if folder.status == "done"]
    found = []
    for id in chosen(done, given.sample, given.seed):
        one = replay(store, id, given.tolerance, given.device)
        found.append(one)
        if not given.json:
            out.print(f"runs/{id}: {one}", markup=False, soft_wrap=True)
    counts = Counter(one.state for one in found)
    states = ", ".join(f"{counts[state]} {state}" for state in REPLAYS if counts[state])
    if not given.json:
        runs = counted(len(done), "finished run")
        out.print(f"{len(found)} of {runs} repeated (--seed {given.seed}): {states or 'none'}", markup=False)
    return [one.as_json() for one in found]


def archive_command(given: argparse.Namespace) -> int:
    """Pack the results of a folder."""
    if not given.file.name.endswith((".tar.gz", ".tgz")):
        raise UserError(f"archive: the file's name ends in .tar.gz, given {given.file.name}")
    given.file.parent.mkdir(parents=True, exist_ok=True)
    told(write_archive(results_folder(given.dir), given.file), str(given.file))
    return 0


def told(found: Portable, where: str) -> None:
    """Print what was written and what was left out."""
    rest = ", ".join(f"{count} {status}" for status, count in sorted(found.left_out.items()))
    log.print(
        f"wrote {counted(len(found.ids), 'run')} to {where}{f'; left out: {rest}' if rest else ''}",
        markup=False,
    )
