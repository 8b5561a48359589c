"""Final numbers of every algorithm on a small task, and the defaults of everything that a run may name.

`python -m tests.golden.update NAME...` renews the rows of these algorithms, and all defaults. `--defaults` renews
the defaults alone, `--all` every row.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import torch

import algorithms
from datasets.partition import PARTITIONS
from datasets.topology import TOPOLOGIES
from datasets.vertical import VERTICAL
from harness import models
from harness.config.settings import defaults
from harness.core import ALGORITHMS
from harness.problems import PROBLEMS
from harness.testing.small_tasks import run, task_of

FILE = Path(__file__).with_name("golden.csv")
DEFAULTS = Path(__file__).with_name("defaults.json")
ROUNDS = 5


def figures(name: str) -> dict[str, str]:
    """Return an algorithm's version and the norm of every part of its state after a few rounds."""
    cls = ALGORITHMS[name]
    state = run(cls(local_steps=cls.meta.steps or 3, batch_size=4), task_of(cls), rounds=ROUNDS)
    norms = (
        f"{field}={float(part.double().norm()):.9g}" for field, part in zip(state._fields, state, strict=True)
    )
    return {"algorithm": name, "version": str(cls.meta.version), "norms": " ".join(norms)}


def read() -> dict[str, dict[str, str]]:
    """Return the kept rows by algorithm."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return {row["algorithm"]: row for row in csv.DictReader(file)}


def usual() -> dict[str, dict[str, Any]]:
    """Return version and defaults of every algorithm, problem, partition, topology and model."""
    found = {
        f"algorithm {name}": {
            "version": ALGORITHMS[name].meta.version,
            "defaults": defaults(ALGORITHMS[name]),
        }
        for name in ALGORITHMS
    }
    found |= {
        f"problem {name}": {"version": PROBLEMS[name].version, "defaults": defaults(PROBLEMS[name].settings)}
        for name in PROBLEMS
    }
    found |= {
        f"partition {name}": {"version": cls.version, "defaults": defaults(cls)}
        for name, cls in {**PARTITIONS, **VERTICAL}.items()
    }
    found |= {
        f"topology {name}": {"version": 1, "defaults": defaults(cls)} for name, cls in TOPOLOGIES.items()
    }
    found |= {
        f"model {name}": {"version": 1, "defaults": models.complete(name, {})} for name in models.names()
    }
    content: dict[str, dict[str, Any]] = json.loads(json.dumps(found))
    return content


def moved(kept: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the defaults that changed under an unchanged version: one name would mean two runs."""
    return [
        f"{name}: {setting} was {value!r}, is {found[name]['defaults'][setting]!r}, at version {one['version']}"
        for name, one in kept.items()
        if name in found and found[name]["version"] == one["version"]
        for setting, value in one["defaults"].items()
        if setting in found[name]["defaults"] and found[name]["defaults"][setting] != value
    ]


def write_defaults() -> None:
    """Write all defaults anew; refuse if one of them changed without its version."""
    found = usual()
    wrong = moved(json.loads(DEFAULTS.read_text()), found) if DEFAULTS.exists() else []
    if wrong:
        raise SystemExit("raise the version, or give the setting another name:\n" + "\n".join(wrong))
    DEFAULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


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
    names = sys.argv[1:]
    unknown = [name for name in names if name not in (*ALGORITHMS, "--defaults", "--all")]
    if unknown or not names:
        wrong = f"no algorithm {unknown[0]!r}" if unknown else "what?"
        print(f"error: {wrong}; give names of algorithms, --defaults or --all", file=sys.stderr)
        sys.exit(2)
    write_defaults()
    print(f"wrote {DEFAULTS.name}")
    if rows := list(ALGORITHMS) if "--all" in names else [name for name in names if name in ALGORITHMS]:
        write(rows)
        print(f"wrote {len(rows)} rows of {FILE.name}")
