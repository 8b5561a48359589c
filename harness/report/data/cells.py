"""Cells: the runs that differ in nothing but the seed, and the words that tell one cell from another."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.metrics import described

if TYPE_CHECKING:
    from harness.storage.store import RunRecord

LONGEST_VALUE = 24  # characters; a longer setting (a matrix in YAML) is shown by a short digest
LONGEST_SCHEDULE = 48  # the same of ratios that change from round to round

#: What every partition has; its other fields belong to its kind and are printed with its name.
DEALING = ("kind", "clients", "test", "stratify", "limit", "standardize", "selection")

#: Parts of a spec that are not repeated among the settings: they have a column, or (how often one looks) no effect.
SHOWN = frozenset(
    {
        "seed",
        "rounds",
        "eval_every",
        "data.name",
        "partition.kind",
        "partition.clients",
        "problem.kind",
        "model.name",
        "algorithm.name",
        "privacy.unit",
        "privacy.placement",
        "privacy.clip",
        "privacy.delta",
        "compression.alpha",
        "compression.beta",
        "compression.codec",
    }
)


@dataclass(frozen=True)
class Cell:
    """Runs of one spec, one per seed, in the order of their seeds.

    Attributes
    ----------
    key : str
        Digest of suite, profile and everything of the spec but the seed.
    task : str
        Digest of suite, profile, data, partition and problem: the cells of one task are ranked together.
    records : tuple[RunRecord, ...]
        At least one.
    """

    key: str
    task: str
    records: tuple[RunRecord, ...]

    @property
    def spec(self) -> dict[str, Any]:
        """Spec of the first seed; the others differ in the seed alone."""
        return self.records[0].spec

    @property
    def done(self) -> list[RunRecord]:
        """Finished runs with at least one evaluation: the only ones whose numbers are averaged."""
        return [record for record in self.records if record.status == "done" and record.rounds]

    def values(self, measure: str) -> dict[int, float]:
        """Return seed -> `measure` at the last evaluation, for the finished runs to which it applies."""
        found = {int(record.spec["seed"]): measured(record.rounds[-1], measure) for record in self.done}
        return {seed: value for seed, value in found.items() if value is not None}

    def privacy(self) -> dict[str, Any] | None:
        """Return the privacy statement of the run with the largest epsilon: a row never understates."""
        given = [p for record in self.done if (p := claim(record.rounds[-1])) is not None]
        return max(given, key=lambda p: _infinite_if_none(p.get("epsilon_total")), default=None)


def cells(records: Iterable[RunRecord]) -> list[Cell]:
    """Group records into cells, in an order that does not depend on the order of the records."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(cell_key(record), []).append(record)
    return [
        Cell(key, task_key(runs[0]), tuple(sorted(runs, key=lambda record: int(record.spec["seed"]))))
        for key, runs in sorted(groups.items())
    ]


def cell_key(record: RunRecord) -> str:
    """Return the name of the cell a record belongs to: 12 hexadecimal digits."""
    return digest([record.suite, record.profile, {k: v for k, v in record.spec.items() if k != "seed"}])


def task_key(record: RunRecord) -> str:
    """Return the name of what a record is compared within: 12 hexadecimal digits."""
    spec = record.spec
    return digest(
        [record.suite, record.profile, spec.get("data"), spec.get("partition"), spec.get("problem")]
    )


def digest(value: object) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of the canonical JSON of `value`."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def measured(evaluation: Mapping[str, Any], measure: str) -> float | None:
    """Read one measure from an evaluation; None where it does not apply.

    Besides the metrics: ``bytes_up``, ``bytes_down``, ``bytes`` (their sum), ``flops``, ``oracle_calls``,
    ``round``, ``seconds`` and ``epsilon`` (the total so far). Counts stay integers.
    """
    match measure:
        case "bytes":
            value = evaluation["bytes_up"] + evaluation["bytes_down"]
        case "bytes_up" | "bytes_down" | "flops" | "oracle_calls" | "round":
            value = evaluation.get(measure)
        case "seconds":
            value = (evaluation.get("timing") or {}).get("seconds")
        case "epsilon":
            value = (claim(evaluation) or {}).get("epsilon_total")
        case _:
            value = evaluation["metrics"].get(measure)
    if value is None or math.isnan(value):
        return None
    return value if isinstance(value, int) else float(value)


