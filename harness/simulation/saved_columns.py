"""The columns of a table as a saved model reads them: types, categories and their order are the model's."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datasets.dataset import Column
from datasets.encoding import MISSING_CATEGORY, OTHER, Cells, Content
from datasets.errors import DataError
from datasets.federation import Inputs
from datasets.formats import MARKS, Reading, parse_address
from datasets.limits import check_regular
from datasets.numerals import MISSING_MARKS
from datasets.opening import FORMATS, alike
from harness.core.errors import UserError, unknown

log = logging.getLogger(__name__)

PLAIN = re.compile(
    r"-?(0|[1-9]\d{0,14})(\.\d+)?"
)  # a number that has one spelling but for the zeros at its end
SHOWN = 5  # values, columns
FAR = 6  # standard deviations, beyond which a number is out of the range of training
READ_BY = (*MARKS, "na")


class Rows(NamedTuple):
    """The rows of a table.

    Attributes
    ----------
    columns : dict[str, Cells]
        The columns that a model needs.
    length : int
        How many rows there are.
    kept : dict[str, ndarray]
        Columns that are to stand beside the predictions, as text.
    """

    columns: dict[str, Cells]
    length: int
    kept: dict[str, Column]


def categories(inputs: Inputs) -> dict[str, dict[str, int]]:
    """Return for each raw column the places of its features: by value, or a single one, "", for numbers."""
    places: dict[str, dict[str, int]] = {}
    for place, (name, origin) in enumerate(zip(inputs.features, inputs.origins, strict=True)):
        places.setdefault(origin, {})["" if name == origin else name[len(origin) + 1 :]] = place
    return places


def _is_number(inputs: Inputs, origin: str, places: Mapping[str, int]) -> bool:
    """Whether a raw column is a feature itself."""
    return len(places) == 1 and inputs.features[next(iter(places.values()))] == origin


def read_rows(
    table: str | Path,
    inputs: Inputs,
    data: Mapping[str, Any],
    keep: Sequence[str] = (),
    like: str | None = None,
) -> Rows:
    """Read the columns of a table that a model needs.

    Parameters
    ----------
    table : str or Path
        A CSV, Parquet or Arrow file, or an address of one as in a run file, with options that say how it is read.
    inputs : Inputs
        The features of the model.
    data : Mapping
        The data section of its run, whose options hold unless the address says otherwise.
    keep : sequence of str
        Columns to keep as text.
    like : str, optional
        Which of the run's several files the table is like: its signs, names of columns and values.

    Raises
    ------
    UserError
        If a column is missing, no file is called `like`, or the address names other options; DataError if the file
        cannot be read.
    """
    files = data.get("files") or {}
    try:
        return _needed(_opened(str(table), data, like), inputs, keep)
    except (UserError, DataError) as error:
        if like is not None or not files:
            raise
        names = _listed(files)
        raise UserError(
            f"{error}; if it is like one of the run's files, say which by --like: {names}"
        ) from error


def _needed(content: Content, inputs: Inputs, keep: Sequence[str]) -> Rows:
    """Return the columns of a table that a model needs, and those to keep."""
    columns: dict[str, Cells] = {}
    lacking = []
    for origin, places in categories(inputs).items():
        features = [inputs.features[place] for place in places.values()]
        if origin in content.columns:
            number = _is_number(inputs, origin, places)
            columns[origin] = content.columns[origin]("number" if number else "text")
        elif all(name in content.columns for name in features):  # they are one-hot in the table, too
            columns |= {name: content.columns[name]("number") for name in features}
        else:
            lacking.append(origin)
    if wanted := [*lacking, *(name for name in keep if name not in content.columns)]:
        what = f"the column{'s' if len(wanted) > 1 else ''} {_listed(wanted)}"
        needed = "that the model needs" if lacking else "(--keep)"
        has = ", ".join(map(repr, list(content.columns)[:20])) or "no column"
        more = f" and {len(content.columns) - 20} more" if len(content.columns) > 20 else ""
        raise UserError(
            f"the table lacks {what} {needed}; it has: {has}{more}"
            + (f" ({content.note})" if content.note and len(content.columns) == 1 else "")
        )
    return Rows(columns, content.rows, {name: content.columns[name]("text").values for name in keep})


def _opened(table: str, data: Mapping[str, Any], like: str | None) -> Content:
    """Return the content of a table in a file, with its columns and values named as in training."""
    several = data.get("files") or {}
    if like is not None and like not in several:
        raise unknown("file of the run (--like)", like, several)
    given = several.get(like)
    own: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    settings = {**data, **{key: value for key, value in own.items() if key in Reading._fields}}
    options = {"path": table} if Path(table).exists() else parse_address(table) or {"path": table}
    path = Path(options.pop("path"))
    every = {suffix: name for name, kind in FORMATS.items() for suffix in kind.suffixes}
    name = options.pop("name", every.get(path.suffix.lower()))
    if name is None:
        raise unknown("kind of table", path.suffix, every)
    for option in options:
        if option not in READ_BY:
            raise unknown("option of a table to predict", option, READ_BY)
    if not path.exists():
        raise UserError(f"the table {path} does not exist")
    check_regular(path)
    settings |= options
    names = {**(data.get("rename") or {}), **(own.get("rename") or {})}
    values: dict[str, dict[str, str]] = {}
    for maps in (data.get("map") or {}, own.get("map") or {}):
        for column, changed in maps.items():
            values[column] = {**values.get(column, {}), **changed}
    factors = {**(data.get("scale") or {}), **(own.get("scale") or {})}
    shared = {**settings, "rename": names, "map": values, "scale": factors}  # of which a table may lack some
    return alike(str(path), FORMATS[name].read(path, Reading.of(settings)), shared, {})


def features(inputs: Inputs, columns: Mapping[str, Cells], rows: int, *, fill: bool = False) -> Tensor:
    """Return the features of raw columns, shifted and scaled, ``(n, F)`` float64.

    A warning tells values of text columns that training had not, and numbers far from those of training.

    Parameters
    ----------
    inputs : Inputs
        The features.
    columns : Mapping[str, Cells]
        The columns, of `read_rows`.
    rows : int
        Their length.
    fill : bool
        Whether the mean of the training samples is written where a number is missing.

    Raises
    ------
    UserError
        If a cell is missing that cannot be filled.
    """
    x = torch.zeros(rows, len(inputs.features), dtype=torch.float64)
    for origin, places in categories(inputs).items():
        if origin in columns and not _is_number(inputs, origin, places):
            numbers = _places(origin, columns[origin], places)
            seen = np.flatnonzero(numbers >= 0)
            x[torch.from_numpy(seen), torch.from_numpy(numbers[seen])] = 1.0
            continue
        for place in places.values():
            name = inputs.features[place]
            plain = not inputs.shift[place] and inputs.scale[place] == 1  # no mean is known
            mean = None if plain else float(inputs.shift[place])
            x[:, place] = torch.from_numpy(_numbers(name, columns[name], mean, fill=fill))
            _warn_of_range(name, x[:, place].numpy(), inputs, place)
    return (x - inputs.shift) / inputs.scale


def _warn_of_range(name: str, values: Column, inputs: Inputs, place: int) -> None:
    """Warn of numbers that training cannot have had, or hardly: the unit or the code may be another.

    Only the mean and the deviation of training are known, which privacy takes as public. At most a share of
    1 / FAR^2 of the training samples was further from the mean than FAR deviations (Chebyshev).
    """
    mean, deviation = float(inputs.shift[place]), float(inputs.scale[place])
    standardized = bool((inputs.shift != 0).any() or (inputs.scale != 1).any())
    if mean or deviation != 1:
        far = np.abs(values - mean) > FAR * deviation
        why = f"more than {FAR} standard deviations from the mean of training, {mean:.4g} ± {deviation:.4g}"
    elif standardized:  # what is not standardized beside others has only 0 and 1
        far = (values != 0) & (values != 1)
        why = "training had only 0 and 1"
    else:
        return
    if count := int(far.sum()):
        row = int(far.argmax())
        log.warning(
            "column %r: %d of %d rows have numbers out of the range of training, such as %.6g in row %d: %s",
            *(name, count, len(values), float(values[row]), row + 1, why),
        )


def _numbers(name: str, cells: Cells, mean: float | None, *, fill: bool) -> Column:
    """Return a column of numbers, whose missing cells are filled with the mean of training if there is one."""
    if not cells.missing.any():
        return cells.values
    if fill and mean is not None:
        return np.where(cells.missing, mean, cells.values)
    row = int(cells.missing.argmax()) + 1
    way = "fill it or leave the row out"
    if mean is not None:
        way += f", or give --fill, which writes the mean of the training samples, {mean:.6g}"
    elif fill:
        way += "; the model knows no mean of this column"
    raise UserError(f"column {name!r} has no value in row {row} below the header; {way}")


def _places(name: str, cells: Cells, categories: Mapping[str, int]) -> Column:
    """Return the place of the feature for each cell, -1 for a value that training had not."""
    import pandas as pd  # slow to import; only predictions need it

    texts = pd.Series(cells.values, dtype=object)
    places = texts.where(texts != "").map(categories)  # a mark of a missing cell may have been a value
    missing = places.isna() & (cells.missing | texts.isin(MISSING_MARKS))
    if missing.any() and MISSING_CATEGORY not in categories:
        raise UserError(
            f"column {name!r} has no value in row {missing.argmax() + 1} below the header, and none was missing in "
            f"training; fill it, with one of {_listed(categories)}, or leave the row out"
        )
    places = places.mask(missing, categories.get(MISSING_CATEGORY))
    places = places.fillna(texts.map(_numeral, na_action="ignore").map(_numerals(categories)))
    unseen = texts[places.isna()]
    if len(unseen):
        taken = f"as {OTHER!r}" if OTHER in categories else "as none of them"
        log.warning(
            "column %r: %d of %d rows have values that training had not, %s; they are taken %s (known: %s)",
            *(name, len(unseen), len(texts), _listed(unseen.unique()), taken, _listed(categories)),
        )
    column: Column = places.fillna(categories.get(OTHER, -1)).to_numpy(np.int64)
    return column


def _numeral(text: str) -> str:
    """Return a number in one spelling: a column of 1 and 2 with a hole is written as 1.0 and 2.0 by some."""
    return f"{float(text):.15g}" if PLAIN.fullmatch(text) else text


def _numerals(categories: Mapping[str, int]) -> dict[str, int]:
    """Return the places of values by `_numeral`, without those that two values share."""
    counts = Counter(map(_numeral, categories))
    return {_numeral(text): place for text, place in categories.items() if counts[_numeral(text)] == 1}


def _listed(values: Iterable[str]) -> str:
    """Return the first of some values, in quotes."""
    values = list(values)
    return ", ".join(map(repr, values[:SHOWN])) + (" and others" if len(values) > SHOWN else "")
