"""Columns of a CSV file with a header: a column of numbers is read as numbers, any other as text."""

from __future__ import annotations

import hashlib
import io
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datasets.dataset import Column
from datasets.encoding import Cells, Content, numbers
from datasets.errors import DataError

VERSION = 3  # in the identity of runs; raise it when the same file gives other numbers
FIRST = 100  # cells of a column that are looked at before the others
MISSING_MARKS = frozenset(("", "?", "NA", "NaN", "nan"))


def read_columns(path: Path) -> Content:
    """Read a CSV file (UTF-8; comma, semicolon or tab) with a header line.

    Raises
    ------
    DataError
        If the file is not such a file, or names a column twice.
    """
    import pandas as pd  # slow to import; most data sets do without it

    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")
        header = text.lstrip().partition("\n")[0]
        # Read all cells as text and the header as an ordinary row, so that pandas infers nothing.
        frame = pd.read_csv(
            io.StringIO(text),
            sep=max(",;\t", key=header.count),
            header=None,
            dtype=object,  # as text; pandas' own type of text takes longer
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
    table = frame.to_numpy(object)  # operations on thousands of short columns of a frame take seconds
    names = [str(name).strip() for name in table[0]]
    if twice := sorted({n for n in names if names.count(n) > 1} if len({*names}) < len(names) else ()):
        raise DataError(f"{path}: the header names {', '.join(map(repr, twice))} more than once")
    columns = {
        name: partial(_cells, f"{path}: the column {name!r}", table[1:, place])
        for place, name in enumerate(names)
    }
    return Content(columns, len(table) - 1, hashlib.sha256(raw).hexdigest())


def _cells(what: str, column: NDArray[np.object_], text: bool) -> Cells:
    import pandas as pd  # slow to import; most data sets do without it

    cells = [cell.strip() for cell in column.tolist()]
    missing = np.array([cell in MISSING_MARKS for cell in cells])
    values: Column = np.array(cells, dtype=object)
    given = np.where(missing, np.nan, values)
    head = given[~missing][:FIRST]  # most text is known by its first cells
    if text or np.isnan(pd.to_numeric(head, errors="coerce").astype(np.float64)).any():
        return Cells(values, missing)
    found = pd.to_numeric(given, errors="coerce").astype(np.float64)
    return Cells(values, missing) if np.isnan(found[~missing]).any() else numbers(what, found, missing)
