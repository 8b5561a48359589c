"""Cells of text as numbers: decimal commas, thousands, and codes for what is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from datasets.dataset import Column
from datasets.encoding import Cells, Kind, number_cells
from datasets.errors import DataError
from datasets.formats import Reading

FIRST = 100  # cells of a column that are looked at before the others
MICROSECONDS = 86_400e6  # of a day
ISO = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?$")
ZONE = re.compile(r"[ T].*(Z|[+-]\d\d(:?\d\d)?)$")  # of a date with a time
GROUPED = re.compile(r"0|-?[1-9]\d{0,2}(\.\d{3})?")  # a number that may have a point between thousands
MISSING_MARKS = frozenset(("", "?", "NA", "NaN", "nan"))


def values_of(texts: Sequence[object] | Column, reading: Reading) -> NDArray[np.float64]:
    """Return texts as numbers, NaN where one is no number."""
    import pandas as pd  # slow to import; most data sets do without it

    if not reading.usual:
        texts = [_plain(text, reading) if isinstance(text, str) else text for text in texts]
    return pd.to_numeric(np.array(texts, dtype=object), errors="coerce").astype(np.float64, copy=False)


def _plain(text: str, reading: Reading) -> str:
    """Return a number as Python writes it; no number if its signs are elsewhere than they should be."""
    decimal, group = re.escape(reading.decimal), re.escape(reading.thousands)
    grouped = rf"|[1-9]\d{{0,2}}(?:{group}\d{{3}})+" if group else ""  # 0.125 is no 125
    if not re.fullmatch(rf"[+-]?(?:\d*{grouped})(?:{decimal}\d*)?(?:[eE][+-]?\d+)?", text):
        return "none"
    text = text.replace(reading.thousands, "") if reading.thousands else text
    return text.replace(reading.decimal, ".")


def read_texts(
    what: str, texts: Sequence[str], reading: Reading, kind: Kind, marks: frozenset[str] = MISSING_MARKS
) -> Cells:
    """Return a column of texts: numbers if every one that is not missing is a number, or else text.

    Parameters
    ----------
    what : str
        Names the column in messages.
    texts : sequence of str
        The cells, stripped.
    reading : Reading
        How numbers are written, and what else is missing.
    kind : Kind
        What is wanted.
    marks : frozenset[str]
        Texts of missing cells, besides those of ``reading``.

    Raises
    ------
    DataError
        If numbers are wanted and a cell is none, or one is beyond single precision.
    """
    gone = marks.union(reading.na)
    missing = np.array([text in gone for text in texts], dtype=bool)
    values: Column = np.array(texts, dtype=object)
    if kind == "text":
        return Cells(values, missing)
    days, undated = _days(values, missing, reading) if kind == "number" or reading.dates else (None, "")
    if days is None and kind == "guess" and np.isnan(values_of(values[~missing][:FIRST], reading)).any():
        return Cells(values, missing, undated=undated)  # most text is known by its first cells
    candidates = np.where(missing, np.nan, values)
    numeric = values_of(candidates, reading) if days is None else days
    wrong = np.isnan(numeric) & ~missing
    if wrong.any():
        if kind == "guess":
            return Cells(values, missing, undated=undated)
        if undated:
            raise DataError(f"{what} needs dates, as in training; {undated}")
        row = int(wrong.argmax())
        raise DataError(
            f"{what} needs numbers, as in training; row {row + 1} below the header has {texts[row]!r}"
        )
    if days is not None:
        return number_cells(what, numeric, missing)._replace(dates=True)
    cells = mark_missing(number_cells(what, numeric, missing), reading)
    grouped = _grouped(values[~missing].tolist()) if reading.usual else ""
    return cells._replace(codes=_codes(texts), grouped=grouped)


def _grouped(texts: Sequence[str]) -> str:
    """Return a number whose point may separate thousands, if two have such a point and none has another."""
    if not all(map(GROUPED.fullmatch, texts)):
        return ""
    points = sorted({text for text in texts if "." in text})
    return points[0] if len(points) > 1 else ""


def _days(
    texts: Column, missing: NDArray[np.bool_], reading: Reading
) -> tuple[NDArray[np.float64] | None, str]:
    """Return dates as the days since 1970 (UTC), as they are read from Parquet, NaN where one is missing.

    Returns
    -------
    days : ndarray or None
        None if a text is no date, or there is none.
    undated : str
        Why there are no days although most texts are dates.
    """
    import pandas as pd  # slow to import; most data sets do without it

    present = texts[~missing]
    iso = _iso(present, reading)
    zoned = np.array([bool(text and ZONE.search(text)) for text in iso], dtype=bool)
    if not any(iso):
        return None, ""
    stamps = pd.to_datetime(pd.Series(iso, dtype=object), format="ISO8601", errors="coerce", utc=True)
    times = stamps.dt.tz_localize(None).to_numpy("datetime64[us]")
    known = ~np.isnat(times)
    if not known.all():
        wrong = f"{present[known.argmin()]!r} is no date written {reading.dates or 'yyyy-mm-dd'}"
        return None, wrong if 2 * known.sum() > len(known) else ""
    if zoned.any() and not zoned.all():
        return None, f"{present[zoned.argmin()]!r} has no time zone, and others have one"
    days = np.full(len(texts), np.nan)
    days[~missing] = times.astype(np.int64) / MICROSECONDS
    return days, ""


def _iso(texts: Column, reading: Reading) -> list[str | None]:
    """Return dates as year, month and day, with their times; None for each text that is no date."""
    parts = re.split(r"([-/. ])", reading.dates or "yyyy-mm-dd")
    digits = {"dd": r"(?P<day>\d\d?)", "mm": r"(?P<month>\d\d?)", "yyyy": r"(?P<year>\d{4})"}
    written = re.compile(
        "".join(digits.get(part, re.escape(part)) for part in parts) + r"(?P<time>[ T]\d\d?:\d\d.*)?"
    )

    def one(text: str) -> str | None:
        if ISO.match(text):
            return text
        if (found := written.fullmatch(text)) is None:
            return None
        return f"{found['year']}-{found['month']:>02}-{found['day']:>02}{found['time'] or ''}"

    return list(map(one, texts.tolist()))


def mark_missing(cells: Cells, reading: Reading) -> Cells:
    """Return a column of numbers in which those that stand for nothing are missing."""
    if not reading.na:
        return cells
    codes = values_of(reading.na, reading)
    missing = cells.missing | np.isin(cells.values, codes[~np.isnan(codes)])
    return cells._replace(values=np.where(missing, np.nan, cells.values), missing=missing)


def _codes(texts: Sequence[str]) -> tuple[str, ...]:
    """Return a whole number with leading zeros, and another text of the same number if there is one."""
    if not (zeros := {text for text in texts if text[:1] == "0" and text[1:].isdecimal()}):
        return ()
    first: dict[str, str] = {}
    for text in sorted(filter(str.isdecimal, {*texts})):
        if (other := first.setdefault(text.lstrip("0"), text)) != text:
            return (other, text)
    return (min(zeros),)
