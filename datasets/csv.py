"""Columns of a CSV file with a header: a column of numbers is read as numbers, any other as text."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.encoding import Cells, Content, Kind, column_places, refuse_title
from datasets.errors import DataError
from datasets.formats import Reading
from datasets.limits import MOST_LINE, check_shape, content
from datasets.numerals import read_texts

VERSION = 3  # in the identity of runs; raise it when the same file gives other numbers
DELIMITERS = ",;\t"  # in this order where several fit equally
HEAD = 2**23  # characters in which the first two records are looked for
TITLES = 20  # lines in which the names of the columns are looked for
LINE_END = re.compile(r"\r\n|\r|\n")
QUOTED = re.compile(r'(?<![^,;\t|\s])"(?:[^"]|"")*"')  # a quote opens at the beginning of a cell only
CELL_ENDS = re.compile(rb"[,;\t|\r\n\"]")
CODED = ("cp1252", "cp1250")  # what spreadsheets write in Western and in Central Europe
HINT = re.compile(r'\s*"?sep=([^\w"\r\n])"?[,;\t ]*\r?\n', re.IGNORECASE)  # of spreadsheets
WIDE = 2000  # columns from which pandas takes ten times as long as the standard library


def read_columns(path: Path, reading: Reading) -> Content:
    """Read a CSV file with a header line: UTF-8 and comma, semicolon, tab or bar, unless ``reading`` says more.

    Raises
    ------
    DataError
        If the file is not such a file, is too large, or names a column twice.
    """
    if path.is_dir():
        raise DataError(
            f"{path} cannot be read: a folder is read as Parquet or Arrow; the CSV files in it are read as clients "
            f"by csv:{path}/*.csv, or by data.files"
        )
    try:
        raw = content(path, MOST_LINE)
        text = raw.decode(reading.encoding or "utf-8-sig").removeprefix("\ufeff")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeError as error:
        raise DataError(
            f"{path} is not {reading.encoding or 'UTF-8'} text (byte {getattr(error, 'start', 0)}); save it as CSV "
            f"in UTF-8, or name its encoding, as in {_encodings(raw, getattr(error, 'start', 0))}"
        ) from error
    except LookupError as error:
        raise DataError(f"encoding: {error}; give one that Python knows, such as utf-8 or cp1252") from error
    hint = HINT.match(text)
    if hint:
        text = "\n" * len(LINE_END.findall(hint[0])) + text[hint.end() :]  # lines keep their numbers
    text = _below(path, text, reading)
    delimiter = reading.delimiter or (hint[1] if hint else _delimiter(text))
    width = _width(path, text, delimiter)
    check_shape(path, text.count("\n") or text.count("\r"), width)
    table = _cut(path, text, delimiter, width, reading.header or 1)
    if not table.size:
        raise DataError(f"{path} is empty")
    places = column_places(
        path, table[0].tolist(), lambda place: not any(map(str.strip, table[1:, place].tolist()))
    )
    columns = {
        name: partial(_cells, f"{path}: the column {name!r}", table[1:, place], reading)
        for name, place in places.items()
    }
    note = f"columns are separated by {delimiter!r}, which the option delimiter changes"
    return Content(columns, len(table) - 1, hashlib.sha256(raw).hexdigest(), note=note)


def _cells(what: str, column: NDArray[np.object_], reading: Reading, kind: Kind) -> Cells:
    return read_texts(what, [cell.strip() for cell in column.tolist()], reading, kind)


def _encodings(raw: bytes, start: int) -> str:
    """Return encodings that a file may have, with the cell at a byte as each reads it."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "encoding=utf-16"
    before, after = (
        CELL_ENDS.split(raw[max(0, start - 20) : start])[-1],
        CELL_ENDS.split(raw[start : start + 20])[0],
    )
    read = {name: (before + after).decode(name, "replace") for name in CODED}
    if (before + after).isascii():  # the encoding that was named is wrong
        return f"encoding={CODED[0]}"
    if len({*read.values()}) == 1:
        return (
            " or ".join(f"encoding={name}" for name in CODED) + f", which both read {read[CODED[0]]!r} there"
        )
    return " or ".join(f"encoding={name}, which reads {text!r} there" for name, text in read.items())


