"""Verification of a results folder: every run and suite against the checksums that were written with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from harness.core.errors import UserError
from harness.storage.files import Damaged
from harness.storage.manifest import MANIFEST, faults, read_manifest
from harness.storage.run_files import ENDS, EXTRAS
from harness.storage.run_folder import RunFolder
from harness.storage.seals import read_sealed
from harness.storage.store import Store, read_suite


class Verdict(NamedTuple):
    """Result of verifying a run or a suite.

    Attributes
    ----------
    place : str
        Its folder, relative to the results folder.
    state : str
        sound, damaged, not sealed (of an earlier version) or unfinished.
    faults : tuple[str, ...]
        What is wrong; not empty where something is damaged.
    """

    place: str
    state: str
    faults: tuple[str, ...] = ()


def verify(store: Store) -> Iterator[Verdict]:
    """Yield a verdict on the manifest of a folder, if it has one, and on every suite and every run.

    Files that the manifest does not name are no fault: an archive that was unpacked may be worked in.
    """
    if (store.root / MANIFEST).is_file():  # a folder of that name is a suite
        try:
            wrong = faults(store.root, read_manifest(store.root))
        except UserError as error:
            wrong = {MANIFEST: str(error)}
        yield Verdict(
            MANIFEST,
            "damaged" if wrong else "sound",
            tuple(f"{name} {fault}" for name, fault in wrong.items()),
        )
    for path in store.suites():
        try:
            content, seal = read_suite(path)
        except Damaged as error:
            yield Verdict(path.parent.name, "damaged", (f"suite.json {error.why}",))
        else:
            contradictions = tuple(store.contradictions(content["cells"]))
            yield Verdict(
                path.parent.name,
                "damaged" if contradictions else "sound" if seal else "not sealed",
                contradictions,
            )
    for folder in store.run_folders():
        yield _verdict(store, folder)


def _verdict(store: Store, folder: RunFolder) -> Verdict:
    """Return the verdict on a run."""
    place = f"runs/{folder.path.name}"
    status, reason, *_ = store.contents({"id": folder.path.name})
    faults = [f"{name} {fault}" for name, fault in folder.faults().items()] if status == "damaged" else []
    faults = faults or ([str(reason)] if status == "damaged" else [])
    name = next((name for name in ENDS if (folder.path / name).exists()), None)
    if name is not None and status != "damaged":
        sealed = bool(read_sealed(folder.path / name)[1])
        for extra in EXTRAS if status == "done" else ():
            if (folder.path / extra).exists() and not folder.has(extra):
                option = f"--save-{Path(extra).stem}"
                faults.append(f"{extra} is not sealed; {option} writes it again")
        return Verdict(place, "damaged" if faults else "sound" if sealed else "not sealed", tuple(faults))
    if status == "interrupted" and (folder.path / "checkpoint.pt").exists() and folder.load() is None:
        faults.append(
            "checkpoint.pt is damaged, or the lines of rounds.jsonl that it counts; the run starts again"
        )
    return Verdict(place, "damaged" if faults else "unfinished", tuple(faults))
