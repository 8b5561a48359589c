"""Tables of numbers and text as features, labels and sensitive groups."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datasets.arrays import Arrays, Encoded
from datasets.dataset import EXACT, Column, Dataset, group_by
from datasets.errors import DataError
from datasets.formats import Reading
from datasets.labels import check_spelling, positive_last, relabel
from datasets.limits import check_cells

LARGEST = float(np.finfo(np.float32).max)
MISSING_CATEGORY = "(missing)"
LONGEST_NAME = 500  # characters in the name of a column
MAX_CATEGORIES = 200  # more values in a text column: an identifier or free text, not a category
MAX_LABELS = 100
MAX_GROUPS = 20  # more numbers in a sensitive column: a quantity, which needs classes
LEAST_STEPS = 1000  # of float32 in a standard deviation of numbers to predict
OTHER = "other"

#: How a column is to be read: as its cells suggest, as text, or as numbers, as a trained model needs them.
Kind = Literal["guess", "text", "number"]


class Cells(NamedTuple):
    """A column of numbers (float64, NaN where missing) or text (object), and its missing cells.

    ``codes`` is a text with leading zeros that was read as a number, and another text of the same number, if any.
    ``grouped`` is a text whose point may separate thousands, if all texts with a point are like it. ``dates`` says
    that the numbers are days since 1970. ``undated`` says why a column stays text of which most are dates.
    """

    values: Column
    missing: NDArray[np.bool_]
    codes: tuple[str, ...] = ()
    grouped: str = ""
    dates: bool = False
    undated: str = ""

    @property
    def numeric(self) -> bool:
        """Whether every cell that is not missing is a number."""
        return self.values.dtype == np.float64


class Content(NamedTuple):
    """Content of a file before its columns have roles.

    Attributes
    ----------
    columns : Mapping[str, Callable[[Kind], Cells]]
        Name to what makes a column's cells: as they suggest, as text (also of numbers), or as numbers.
    rows : int
        Number of rows.
    digest : str
        SHA-256 of what was read.
    test : ndarray or None
        ``(rows,)`` bool, True on the rows of the source's own test split; None where it has none.
    typed : bool
        Whether the file says which columns are text.
    note : str
        How the file was cut into columns, for messages.
    arrays : Mapping[str, Callable[[], Arrays]]
        Name to what makes a column whose cells are images, vectors or signs.
    usual : Mapping[str, str]
        Columns of the roles ``label``, ``client`` and ``input`` where the format names them.
    reading : Reading
        How it writes numbers, dates and missing cells; of several files that of none.
    """

    columns: Mapping[str, Callable[[Kind], Cells]]
    rows: int
    digest: str
    test: NDArray[np.bool_] | None = None
    typed: bool = False
    note: str = ""
    arrays: Mapping[str, Callable[[], Arrays]] = MappingProxyType({})
    usual: Mapping[str, str] = MappingProxyType({})
    reading: Reading = Reading()

    @property
    def names(self) -> tuple[str, ...]:
        """All columns."""
        return (*self.columns, *self.arrays)


def complete(values: Sequence[str] | Column) -> Callable[[Kind], Cells]:
    """Return the reader of a column of texts, none of which is missing."""
    cells = Cells(np.array(values, dtype=object), np.zeros(len(values), bool))
    return lambda _: cells


def number_cells(what: str, values: NDArray[np.float64], missing: NDArray[np.bool_]) -> Cells:
    """Return a column of numbers, which are NaN where they are missing.

    Raises
    ------
    DataError
        If one is beyond single precision; ``what`` names the column.
    """
    if (np.abs(values) > LARGEST).any():
        raise DataError(f"{what} holds an infinite number, or one above {LARGEST:.2g}")
    return Cells(values, missing)


def column_places(where: object, header: Sequence[str], is_empty: Callable[[int], bool]) -> dict[str, int]:
    """Return the names of columns and their places; one without a name has its place, if it holds something.

    Raises
    ------
    DataError
        If two have the same name, or one is too long to be a name.
    """
    places: dict[str, int] = {}
    twice = []
    for place, heading in enumerate(header):
        name = heading.strip() or f"column {place + 1}"
        if not heading.strip() and is_empty(place):
            continue
        if len(name) > LONGEST_NAME:
            raise DataError(
                f"{where}: the header has a name of {len(name):,} characters, which begins with {name[:20]!r}; is "
                "its first line a header, and are delimiter and encoding right?"
            )
        if name in places:
            twice.append(name)
        places[name] = place
    if twice:
        names = ", ".join(map(repr, sorted({*twice})))
        raise DataError(
            f"{where}: the header names {names} more than once; give each column its own name there"
        )
    return places


def refuse_title(where: object, lines: Sequence[tuple[str, int]]) -> None:
    """Refuse a title above the names of columns, which would be read as the only name.

    Parameters
    ----------
    where : object
        The file, for the message.
    lines : sequence of (str, int)
        The first cell of each of the first lines, and how many of its cells hold something.

    Raises
    ------
    DataError
        If the first line that holds something has one cell, and a later one more.
    """
    filled = [(number, text, count) for number, (text, count) in enumerate(lines, 1) if count]
    number = next((number for number, _, count in filled if count > 1), None)
    if number is not None and filled[0][2] == 1:
        raise DataError(
            f"{where}: the first line holds one cell, {filled[0][1][:40]!r}, as a title does; if the names of the "
            f"columns are in line {number}, set header={number}; if they are in line {filled[0][0]}, set "
            f"header={filled[0][0]}"
        )


@dataclass(frozen=True, kw_only=True)
class LabelColumn:
    """The column of the label, and how its values become classes or numbers.

    Attributes
    ----------
    name : str
        Name of the column, which has two or more values.
    numbers : bool
        Whether it is a number to predict; then there are no classes.
    classes : tuple of str, optional
        Values in the order of the classes. Default: sorted, the positive one of two last.
    positive : str, optional
        The positive one of two classes; see `datasets.labels`.
    renames : mapping of str to str, optional
        Values to rename.
    """

    name: str
    numbers: bool = False
    classes: tuple[str, ...] | None = None
    positive: str | None = None
    renames: Mapping[str, str] | None = None

    def rename(self, where: object, cells: Cells) -> Cells:
        """Return the cells with some values renamed; raise `DataError` if numbers are to be predicted."""
        if self.numbers and (self.positive is not None or self.renames):
            raise DataError(
                f"{where}: positive and labels are for classes, and numbers are predicted; remove them"
            )
        if not self.renames:
            return cells
        values = relabel(where, self.name, _text(where, self.name, cells), self.renames)
        return Cells(values, cells.missing)

    def encode(self, where: object, cells: Cells) -> tuple[torch.Tensor, tuple[str, ...]]:
        """Return the labels, ``(n,)``, and the names of the classes; raise `DataError` if they are unusable."""
        if self.numbers:
            return _number(where, self.name, cells), ()
        y, values = _label(where, self.name, cells)
        classes = self.classes
        if classes is None:
            check_spelling(where, self.name, values, self.renames or {})
            classes = positive_last(where, self.name, values, self.positive)
        return torch.tensor([classes.index(value) for value in values])[y], classes


def encode_table(
    name: str,
    table: Mapping[str, Cells],
    *,
    label: LabelColumn,
    sensitive: Sequence[str],
    not_features: Collection[str],
    source: str,
    digest: str,
    where: object,
    rare: int | None = None,
    encoded: Collection[str] = (),
    made: Encoded | None = None,
) -> Dataset:
    """Make a data set of a table: numbers are kept, text is one-hot encoded, one column is the label.

    Parameters
    ----------
    name, source, digest
        As in `Dataset`.
    table, label : Mapping[str, Cells], LabelColumn
        Columns without missing cells, and that of the label.
    sensitive : sequence of str
        Columns of the sensitive attribute; several are crossed.
    not_features : collection of str
        Columns beside the label that are not features.
    where : object
        A file or a data set, for error messages.
    rare : int, optional
        Values of text features in fewer rows than this become "other"; sensitive columns keep theirs.
    encoded : collection of str
        Columns of which an encoder makes features later.
    made : Encoded, optional
        The features, if they are not made of the columns.

    Raises
    ------
    DataError
        If the choice of columns is unusable.
    """
    table = {**table, label.name: label.rename(where, table[label.name])}
    y, classes = label.encode(where, table[label.name])
    groups = [_attribute(where, column, table[column]) for column in sensitive]
    group, names = group_by(groups) if groups else (None, ())
    unused = (label.name, *not_features) if made is None else table
    columns = {
        name: cells if rare is None or name in sensitive else _without_rare(cells, rare)
        for name, cells in table.items()
        if name not in unused
    }
    if not columns and not encoded and made is None:
        raise DataError(f"{where} has no column left to be a feature")
    made = made or _encode(where, columns, len(y))
    return Dataset(
        name=name, x=made.x, y=y, classes=classes, source=source, digest=digest, group=group, groups=names,
        features=made.features, origins=made.origins, continuous=made.continuous, exact=_exact(columns),
        columns={name: cells.values for name, cells in table.items()},
        public=() if rare is None else (f"which values of text columns are in at least {rare} rows",),
    )  # fmt: skip


def _without_rare(cells: Cells, least: int) -> Cells:
    """Replace values of text in fewer rows by "other"."""
    if cells.numeric:
        return cells
    values, codes, counts = np.unique(cells.values.astype(str), return_inverse=True, return_counts=True)
    replaced: Column = np.where(counts < least, OTHER, values).astype(object)
    return Cells(replaced[codes], cells.missing)


def _text(where: object, name: str, cells: Cells) -> NDArray[np.str_]:
    """Return the values as text, whole numbers without a decimal point; refuse those that look the same."""
    if not cells.numeric:
        return np.array(cells.values.tolist())
    values, codes = np.unique(cells.values, return_inverse=True)
    texts = np.array([f"{value:.15g}" for value in values])
    if len(values) and (np.abs(values).max() >= EXACT or len(np.unique(texts)) < len(values)):
        raise DataError(
            f"{where}: the column {name!r} tells samples apart by numbers of more than 15 digits, which are "
            f"not read exactly; read it as text with text={name}"
        )
    return texts[codes]


def _label(where: object, name: str, cells: Cells) -> tuple[torch.Tensor, tuple[str, ...]]:
    values, codes = np.unique(cells.values, return_inverse=True)
    names = _text(where, name, Cells(values, np.zeros(len(values), bool)))
    if not len(values):
        raise DataError(f"{where} has no rows")
    if len(values) < 2:
        raise DataError(f"{where}: the label {name!r} has one value only, {str(values[0])!r}")
    if len(values) > MAX_LABELS:
        raise DataError(
            f"{where}: the label {name!r} has {len(values)} values (at most {MAX_LABELS} classes)"
            + ("; to predict the number, give --problem regression" if cells.numeric else "")
        )
    return torch.from_numpy(codes.astype(np.int64)), tuple(str(n) for n in names)


def _number(where: object, name: str, cells: Cells) -> torch.Tensor:
    if not cells.numeric:
        raise DataError(f"{where}: the label {name!r} is text; regression needs numbers")
    if not len(cells.values) or np.ptp(cells.values) == 0:
        raise DataError(f"{where}: the label {name!r} has fewer than two values")
    if cells.values.std() < LEAST_STEPS * np.spacing(np.float32(np.abs(cells.values).max())):
        raise DataError(
            f"{where}: the numbers of the label {name!r} differ too little for their size, up to "
            f"{np.abs(cells.values).max():.9g}, to be predicted in single precision; subtract a constant from them"
        )
    return torch.from_numpy(cells.values.astype(np.float32))


def _attribute(where: object, name: str, cells: Cells) -> NDArray[np.str_]:
    count = len(np.unique(cells.values))
    if cells.numeric and count > MAX_GROUPS:
        raise DataError(
            f"{where}: the sensitive column {name!r} holds {count} different numbers (at most {MAX_GROUPS}); "
            "add a column that cuts them into classes"
        )
    return _text(where, name, cells)


def _encode(where: object, table: Mapping[str, Cells], rows: int) -> Encoded:
    """Return the features of columns, ``(n, F)``."""
    import pandas as pd  # slow to import; most data sets do without it

    names, continuous, origins = [], [], []
    blocks = [np.zeros((rows, 0), np.float32)]
    for name, cells in table.items():
        if cells.numeric:
            blocks.append(cells.values[:, None].astype(np.float32))
            names.append(name)
            continuous.append(_is_continuous(cells))
            origins.append(name)
            continue
        # numpy would sort all cells: ten times as long for 300,000.
        codes, values = pd.factorize(cells.values, sort=True)
        if len(values) > MAX_CATEGORIES:
            raise DataError(
                f"{where}: the text column {name!r} has {len(values)} different values "
                f"(at most {MAX_CATEGORIES}); leave it out with drop, join rare values with rare, or make features "
                f"of free text with an encoder: encoder=minilm, encode={name}"
            )
        check_cells(where, len(codes), len(names) + len(values), "features")
        blocks.append((codes[:, None] == np.arange(len(values))).astype(np.float32))
        names += [f"{name}={value}" for value in values]
        continuous += [False] * len(values)
        origins += [name] * len(values)
    flags = torch.tensor(continuous, dtype=torch.bool)
    return Encoded(torch.from_numpy(np.concatenate(blocks, 1)), tuple(names), tuple(origins), flags)


def _is_continuous(cells: Cells) -> bool:
    """Return whether a column holds numbers other than 0 and 1."""
    return cells.numeric and not ((cells.values == 0) | (cells.values == 1)).all()


def _exact(table: Mapping[str, Cells]) -> torch.Tensor | None:
    """Return the continuous columns in float64: a time in seconds has ten digits, and float32 holds seven."""
    columns = [cells.values for cells in table.values() if _is_continuous(cells)]
    return torch.from_numpy(np.stack(columns, 1)) if columns else None
