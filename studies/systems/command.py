"""Command ``systems``: the epsilon that privacy settings of other systems compose to."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from harness.cli.console import out, print_rows
from harness.cli.epsilon import number
from harness.core.errors import UserError, unknown
from privacy.calculator import MOST_DRAWS
from studies.systems.compositions import Row
from studies.systems.settings import SETTINGS, Evaluation, evaluate

COLUMNS = ("what it composes to", "adjacency", "epsilon", "delta", "by")


def systems_options(to: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    to.add_argument(
        "settings",
        nargs="*",
        metavar="NAME[:KEY=VALUE,...]",
        help="settings of other systems (default: all, at their defaults)",
    )
    to.add_argument("--json", action="store_true", help="print JSON")
    to.add_argument("--markdown", action="store_true", help="print the table of docs/systems.md")


def systems_command(args: argparse.Namespace) -> int:
    """Print the epsilons that settings compose to."""
    try:
        evaluations = [evaluate(*_parse_setting(text)) for text in args.settings or SETTINGS]
    except ValueError as problem:
        raise UserError(f"systems: {problem}") from problem
    if args.json:
        print(json.dumps([evaluation.as_json() for evaluation in evaluations], indent=1))
    elif args.markdown:
        print(markdown(evaluations))
    else:
        for evaluation in evaluations:
            _print(evaluation)
    return 0


def markdown(evaluations: Sequence[Evaluation]) -> str:
    """Return a table of settings, and below it what is known about each."""
    lines = [
        f"| {' | '.join(('setting', 'printed', *COLUMNS))} |",
        "| :-- | --: | :-- | :-- | --: | --: | :-- |",
    ]
    for evaluation in evaluations:
        first = f"`{evaluation.setting.name}`", _printed(evaluation)
        for row in evaluation.rows:
            lines.append(f"| {' | '.join((*first, *_cells(row)))} |")
            first = "", ""
    for evaluation in evaluations:
        setting = evaluation.setting
        links = ", ".join(f"[{source.rsplit('/', 1)[-1]}]({source})" for source in setting.sources)
        lines += [
            "",
            f"### {setting.name}",
            "",
            f"{setting.title}; {_values(evaluation)}. Version: {setting.version}.",
            f"Printed: {_printed(evaluation)}, {setting.meaning}.",
            "",
            setting.why,
            "",
            f"Sources: {links}.",
        ]
    return "\n".join(lines)


def _print(evaluation: Evaluation) -> None:
    setting = evaluation.setting
    out.print(f"{setting.name}: {setting.title}, {setting.version} ({_values(evaluation)})", markup=False)
    out.print(f"Printed: {_printed(evaluation)}, {setting.meaning}", markup=False)
    print_rows([dict(zip(COLUMNS, _cells(row), strict=True)) for row in evaluation.rows], "")
    out.print(f"Why: {setting.why}", markup=False)
    for source in setting.sources:
        out.print(f"  {source}", markup=False)
    out.print("")


def _cells(row: Row) -> tuple[str, ...]:
    return row.what, row.adjacency, number(row.epsilon), f"{row.delta:g}", row.accountant


def _printed(evaluation: Evaluation) -> str:
    return "no epsilon" if evaluation.printed is None else number(evaluation.printed)


def _values(evaluation: Evaluation) -> str:
    return ", ".join(f"{key} {value:g}" for key, value in evaluation.values.items())


def _parse_setting(text: str) -> tuple[str, dict[str, float]]:
    """Return the name and the values of a setting on the command line."""
    name, _, assignments = text.partition(":")
    if name not in SETTINGS:
        raise unknown("setting", name, SETTINGS)
    values = {}
    for part in filter(None, assignments.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in SETTINGS[name].defaults:
            raise unknown(f"value of {name}", key, SETTINGS[name].defaults)
        try:
            values[key] = float(value)
        except ValueError:
            raise UserError(f"systems: {name}: {key}{equals}{value}: not a number") from None
        if key in ("rounds", "epochs", "updates") and values[key] > MOST_DRAWS:
            raise UserError(f"systems: {name}: {key} is at most {MOST_DRAWS:,}; given {value}")
    return name, values
