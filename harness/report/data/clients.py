"""Results of clients that have names, from all finished runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from harness.report.data.results import Cell, Results, Run
from harness.report.data.specs import part_name
from harness.report.data.tested import seed_pairs

ALONE = "local"  # the algorithm by which every client trains alone
GAINS = ("accuracy", "auroc")
MEASURES = (*GAINS, "loss")  # of clients
COLUMNS = [
    "id", "suite", "algorithm", "seed", "epsilon_total", "task", "client", "n", "positives", *MEASURES,
    "sensitivity_95", *(f"{name}_gain" for name in GAINS),
]  # fmt: skip


def clients_table(results: Results) -> pd.DataFrame:
    """Return one row per finished run and named client.

    Returns
    -------
    pd.DataFrame
        Columns: ``id``, ``suite``, ``algorithm``, ``seed``, ``epsilon_total`` and ``task`` of the run; ``client``,
        ``n``, ``positives``, ``accuracy``, ``auroc``, ``loss`` and ``sensitivity_95`` on its own test samples;
        ``accuracy_gain`` and ``auroc_gain`` over training alone, without privacy if that was run, where the same
        task and seed have exactly one such run of `ALONE`. Missing means "does not apply" or "not recorded". Empty
        if no client has a name.
    """
    table = client_rows(results.runs)
    alone = table[table["algorithm"] == ALONE]
    plain = alone["epsilon_total"].isna()
    needless = ~plain & plain.groupby([alone["task"], alone["seed"]]).transform("any")
    alone = alone[~needless]  # clients that train alone need no noise
    single = alone.groupby(["task", "seed"])["id"].transform("nunique") == 1
    reference = alone[single].set_index(["task", "seed", "client"])[list(GAINS)]
    reference = reference[~reference.index.duplicated()]  # a run of several suites
    baselines = reference.reindex(pd.MultiIndex.from_frame(table[["task", "seed", "client"]]))
    for name in GAINS:
        table[f"{name}_gain"] = table[name].astype("float64") - baselines[name].astype("float64").to_numpy()
    return table


def client_names(final: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of all clients by their numbers, from the end of a run; nothing unless all are recorded."""
    names = (final.get("by_client") or {}).get("client", ())
    return names if len(names) == final.get("clients") else ()


def client_rows(runs: Iterable[Run]) -> pd.DataFrame:
    """Return the table of `clients_table` without gains, for some runs."""
    rows = []
    for record, task in (
        (run.record, run.identity.task) for run in runs if run.record.final.get("by_client")
    ):
        columns = record.final["by_client"]
        facts = {
            "id": record.id,
            "suite": record.suite,
            "algorithm": part_name(record.spec["algorithm"]),
            "seed": record.spec.get("seed"),
            "epsilon_total": (record.final.get("privacy") or {}).get("epsilon_total"),
            "task": task,
        }
        rows += [
            facts | dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
        ]
    return pd.DataFrame(rows, columns=COLUMNS)


def by_seed(cell: Cell, measure: str) -> pd.DataFrame:
    """Return a measure on test samples of clients (rows) by seeds, for clients with a value in every run."""
    table = client_rows(cell.done)
    values = table.pivot(index="client", columns="seed", values=measure).astype("float64")
    return values.reindex(index=table["client"].unique(), columns=[run.seed for run in cell.done]).dropna()


def client_changes(cell: Cell, plain: Cell, measure: str) -> pd.Series[float]:
    """Return by client what a cell has more of a measure than another, over seeds with equal test samples."""
    reference = by_seed(plain, measure)
    same = list(seed_pairs(cell, plain, measure).differences)
    return (by_seed(cell, measure) - reference)[same].mean(axis=1).reindex(reference.index)
