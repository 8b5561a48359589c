"""Conversion of command-line arguments into specs and execution options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from harness.cli.options import NUMBERS, SECTIONS
from harness.config.run import RunSpec, read_spec
from harness.config.suite import Suite, checked_name, make_suite, read_suite
from harness.config.sweep import assign, distinct
from harness.config.yaml import cut, mapping, read, read_yaml
from harness.core.errors import UserError
from harness.simulation.setup import Execution

MOST_WORKERS = 1_000  # threads or processes; torch dies of a hundred thousand


def spec_from(args: argparse.Namespace) -> RunSpec:
    """Return the run spec of file and options."""
    content = content_from(args)
    if not content.keys() & {"algorithm", "suite"}:
        raise UserError("algorithm: missing; name one with --algorithm, or a run file with --spec")
    spec = read_spec(content)
    return spec.protected(**_protection(args))


def content_from(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a run in file and options."""
    content = _file_content(args.spec) if args.spec else {}
    for name in SECTIONS:
        if getattr(args, name) is not None:
            content[name] = parsed(getattr(args, name))
    for name in NUMBERS:
        value = getattr(args, name.replace("-", "_"))
        if value is not None:
            content[name.replace("-", "_")] = value
    if args.precision is not None:
        content["precision"] = args.precision
    for path, value in pairs("--set", args.set).items():
        assign(content, path, value)
    if args.clients is not None:
        assign(content, "partition.clients", args.clients)
    if "data" in content and not args.spec:
        content.setdefault("model", "logistic")
        content.setdefault("partition", "iid")
        part = content["partition"]
        part = {"kind": part} if isinstance(part, str) else dict(mapping("partition", part))
        content["partition"] = part
        part.setdefault("kind", "iid")
        if part["kind"] not in ("natural", "sensitive"):
            part.setdefault("clients", 10)
    return content


def _file_content(path: Path) -> dict[str, Any]:
    """Return the fields of a run file, of the ``spec.json`` of a run, or of a row of a leaderboard."""
    file, _, cell = str(path).rpartition(":")
    if file.endswith(".csv"):
        from harness.report.data.published import read_row  # reports are slow to import

        return dict(read_row(Path(file).expanduser(), cell).settings)
    if path.suffix == ".csv":
        raise UserError(f"--spec: a row of a leaderboard is FILE.csv:ID, with its column cell; given {path}")
    content: dict[str, Any] = read_yaml(path)
    return dict(mapping("spec", content["spec"])) if content.keys() >= {"id", "spec"} else content


def suite_from(args: argparse.Namespace) -> Suite:
    """Return the runs of a suite, or of a sweep over one run."""
    lists = pairs("--sweep", args.sweep, listed=True)
    over = pairs("--random", args.random)
    if over:
        lists["random"] = {"draws": 10 if args.draws is None else args.draws, "over": over}
    elif args.draws is not None:
        raise UserError("--draws needs --random KEY=..., the field to draw")
    if getattr(args, "suite", None):
        if extra := describing(args):
            raise UserError(
                f"--{extra[0]} belongs to a single run; --sweep KEY=VALUE changes suite {args.suite}"
            )
        chosen = read_suite(args.suite, args.profile, lists)
    else:
        name, title = args.name or "sweep", "; ".join([*args.sweep, *args.random])
        content = {"suite": name, "base": content_from(args), "sweep": lists}
        chosen = make_suite(content | ({"title": title} if title else {}), profile="")
    chosen = replace(chosen, name=checked_name(args.name)) if args.name else chosen
    if chosen_privacy := _protection(args):
        cells = (
            replace(cell, spec=cell.spec and cell.spec.protected(**chosen_privacy))
            for cell in chosen.combinations
        )
        chosen = replace(chosen, combinations=distinct(cells))
    return chosen


def describing(args: argparse.Namespace) -> list[str]:
    """Return the options that are given and describe a single run."""
    names = ("spec", *SECTIONS, "clients", *NUMBERS, "precision", "set")
    return [name for name in names if getattr(args, name.replace("-", "_"), None) not in (None, [])]


def _protection(args: argparse.Namespace) -> dict[str, bool]:
    """Return the settings of privacy that options switch on."""
    return {name: True for name in ("strict", "secure_rng") if getattr(args, name)}


def pairs(option: str, items: Sequence[str], listed: bool = False) -> dict[str, Any]:
    """Read several ``KEY=VALUE`` with distinct keys."""
    values: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise UserError(f"{option} needs KEY=VALUE{',...' if listed else ''}, given {item!r}")
        if key in values:
            raise UserError(f"{option} {key} is given twice")
        values[key] = parsed(f"[{text}]" if listed else text)
    return values


def one_thread() -> None:
    """Limit torch to one thread; more only on request, as threads that share a busy core are slow."""
    torch.set_num_threads(1)


def execution_from(args: argparse.Namespace) -> Execution:
    """Return the execution options, and set this process's torch threads."""
    for name in ("threads", "jobs"):
        count = getattr(args, name, None)
        if count is not None and not 1 <= count <= MOST_WORKERS:
            raise UserError(f"--{name} must be from 1 to {MOST_WORKERS:,}, given {count}")
    torch.set_num_threads(args.threads)
    stack = getattr(args, "stack", None)
    diagnostics = getattr(args, "diagnostics", False)
    code = getattr(args, "noise_code", None)
    return Execution(args.device, args.vectorize, args.threads, stack, diagnostics, noise_code=code)


def parsed(text: str) -> Any:
    """Parse a value as YAML."""
    return read(repr(cut(text)), text)
