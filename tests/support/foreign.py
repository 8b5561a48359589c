"""Results folders as somebody else could have written them: sealed, with something in them that no run writes."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.storage import seals
from harness.storage.seals import read_sealed, write_sealed

#: What takes the place of a value; the first removes it.
GONE = object()
VALUES: tuple[Any, ...] = (
    GONE, None, True, -1, 3, 0.5, 1e308, math.inf, math.nan, 10**400, "", "x", "inf", "../x", "/abs",
    "\x1b[31mred\x07",
    "\ud800", "$\\frac{", "<b>\n|", "a" * 5000, [], [None], [[1, 2]], {}, {"name": 3}, {"name": "x"}, [[]] * 40,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value in a JSON value, to itself first."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def mutated(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of a JSON value with something else in one place."""
    made = json.loads(json.dumps(value))
    *before, last = path
    at = made
    for key in before:
        at = at[key]
    if new is GONE:
        del at[last]
    else:
        at[last] = new
    return made


def mutants(root: Path, place: Path, draw: random.Random, count: int) -> Iterator[tuple[str, Path]]:
    """Yield copies of a results folder, each with one mutated value, and what it is; the copy lasts until the next.

    Parameters
    ----------
    root, place : Path
        The folder, whose first run is mutated, and where the copies are.
    draw : random.Random
        Draws the mutations.
    count : int
        How many.
    """
    run = sorted((root / "runs").iterdir())[0].relative_to(root)
    files = ("spec.json", "done.json", "rounds.jsonl")
    suite = next(root.glob("*/suite.json")).relative_to(root)
    kinds = [*(run / name for name in files), suite, Path("store.json")]
    for _ in range(count):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(root, place)
        name, new = draw.choices(kinds, (4, 4, 4, 4, 0.2))[0], draw.choice(VALUES)
        yield f"{name} {_mutate(place, name, new, draw)} = {new!r:.60}", place


def _mutate(root: Path, name: Path, new: Any, draw: random.Random) -> str:
    path = root / name
    if name.name == "rounds.jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        at = draw.choice(list(places(lines)))
        path.write_text("".join(json.dumps(line) + "\n" for line in mutated(lines, at, new)))
    else:
        content, seal = read_sealed(path)
        at = draw.choice(list(places(content)))
        if (
            name.name == "spec.json" and draw.random() < 0.7
        ):  # by other versions, so that its id cannot be checked
            content = {**content, "versions": {**content["versions"], "algorithm": 99}}
        content = mutated(content, at, new)
        if name.name == "store.json" or not isinstance(content.get("timing", {}), dict):
            path.write_text(json.dumps(content))
        else:
            write_sealed(path, content, {key: one for key, one in seal.items() if key != name.name})
    if name.parts[0] == "runs":
        reseal(path.parent)
    return ".".join(map(str, at))


def reseal(run: Path) -> None:
    """Give the end of a run the checksums of its files as they are, if it has a seal."""
    content = json.loads((run / "done.json").read_text())
    seal = content["timing"].pop("seal") if isinstance(content.get("timing"), dict) else {}
    if seals.RUN not in seal:
        return
    now = {key: seals.sha256(run / key) for key in seal if key not in (seals.RUN, "done.json")}
    write_sealed(run / "done.json", content, {seals.RUN: seal[seals.RUN], **now})
