"""Check by brute force what intervals over searches and seeds cover: ``python -m benchmarks.coverage``.

On each federation of suite natural that is named, five searches for FedAvg's settings are made as in that suite,
for all of its budgets, each with a seed of its own (``tune.seed``) and with ten reported seeds of its own. The
interval of a search should hold the mean figure of the other four.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

import harness
from harness.config.builtin import path_of
from harness.config.yaml import read_yaml

SEARCHES, SEEDS = 5, 10
FEDERATIONS = ("lending", "covid", "stops")
COLUMNS = [
    "dataset",
    "epsilon_asked",
    "search",
    "auroc_mean",
    "procedure_low",
    "procedure_high",
    "others",
    "covered",
]


def one_search(data: str, number: int) -> dict[str, Any]:
    """Return the suite of one search of FedAvg on a federation of suite natural."""
    natural: dict[str, Any] = read_yaml(path_of("natural"))
    part = next(
        part
        for part in natural["sweep"]
        if "privacy" in part and data in [each["name"] for each in part["data"]]
    )
    federation = [each for each in part["data"] if each["name"] == data]
    seeds = list(range(number * SEEDS, (number + 1) * SEEDS))
    tune = {name: value for name, value in natural["tune"].items() if name != "standard_error"}
    return {
        "suite": f"coverage-{data}-{number}",
        "base": natural["base"],
        "sweep": [{**part, "data": federation, "algorithm": ["fedavg"], "seed": seeds}],
        "tune": {**tune, "seed": number},
        "report": {"by": tune["metric"]},
    }


def covered(boards: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of all searches with the mean figure of the others, and whether the interval holds it."""
    groups = boards.groupby(["dataset", "epsilon_asked"], dropna=False)["auroc_mean"]
    others = (groups.transform("sum") - boards["auroc_mean"]) / (groups.transform("count") - 1)
    holds = others.between(boards["procedure_low"], boards["procedure_high"])
    return boards.assign(others=others, covered=holds)[COLUMNS]


def main() -> None:
    """Make the searches, and print the table and how many intervals hold the others' mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "data", nargs="*", help=f"federations of suite natural; default: {', '.join(FEDERATIONS)}"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="results folder; its runs are not repeated"
    )
    parser.add_argument("--jobs", type=int, default=None, help="worker processes; default: one per core")
    parser.add_argument("--csv", type=Path, help="file for the table")
    args = parser.parse_args()
    boards = []
    for data in args.data or FEDERATIONS:
        for number in range(SEARCHES):
            study = harness.suite(one_search(data, number), args.out, profile="", jobs=args.jobs)
            boards.append(study.leaderboard().assign(search=number))
    table = covered(pd.concat(boards))
    if args.csv is not None:
        table.to_csv(args.csv, index=False)
    print(table.to_string(index=False))
    print(f"{table['covered'].sum()} of {len(table)} intervals hold the mean of the other searches")


if __name__ == "__main__":
    main()
