"""Columns of the first sheet of an Excel file, whose cells know numbers and dates from text."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Sequence
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.encoding import Cells, Content, Kind, column_places, refuse_title
from datasets.errors import DataError
from datasets.formats import Reading
from datasets.limits import check_shape, check_size, content
from datasets.numerals import read_texts

HEAD = 20  # lines in which the names of the columns are looked for
VERSION = 1  # in the identity of runs; raise it when the same file gives other numbers


def read_columns(path: Path, reading: Reading) -> Content:
    """Read the first sheet of an Excel file (.xlsx) with a header line.

    Numbers are numbers whatever the decimal sign; those that are kept as text are read as in a CSV file. Dates are
    the days since 1970 where every cell is one. Rows without a value are left out.

    Raises
    ------
    DataError
        If openpyxl is not installed, or the file is no such file, is too large or names a column twice.
    """
    import pandas as pd  # slow to import; most data sets do without it

    try:
        raw = content(path)
        with zipfile.ZipFile(io.BytesIO(raw)) as parts:
            check_size(path, sum(part.file_size for part in parts.infolist()))
        frame = pd.read_excel(
            io.BytesIO(raw), header=None, dtype=object, keep_default_na=False, engine="openpyxl"
        )
    except ImportError:
        raise DataError(
            f"{path}: Excel files need openpyxl, which is not installed; it is in the extra excel: pip install "
            "'fedfrontier[excel]'; or save the file as CSV in UTF-8"
        ) from None
    except zipfile.BadZipFile:
        raise DataError(f"{path} is no Excel file of the kind .xlsx; save it as such, or as CSV") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read as an Excel file: {error}") from error
    table = np.asarray(frame.to_numpy(object))
    check_shape(path, *table.shape)
    if reading.header is None:
        refuse_title(path, [_filled(row) for row in table[:HEAD].tolist()])
    table = table[(reading.header or 1) - 1 :]
    table = table[[any(map(_text, row)) for row in table.tolist()]] if table.size else table
    if not table.size:
        below = f" from line {reading.header} on" if reading.header else ""
        raise DataError(f"{path} is empty: its first sheet holds nothing{below}")
    header = [_text(cell) for cell in table[0].tolist()]
    places = column_places(path, header, lambda place: not any(map(_text, table[1:, place].tolist())))
    columns = {
        name: partial(_cells, f"{path}: the column {name!r}", table[1:, place], reading)
        for name, place in places.items()
    }
    return Content(columns, len(table) - 1, hashlib.sha256(raw).hexdigest(), note="of the first sheet")


def _filled(row: Sequence[Any]) -> tuple[str, int]:
    """Return the first text of a row, and how many of its cells hold something."""
    texts = list(filter(None, map(_text, row)))
    return texts[0] if texts else "", len(texts)


def _text(cell: Any) -> str:
    """Return a cell as text; nothing as the empty text."""
    if cell is None or cell != cell:  # NaN and NaT differ from themselves
        return ""
    if isinstance(cell, float):
        return f"{cell:.15g}"
    if isinstance(cell, datetime | date):
        return str(cell).removesuffix(" 00:00:00")
    return str(cell).strip()


def _cells(what: str, column: NDArray[np.object_], reading: Reading, kind: Kind) -> Cells:
    cells = column.tolist()
    texts = [_text(cell) for cell in cells]
    present = [cell for cell, text in zip(cells, texts, strict=True) if text]
    if kind == "guess" and present and all(isinstance(cell, datetime | date) for cell in present):
        kind = "number"
    if kind == "text":
        return read_texts(what, texts, reading, kind)
    # The decimal sign is about text; a number of Excel's has none, and is written with that of the text.
    signs = [
        text.replace(".", reading.decimal) if isinstance(cell, float) else text
        for cell, text in zip(cells, texts, strict=True)
    ]
    read = read_texts(what, signs, reading, kind)
    if any(isinstance(cell, float) for cell in cells):
        read = read._replace(grouped="")  # points of Excel's numbers are decimal
    days = [isinstance(cell, datetime | date) for cell in present]
    if read.dates and not all(days) and any(days):
        words = next(cell for cell in present if not isinstance(cell, datetime | date))
        raise DataError(
            f"{what} holds dates of Excel and dates as text, such as {words!r}; Excel may have exchanged day "
            "and month in those that it took for dates, so make all of them text, or all dates"
        )
    return read if read.numeric else read_texts(what, texts, reading, "text")._replace(undated=read.undated)
