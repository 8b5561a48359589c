"""Whole runs over a small data set in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

import harness
from harness.config.run import read_spec
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.setup import Setup
from harness.simulation.simulation import Simulation

MM4 = {
    "kind": "quadratic_minimax",
    "P": [1, -0.5, 0.5, 1],
    "B": [1, 2, 1, 0],
    "Q": [1, 2, 1, 4],
    "c": [2, -2, 1, 3],
    "d": [0, 4, -2, 2],
}
RAW = {"partition": {"kind": "iid", "clients": 7, "standardize": False}}  # without statistics of the data
BL2 = {"kind": "quadratic_bilevel", "A": [2, 4], "B": [2, 4], "b": [0, 4], "t": [3, 1], "rho": 1.0}


def table(folder: Path, count: int = 140) -> Path:
    """Write a small data set with a label and a group."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 4, generator=generator)
    y = (x[:, 0] + x[:, 1] + 0.5 * torch.randn(count, generator=generator) > 0).long()
    group = (x[:, 2] > 0).long()
    lines = ["a,b,c,d,group,label"]
    lines += [
        ",".join(f"{value:.4f}" for value in row) + f",g{g},l{label}"
        for row, g, label in zip(x.tolist(), group.tolist(), y.tolist(), strict=True)
    ]
    path = folder / "data.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def write_yaml(path: Path, content: Any) -> str:
    """Write a run or suite file and return its path as a command takes it."""
    path.write_text(yaml.safe_dump(content))
    return str(path)


def given(data: Path, algorithm: Any = "fedavg", **fields: Any) -> dict[str, Any]:
    """Return a run file's content over that data set: 7 clients, 2 rounds of 2 local steps."""
    if not isinstance(algorithm, dict):
        algorithm = {"name": algorithm, "local_steps": 2, "batch_size": 8}
    return {
        "data": {"name": "csv", "path": str(data), "label": "label", "sensitive": "group"},
        "partition": {"kind": "iid", "clients": 7},
        "model": "logistic",
        "algorithm": algorithm,
        "rounds": 2,
        "eval_every": 2,
        **fields,
    }


def clients_of_a_run(data: Any, model: str, folder: Path) -> list[str]:
    """Run FedAvg for two rounds over natural clients, and return those with results of their own."""
    spec = {"data": data, "partition": "natural", "model": model, "algorithm": "fedavg", "rounds": 2}
    record = harness.run(spec, folder / "results")
    assert record.status == "done", record.reason
    clients: list[str] = record.final["by_client"]["client"]
    return clients


def ready(data: Path, algorithm: Any = "fedavg", **fields: Any) -> Setup:
    """Return such a run, with calibrated noise."""
    return calibrated(prepare(read_spec(given(data, algorithm, **fields))))


def finished(setup: Setup, rounds: int | None = None) -> Simulation:
    """Return a run after its rounds."""
    run = Simulation.from_setup(setup)
    for _ in range(setup.spec.rounds if rounds is None else rounds):
        run.step()
    return run


def with_features(setup: Setup, value: float | Tensor, client: int = 0, split: str = "train") -> Setup:
    """Return the run with other features of one client, and the same noise."""
    federation = setup.federation
    mine = federation.splits[split][client]
    x = federation.pool.x.clone()
    x[mine[mine >= 0]] = value
    return replace(setup, federation=replace(federation, pool=federation.pool._replace(x=x)))