def claim(evaluation: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the privacy statement of an evaluation, None without one; infinity as the number it is."""
    given = evaluation.get("privacy")
    return given and {name: math.inf if value == "inf" else value for name, value in given.items()}


def better_is_higher(measure: str) -> bool:
    """Return whether larger values of a measure are better."""
    metric = described(measure)
    return metric is not None and metric.direction == "max"


def part_name(part: Mapping[str, Any] | str | None) -> str | None:
    """Return what a part of a spec is called: its ``name``, its ``kind``, or itself if a bare name."""
    if part is None or isinstance(part, str):
        return part
    name = part.get("name", part.get("kind"))
    return None if name is None else str(name)


def partition_text(partition: Mapping[str, Any] | None) -> str | None:
    """Return a partition as ``dirichlet(alpha=0.3)``; the number of clients has a column of its own."""
    if partition is None:
        return None
    own = {name: value for name, value in partition.items() if name not in DEALING}
    inside = ", ".join(f"{k}={v}" for k, v in sorted(flatten(own).items()))
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


def settings(all_cells: Sequence[Cell]) -> dict[str, str]:
    """Return cell key -> the settings that tell it from its neighbors.

    The hyper-parameters of the algorithm always; of the rest of the spec what has no column of its own and
    differs between the cells of the suite, with its dotted name.
    """
    flat = {
        cell.key: {
            name: value
            for name, value in flatten(cell.spec).items()
            if (name not in SHOWN or _changing(cell.spec, name))
            and (not name.startswith("partition.") or name.split(".")[1] in DEALING)
        }
        for cell in all_cells
    }
    suites: dict[str, list[dict[str, str]]] = {}
    for cell in all_cells:
        suites.setdefault(cell.records[0].suite, []).append(flat[cell.key])
    texts = {}
    for cell in all_cells:
        same_suite = suites[cell.records[0].suite]
        own, other = [], []
        for name, value in sorted(flat[cell.key].items()):
            if name.startswith("algorithm."):
                own.append(f"{name.removeprefix('algorithm.')}={value}")
            elif value != "false" and any(_differs(name, value, fields) for fields in same_suite):
                other.append(f"{name}={value}")
        texts[cell.key] = " ".join(own + other)
    return texts


def _changing(spec: Mapping[str, Any], name: str) -> bool:
    """Tell whether a pruning ratio is more than the number that its column shows."""
    section, _, last = name.partition(".")
    return section == "compression" and isinstance((spec.get(section) or {}).get(last), list | tuple)


def _differs(name: str, value: str, fields: Mapping[str, str]) -> bool:
    """Tell whether another cell has another value; a setting of the model, only if it has such a model."""
    return fields.get(name, value if name.startswith("model.") else None) != value


def flatten(spec: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return dotted name -> canonical text without spaces; absent (None) parts are left out."""
    flat: dict[str, str] = {}
    for name, value in spec.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        elif prefix == "compression." and (steps := schedule_text(value)) is not None:
            flat[prefix + name] = steps if len(steps) <= LONGEST_SCHEDULE else f"#{digest(value)[:6]}"
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
            short = text.replace(" ", "_") if len(text) <= LONGEST_VALUE else f"#{digest(value)[:6]}"
            flat[prefix + name] = short
    return flat


def schedule_text(value: object) -> str | None:
    """Return steps ``[[round, ratio], ...]`` as ``0.2@0,0.4@10``, clients' own ratios as ``0.2/0.5@0``."""
    steps = value if isinstance(value, list | tuple) else ()
    pairs = [step for step in steps if isinstance(step, list | tuple) and len(step) == 2]
    if not steps or len(pairs) < len(steps) or not all(isinstance(begin, int) for begin, _ in pairs):
        return None
    return ",".join(f"{_ratio_text(ratio)}@{begin}" for begin, ratio in pairs)


def largest_ratio(ratio: object) -> float | None:
    """Return a pruning ratio as one number: of a schedule, or where every client has its own, the largest."""
    if isinstance(ratio, list | tuple):
        each = [step[1] if isinstance(step, list | tuple) else step for step in ratio]
        return max(found for one in each if (found := largest_ratio(one)) is not None)
    return None if ratio is None else float(ratio)  # type: ignore[arg-type] # a number, as the spec was checked


def _ratio_text(ratio: object) -> str:
    return "/".join(map(_ratio_text, ratio)) if isinstance(ratio, list | tuple) else f"{ratio:g}"


def _infinite_if_none(epsilon: float | None) -> float:
    return math.inf if epsilon is None else float(epsilon)
