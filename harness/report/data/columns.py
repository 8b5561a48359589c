"""The columns of all tables that are written, and what each of them means.

``columns.csv`` beside this file has a row for each name. From it come the header of the leaderboard and its types,
``--columns help``, the page docs/columns.md, and titles and descriptions in tables for readers. Columns whose names
follow from others (metrics, settings, versions) are described by `describe`.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.metrics import described, split_measure

Kind = Literal["text", "count", "number", "flag"]
Better = Literal["", "high", "low"]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    name : str
        Its heading in files.
    kind : {"text", "count", "number", "flag"}
        Text; whole number, of which a mean over seeds may be a fraction; number; or truth value.
    unit : str
        Unit, or range of a share; empty if it has none.
    better : {"", "high", "low"}
        Which values are better; empty where neither is.
    title : str
        Its heading in tables for readers; empty if they do not show it.
    meaning : str
        What a field says, in a sentence without a full stop.
    """

    name: str
    kind: Kind
    unit: str
    better: Better
    title: str
    meaning: str

    @property
    def sentence(self) -> str:
        """The meaning with its unit in brackets."""
        return f"{self.meaning} [{self.unit}]" if self.unit else self.meaning


def _read() -> dict[str, dict[str, Column]]:
    """Return the columns of ``columns.csv`` by table and name."""
    tables: dict[str, dict[str, Column]] = {}
    with Path(__file__).with_suffix(".csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            table = tables.setdefault(row.pop("table"), {})
            table[row["name"]] = Column(**row)  # type: ignore[arg-type]
    return tables


#: Table -> name -> column. A name means the same in every table and stands in the first that has it.
TABLES = _read()
COLUMNS = {name: column for table in TABLES.values() for name, column in table.items()}
#: Columns of every leaderboard, in this order.
LEADERBOARD = tuple(TABLES["leaderboard"])
#: Files, or commands, and the tables that their columns are in.
FILES = {
    "leaderboard.csv, `leaderboard --csv`": ("leaderboard", "diagnostic"),
    "`export --csv`, `export --parquet`": ("run", "privacy", "measure"),
    "`plan`": ("plan",),
    "`export --clients`": ("clients",),
    "pivot.csv, chosen.csv, tuned.csv": ("grids",),
    "predictions.csv, `predict --csv`": ("predictions",),
    "claims.csv": ("claims",),
    "curves.csv of a paper": ("curves",),
    "references.csv.gz, which comes with the harness": ("references",),
}
#: Samples or models that a prefix of a measure stands for.
PREFIX_MEANINGS = {
    "selection": "on samples held out to choose settings",
    "train": "on training samples",
    "node": "of the nodes' own models, mean over nodes",
    "worst_node": "of the nodes' own models, lowest",
}
#: Ends of names of statistics over seeds.
OVER_SEEDS = {"mean": "mean over seeds", "std": "sample standard deviation over seeds"}
#: Form of names that follow from others, such a name, the kind of the columns, and their meaning.
PATTERNS: tuple[tuple[str, str, Kind, str], ...] = (
    (r"versions\.(.+)", "versions.NAME", "text", "Version of the code of {}"),
    (r"data\.digest", "data.digest", "text", "SHA-256 of the data"),
    (r"parties\.(.+)", "parties.NAME", "text", "{} of every party, as JSON"),
    (r"(epsilon_\w+|noise_multiplier|releases|composition)\.(.+)", "epsilon_total.PART", "number", "{} of {}"),
    (r"((?:data|partition|problem|model|algorithm|privacy|compression|cohort|topology|attacks)\.\S+)",
     "algorithm.lr", "text", "Setting {} of the run, with its own type; lists as JSON"),
    (r"y_score_(\d+)", "y_score_NAME", "number", "Score of class {}"),
    (r"p\((.*)\)", "p(NAME)", "number", "Probability of class {}"),
)  # fmt: skip
MEASURED = {
    "METRIC": "Metric of an evaluation; `metrics.METRIC` where another column has its name",
    "METRIC_mean": "Its mean over seeds",
    "METRIC_std": "Its sample standard deviation over seeds",
}


def describe(name: str) -> Column | None:
    """Return what a column is, by its name in any table; None for a metric of a plugin that is not loaded."""
    if name in COLUMNS:
        return COLUMNS[name]
    base, _, over = name.rpartition("_")
    if over in OVER_SEEDS and (column := _measure(base)) is not None:
        better = column.better if over == "mean" else "low"
        return replace(column, name=name, better=better, meaning=f"{column.meaning}; {OVER_SEEDS[over]}")
    if (column := _measure(name.removeprefix("metrics."))) is not None:
        return replace(column, name=name)
    for form, _, kind, meaning in PATTERNS:
        if match := re.fullmatch(form, name):
            return Column(name, kind, "", "", "", meaning.format(*match.groups()))
    return None


def _measure(name: str) -> Column | None:
    """Return the column of a measure of an evaluation, from the registry of metrics."""
    metric, (prefix, _) = described(name), split_measure(name)
    if metric is None:
        return TABLES["measure"].get(name)
    better: Better = "high" if metric.direction == "max" else "low"
    where = f", {PREFIX_MEANINGS[prefix]}" if prefix else ""
    return Column(name, "number", metric.scale, better, "", f"{metric.meaning}{where}")


def dictionary() -> str:
    """Return the page docs/columns.md: every column with its kind, unit, direction and meaning."""
    lines = [
        "# Columns of all tables",
        "",
        "The fields of CSV and Parquet files. An empty field does not apply or was not measured; it is "
        "never zero. `make columns` writes this page from `harness/report/data/columns.csv`.",
        "",
    ]
    for file, tables in FILES.items():
        lines += [f"## {file}", "", "| column | kind | unit | better | meaning |"]
        lines += ["| :--- | :--- | :--- | :--- | :--- |"]
        columns = (column for table in tables for column in TABLES[table].values())
        lines += [f"| `{c.name}` | {c.kind} | {c.unit} | {c.better} | {c.meaning} |" for c in columns]
        lines += [""]
    lines += ["## Names that follow from others", "", "| name | meaning |", "| :--- | :--- |"]
    names = MEASURED | {f"{prefix}_METRIC": f"Metric {where}" for prefix, where in PREFIX_MEANINGS.items()}
    names |= {form: meaning.format("NAME", "PART") for _, form, _, meaning in PATTERNS}
    lines += [f"| `{name}` | {meaning} |" for name, meaning in names.items()]
    return "\n".join([*lines, ""])
