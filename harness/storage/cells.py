"""Cells of CSV files, which people open in spreadsheets.

A spreadsheet takes text that begins with one of `FORMULAS` for a formula and carries it out, also where others have
chosen the text, as names of clients. Such text gets an apostrophe in front, and so does text that begins with
apostrophes and then one of these, so that `as_given` returns what was there. Numbers stay numbers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import IO, Any

FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001 # the wide ones are read alike


def inert(cell: Any) -> Any:
    """Return a cell that no spreadsheet carries out."""
    if not isinstance(cell, str) or not cell.lstrip("'").startswith(FORMULAS):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def as_given(text: str) -> str:
    """Return the text of which `inert` has made this."""
    return text[1:] if text.startswith("'") and text.lstrip("'").startswith(FORMULAS) else text


class Quoting:
    r"""A file for writers of CSV that end rows by ``\r\n``; its own rows end by ``\n``.

    Such writers put cells with ``\r`` in quotes. Others do not, and what follows it would begin a row.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, row: str) -> int:
        """Write one row."""
        return self._file.write(row.removesuffix("\r\n") + "\n")


def write_rows(file: IO[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write rows as CSV, without formulas; floats have the digits that read back exactly."""
    csv.writer(Quoting(file), lineterminator="\r\n").writerows([inert(cell) for cell in row] for row in rows)


def as_csv(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV, see `write_rows`."""
    text = io.StringIO()
    write_rows(text, rows)
    return text.getvalue()


def from_csv(text: str) -> list[list[str]]:
    """Return the rows of CSV, as they were given to `as_csv`."""
    return [[as_given(cell) for cell in row] for row in csv.reader(io.StringIO(text, newline=""))]
