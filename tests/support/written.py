"""What runs leave in a results folder, and waiting until it is there."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def written(root: Path) -> dict[str, Any]:
    """Return the content of the files of all runs, without timings: what must not depend on who computes them."""
    found = {}
    for path in sorted(root.glob("runs/*/*.json*")):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        found[str(path.relative_to(root))] = [untimed(json.loads(line)) for line in lines]
    return found


def untimed(value: Any) -> Any:
    """Return a value without what its mappings, at any depth, say of times."""
    if isinstance(value, dict):
        return {key: untimed(part) for key, part in value.items() if key != "timing"}
    return [untimed(part) for part in value] if isinstance(value, list) else value


def saved(root: Path, count: int) -> Callable[[], bool]:
    """Return a condition: at least `count` runs have a checkpoint."""
    return lambda: len(list(root.glob("runs/*/checkpoint.pt"))) >= count


def wait_for(condition: Callable[[], object], seconds: float = 90) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.02)


def blank(figure: Any, path: str | Path, **given: Any) -> None:
    """Write a picture that shows nothing, in place of ``Figure.savefig``."""
    Path(path).write_text('<svg width="1pt" height="1pt"/>')


def texts_in(path: Path) -> list[str]:
    """Return what an SVG writes: matplotlib notes the text of each group of glyphs in a comment."""
    return re.findall(r"<!-- (.*?) -->", path.read_text())
