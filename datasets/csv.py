"""CSV files with a header: numbers are kept, text is one-hot encoded, one column is the label."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

import numpy as np

from datasets.dataset import DataError, Dataset, nearest
from datasets.encoding import LARGEST, MISSING_CATEGORY, Cells, encoded

if TYPE_CHECKING:
    import pandas as pd

VERSION = 2  # in the identity of runs; raise it when the same file gives other numbers
MISSING_MARKS = ("", "?", "NA", "NaN", "nan")
MISSING = ("error", "drop", "fill")

# Query keys of an address ``csv:PATH?KEY=VALUE&...``.
ADDRESS_KEYS = ("label", "sensitive", "client", "user", "keep_sensitive", "missing", "drop")


def parse_address(address: str) -> tuple[str, dict[str, str | bool | list[str]]]:
    """Split ``csv:PATH?label=..&sensitive=..`` into the path and its options.

    A repeated key gives a list. Special characters are percent-encoded (``%26``, ``%3F``).
    """
    path, _, query = address.removeprefix("csv:").partition("?")
    options: dict[str, str | bool | list[str]] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        if key not in ADDRESS_KEYS or not equals:
            raise DataError(f"{address!r}: {part!r} is not KEY=VALUE; {nearest(key, ADDRESS_KEYS)}")
        value = unquote(value)
        if key == "keep_sensitive":
            if value not in ("true", "false"):
                raise DataError(f"{address!r}: keep_sensitive is {value!r}; allowed: true, false")
            options[key] = value == "true"
        elif key not in options:
            options[key] = value
        elif key in ("sensitive", "drop"):
            before = options[key]
            options[key] = [*(before if isinstance(before, list) else [str(before)]), value]
        else:
            raise DataError(f"{address!r}: {key} is given twice")
    return unquote(path), options


def read_csv(
    path: Path,
    *,
    label: str | None = None,
    sensitive: str | Sequence[str] | None = None,
    client: str = "",
    user: str = "",
    keep_sensitive: bool = True,
    missing: str = "error",
    drop: str | Sequence[str] = (),
    task: Literal["classification", "regression"] = "classification",
) -> Dataset:
    """Read a CSV file (UTF-8; comma, semicolon or tab) with a header line.

    Parameters
    ----------
    path : Path
        The file.
    label : str
        Column of the label; its two or more values, sorted, become the classes, or it has numbers.
    sensitive : str or sequence of str, optional
        Column of the sensitive attribute; several are crossed.
    client : str
        Column that says who holds a sample, for the partition ``natural``; it is no feature.
    user : str
        Column that names the user of a sample, for privacy of users inside clients; it is no feature.
    keep_sensitive : bool
        Whether sensitive columns remain features.
    missing : {"error", "drop", "fill"}
        Treatment of empty cells (also ``?``, ``NA``, ``NaN``): refuse the file, drop the rows, or fill with the
        column's mean over all rows, which counts as public (numbers), or a separate category (text). A missing
        label, or user, is never filled.
    drop : str or sequence of str
        Columns to leave out, such as identifiers.
    task : {"classification", "regression"}
        Whether the label's values are classes or numbers.

    Raises
    ------
    DataError
        If the file or the choice of columns is unusable.
    """
    path = path.expanduser()
    if missing not in MISSING:
        raise DataError(f"missing={missing!r} is unknown; {nearest(missing, MISSING)}")
    raw, text = _read(path)
    attributes, dropped = _names(sensitive), _names(drop)
    if label is None:
        raise DataError(f"{path}: say which column is the label; {nearest('', text)}")
    for column in (label, *attributes, *dropped, *filter(None, (client, user))):
        if column not in text:
            raise DataError(f"{path} has no column {column!r}; {nearest(column, text)}")
    if label in (*attributes, client, user) or {label, *attributes, client, user} & set(dropped):
        raise DataError(
            f"{path}: the label cannot be sensitive, the client or the user, and none of them can be dropped"
        )
    table = {
        name: _cells(path, name, cells, text=name == user)
        for name, cells in text.items()
        if name not in dropped
    }
    table = _treat_missing(path, table, {label: "label", user: "user"}, missing)
    return encoded(
        f"csv:{path.name}",
        table,
        label=label,
        sensitive=attributes,
        apart={client, user} | (set() if keep_sensitive else {*attributes}),
        client=client,
        source=f"csv ({path.name})",
        digest=hashlib.sha256(raw).hexdigest(),
        where=path,
        public=("means of columns with missing cells, over all rows",) if missing == "fill" else (),
        numbers=task == "regression",
    )


def _names(given: str | Sequence[str] | None) -> list[str]:
    if given is None:
        return []
    return [given] if isinstance(given, str) else list(given)


def _read(path: Path) -> tuple[bytes, dict[str, pd.Series]]:
    """Return the file's bytes and its columns, all text, by the names in the header."""
    import pandas as pd  # slow to import; most data sets do without it

    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")
        header = text.lstrip().partition("\n")[0]
        # Read all cells as text and the header as an ordinary row, so that pandas infers nothing.
        cells = pd.read_csv(
            io.StringIO(text),
            sep=max(",;\t", key=header.count),
            header=None,
            dtype=str,
            keep_default_na=False,
            skipinitialspace=True,
        )
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}); save it as CSV in UTF-8") from error
    except pd.errors.EmptyDataError as error:
        raise DataError(f"{path} is empty") from error
    except pd.errors.ParserError as error:
        raise DataError(f"{path} is not a well-formed CSV file: {error}") from error
    cells = cells.apply(lambda column: column.str.strip())
    names = [str(name) for name in cells.iloc[0]]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise DataError(f"{path}: the header names {', '.join(map(repr, twice))} more than once")
    if len(cells) < 3:
        raise DataError(f"{path} has {len(cells) - 1} rows of data; at least 2 are needed")
    return raw, {name: cells[i].iloc[1:] for i, name in enumerate(names)}


