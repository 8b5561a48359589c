"""Command ``recommend``: what to take within bounds, by one's own runs, a published table, or the references."""

from __future__ import annotations

import argparse
import json

from harness.cli.console import log, out, print_rows
from harness.cli.options import SHAPE
from harness.cli.report import ranked
from harness.config.conditions import Condition, read_conditions
from harness.config.yaml import read
from harness.core.errors import UserError
from harness.report.data.evidence import Evidence
from harness.report.data.published import published_leaderboard
from harness.report.data.recommendation import Recommendation, recommend
from harness.report.data.references import ReferenceAnswer, Shape, ask_references, references
from harness.report.tables import nearest, rated_rows, recommendation
from harness.report.tables.pilot import pilot
from harness.storage.files import output


def recommend_command(args: argparse.Namespace) -> int:
    """Print what satisfies the bounds; return 1 if nothing does."""
    described = [name for name in (*SHAPE, "pilot") if getattr(args, name) is not None]
    if args.dir is not None and described:
        raise UserError(f"--{described[0]} is for answers from the references; leave out {args.dir}")
    if not described:
        return _print_answer(args, recommend(evidence := _evidence(args), _conditions(args, evidence)))
    own = _own_shape(args)
    evidence = Evidence.of_table(references(), args.by, own.clients)
    asked = ask_references(own, evidence, _conditions(args, evidence))
    code = _print_answer(args, asked.recommendation, asked)
    if args.pilot is not None and code == 0:
        with output(args.pilot) as temporary:
            data = args.data and read("--data", args.data)
            temporary.write_text(pilot(asked, data, args.clients), encoding="utf-8")
        log.print(f"wrote {args.pilot}", markup=False)
    return code


def _evidence(args: argparse.Namespace) -> Evidence:
    """Return the rows of a results folder, of a published table, or of all references."""
    if args.dir is None:
        return Evidence.of_table(references(), args.by)
    table = published_leaderboard(args.dir, args.suite)
    if table is None:
        results, spec, frame = ranked(args)
        return Evidence(frame, spec.by, results.cells)
    if args.network or args.device:
        raise UserError(f"--network, --device: need runs, and {args.dir} holds a table only")
    return Evidence.of_table(table, args.by)


def _conditions(args: argparse.Namespace, evidence: Evidence) -> list[Condition]:
    """Return the bounds of all options."""
    conditions = [
        Condition(name, sign, value)
        for name, sign, value in (
            ("epsilon_total", "<=", args.epsilon),
            ("bytes", "<=", args.bytes),
            ("bytes_up", "<=", args.bytes_up),
            ("bytes_down", "<=", args.bytes_down),
            ("worst_client", ">=", args.worst_client),
        )
        if value is not None
    ]
    conditions += read_conditions(args.where, evidence.columns)
    if not conditions:
        raise UserError("recommend: give at least one bound, as --epsilon 2 or --where 'auroc >= 0.8'")
    return conditions


def _own_shape(args: argparse.Namespace) -> Shape:
    """Return the shape of one's own data: what was said of it, and what it says itself."""
    shape = Shape(args.clients, args.samples, args.skew)
    if args.data is None:
        return shape
    from harness.report.data.own_shape import (
        shape_of_data,
    )  # imports torch, which reading results does not need

    measured = shape_of_data(read("--data", args.data), args.clients)
    return Shape(
        *(given if given is not None else found for given, found in zip(shape, measured, strict=True))
    )


def _print_answer(
    args: argparse.Namespace, answer: Recommendation, asked: ReferenceAnswer | None = None
) -> int:
    """Print sentences, then a table, then notes; or all as JSON."""
    rows = rated_rows.recommendation_rows(answer)
    said = recommendation.sentences(answer) if asked is None else nearest.sentences(asked)
    said = [*said, *recommendation.warnings(answer)]
    below = recommendation.notes(answer)
    if args.json:
        content = {"found": rows, "said": [*said, *below]}
        content |= {} if asked is None else {"nearest": nearest.nearest_rows(asked)}
        print(json.dumps(content, indent=1, default=str))
        return 0 if rows else 1
    for text in said:
        out.print(text, markup=False, soft_wrap=False)
    if rows:
        shown = rated_rows.readable_rows(answer)
        print_rows(shown, rated_rows.table_title(answer, len(shown)), ("model for", "protection", "clients"))
    for text in below:
        out.print(text, markup=False, soft_wrap=False)
    return 0 if rows else 1
