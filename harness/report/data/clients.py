"""Results of clients that have names, from all finished runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.report.data.identity import Identity
from harness.report.data.specs import part_name

if TYPE_CHECKING:
    from harness.storage.store import RunRecord

ALONE = "local"  # the algorithm by which every client trains alone
GAINS = ("accuracy", "auroc")
COLUMNS = [
    "id", "suite", "algorithm", "seed", "epsilon_total", "task", "client", "n", "positives", "accuracy", "auroc",
    "loss", *(f"{name}_gain" for name in GAINS),
]  # fmt: skip


def clients_table(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Return one row per finished run and named client.

    Returns
    -------
    pd.DataFrame
        Columns: ``id``, ``suite``, ``algorithm``, ``seed``, ``epsilon_total`` and ``task`` of the run; ``client``,
        ``n``, ``positives``, ``accuracy``, ``auroc`` and ``loss`` on the client's own test samples;
        ``accuracy_gain`` and ``auroc_gain`` over training alone, where the same task and seed have exactly one
        run of `ALONE`. Missing means "does not apply" or "not recorded". Empty if no client has a name.
    """
    rows: list[dict[str, Any]] = []
    alone: dict[tuple[str, object], set[str]] = {}
    for record in records:
        columns = record.final.get("by_client") or {}
        if record.status != "done" or not columns:
            continue
        task, seed, algorithm = (
            Identity(record).task,
            record.spec.get("seed"),
            part_name(record.spec["algorithm"]),
        )
        if algorithm == ALONE:
            alone.setdefault((task, seed), set()).add(str(record.id))
        claim = record.final.get("privacy") or {}
        run = {
            "id": record.id,
            "suite": record.suite,
            "algorithm": algorithm,
            "seed": seed,
            "epsilon_total": claim.get("epsilon_total"),
            "task": task,
        }
        names = list(columns)
        rows += [
            run | dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)
        ]
    single = {key: next(iter(ids)) for key, ids in alone.items() if len(ids) == 1}
    by_itself = {(row["id"], row["client"]): row for row in rows if row["id"] in single.values()}
    for row in rows:
        own = by_itself.get((single.get((row["task"], row["seed"]), ""), row["client"]), {})
        for name in GAINS:
            if row.get(name) is not None and own.get(name) is not None:
                row[f"{name}_gain"] = row[name] - own[name]
    return pd.DataFrame(rows, columns=COLUMNS)
