"""The command ``references``: writes the table of references that comes with the harness.

The leaderboards below ``results/reference`` are in a checkout only, and are too large to install.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from datasets.catalog import CATALOG
from datasets.counting import count
from datasets.errors import DataError
from harness.cli.console import out
from harness.config.recorded import BUILT_IN
from harness.config.run import read_spec
from harness.config.yaml import read
from harness.core.units import counted, size
from harness.report.data.evidence import Federation, Row, rows_of
from harness.report.data.leaderboard import typed
from harness.report.data.published import published_leaderboard
from harness.report.data.references import PATH, Shape
from harness.report.data.specs import dotted, in_text, settings_of
from harness.simulation.federations import make_federation
from harness.storage.cells import as_csv
from harness.storage.files import output
from studies.results.boards import COMPLETED_BY, newest

SUITES = ("natural", "persons", "frontier", "privacy-compression")
FOLDER = Path(__file__).parents[1] / "results" / "reference"
#: Columns that recommendations are made of.
COLUMNS = (
    *(
        "suite",
        "dataset",
        "partition",
        "problem",
        "model",
        "algorithm",
        "settings",
        "rounds",
        "clients",
        "done",
    ),
    *(
        "failed",
        "dp_unit",
        "dp_placement",
        "dp_mechanism",
        "noise_cohort",
        "epsilon_asked",
        "epsilon_total",
        "delta",
    ),
    *("clip", "alpha", "beta", "codec", "bytes_up", "bytes_down", "bytes_relative", "model_for"),
    *(
        "auroc_mean",
        "auroc_std",
        "auroc_clients_mean",
        "auroc_clients_std",
        "accuracy_mean",
        "accuracy_std",
        "eqopp_mean",
        "eqopp_std",
    ),
    *("worst_client_mean", "worst_client_std", "worst_auroc_mean", "worst_auroc_std"),
    *("ranked_by", "baseline", "tuned", "procedure_low", "procedure_high", "paired_difference", "paired_low"),
    *("paired_high", "paired_procedure_low", "paired_procedure_high", "task", "cell"),
)
FACTS = ("samples_per_client", "label_skew")
DIGITS = 5


def references_options(to: argparse.ArgumentParser) -> None:
    """Add the options."""
    to.add_argument(
        "--out", type=Path, default=PATH, metavar="FILE", help="write here (default: the package's)"
    )


def references_command(args: argparse.Namespace) -> int:
    """Write the table."""
    frame = leaderboards()
    shapes = {federation: shape_of(row) for federation, row in federations(frame).items()}
    text = table(frame, shapes.__getitem__)
    with output(args.out) as temporary:
        temporary.write_bytes(packed := gzip.compress(text.encode(), mtime=0))
    out.print(
        f"wrote {args.out}: {counted(text.count(chr(10)) - 1, 'row')}, {counted(len(shapes), 'federation')}, "
        f"{size(len(packed))}",
        markup=False,
    )
    return 0


def leaderboards() -> pd.DataFrame:
    """Return the rows of the committed leaderboards whose intervals cover the search, without controls."""
    frames = [_newest(suite) for suite in SUITES]
    frame = pd.concat([part.astype(object) for part in frames], ignore_index=True)
    promises = frame["dp_unit"].isna() | (frame["epsilon_total"].astype(float) < math.inf)
    frame = frame[frame["procedure_low"].notna() & promises]
    return typed(frame.reset_index(drop=True))


def _newest(suite: str) -> pd.DataFrame:
    """Return the rows of a suite, of which some may be in further folders."""
    tables = [published_leaderboard(FOLDER, folder) for folder in (suite, *COMPLETED_BY.get(suite, ()))]
    return newest([table.astype(object) for table in tables if table is not None])


def federations(frame: pd.DataFrame) -> dict[Federation, Row]:
    """Return a row of every federation."""
    rows: dict[Federation, Row] = {}
    for row in rows_of(frame):
        rows.setdefault(Federation.of(row), row)
    return rows


def table(frame: pd.DataFrame, shape: Callable[[Federation], Shape]) -> str:
    """Return the table as CSV, given the shape of every federation."""
    rows: list[list[Any]] = [[*COLUMNS, *FACTS]]
    for row in rows_of(frame):
        facts = shape(Federation.of(row))
        texts = {**row, "settings": _settings(row), **dict(zip(FACTS, facts[1:], strict=True))}
        rows.append([_short(texts.get(name)) for name in (*COLUMNS, *FACTS)])
    return as_csv(rows)


def shape_of(row: Row) -> Shape:
    """Return the shape of the federation of a row: of its data, or by the catalog if they are not here."""
    try:
        federation = make_federation(read_spec(_spec(row)))
    except DataError:
        samples = CATALOG[row["dataset"]].size.split()[0].replace(",", "")
        return Shape(row["clients"], int(samples) / row["clients"])
    assert federation is not None
    return Shape.of(count(federation))


def _spec(row: Row) -> dict[str, Any]:
    """Return a run file of a row's data: its spec, or in tables of earlier versions by its texts."""
    if row.get("spec"):
        whole = json.loads(row["spec"])
        return {name: whole[name] for name in ("data", "partition")} | {
            "algorithm": "fedavg",
            "model": "logistic",
        }
    kind, _, inside = row["partition"].partition("(")
    settings = read("partition", "{" + inside.rstrip(")").replace("=", ": ") + "}")
    clients = {} if kind == "natural" else {"clients": row["clients"]}
    return {
        "data": row["dataset"],
        "partition": {"kind": kind, **settings, **clients},
        "algorithm": "fedavg",
        "model": "logistic",
    }


def _settings(row: Mapping[str, Any]) -> str:
    """Return the settings of a row that are not at their defaults; those of its model and problem all."""
    usual = BUILT_IN["algorithm"].get(row["algorithm"], {}).get("defaults", {})
    kept = {
        name: text
        for name, text in settings_of(row).items()
        if not name.startswith(("privacy.", "precision"))
        and (name not in usual or usual[name] is None or in_text(name, usual[name]) != text)
    }
    spec = json.loads(row.get("spec") or "{}")
    for section in ("model", "problem"):
        part = spec.get(section)
        for name, value in dotted(part) if isinstance(part, dict) else ():
            if name not in ("name", "kind"):
                kept.setdefault(f"{section}.{name}", in_text(name, value))
    return " ".join(f"{name}={text}" for name, text in kept.items())


def _short(value: Any) -> Any:
    """Return a number with `DIGITS` digits; counts and texts as they are."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
