"""Final numbers of every algorithm on a small task, and the facts about everything that a run may name.

`python -m tests.golden.update NAME...` renews the rows of these algorithms, and all facts. `--defaults` renews
the facts alone, `--all` every row.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import torch

from harness.config import parts
from harness.config.recorded import BUILT_IN
from harness.core import ALGORITHMS
from harness.core.registry import PLUGGED
from harness.testing.small_tasks import run, task_of

FILE = Path(__file__).with_name("golden.csv")
PARTS = Path(parts.__file__).with_suffix(".json")
ROUNDS = 5

Parts = dict[str, dict[str, dict[str, Any]]]


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


def usual() -> Parts:
    """Return the facts about all built-in parts, by kind and name."""
    found = {
        kind: {
            name: parts.facts(kind, name)
            for name in sorted(things)
            if (kind, name) not in PLUGGED and not _of_tests(things[name])
        }
        for kind, things in parts.KINDS.items()
    }
    content: Parts = json.loads(json.dumps(found))
    return content


def _of_tests(part: Any) -> bool:
    """Whether a test has registered a part in this process."""
    return str(getattr(getattr(part, "defined", part), "__module__", "")).startswith("tests.")


def moved(kept: Parts, found: Parts) -> list[str]:
    """Return the defaults that changed under an unchanged version: one name would mean two runs."""
    return [
        f"{kind} {name}: {setting} was {value!r}, is {real['defaults'][setting]!r}, at version {version}"
        for kind, things in kept.items()
        for name, listed in things.items()
        if (real := found.get(kind, {}).get(name))
        and (version := real.get("version")) == listed.get("version")
        for setting, value in listed.get("defaults", {}).items()
        if setting in real["defaults"] and real["defaults"][setting] != value
    ]


def write_parts() -> None:
    """Write the facts about all built-in parts anew; refuse if a default changed without its version."""
    found = usual()
    if wrong := moved(BUILT_IN, found):
        raise SystemExit("raise the version, or give the setting another name:\n" + "\n".join(wrong))
    PARTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


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
    names = sys.argv[1:]
    unknown = [name for name in names if name not in (*ALGORITHMS, "--defaults", "--all")]
    if unknown or not names:
        wrong = f"no algorithm {unknown[0]!r}" if unknown else "what?"
        print(f"error: {wrong}; give names of algorithms, --defaults or --all", file=sys.stderr)
        sys.exit(2)
    write_parts()
    print(f"wrote {PARTS.name}")
    if rows := list(ALGORITHMS) if "--all" in names else [name for name in names if name in ALGORITHMS]:
        write(rows)
        print(f"wrote {len(rows)} rows of {FILE.name}")
