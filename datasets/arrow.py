"""Columns of Parquet and Arrow files, of Feather files, and of folders of them as Hugging Face's `datasets` writes.

The types in the file decide: integers, floats and decimals are numbers; text, dictionaries, booleans and Hugging
Face's class labels are categories; dates and times are numbers, the days since 1970 (UTC); lists of numbers are
vectors or images, and so are images as `datasets` writes them, structures with ``bytes``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.arrays import Arrays, arrays_of
from datasets.dataset import Column
from datasets.decoding import decoded
from datasets.encoding import Cells, Content, Kind, column_places, number_cells
from datasets.errors import DataError
from datasets.formats import Reading
from datasets.limits import check_shape, check_size, content
from datasets.numerals import MICROSECONDS, MISSING_MARKS, mark_missing, read_texts, values_of
from datasets.shards import TEST, Shard, joint_digest

VERSION = 2  # in the identity of runs; raise it when the same file gives other numbers
USUAL = Reading()
PART = re.compile(r"(.*?)(\d+)-of-(\d{1,6})(?:[-_.].*)?")
INDICES = ("_indices_files", "_indices_data_files")  # which rows count, in older versions of `datasets`
MARK, END = b"\xff" * 4, b"\xff" * 4 + bytes(4)  # of each part of a stream, and of its end
SPLIT = re.compile(r"(?:.*-)?(train|validation|test)(?:-\d+-of-\d+)?")


def read_parquet(path: Path, reading: Reading) -> Content:
    """Read a Parquet file, or a folder of them; see `read_arrow`."""
    return _read(path, ("*.parquet",), reading)


def read_arrow(path: Path, reading: Reading) -> Content:
    """Read an Arrow or Feather file, or a folder of them.

    Raises
    ------
    DataError
        If pyarrow is not installed, or the files are no such files, are too large or do not go together.
    """
    return _read(path, ("*.arrow", "*.feather"), reading)


def _read(path: Path, patterns: tuple[str, ...], reading: Reading) -> Content:
    try:
        import pyarrow as pa
    except ImportError:
        raise DataError(
            f"{path}: Parquet and Arrow files need pyarrow, which is not installed; it is in the extra export: "
            "pip install 'fedfrontier[export]'"
        ) from None
    try:
        shards = _shards(path, patterns)
        raw = [content(shard.path) for shard in shards]
        parts: list[Any] = []
        for shard, each in zip(shards, raw, strict=True):
            parts.append(_table(shard.path, each, patterns, sum(part.num_rows for part in parts)))
        _check_schemas(shards, parts)
        table = pa.concat_tables(parts)
    except MemoryError as error:
        raise DataError(f"{path} needs more memory than there is; take fewer rows or columns") from error
    except DataError:
        raise
    except OSError as error:  # pyarrow's own are among these, or ValueErrors
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read as {patterns[0][2:]}: {error}") from error
    places = column_places(
        path, table.column_names, lambda place: table.column(place).null_count == table.num_rows
    )
    labels = _class_labels(table.schema.metadata or {})
    columns, arrays = {}, {}
    for name, place in places.items():
        column, what = table.column(place), f"{path}: the column {name!r}"
        if pa.types.is_nested(_plain_type(column)) or pa.types.is_binary(_plain_type(column)):
            arrays[name] = cache(partial(_arrays, what, name, column))
        else:
            columns[name] = partial(_cells, what, name, column, labels.get(name), reading)
    splits = np.repeat([shard.split for shard in shards], [part.num_rows for part in parts])
    test = splits == TEST
    return Content(
        columns,
        table.num_rows,
        joint_digest(
            (shard.split, hashlib.sha256(each).hexdigest()) for shard, each in zip(shards, raw, strict=True)
        ),
        test if 0 < test.sum() < len(test) else None,
        typed=True,
        arrays=arrays,
    )


def _shards(path: Path, patterns: tuple[str, ...]) -> list[Shard]:
    """Return the files of a table in a fixed order."""
    if not path.is_dir():
        return [Shard(path, "")]
    if (path / "dataset_dict.json").exists():  # what DatasetDict.save_to_disk writes
        splits = sorted(json.loads((path / "dataset_dict.json").read_text())["splits"])
        folders = [inside.name for inside in path.iterdir() if inside.is_dir()]
        if strange := [name for name in splits if name not in folders]:
            raise DataError(
                f"{path}/dataset_dict.json names the split {strange[0]!r}, which is no folder there"
            )
        return [Shard(each.path, name) for name in splits for each in _shards(path / name, patterns)]
    if (path / "state.json").exists() and "*.arrow" in patterns:  # what Dataset.save_to_disk writes
        state = json.loads((path / "state.json").read_text())
        files = state["_data_files"]
        if any(state.get(key) for key in INDICES):
            raise DataError(
                f"{path} keeps a choice of rows apart from the data; save it again after flatten_indices()"
            )
        return [Shard(path / Path(each["filename"]).name, "") for each in files]
    files = sorted(file for pattern in patterns for file in path.glob(pattern))
    files = [file for file in files if not file.name.startswith("cache-")]  # what Dataset.map leaves
    if not files:
        inside = sorted({file.parent for pattern in patterns for file in path.glob(f"*/{pattern}")})
        raise DataError(
            f"the folder {path} has no {' or '.join(patterns)}"
            + (f"; give one of: {', '.join(map(str, inside))}" if inside else "")
        )
    _check_complete(path, files)
    splits = [SPLIT.fullmatch(file.stem) for file in files]
    return [Shard(file, split[1] if split else "") for file, split in zip(files, splits, strict=True)]


def _check_complete(path: Path, files: Sequence[Path]) -> None:
    """Refuse a folder in which files are missing whose number the names of the others say."""
    parts: dict[tuple[str, str], set[int]] = {}
    for file in files:
        if match := PART.fullmatch(file.stem):
            parts.setdefault((match[1], match[3]), set()).add(int(match[2]))
    for (name, count), present in parts.items():
        first = 0 if 0 in present or int(count) not in present else 1
        if missing := [number for number in range(first, first + int(count)) if number not in present]:
            some = ", ".join(f"{name}{number:0{len(count)}}-of-{count}" for number in missing[:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise DataError(
                f"the folder {path} lacks {some}{more} ({files[0].suffix}): its names say {int(count)} files"
            )


def _check_schemas(shards: Sequence[Shard], parts: Sequence[Any]) -> None:
    """Refuse files whose columns differ, with the file and the column."""
    for shard, part in zip(shards[1:], parts[1:], strict=True):
        first = parts[0].schema
        where, usual = shard.path.name, shards[0].path.name
        for name in first.names:
            if name not in part.schema.names:
                raise DataError(f"{shard.path} lacks the column {name!r}, which {usual} has")
        for field in part.schema:
            if field.name not in first.names:
                raise DataError(f"{shard.path} has a column {field.name!r}, which {usual} lacks")
            if first.names.count(field.name) == 1 and field.type != first.field(field.name).type:
                raise DataError(
                    f"{shard.path.parent}: the column {field.name!r} holds {field.type} in {where} and "
                    f"{first.field(field.name).type} in {usual}"
                )
        if part.schema.names != first.names:
            raise DataError(f"{shard.path} has its columns in another order than {usual}")


def _table(path: Path, raw: bytes, patterns: tuple[str, ...], before: int) -> Any:
    """Return the table of a file's bytes, unless it is too large with the rows of the files before it."""
    import pyarrow as pa

    if "*.parquet" in patterns:
        from pyarrow import parquet

        file = parquet.ParquetFile(pa.BufferReader(raw))
        about = file.metadata
        check_shape(path, before + about.num_rows, len(file.schema_arrow))
        check_size(
            path, sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
        )
        return file.read()
    if raw.startswith(b"FEA1"):
        from pyarrow import feather

        return feather.read_table(pa.BufferReader(raw))
    if raw.startswith(b"ARROW1"):
        reader = pa.ipc.open_file(pa.BufferReader(raw))
        stream = map(reader.get_batch, range(reader.num_record_batches))
    else:
        if raw.startswith(MARK) and not raw.endswith(END):
            raise DataError(f"{path} has no end: it was cut off, or its writer was not closed")
        reader = stream = pa.ipc.open_stream(pa.BufferReader(raw))
    batches: list[Any] = []
    for batch in stream:
        batches.append(batch)
        before += batch.num_rows
        check_shape(path, before, batch.num_columns)
        check_size(path, sum(each.nbytes for each in batches))
    return pa.Table.from_batches(batches, schema=reader.schema)


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


