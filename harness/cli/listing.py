"""Commands ``list``, ``data list`` and ``data fetch``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.cli.console import out, print_rows, show
from harness.config.lists import LISTS

if TYPE_CHECKING:
    from datasets.catalog import Row

Rows = list[dict[str, Any]]


def list_command(given: argparse.Namespace) -> int:
    """List the algorithms, data sets or other parts of one kind."""
    if given.what == "data":
        list_data(given.json)
    else:
        show(LISTS[given.what](), given.json, given.what)
    return 0


def data_command(given: argparse.Namespace) -> int:
    """List or fetch data sets."""
    if given.what == "list":
        list_data(given.json)
    else:
        from datasets.catalog import fetch  # the readers of data sets import torch

        for name in given.names:
            out.print(f"{name}: {fetch(name)}", markup=False)
    return 0


def list_data(as_json: bool) -> None:
    """Print a line for every data set; as JSON also its source, cleaning and what to do to get it."""
    from datasets.catalog import describe  # the readers of data sets import torch

    rows = describe()
    if as_json:
        show([dict(row) for row in rows], as_json, "data sets")
    else:
        print_rows(_data(rows), "data sets", expendable=("licence",))  # a line for each in 80 columns
        out.print(
            "data fetch NAME downloads; --json has sources, cleaning and what to do offline", markup=False
        )


def _data(rows: Sequence[Row]) -> Rows:
    return [
        {
            "name": row["name"],
            "samples": row["size"].rpartition(",")[0] or row["size"],
            "clients": row["clients"],
            "licence": row["licence"],
            "here": "yes" if row["available"] else "no",
        }
        for row in rows
    ]
