"""Conversion of command-line arguments into specs and execution options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from harness.cli.options import NUMBERS, SECTIONS
from harness.config.run import RunSpec, read_spec
from harness.config.suite import Suite, checked_name, make_suite, read_suite
from harness.config.sweep import assign, distinct
from harness.config.yaml import cut, mapping, read, read_yaml
from harness.core.registry import UserError
from harness.simulation.setup import Execution

MOST_WORKERS = 1_000  # threads or processes; torch dies of a hundred thousand


def given_spec(given: argparse.Namespace) -> RunSpec:
    """Return the run spec of file and options."""
    content = given_content(given)
    if "algorithm" not in content:
        raise UserError("algorithm: missing; name one with --algorithm, or a run file with --spec")
    spec = read_spec(content)
    return spec.protected(**_protection(given))


def given_content(given: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a run in file and options."""
    content: dict[str, Any] = read_yaml(given.spec) if given.spec else {}
    if content.keys() >= {"id", "spec"}:  # the spec.json of a run
        content = dict(mapping("spec", content["spec"]))
    for name in SECTIONS:
        if getattr(given, name) is not None:
            content[name] = parsed(getattr(given, name))
    for name in NUMBERS:
        value = getattr(given, name.replace("-", "_"))
        if value is not None:
            content[name.replace("-", "_")] = value
    if given.precision is not None:
        content["precision"] = given.precision
    for path, value in pairs("--set", given.set).items():
        assign(content, path, value)
    if given.clients is not None:
        assign(content, "partition.clients", given.clients)
    if "data" in content and not given.spec:
        content.setdefault("model", "logistic")
        content.setdefault("partition", "iid")
        part = content["partition"]
        part = {"kind": part} if isinstance(part, str) else dict(mapping("partition", part))
        content["partition"] = part
        part.setdefault("kind", "iid")
        if part["kind"] not in ("natural", "sensitive"):
            part.setdefault("clients", 10)
    return content


def given_suite(given: argparse.Namespace) -> Suite:
    """Return the runs of a suite, or of a sweep over one run."""
    lists = pairs("--sweep", given.sweep, listed=True)
    over = pairs("--random", given.random)
    if over:
        lists["random"] = {"draws": 10 if given.draws is None else given.draws, "over": over}
    elif given.draws is not None:
        raise UserError("--draws needs --random KEY=..., the field to draw")
    if getattr(given, "suite", None):
        if extra := describing(given):
            raise UserError(
                f"--{extra[0]} belongs to a single run; --sweep KEY=VALUE changes suite {given.suite}"
            )
        chosen = read_suite(given.suite, given.profile, lists)
    else:
        name, title = given.name or "sweep", "; ".join([*given.sweep, *given.random])
        content = {"suite": name, "base": given_content(given), "sweep": lists}
        chosen = make_suite(content | ({"title": title} if title else {}), profile="")
    chosen = replace(chosen, name=checked_name(given.name)) if given.name else chosen
    if chosen_privacy := _protection(given):
        cells = (
            replace(cell, spec=cell.spec and cell.spec.protected(**chosen_privacy))
            for cell in chosen.combinations
        )
        chosen = replace(chosen, combinations=distinct(cells))
    return chosen


def describing(given: argparse.Namespace) -> list[str]:
    """Return the options that are given and describe a single run."""
    names = ("spec", *SECTIONS, "clients", *NUMBERS, "precision", "set")
    return [name for name in names if getattr(given, name.replace("-", "_"), None) not in (None, [])]


def _protection(given: argparse.Namespace) -> dict[str, bool]:
    """Return the settings of privacy that options switch on."""
    return {name: True for name in ("strict", "secure_rng") if getattr(given, name)}


def pairs(option: str, items: Sequence[str], listed: bool = False) -> dict[str, Any]:
    """Read several ``KEY=VALUE`` with distinct keys."""
    found: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise UserError(f"{option} needs KEY=VALUE{',...' if listed else ''}, given {item!r}")
        if key in found:
            raise UserError(f"{option} {key} is given twice")
        found[key] = parsed(f"[{text}]" if listed else text)
    return found


def one_thread() -> None:
    """Limit torch to one thread; more only on request, as threads that share a busy core are slow."""
    torch.set_num_threads(1)


def given_execution(given: argparse.Namespace) -> Execution:
    """Return the execution options, and set this process's torch threads."""
    for name in ("threads", "jobs"):
        count = getattr(given, name, None)
        if count is not None and not 1 <= count <= MOST_WORKERS:
            raise UserError(f"--{name} must be from 1 to {MOST_WORKERS:,}, given {count}")
    torch.set_num_threads(given.threads)
    stack = getattr(given, "stack", None)
    diagnostics = getattr(given, "diagnostics", False)
    code = getattr(given, "noise_code", None)
    return Execution(given.device, given.vectorize, given.threads, stack, diagnostics, noise_code=code)


def parsed(text: str) -> Any:
    """Parse a value as YAML."""
    return read(repr(cut(text)), text)