def _below(path: Path, text: str, reading: Reading) -> str:
    """Return what stands from the header on; raise `DataError` if a title stands above it without a word."""
    if reading.header is None:
        lines = LINE_END.split(QUOTED.sub(_plain, text[:HEAD]), TITLES)[:TITLES]
        lines = [part for line in lines for part in line.split("\0")]
        signs = reading.delimiter or f"{DELIMITERS}|"
        filled = [max(([*filter(str.strip, line.split(sign))] for sign in signs), key=len) for line in lines]
        refuse_title(path, [(cells[0].strip(" ,;\t|") if cells else "", len(cells)) for cells in filled])
        return text
    if reading.header == 1:  # split takes 0 for all lines
        return text
    lines = LINE_END.split(text, reading.header - 1)
    if len(lines) < reading.header:
        raise DataError(f"{path} has {len(lines)} lines; header={reading.header} is none of them")
    return lines[-1]


def _plain(quoted: re.Match[str]) -> str:
    """Return quoted text without separators, which moves what stands below its line ends down as these do."""
    inside = re.sub(r"[^\w\s]|\t", " ", quoted[0]).strip()
    first, *more = LINE_END.split(inside)
    return " ".join([first, *more]) + "\0" * len(more)


def _width(path: Path, text: str, delimiter: str) -> int:
    """Return the number of columns of the header."""
    try:
        records = _records(text[: 2 * MOST_LINE], delimiter, strict=False)
        return len(next((record for record in records if any(map(str.strip, record))), []))
    except csv.Error as error:
        raise DataError(f"{path}: the header is not a line of a CSV file: {error}") from error


def _delimiter(text: str) -> str:
    """Return what separates the columns, by the first two records outside of quotes."""
    lines = re.split(r"[\r\n]+", QUOTED.sub("quoted", text[:HEAD]))
    first, second = ([line for line in lines if line.strip(" ")] + ["", ""])[:2]
    fits = [sign for sign in DELIMITERS if 0 < first.count(sign) == second.count(sign)]
    delimiter = max(fits or DELIMITERS, key=first.count)
    return delimiter if delimiter in first or "|" not in first else "|"


def _records(text: str, delimiter: str, *, strict: bool) -> Iterator[list[str]]:
    """Return the records of a text, each when it is asked for."""
    return csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=strict
    )


def _cut(path: Path, text: str, delimiter: str, width: int, first: int) -> NDArray[np.object_]:
    """Return all cells as text, with the header as the first row; ``first`` is the line where the text begins."""
    import pandas as pd  # slow to import; most data sets do without it

    # Read all cells as text and the header as an ordinary row, so that pandas infers nothing.
    def read(**names: Any) -> NDArray[np.object_]:
        frame = pd.read_csv(
            io.StringIO(text),
            sep=delimiter,
            header=None,
            dtype=object,  # as text; pandas' own type of text takes longer
            keep_default_na=False,
            skipinitialspace=True,
            **names,
        )
        return np.asarray(frame.to_numpy(object))

    try:
        if width > WIDE:
            return _wide(text, delimiter)
        try:
            return read()
        except pd.errors.ParserError:  # rows may end with a separator that the header lacks
            longer = read(names=range(width + 1), index_col=False)
            if any(map(str.strip, longer[:, -1].tolist())):
                raise
            return longer[:, :-1]
    except pd.errors.EmptyDataError:
        return np.empty((0, 0), dtype=object)
    except (pd.errors.ParserError, csv.Error) as error:
        raise DataError(
            f"{path} is not a well-formed CSV file with columns separated by {delimiter!r} (delimiter): "
            f"{_uneven(text, delimiter, width, first) or str(error).strip()}"
        ) from error
    except MemoryError as error:
        raise DataError(f"{path} needs more memory than there is; take fewer rows or columns") from error


def _uneven(text: str, delimiter: str, width: int, first: int) -> str:
    """Return which line has more cells than the header, and what may be meant; nothing if none has."""
    records = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    for record in records:
        if any(map(str.strip, record[width:])):
            return (
                f"line {records.line_num + first - 1} has {len(record)} cells, and the header {width}; "
                f"write cells that hold {delimiter!r} in double quotes"
            )
    return ""


def _wide(text: str, delimiter: str) -> NDArray[np.object_]:
    """Return the cells of a table of many columns; rows that are too short are filled."""
    rows = [row for row in _records(text, delimiter, strict=True) if any(map(str.strip, row)) or len(row) > 1]
    width = len(rows[0])
    for number, row in enumerate(rows):
        if any(map(str.strip, row[width:])):
            raise csv.Error(f"row {number} below the header has {len(row)} cells instead of {width}")
    return np.array([row[:width] + [""] * (width - len(row)) for row in rows], dtype=object)