def _cells(path: Path, name: str, column: pd.Series, *, text: bool = False) -> Cells:
    import pandas as pd  # slow to import; most data sets do without it

    missing = column.isin(MISSING_MARKS).to_numpy()
    if missing.all():
        raise DataError(f"{path}: the column {name!r} is empty; leave it out with drop")
    if text:
        return Cells(column.to_numpy(object), missing)
    numbers = pd.to_numeric(column.mask(missing), errors="coerce").to_numpy(np.float64)
    if np.isnan(numbers[~missing]).any():
        return Cells(column.to_numpy(object), missing)
    if (np.abs(numbers) > LARGEST).any():
        raise DataError(f"{path}: the column {name!r} holds an infinite number, or one above {LARGEST:.2g}")
    return Cells(numbers, missing)


def _treat_missing(
    path: Path, table: Mapping[str, Cells], known: Mapping[str, str], missing: str
) -> dict[str, Cells]:
    holes = {name: int(cells.missing.sum()) for name, cells in table.items() if cells.missing.any()}
    if missing == "drop":
        keep = ~np.logical_or.reduce([cells.missing for cells in table.values()])
        if keep.sum() < 2:
            raise DataError(f"{path}: every row but {keep.sum()} has a missing cell; nothing is left")
        return {name: Cells(cells.values[keep], cells.missing[keep]) for name, cells in table.items()}
    if holes and missing == "error":
        listed = ", ".join(f"{name!r} ({count})" for name, count in holes.items())
        raise DataError(
            f"{path} has missing cells in {listed}; choose missing=drop (leave out those rows) or "
            "missing=fill (mean of a numeric column, a category of its own in text)"
        )
    for name, what in known.items():
        if name in holes:
            raise DataError(
                f"{path}: the {what} {name!r} is missing in {holes[name]} rows; it is never filled"
            )
    return {name: _fill(cells) for name, cells in table.items()}


def _fill(cells: Cells) -> Cells:
    filling = cells.values[~cells.missing].mean() if cells.numeric else MISSING_CATEGORY
    return Cells(np.where(cells.missing, filling, cells.values), cells.missing)
