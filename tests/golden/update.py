"""Final numbers of every algorithm on a small task; `python -m tests.golden.update [NAME...]` writes them anew."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import torch

import algorithms
from harness.check import run, task
from harness.core import ALGORITHMS

FILE = Path(__file__).with_name("golden.csv")
ROUNDS = 5


def figures(name: str) -> dict[str, str]:
    """Return an algorithm's version and the norm of every part of its state after a few rounds."""
    cls = ALGORITHMS[name]
    problem, federation = task(cls.meta.solves[0])
    if cls.meta.pooled:
        federation = federation.merged()
    state = run(cls(local_steps=cls.meta.steps or 3, batch_size=4), (problem, federation), rounds=ROUNDS)
    norms = (
        f"{field}={float(part.double().norm()):.9g}" for field, part in zip(state._fields, state, strict=True)
    )
    return {"algorithm": name, "version": str(cls.meta.version), "norms": " ".join(norms)}


def read() -> dict[str, dict[str, str]]:
    """Return the kept rows by algorithm."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return {row["algorithm"]: row for row in csv.DictReader(file)}


def write(names: list[str]) -> None:
    """Make the rows of these algorithms anew and keep the others."""
    rows = read() if FILE.exists() else {}
    rows = {name: row for name, row in rows.items() if name in ALGORITHMS}
    rows |= {name: figures(name) for name in names}
    with FILE.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ["algorithm", "version", "norms"], lineterminator="\n")
        table.writeheader()
        table.writerows(rows[name] for name in sorted(rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    algorithms.load()
    write(sys.argv[1:] or list(ALGORITHMS))