def _cells(
    what: str, name: str, column: Any, labels: list[str] | None, reading: Reading, expected: Kind
) -> Cells:
    """Return the cells of a column of pyarrow's."""
    import pyarrow as pa

    kinds = pa.types
    column = _stored(column)
    coded = kinds.is_dictionary(column.type)
    category = expected == "text" or coded or kinds.is_boolean(column.type)
    if coded:
        column = column.cast(column.type.value_type)
    kind = column.type
    missing = column.is_null(nan_is_null=True).to_numpy()
    if kinds.is_null(kind) and expected == "number":
        return Cells(np.full(len(missing), np.nan), missing)
    if kinds.is_null(kind):
        return Cells(np.full(len(missing), "", dtype=object), missing)
    if labels is not None and kinds.is_integer(kind) and expected != "number":
        codes = column.fill_null(-1).to_numpy()
        missing = codes < 0
        if len(codes) and codes.max() >= len(labels):
            raise DataError(
                f"{what} holds the number {codes.max()}, and the file names {len(labels)} classes"
            )
        values: Column = np.array([*labels, ""], dtype=object)
        return Cells(values[np.where(missing, len(labels), codes)], missing)
    measured = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind)
    timed = kinds.is_timestamp(kind) or kinds.is_date(kind)
    spelled = kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)
    if spelled or ((measured or timed or kinds.is_boolean(kind)) and category):
        return _of_text(
            what,
            Cells(_texts(column), missing),
            reading,
            "text" if coded and expected == "guess" else expected,
        )
    if timed:
        column = column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(pa.int64())
    elif not measured:
        raise DataError(f"{what} holds {kind}, neither numbers nor text; leave it out with drop={name}")
    numeric = column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
    numeric = np.where(missing, np.nan, numeric / MICROSECONDS if timed else numeric)
    read = number_cells(what, numeric, missing)._replace(dates=timed)
    marked = mark_missing(read, reading)
    if timed and (wrong := marked.missing & ~missing).any():  # 9999 is a day of 1997
        day = np.datetime64(int(numeric[wrong][0]), "D")
        raise DataError(
            f"{what} holds dates, and na would take {day}, day {numeric[wrong][0]:.0f} since 1970, for missing; "
            "give the columns of numbers map in place of na"
        )
    return marked


