"""Specs as text: names of parts, settings by dotted name, digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from datasets.formats import name_of_file
from harness.storage.store import RunRecord

LONGEST_VALUE = 24  # characters; a longer setting (a matrix in YAML) is shown by a short digest
LONGEST_SCHEDULE = 48  # the same for schedules of ratios

#: Fields of every partition; fields of its kind are printed with its name.
PARTITION_FIELDS = (
    "kind", "clients", "test", "stratify", "limit", "standardize", "selection", "selection_seed",
)  # fmt: skip


def digest(value: object) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of the canonical JSON of `value`."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def part_name(part: Mapping[str, Any] | str | None) -> str | None:
    """Return the name of a part of a spec: its ``name``, its ``kind``, or itself if a bare name."""
    if part is None or isinstance(part, str):
        return part
    name = part.get("name", part.get("kind"))
    return None if name is None else str(name)


def file_name(data: object) -> str | None:
    """Return the name of the user's file that a spec's data are in; None for a data set of the catalog."""
    if not isinstance(data, Mapping):
        return None
    return name_of_file(data.get("name"), data.get("path"), data.get("files"))


def data_name(data: Mapping[str, Any] | str | None) -> str | None:
    """Return the name of a spec's data: the name of the user's file, or of the data set."""
    return file_name(data) or part_name(data)


def data_files(records: Iterable[RunRecord]) -> dict[str, str]:
    """Return digest -> name of the user's file; copies of a file have one name, the first of theirs."""
    names: dict[str, str] = {}
    for record in records:
        if record.digest and (name := file_name(record.spec.get("data"))) is not None:
            names[record.digest] = min(name, names.get(record.digest, name))
    return names


def partition_text(partition: Mapping[str, Any] | None) -> str | None:
    """Return a partition as ``dirichlet(alpha=0.3)``, without the number of clients."""
    if partition is None:
        return None
    arguments = {name: value for name, value in partition.items() if name not in PARTITION_FIELDS}
    inside = ", ".join(f"{k}={v}" for k, v in sorted(flatten(arguments).items()))
    return f"{part_name(partition)}({inside})" if inside else part_name(partition)


def clients(spec: Mapping[str, Any]) -> int | None:
    """Return the number of clients: the partition's, or the rows of the matrices of a quadratic problem."""
    for part in (spec.get("partition"), spec.get("problem")):
        if isinstance(part, Mapping) and part.get("clients") is not None:
            return int(part["clients"])
    problem = spec.get("problem")
    if isinstance(problem, Mapping):
        return next((len(value) for value in problem.values() if isinstance(value, list)), None)
    return None


in_json = json.JSONEncoder(separators=(",", ":"), default=str).encode


def dotted(part: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return dotted names and values of nested mappings, without None."""
    pairs: list[tuple[str, Any]] = []
    for name, value in part.items():
        if isinstance(value, Mapping):
            pairs += dotted(value, f"{prefix}{name}.")
        elif value is not None:
            pairs.append((prefix + name, value))
    return pairs


def flatten(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return dotted name -> canonical text without spaces."""
    return {name: in_text(name, value) for name, value in dotted(spec)}


def settings_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the column ``settings`` of a row by name; settings of the algorithm have no section."""
    return dict(text.partition("=")[::2] for text in (row["settings"] or "").split())


def in_text(name: str, value: Any) -> str:
    """Return the canonical text of a setting, without spaces."""
    if name.startswith("compression.") and (steps := schedule_text(value)) is not None:
        return steps if len(steps) <= LONGEST_SCHEDULE else f"#{digest(value)[:6]}"
    text = value if isinstance(value, str) else in_json(value)
    return text.replace(" ", "_") if len(text) <= LONGEST_VALUE else f"#{digest(value)[:6]}"


def schedule_text(value: object) -> str | None:
    """Return steps ``[[round, ratio], ...]`` as ``0.2@0,0.4@10``, ratios per client as ``0.2/0.5@0``."""
    steps = value if isinstance(value, list | tuple) else ()
    pairs = [step for step in steps if isinstance(step, list | tuple) and len(step) == 2]
    if not steps or len(pairs) < len(steps) or not all(isinstance(begin, int) for begin, _ in pairs):
        return None
    return ",".join(f"{_ratio_text(ratio)}@{begin}" for begin, ratio in pairs)


def largest_ratio(ratio: object) -> float | None:
    """Return a pruning ratio as one number: the largest of a schedule or of the clients'."""
    if isinstance(ratio, list | tuple):
        ratios = [step[1] if isinstance(step, list | tuple) else step for step in ratio]
        return max(largest for part in ratios if (largest := largest_ratio(part)) is not None)
    return None if ratio is None else float(ratio)  # type: ignore[arg-type] # a number, as the spec was checked


def is_compressed(spec: Mapping[str, Any]) -> bool:
    """Return whether a spec asks for messages other than whole ones in floating point."""
    compression = spec.get("compression") or {}
    ratios = any(largest_ratio(compression.get(name)) for name in ("alpha", "beta"))
    return ratios or bool(compression.get("rank")) or is_coded(compression)


def is_coded(compression: Mapping[str, Any]) -> bool:
    """Return whether messages have coarser numbers than the model."""
    return compression.get("codec") not in (None, "float32", "float64")


def _ratio_text(ratio: object) -> str:
    return "/".join(map(_ratio_text, ratio)) if isinstance(ratio, list | tuple) else f"{ratio:g}"
