"""Finished runs that travel: results folders, submissions, and submissions whose figures were made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.config.run import read_spec
from harness.executors.scheduler import run_one
from harness.simulation.setup import Execution
from harness.storage import seals
from harness.storage.manifest import MANIFEST, manifest, read_manifest
from harness.storage.store import RunFolder, Store

SPEC: dict[str, Any] = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 4},
    "model": "logistic",
    "algorithm": {"name": "fedavg", "lr": 0.1, "local_steps": 2},
    "rounds": 2,
    "eval_every": 1,
}


def results(root: Path, seeds: int = 3, suite: str = "mine", **fields: Any) -> Store:
    """Make a results folder with a suite of finished runs, the first with predictions."""
    cells = []
    for seed in range(seeds):
        spec = read_spec({**SPEC, **fields, "seed": seed})
        outcome = run_one(spec, root, Execution(), save=["predictions.csv"] if seed == 0 else [])
        assert outcome.status == "done", outcome.reason
        cells.append({"id": outcome.id, "spec": spec.model_dump(mode="json")})
    store = Store(root)
    store.write_suite(suite, {"suite": suite, "profile": "", "cells": cells})
    return store


def forge(run: RunFolder, figure: float = 0.999) -> None:
    """Raise the final accuracy of a run, in all places and with checksums that agree."""
    lines = run.evaluations.all()
    final, seal = seals.read_sealed(run.path / "done.json")
    for each in (lines[-1], final):
        each["metrics"]["accuracy"] = figure
    (run.path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    seal["rounds.jsonl"] = seals.sha256(run.path / "rounds.jsonl")
    seals.write_sealed(run.path / "done.json", final, seal)


def resealed(submission: Path) -> Path:
    """Write the manifest of a submission anew, as whoever forged it would."""
    (submission / MANIFEST).write_text(manifest(submission, read_manifest(submission)))
    return submission
