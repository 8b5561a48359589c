"""Columns of Parquet and Arrow files, of Feather files, and of folders of them as Hugging Face's `datasets` writes.

The types in the file decide: integers, floats and decimals are numbers; text, dictionaries, booleans and Hugging
Face's class labels are categories; dates and times are numbers, the days since 1970 (UTC).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datasets.dataset import Column
from datasets.encoding import Cells, Content, numbers
from datasets.errors import DataError

VERSION = 2  # in the identity of runs; raise it when the same file gives other numbers
MICROSECONDS = 86_400e6  # of a day
SPLIT = re.compile(r"(?:.*-)?(train|validation|test)(?:-\d+-of-\d+)?")


class Shard(NamedTuple):
    """A file of a table, and the split that its name or folder says; empty if none."""

    path: Path
    split: str


def read_parquet(path: Path) -> Content:
    """Read a Parquet file, or a folder of them; see `read_arrow`."""
    return _read(path, ("*.parquet",))


def read_arrow(path: Path) -> Content:
    """Read an Arrow or Feather file, or a folder of them.

    Raises
    ------
    DataError
        If pyarrow is not installed, or the files are no such files or do not go together.
    """
    return _read(path, ("*.arrow", "*.feather"))


def _read(path: Path, patterns: tuple[str, ...]) -> Content:
    try:
        import pyarrow as pa
    except ImportError:
        raise DataError(
            f"{path}: Parquet and Arrow files need pyarrow, which is not installed; it is in the extra export: "
            "pip install 'fedfrontier[export]'"
        ) from None
    try:
        shards = _shards(path, patterns)
        raw = [shard.path.read_bytes() for shard in shards]
        parts = [_table(content, patterns) for content in raw]
        table = pa.concat_tables(parts)
    except OSError as error:  # pyarrow's own are among these, or ValueErrors
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read as {patterns[0][2:]}: {error}") from error
    names = table.column_names
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise DataError(f"{path} names {', '.join(map(repr, twice))} more than once")
    labels = _class_labels(table.schema.metadata or {})
    columns = {
        name: partial(_cells, f"{path}: the column {name!r}", name, table[name], labels.get(name))
        for name in names
    }
    splits = np.repeat([shard.split for shard in shards], [part.num_rows for part in parts])
    test = splits == "test"
    return Content(
        columns, table.num_rows, _digest(shards, raw), test if 0 < test.sum() < len(test) else None
    )


def _shards(path: Path, patterns: tuple[str, ...]) -> list[Shard]:
    """Return the files of a table in a fixed order."""
    if not path.is_dir():
        return [Shard(path, "")]
    if (path / "dataset_dict.json").exists():  # what DatasetDict.save_to_disk writes
        splits = sorted(json.loads((path / "dataset_dict.json").read_text())["splits"])
        return [
            Shard(each.path, name) for name in splits for each in _shards(path / Path(name).name, patterns)
        ]
    if (path / "state.json").exists() and "*.arrow" in patterns:  # what Dataset.save_to_disk writes
        files = json.loads((path / "state.json").read_text())["_data_files"]
        return [Shard(path / Path(each["filename"]).name, "") for each in files]
    found = sorted(file for pattern in patterns for file in path.glob(pattern))
    found = [file for file in found if not file.name.startswith("cache-")]  # what Dataset.map leaves
    if not found:
        inside = sorted({file.parent for pattern in patterns for file in path.glob(f"*/{pattern}")})
        raise DataError(
            f"the folder {path} has no {' or '.join(patterns)}"
            + (f"; give one of: {', '.join(map(str, inside))}" if inside else "")
        )
    splits = [SPLIT.fullmatch(file.stem) for file in found]
    return [Shard(file, split[1] if split else "") for file, split in zip(found, splits, strict=True)]


def _table(raw: bytes, patterns: tuple[str, ...]) -> Any:
    """Return the table of a file's bytes."""
    import pyarrow as pa

    if "*.parquet" in patterns:
        from pyarrow import parquet

        return parquet.ParquetFile(pa.BufferReader(raw)).read()
    if raw.startswith(b"FEA1"):
        from pyarrow import feather

        return feather.read_table(pa.BufferReader(raw))
    opened = pa.ipc.open_file if raw.startswith(b"ARROW1") else pa.ipc.open_stream
    return opened(pa.BufferReader(raw)).read_all()


def _digest(shards: list[Shard], raw: list[bytes]) -> str:
    """Return the digest of one file, or of the digests and splits of several."""
    digests = [hashlib.sha256(content).hexdigest() for content in raw]
    if len(digests) == 1:
        return digests[0]
    lines = [f"{shard.split} {digest}\n" for shard, digest in zip(shards, digests, strict=True)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _class_labels(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return column to names of its numbers, which Hugging Face's `datasets` keeps in the schema."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {
            name: list(map(str, feature["names"]))
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _cells(what: str, name: str, column: Any, labels: list[str] | None, text: bool) -> Cells:
    """Return the cells of a column of pyarrow's."""
    import pyarrow as pa

    kinds = pa.types
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    category = text or kinds.is_dictionary(column.type) or kinds.is_boolean(column.type)
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    missing = column.is_null(nan_is_null=True).to_numpy()
    if kinds.is_null(kind):
        return Cells(np.full(len(missing), "", dtype=object), missing)
    if labels is not None and kinds.is_integer(kind):
        codes = column.fill_null(-1).to_numpy()
        missing = (codes < 0) | (codes >= len(labels))
        values: Column = np.array([*labels, ""], dtype=object)
        return Cells(values[np.where(missing, len(labels), codes)], missing)
    measured = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind)
    timed = kinds.is_timestamp(kind) or kinds.is_date(kind)
    spelled = kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)
    if spelled or ((measured or timed or kinds.is_boolean(kind)) and category):
        return Cells(_texts(column), missing)
    if timed:
        column = column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(pa.int64())
    elif not measured:
        raise DataError(f"{what} holds {kind}, neither numbers nor text; leave it out with drop={name}")
    found = column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
    return numbers(what, np.where(missing, np.nan, found / MICROSECONDS if timed else found), missing)


def _texts(column: Any) -> Column:
    """Return values as text; each different one is converted once."""
    import pyarrow as pa

    coded = column.dictionary_encode()
    merged = pa.concat_arrays(coded.unify_dictionaries().chunks)
    texts = [f"{v:.15g}" if isinstance(v, float) else str(v).strip() for v in merged.dictionary.to_pylist()]
    values: Column = np.array([*texts, ""], dtype=object)
    codes: NDArray[np.int64] = merged.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    return values[codes]