def _plain_type(column: Any) -> Any:
    """Return the type of a column, of an extension that of what is stored."""
    return getattr(column.type, "storage_type", column.type)


def _stored(column: Any) -> Any:
    """Return a column without its extension type."""
    import pyarrow as pa

    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


def _arrays(what: str, name: str, column: Any) -> Arrays:
    """Return a column of lists of numbers, or of encoded images.

    Raises
    ------
    DataError
        If it holds something else, one is missing, or they differ in size.
    """
    import pyarrow as pa

    column, kinds = _stored(column), pa.types
    advice = f"leave it out with drop={name}"
    missing = column.null_count
    if kinds.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = pa.chunked_array(
            [chunk.field("bytes") for chunk in column.chunks], column.type.field("bytes").type
        )
    if missing := missing or column.null_count:
        raise DataError(f"{what} has nothing in {missing} rows; take them out of the file, or {advice}")
    if kinds.is_binary(column.type) or kinds.is_large_binary(column.type):
        raw = [(f"row {row + 1}", value) for row, value in enumerate(column.to_pylist())]
        try:
            return Arrays("images", decoded(raw), "encoded images")
        except DataError as error:
            raise DataError(f"{what} holds binary: {error}; else {advice}") from error
    parts: list[NDArray[Any]] = []
    for chunk in filter(len, column.chunks):
        shape = [len(chunk)]
        while (
            kinds.is_list(chunk.type)
            or kinds.is_large_list(chunk.type)
            or kinds.is_fixed_size_list(chunk.type)
        ):
            lengths = chunk.value_lengths().unique().drop_null().to_pylist()
            if chunk.null_count or len(lengths) != 1:
                raise DataError(
                    f"{what} holds lists of different lengths ({', '.join(map(str, lengths[:5]))}); {advice}"
                )
            shape.append(lengths[0])
            chunk = chunk.flatten()
        if not (kinds.is_integer(chunk.type) or kinds.is_floating(chunk.type)) or chunk.null_count:
            raise DataError(
                f"{what} holds {column.type}, neither cells, images nor lists of numbers; {advice}"
            )
        parts.append(chunk.to_numpy(zero_copy_only=False).reshape(shape))
        if parts[-1].shape[1:] != parts[0].shape[1:]:
            raise DataError(
                f"{what} holds arrays of different shapes, {parts[0].shape[1:]} and {parts[-1].shape[1:]}"
            )
    return arrays_of(what, np.concatenate(parts))


def _of_text(what: str, cells: Cells, reading: Reading, expected: Kind) -> Cells:
    """Return a column of text, as numbers if these are asked for, or if ``reading`` says how they are written."""
    gone = np.array([value in reading.na for value in cells.values], dtype=bool)
    text = Cells(cells.values, cells.missing | gone)
    if expected == "text" or (expected == "guess" and reading.usual and not gone.any()):
        return text
    if (
        expected == "guess"
        and not gone.any()
        and not np.isnan(values_of(cells.values[~cells.missing], USUAL)).any()
    ):
        return text  # digits that the file calls text, as codes are
    parsed = read_texts(
        what, np.where(cells.missing, "", cells.values).tolist(), reading, expected, MISSING_MARKS
    )
    return parsed if parsed.numeric else text


def _texts(column: Any) -> Column:
    """Return values as text; each different one is converted once."""
    import pyarrow as pa

    if not len(column):
        return np.empty(0, dtype=object)
    coded = column.dictionary_encode()
    merged = pa.concat_arrays(coded.unify_dictionaries().chunks)
    texts = [f"{v:.15g}" if isinstance(v, float) else str(v).strip() for v in merged.dictionary.to_pylist()]
    if all(text.endswith(" 00:00:00") for text in texts):  # dates, which are written without the hour
        texts = [text.removesuffix(" 00:00:00") for text in texts]
    values: Column = np.array([*texts, ""], dtype=object)
    codes: NDArray[np.int64] = merged.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    return values[codes]
