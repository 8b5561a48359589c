"""Limits of what is read: regular files, up to a size that a computer can hold."""

from __future__ import annotations

import difflib
import io
import stat
from pathlib import Path

from datasets.errors import DataError

MOST_BYTES = 2**31  # of a file; text takes several times as much when it is read
MOST_LINE = 2**25  # bytes of a line of a CSV file
MOST_COLUMNS = 200_000
MOST_ROWS = 50_000_000
MOST_CELLS = 200_000_000  # of a table, and of its features; about 6 GB with all that is made of them
MOST_VALUES = 1_500_000_000  # of images and vectors, which are kept once; 6 GB


def check_regular(path: Path) -> None:
    """Refuse devices, pipes and sockets, which have no end, or wait for somebody to write.

    Raises
    ------
    DataError
        If it is one; OSError if there is nothing.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(f"{path} is a device, a pipe or a socket; data are read from regular files only")


def check_exists(name: str, path: Path) -> None:
    """Refuse the path of a data set that is not there, and what is no file or folder.

    Raises
    ------
    DataError
        If there is nothing, or a device, a pipe or a socket.
    """
    if not path.exists():
        beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, beside, n=1)
        hint = f"; did you mean {path.parent / near[0]}?" if near else ""
        raise DataError(f"data set {name!r}: the path {path} does not exist{hint}")
    check_regular(path)


def content(path: Path, line: int | None = None) -> bytes:
    """Return the bytes of a file.

    Parameters
    ----------
    path : Path
        A regular file.
    line : int, optional
        The most bytes between two ends of lines.

    Raises
    ------
    DataError
        If it is no regular file, or larger than `MOST_BYTES`; OSError if it cannot be read.
    """
    check_regular(path)
    if (size := path.stat().st_size) > MOST_BYTES:
        raise _too_large(path, f"{size / 1e9:.1f} GB")
    with open(path, "rb") as file:
        raw = file.read(size + 1)
    if len(raw) > size:
        raise _too_large(path, "more than its size says")
    if line is not None and any(len(one) > line + 1 for one in io.BytesIO(raw)):
        raise DataError(f"{path} has a line of more than {line // 2**20} MiB, which no table has")
    return raw


def check_shape(where: object, rows: int, columns: int) -> None:
    """Refuse tables of more rows, columns or cells than the limits, before they are read.

    Raises
    ------
    DataError
        If it is one.
    """
    if columns > MOST_COLUMNS:
        raise DataError(
            f"{where} has {columns:,} columns (at most {MOST_COLUMNS:,}); leave some out of the file"
        )
    if rows > MOST_ROWS:
        raise DataError(f"{where} has {rows:,} rows (at most {MOST_ROWS:,}); take fewer")
    check_cells(where, rows, columns, "columns")


def check_cells(where: object, rows: int, width: int, what: str) -> None:
    """Refuse more rows of columns or features than `MOST_CELLS` allows; raise `DataError`."""
    if rows * width > MOST_CELLS:
        raise DataError(
            f"{where} has {rows:,} rows of {width:,} {what}, {rows * width:,} cells (at most {MOST_CELLS:,}); take "
            "fewer rows or columns"
        )


def check_values(what: object, values: int) -> None:
    """Refuse more numbers in images or vectors than `MOST_VALUES`; raise `DataError`."""
    if values > MOST_VALUES:
        raise DataError(f"{what} holds {values:,} numbers (at most {MOST_VALUES:,}); take fewer samples")


def check_size(where: object, size: int) -> None:
    """Refuse what is larger than `MOST_BYTES` when it is unpacked; raise `DataError`."""
    if size > MOST_BYTES:
        raise DataError(
            f"{where} unpacks to {size / 1e9:.1f} GB (at most {MOST_BYTES / 1e9:.1f} GB); take fewer rows"
        )


def _too_large(path: Path, size: str) -> DataError:
    return DataError(
        f"{path} has {size} (at most {MOST_BYTES / 1e9:.1f} GB); take fewer rows or columns, or save it as Parquet"
    )
