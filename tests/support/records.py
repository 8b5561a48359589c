"""Synthetic run records for the tests of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.storage.store import RunRecord

SOURCE = "adult from a made-up source"
#: What ten seeds are off their mean.
JITTER = (0.001, -0.001, 0.002, -0.002, 0.0015, -0.0015, 0.0005, -0.0005, 0.001, -0.001)


def spec(
    algorithm: str = "fedavg",
    seed: int = 0,
    *,
    lr: float = 0.1,
    own: dict[str, Any] | None = None,
    **parts: Any,
) -> dict[str, Any]:
    """Return a validated spec; `parts` replace whole top-level parts, `own` adds hyper-parameters."""
    whole = {
        "data": {"name": "adult", "path": None, "label": None, "sensitive": None, "options": {}},
        "partition": partition(0.3),
        "problem": {"kind": "classify"},
        "model": {"name": "logistic"},
        "algorithm": {"name": algorithm, "lr": lr, "local_steps": 10} | (own or {}),
        "privacy": None,
        "compression": {"alpha": 0.0, "beta": 0.0, "codec": "float32"},
        "cohort": None,
        "topology": None,
        "rounds": 20,
        "eval_every": 10,
        "seed": seed,
        "precision": "float32",
    }
    return whole | parts


def partition(alpha: float, clients: int = 20) -> dict[str, Any]:
    return {"kind": "dirichlet", "clients": clients, "test": 0.3, "limit": None, "alpha": alpha}


def private(epsilon: float) -> dict[str, Any]:
    """Return the privacy part of a spec that asks for `epsilon` in total."""
    return {"unit": "client", "placement": "local", "epsilon": epsilon, "delta": 1e-5, "clip": 10.0}


def pruned(beta: float) -> dict[str, Any]:
    """Return the compression part of a spec that drops the share `beta` of every message."""
    return {"alpha": 0.0, "beta": beta, "codec": "float32"}


def statement(epsilon: float) -> dict[str, Any]:
    """Return the privacy statement of an evaluation."""
    return {
        "epsilon_nominal": None,
        "epsilon_release": epsilon / 4,
        "epsilon_total": epsilon,
        "delta": 1e-5,
        "noise_multiplier": 3.0,
        "releases": 20,
        "adjacency": "replace-one",
        "sampling": "none",
        "sampling_rate": 1.0,
        "accountant": "gaussian",
        "unit": "client",
        "placement": "local",
        "clip": 10.0,
        "note": None,
    }


def evaluation(
    round: int, size: int = 1000, epsilon: float | None = None, **metrics: float | None
) -> dict[str, Any]:
    """Return one evaluation; `size` bytes have gone up so far and twice as many down."""
    return {
        "round": round,
        "metrics": {"accuracy": None, "worst_client": None, "eqopp": None, "auroc": None} | metrics,
        "bytes_up": size,
        "bytes_down": 2 * size,
        "flops": 10 * size,
        "oracle_calls": 5 * size,
        "privacy": None if epsilon is None else statement(epsilon),
        "timing": {"seconds": round / 10},
    }


def diagnosed(line: dict[str, Any], **diagnostics: float) -> dict[str, Any]:
    """Return an evaluation with the simulator's knowledge of the messages of its round."""
    return line | {"diagnostics": diagnostics}


def done(spec: dict[str, Any], *rounds: dict[str, Any], suite: str = "tiny", **metrics: Any) -> RunRecord:
    """Return a finished run: the evaluations given, or a single one at round 20 with `metrics`."""
    rounds = rounds or (evaluation(20, **metrics),)
    name = f"{spec['algorithm']['name']}{spec['seed']}"
    final = {"public": ["client sizes"], "timing": {"seconds": 2.0, "torch": "2.13.0"}}
    return RunRecord(name, suite, "smoke", spec, "done", None, SOURCE, list(rounds), final)


def undone(spec: dict[str, Any], status: str, reason: str | None = None) -> RunRecord:
    """Return a run that has no final figures."""
    return RunRecord(None if status == "skipped" else "x", "tiny", "smoke", spec, status, reason, "", [])


def searched(
    records: Sequence[RunRecord],
    finalists: Sequence[tuple[float, Sequence[float]]] = (),
    metric: str = "accuracy",
    number: int = 0,
) -> list[RunRecord]:
    """Return the runs of a cell, seed by seed, as those of a search by a surface.

    ``finalists`` are what resampled searches choose besides: share, and the metric of each seed.
    """
    others = [
        {"trial": number, "share": share, "metrics": {str(s): {metric: v} for s, v in enumerate(values)}}
        for number, (share, values) in enumerate(finalists, 1)
    ]
    own = {"trial": 0, "share": 1 - sum(share for share, _ in finalists), "metrics": {}}
    trials = [
        {"settings": {}, "values": [0.5], "tests": [0.5], "seeds": [100]} for _ in range(1 + len(others))
    ]
    tune = {"metric": metric, "sampler": "surface", "repeats": [1, 2, 4], "budget": 24, "finalists": 2}
    search = {"number": number, "paths": [], "chosen": 0, "epsilon": None, "tune": tune, "trials": trials}
    return [replace(record, search={**search, "finalists": [own, *others]}) for record in records]
