"""Merging of results folders: the runs of all, and their suites pooled by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core.errors import UserError
from harness.storage.contents import Named, accept_any
from harness.storage.files import (
    Damaged,
    copy,
    exclusive,
    make_folder,
    rename,
    replacing,
    sync_folder,
    writing,
)
from harness.storage.outcomes import agree, computed_fields
from harness.storage.run_files import CLAIM, ENDS, EXTRAS, FILES
from harness.storage.run_folder import Busy, RunFolder
from harness.storage.seals import read_sealed
from harness.storage.store import Store, read_suite

COPYING = ".copying"  # beginning of the name of a folder that is being copied


@dataclass
class Merged:
    """Result of a merge.

    Attributes
    ----------
    copied, same : int
        Runs that were copied, and runs that were there already.
    left : dict[str, str]
        Folders of runs that were not copied, and why.
    suites : list of str
        Suites that were written.
    """

    copied: int = 0
    same: int = 0
    left: dict[str, str] = field(default_factory=dict)
    suites: list[str] = field(default_factory=list)


def merge(sources: Sequence[Path], target: Path, named: Named = accept_any) -> Merged:
    """Copy the runs and suites of results folders into one.

    A run that is done replaces one that is not. Of two that are done and differ, that of the target stays; of two
    that agree, it gets the predictions and the model that only the other has. Suites
    of one name are pooled; the target's title and report settings stay.

    Parameters
    ----------
    sources : sequence of Path
        Results folders; nothing in them is changed.
    target : Path
        Where their runs go; created if it does not exist. One merge at a time writes there, others wait.
    named : Callable, optional
        As of `Store`: runs under ids that are not theirs are left.

    Raises
    ------
    UserError
        If a folder does not exist or has another format, or suites of one name have different profiles, or were
        searched in different ways.
    """
    for source in sources:
        if not source.exists():
            raise UserError(f"no results folder {source}")
        if target.exists() and source.samefile(target):
            raise UserError(f"merge: {source} is the target")
    stores = [Store(source, named) for source in sources]
    into = Store(target, named).open()
    with exclusive(target / CLAIM):
        return _merge(stores, into)


def _merge(stores: Sequence[Store], into: Store) -> Merged:
    result = Merged()
    suites: dict[str, dict[str, Any]] = {}
    for store in [into, *stores]:
        for path in store.suites():
            content, _ = read_suite(path)
            name = str(content["suite"])
            suites[name] = _combine_suites(suites[name], content) if name in suites else content
    for store in stores:
        for folder in store.run_folders():
            cell = {"id": folder.path.name}
            statuses = into.contents(cell).status, store.contents(cell).status
            try:
                _merge_run(folder, into.folder(folder.path.name), statuses, result)
            except Damaged as error:
                result.left[str(folder.path)] = str(error)
    for name, content in suites.items():
        path = into.root / name / "suite.json"
        if not path.exists() or read_sealed(path)[0] != content:
            into.write_suite(name, content)
            result.suites.append(name)
    return result


def _merge_run(source: RunFolder, target: RunFolder, statuses: tuple[str, str], result: Merged) -> None:
    """Copy a run, unless the target has as much of it; the statuses are those of the target and the source."""
    target_status, source_status = statuses
    if source_status in ("running", "damaged"):
        result.left[str(source.path)] = f"it is {source_status}"
    elif target_status == "running":
        result.left[str(source.path)] = f"{target.path} is running"
    elif target_status == "done" and source_status == "done":
        if why := _contradiction(source, target):
            result.left[str(source.path)] = f"{target.path} {why}"
        else:
            _complete(source, target, result)
    elif target_status == "missing" or (source_status == "done" and target_status != "done"):
        _copy(source, target, result)
    else:
        result.same += 1


def _copy(source: RunFolder, target: RunFolder, result: Merged) -> None:
    """Copy a run's files; its folder appears when they are complete."""
    runs = target.path.parent
    with writing(runs):
        make_folder(runs)
    temporary = runs / f"{COPYING}-{target.path.name}"
    try:
        with source.reading():
            with writing(temporary):
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir()
                ended = source.status in ENDS.values()
                for name in source.results() if ended else FILES:
                    with suppress(FileNotFoundError):
                        copy(source.path / name, temporary / name)
                sync_folder(temporary)
            if target.path.exists():
                with target.claim():
                    for name in FILES:
                        (target.path / name).unlink(missing_ok=True)
                    for file in temporary.iterdir():
                        rename(file, target.path / file.name)
                temporary.rmdir()
            else:
                rename(temporary, target.path)
            result.copied += 1
    except Busy as error:
        result.left[str(source.path)] = f"{error} is running"


def _complete(source: RunFolder, target: RunFolder, result: Merged) -> None:
    """Copy what was saved with a run, such as its model, where the target has not saved it."""
    more = [name for name in source.results() if name in EXTRAS and name not in target.results()]
    result.same += 1
    if not more:
        return
    try:
        with target.claim():
            for name in more:
                with replacing(target.path / name, durable=True) as temporary:
                    copy(source.path / name, temporary)
            target.seal(*more)
    except Busy as error:
        result.left[str(source.path)] = f"{error} is running"


def _contradiction(source: RunFolder, target: RunFolder) -> str:
    """Return how two finished executions of a run differ; empty if they have the same values."""
    both = [
        [computed_fields(line) for line in (*folder.evaluations.all(), folder.end())]
        for folder in (source, target)
    ]
    if agree(*both):
        return ""
    return "ended with other values" if source.code == target.code else "has the noise of other code"


def _combine_suites(target: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    """Return a suite with the cells of another of its name."""
    keys = {_key(cell) for cell in target["cells"]}
    fresh = [cell for cell in source["cells"] if _key(cell) not in keys]
    if not fresh:
        return target
    tunings = [content.get("tuning", {}) for content in (target, source)]
    profiles = [content["profile"] or "none" for content in (target, source)]
    for differ, what in (
        (profiles[0] != profiles[1], f"its runs are of different profiles ({' and '.join(profiles)})"),
        (target.get("searches_for") != source.get("searches_for"), "only one is a search"),
        (tunings[0].get("tune") != tunings[1].get("tune"), "its settings were searched in different ways"),
    ):
        if differ:
            raise UserError(
                f"suite {target['suite']}: {what}; merge into another folder, or run one of them with --name"
            )
    pooled = {**target, "cells": [*target["cells"], *fresh]}
    if tunings[0]:
        before = len(tunings[0]["searches"])
        fresh = [{**cell, "search": cell["search"] + before} if "search" in cell else cell for cell in fresh]
        searches = [*tunings[0]["searches"], *tunings[1]["searches"]]
        pooled |= {"cells": [*target["cells"], *fresh], "tuning": {**tunings[0], "searches": searches}}
    return pooled


def _key(cell: Mapping[str, Any]) -> str:
    """Return the key of a cell: the run's id, or the settings of a skipped combination."""
    return str(cell["id"] or json.dumps(cell["spec"], sort_keys=True))
