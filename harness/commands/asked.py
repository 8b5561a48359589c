"""What the options of a command ask for: run specs, cells of a suite, and who computes."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import torch

from harness import suite
from harness.core.registry import UserError
from harness.reading import cut, read
from harness.setup import Execution
from harness.spec import RunSpec, read_spec, read_yaml

SECTIONS = ("algorithm", "data", "partition", "problem", "model", "topology", "cohort")


NUMBERS = ("rounds", "eval-every", "seed")


def given_spec(given: argparse.Namespace) -> RunSpec:
    """Put a spec together from file and options."""
    content: dict[str, Any] = read_yaml(given.spec) if given.spec else {}
    for name in SECTIONS:
        if getattr(given, name) is not None:
            content[name] = parsed(getattr(given, name))
    if isinstance(content.get("cohort"), int):
        content["cohort"] = {"size": content["cohort"]}
    for name in NUMBERS:
        value = getattr(given, name.replace("-", "_"))
        if value is not None:
            content[name.replace("-", "_")] = value
    for item in given.set:
        key, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"--set needs KEY=VALUE, given {item!r}")
        suite.assign(content, key, parsed(value))
    if given.clients is not None:
        suite.assign(content, "partition.clients", given.clients)
    if "data" in content and not given.spec:
        content.setdefault("model", "logistic")
        content.setdefault("partition", "iid")
        part = content["partition"] = dict(_section(content["partition"]))
        part.setdefault("kind", "iid")
        if part["kind"] not in ("natural", "sensitive"):
            part.setdefault("clients", 10)
    if "algorithm" not in content:
        raise UserError("algorithm: missing; name one with --algorithm, or a run file with --spec")
    spec = read_spec(content)
    return spec.strictly() if given.strict else spec


def given_cells(given: argparse.Namespace, cells: tuple[suite.Cell, ...]) -> tuple[suite.Cell, ...]:
    """Return a suite's cells as the options ask for them."""
    if not given.strict:
        return cells
    return tuple(replace(cell, spec=cell.spec and cell.spec.strictly()) for cell in cells)


def given_execution(given: argparse.Namespace) -> Execution:
    """Return who computes, and set this process's torch threads."""
    for name in ("threads", "jobs"):
        count = getattr(given, name, None)
        if count is not None and count < 1:
            raise UserError(f"--{name} must be at least 1, given {count}")
    torch.set_num_threads(given.threads)
    stack = getattr(given, "stack", None)
    return Execution(given.device, given.vectorize, given.threads, given.secure_rng, stack)


def _section(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


def parsed(text: str) -> Any:
    """Read a value as YAML does: numbers, lists, sections."""
    return read(repr(cut(text)), text)
