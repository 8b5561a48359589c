"""Rows of leaderboards as CSV files hold them: which runs each is a mean of, and its figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.core.errors import UserError, unknown
from harness.report.data.columns import LEADERBOARD, describe
from harness.report.data.leaderboard import is_of_runs, typed
from harness.storage.cells import from_csv

#: Columns without which nobody can say how to repeat a row.
NEEDED = ("cell", "spec", "seed_list", "data_digest", "versions", "noise_code")
#: Columns without which a table is no leaderboard.
NAMING = ("algorithm", "task", "cell")
FILE = "leaderboard.csv"


@dataclass(frozen=True)
class PublishedRow:
    """A row of a leaderboard that was written to a file.

    Attributes
    ----------
    settings : dict
        Spec of its runs without the seed, and without settings at their defaults.
    seeds : tuple of int
        Seeds of its runs.
    versions : dict
        Versions of the code that made them, as `harness.config.recorded.versions`.
    codes : dict
        Seed -> digest of the code that keys the noise of its run; empty where none is recorded.
    fields : dict
        Column -> text of the field.
    """

    settings: dict[str, Any]
    seeds: tuple[int, ...]
    versions: dict[str, Any]
    codes: dict[int, str]
    fields: dict[str, str]

    @property
    def figures(self) -> dict[str, float | int | str]:
        """The fields that come out again whenever its runs are made again, without empty ones."""
        return figures(self.fields)


def figures(fields: Mapping[str, str]) -> dict[str, float | int | str]:
    """Return the fields of a row that follow from its runs alone, as numbers where they are; see `is_of_runs`."""
    return {name: _number(text) for name, text in fields.items() if text and is_of_runs(name)}


def read_row(path: Path, cell: str) -> PublishedRow:
    """Read a row of a leaderboard in CSV, which `harness.report.tables.write.csv_text` writes.

    Parameters
    ----------
    path : Path
        The file.
    cell : str
        The field of the row in column ``cell``.

    Raises
    ------
    UserError
        If the file has no such row, or its rows do not say how to repeat them.
    """
    rows = read_fields(_text(path))
    lacking = [name for name in NEEDED if name not in (rows[0] if rows else {})]
    if lacking:
        raise UserError(
            f"{path}: its rows do not say how to repeat them, as it has no column {lacking[0]}; an earlier version "
            "wrote it, or it has only some of a leaderboard's columns"
        )
    found = next((row for row in rows if row["cell"] == cell), None)
    if found is None:
        raise unknown(f"cell of {path}", cell, [row["cell"] for row in rows])
    try:
        seeds = tuple(map(int, found["seed_list"].split()))
        settings, versions = json.loads(found["spec"]), json.loads(found["versions"] or "{}")
    except ValueError:
        settings, versions, seeds = None, None, ()
    if not isinstance(settings, dict) or not isinstance(versions, dict) or not seeds:
        raise UserError(f"{path}: cell {cell} has no valid settings, versions or seeds")
    return PublishedRow(settings, seeds, versions, _codes(path, found, seeds), found)


def published_leaderboard(place: Path, suite: str | None = None) -> pd.DataFrame | None:
    """Return the leaderboard that a place publishes as CSV; None if it is a folder that holds runs, or nothing.

    It has the columns and types of `harness.report.data.leaderboard.leaderboard`; those that earlier versions lack
    are empty.

    Parameters
    ----------
    place : Path
        The file itself, its folder, or a folder of such folders.
    suite : str, optional
        Name of the folder, or suite of the rows.

    Raises
    ------
    UserError
        If there are several tables and no suite says which, the table is no leaderboard, or it has no row of the
        suite.
    """
    if place.is_file():
        return _of_suite(leaderboard_of(_text(place), place), suite, place)
    if not place.is_dir() or (place / "runs").exists():
        return None
    if suite is not None and (table := place / suite / FILE).is_file():
        return leaderboard_of(_text(table), table)
    if (table := place / FILE).is_file():
        return _of_suite(leaderboard_of(_text(table), table), suite, table)
    tables = sorted(path.parent.name for path in place.glob(f"*/{FILE}"))
    if not tables:
        return None
    if suite is not None:
        raise unknown("suite", suite, tables)
    raise UserError(f"{place} holds no runs, and several tables; choose one: --suite {' or '.join(tables)}")


def _of_suite(frame: pd.DataFrame, suite: str | None, path: Path) -> pd.DataFrame:
    if suite is None:
        return frame
    if suite not in (suites := frame["suite"].dropna().unique().tolist()):
        raise unknown(f"suite of {path}", suite, suites)
    return frame[frame["suite"] == suite].reset_index(drop=True)


def leaderboard_of(text: str, path: Path) -> pd.DataFrame:
    """Return a leaderboard in CSV with the types of its columns; the path is for errors."""
    head, *rows = from_csv(text) or [[]]
    lacking = [name for name in NAMING if name not in head]
    if lacking:
        raise UserError(f"{path} is no leaderboard in CSV: it has no column {lacking[0]}")
    if not rows or any(len(row) != len(head) for row in rows):
        raise UserError(f"{path}: its rows are damaged, or it has none")
    columns = {
        name: [_field(name, text) for text in texts]
        for name, texts in zip(head, zip(*rows, strict=True), strict=True)
    }
    names = [*LEADERBOARD, *(name for name in head if name not in LEADERBOARD)]
    return typed(pd.DataFrame(columns, dtype=object).reindex(columns=names).astype(object))


def _field(name: str, text: str) -> Any:
    """Return a field with the type of its column; None for an empty one."""
    if not text:
        return None
    column = describe(name)
    kind = "number" if column is None else column.kind
    if kind == "text":
        return text
    if kind == "flag":
        return text == "True"
    return _number(text)


def read_fields(text: str) -> list[dict[str, str]]:
    """Return the rows of a leaderboard in CSV, column -> text of the field."""
    head, *rows = from_csv(text) or [[]]
    return [dict(zip(head, row, strict=False)) for row in rows]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path}: a leaderboard in CSV, which is text in UTF-8") from None


def _codes(path: Path, fields: Mapping[str, str], seeds: tuple[int, ...]) -> dict[int, str]:
    """Return the digest of the code of every seed: one stands for all."""
    codes = fields["noise_code"].split()
    if len(codes) not in (0, 1, len(seeds)):
        raise UserError(
            f"{path}: the runs of cell {fields['cell']} have the noise of several codes, and the row does not say "
            "which run has which"
        )
    return dict(zip(seeds, codes * len(seeds) if len(codes) < 2 else codes, strict=False))


def _number(text: str) -> float | int | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
