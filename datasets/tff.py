"""Client files of TensorFlow Federated: HDF5 (``examples/CLIENT/FEATURE``) and SQLite (a row an example)."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from datasets.arrays import Arrays, arrays_of
from datasets.cache import sha256
from datasets.decoding import decoded
from datasets.encoding import Cells, Content, Kind, complete, number_cells
from datasets.errors import DataError, nearest
from datasets.examples import parse_example
from datasets.formats import Reading
from datasets.limits import check_regular, check_values
from datasets.shakespeare import CONTEXT
from datasets.shards import TEST, TRAIN, Shard, joint_digest
from datasets.texts import SYMBOL_NAMES, symbol_numbers

VERSION = 1  # in the identity of runs; raise it when the same file gives other numbers
LABEL, CLIENT, NEXT = "label", "client", "next sign"
HDF5, SQLITE = b"\x89HDF\r\n\x1a\n", b"SQLite format 3\0"
SUFFIXES = (".h5", ".hdf5", ".sqlite", ".db")
SPLIT = re.compile(rf"(?:(?P<of>.+)_)?(?P<split>{TRAIN}|{TEST})")
PICTURES = (b"\xff\xd8\xff", b"\x89PNG\r\n")  # how encoded images begin
NEEDED = ("split_name", "client_id", "serialized_example_proto")

Feature = NDArray[Any] | list[bytes]


class Part(NamedTuple):
    """Samples of one client: each feature with its values, ``(n, ...)``."""

    split: str
    client: str
    features: Mapping[str, Feature]


def read_tff(path: Path, reading: Reading) -> Content:
    """Read a file of TFF's, or a folder of two whose names end in ``train`` and ``test``.

    Parameters
    ----------
    path : Path
        The file or folder.
    reading : Reading
        Its ``split`` says which rows of a SQLite file are read.

    Returns
    -------
    Content
        A column for each feature, `CLIENT` beside them. Where the only feature is text it is cut into pieces, in
        which each sample's next sign is the label `NEXT`.

    Raises
    ------
    DataError
        If a file is not of this layout, examples differ in their features, or a split must be chosen.
    """
    shards = _files(path)
    parts = [part for shard in shards for part in _parts(shard, reading.split)]
    names = [CLIENT, *(parts[0].features if parts else ())]
    if len(names) == 1:
        raise DataError(f"{path} has no examples" + (" with features" if parts else ""))
    for part in parts:
        if list(part.features) != names[1:]:
            raise DataError(
                f"{path}: the client {part.client!r} has the features {', '.join(part.features) or 'none'}; "
                f"{parts[0].client!r} has {', '.join(names[1:])}"
            )
    if CLIENT in names[1:]:
        raise DataError(f"{path} has a feature {CLIENT!r}, as the column of the clients is called")
    counts = [len(next(iter(part.features.values()))) for part in parts]
    clients = np.repeat(np.array([part.client for part in parts], object), counts)
    test = np.repeat(np.array([part.split == TEST for part in parts]), counts)
    columns: dict[str, Callable[[Kind], Cells]] = {}
    arrays: dict[str, Callable[[], Arrays]] = {}
    for name in names[1:]:
        column = _joined(path, name, parts)
        if callable(column):
            arrays[name] = column
        else:
            columns[name] = partial(_as, column)
    usual = {"client": CLIENT, **({"label": LABEL} if LABEL in columns else {})}
    if len(names) == 2 and len(columns) == 1 and not (texts := columns[names[1]]("text")).numeric:
        owner, signs = _pieces(path, texts.values.tolist())
        arrays = {names[1]: lambda: Arrays("text", signs[:, :-1, None], "pieces of text", SYMBOL_NAMES)}
        following = np.array(SYMBOL_NAMES, dtype=object)[signs[:, -1]]
        columns = {NEXT: complete(following)}
        usual["label"] = NEXT
        clients, test = clients[owner], test[owner]
    columns[CLIENT] = complete(clients)
    return Content(
        columns, len(clients), joint_digest((shard.split, sha256(shard.path)) for shard in shards),
        test if 0 < test.sum() < len(test) else None, typed=True, arrays=arrays, usual=usual,
    )  # fmt: skip


def _files(path: Path) -> list[Shard]:
    """Return a file, or the two of a folder."""
    if not path.is_dir():
        return [Shard(path, "")]
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
    splits = [match["split"] if (match := SPLIT.fullmatch(file.stem)) else "" for file in files]
    if len(files) == 1:
        return [Shard(files[0], "")]
    if sorted(splits) != [TEST, TRAIN]:
        raise DataError(
            f"the folder {path} has {', '.join(file.name for file in files) or 'no such file'}; give a file of "
            f"{', '.join(SUFFIXES)}, or a folder of two whose names end in train and test"
        )
    return [
        Shard(file, split)
        for file, split in sorted(zip(files, splits, strict=True), key=lambda one: one[1] == TEST)
    ]


def _parts(shard: Shard, split: str | None) -> Iterator[Part]:
    """Yield the samples of a file by client."""
    path = shard.path
    try:
        check_regular(path)
        with open(path, "rb") as file:
            begin = file.read(16)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if begin.startswith(SQLITE):
        yield from _of_sqlite(path, shard.split, split)
    elif begin.startswith(HDF5):
        if split is not None:
            raise DataError(
                f"{path}: split chooses rows of a SQLite file, and this is HDF5; give another file"
            )
        yield from _of_hdf5(path, shard.split)
    else:
        raise DataError(f"{path} is neither an HDF5 nor a SQLite file")


def _of_hdf5(path: Path, split: str) -> Iterator[Part]:
    try:
        import h5py
    except ImportError:
        raise DataError(
            f"{path}: HDF5 files need h5py, which is not installed; it is in the extra tff: pip install "
            "'fedfrontier[tff]'"
        ) from None
    values = 0
    try:
        with h5py.File(path) as file:
            if not isinstance(file.get("examples"), h5py.Group):
                raise DataError(
                    f"{path} has no group 'examples', which TFF's files have; it has {', '.join(file)}"
                )
            for client, group in file["examples"].items():
                where = f"{path}: the client {client!r}"
                if not isinstance(group, h5py.Group):
                    raise DataError(f"{where} is no group of features")
                features: dict[str, Feature] = {}
                for name, data in sorted(group.items()):
                    if not isinstance(data, h5py.Dataset) or not data.ndim:
                        raise DataError(f"{where}: {name!r} is no array with a row for each sample")
                    if data.file != file or data.external or data.is_virtual:
                        raise DataError(
                            f"{where}: {name!r} lies in another file, which no digest covers; copy it into this one"
                        )
                    values += data.size
                    check_values(path, values)
                    features[name] = _read(where, name, data[()])
                lengths = {name: len(feature) for name, feature in features.items()}
                if len({*lengths.values()}) > 1:
                    both = ", ".join(f"{name} {length}" for name, length in lengths.items())
                    raise DataError(f"{where} has features of different lengths: {both}")
                yield Part(split, client, features)
    except (OSError, RuntimeError, TypeError, KeyError) as error:
        raise DataError(f"{path} cannot be read as HDF5: {error}") from error


def _read(where: str, name: str, values: NDArray[Any]) -> Feature:
    """Return an array of numbers, or of texts as a list."""
    if values.dtype.kind in "biuf":
        return values
    texts = values.reshape(-1).tolist()
    if len(texts) != len(values) or not all(isinstance(text, bytes) for text in texts):
        raise DataError(f"{where}: {name!r} holds {values.dtype}; numbers, or one text a sample, are read")
    return texts


def _of_sqlite(path: Path, of_file: str, chosen: str | None) -> Iterator[Part]:
    values = 0
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            has = [row[1] for row in connection.execute("PRAGMA table_info(examples)")]
            for column in NEEDED:
                if column not in has:
                    raise DataError(
                        f"{path}: the table examples needs the column {column!r}; it has {', '.join(has) or 'none'}"
                    )
            names = [str(row[0]) for row in connection.execute("SELECT DISTINCT split_name FROM examples")]
            splits = _splits(path, sorted(names), chosen)
            rows = connection.execute(f"SELECT {', '.join(NEEDED)} FROM examples ORDER BY rowid")
            for split, client, message in rows:
                if split not in splits:
                    continue
                if not isinstance(client, str):
                    raise DataError(f"{path}: client_id is {client!r} in a row; a client's name is text")
                try:
                    example = parse_example(message)
                except (ValueError, TypeError) as error:
                    raise DataError(
                        f"{path}: an example of the client {client!r} is no tf.train.Example: {error}"
                    ) from error
                features: dict[str, Feature] = {}
                for name, feature in sorted(example.items()):
                    if isinstance(feature, list) and len(feature) > 1:
                        raise DataError(
                            f"{path}: the feature {name!r} of the client {client!r} has several texts"
                        )
                    features[name] = feature if isinstance(feature, list) else feature[None]
                    values += len(feature)
                check_values(path, values)
                yield Part(of_file or splits[split], client, features)
    except sqlite3.Error as error:
        raise DataError(f"{path} cannot be read as SQLite: {error}") from error


def _splits(path: Path, names: Sequence[str], chosen: str | None) -> dict[str, str]:
    """Return the names of the splits to read, and which of them is for tests: ``train``, ``test`` or neither."""
    matches = {name: SPLIT.fullmatch(name) for name in names}
    groups: dict[str, dict[str, str]] = {}
    for name, match in matches.items():
        if match is not None:
            groups.setdefault(match["of"] or "", {})[name] = match["split"]
    pairs = {of: splits for of, splits in groups.items() if len(splits) == 2}
    choices = {**{name: {name: ""} for name in names}, **pairs}
    if chosen is not None:
        if chosen not in choices:
            raise DataError(f"{path} has no split {chosen!r}; {nearest(chosen, filter(None, choices))}")
        return choices[chosen]
    if len(names) <= 1:
        return choices[names[0]] if names else {}
    for splits in pairs.values():
        if len(splits) == len(names):
            return splits
    raise DataError(
        f"{path} has several splits; choose one, as in split=NAME: {', '.join(filter(None, choices))}"
    )


def _joined(path: Path, name: str, parts: Sequence[Part]) -> Cells | Callable[[], Arrays]:
    """Return a feature of all clients: cells, or what makes arrays of them."""
    what = f"{path}: the feature {name!r}"
    texts: list[bytes] = []
    numbers: list[NDArray[Any]] = []
    for part in parts:
        feature = part.features[name]
        if isinstance(feature, list):
            texts += feature
        else:
            numbers.append(feature)
            if feature.shape[1:] != numbers[0].shape[1:]:
                raise DataError(
                    f"{what} of the client {part.client!r} has the shape {feature.shape[1:]}, and of "
                    f"{parts[0].client!r} {numbers[0].shape[1:]}"
                )
        if texts and numbers:
            raise DataError(f"{what} is text at some clients and numbers at others, as at {part.client!r}")
    if texts and all(text.startswith(PICTURES) for text in texts):
        owners = [part.client for part in parts for _ in part.features[name]]
        named = [(f"{what} of the client {owner!r}", text) for owner, text in zip(owners, texts, strict=True)]
        return cache(lambda: Arrays("images", decoded(named), "encoded images"))
    if texts or not numbers:
        return Cells(np.array(_decoded(what, texts), object), np.zeros(len(texts), bool))
    values = np.concatenate(numbers)
    if values.ndim == 1 or values.shape[1:] == (1,):
        flat = values.reshape(-1).astype(np.float64)
        return number_cells(what, flat, np.isnan(flat))
    return cache(lambda: arrays_of(what, values))


def _decoded(what: str, texts: Sequence[bytes]) -> list[str]:
    """Return texts; refuse other bytes, such as images in formats that are not read."""
    try:
        return [text.decode() for text in texts]
    except UnicodeDecodeError as error:
        raise DataError(
            f"{what} holds bytes that are no text in UTF-8, and no JPEG or PNG: {error.object[:20]!r}"
        ) from error


def _as(cells: Cells, kind: Kind) -> Cells:
    """Return cells, numbers as text if that is asked for."""
    if kind != "text" or not cells.numeric:
        return cells
    return Cells(np.array([f"{value:.15g}" for value in cells.values], object), cells.missing)


def _pieces(path: Path, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut texts into pieces of signs that do not overlap: the text of each and its signs, ``(n, CONTEXT + 1)``."""
    whole = [symbol_numbers([text])[0] for text in texts]
    cut = [signs[: len(signs) - len(signs) % (CONTEXT + 1)].reshape(-1, CONTEXT + 1) for signs in whole]
    if not sum(map(len, cut)):
        raise DataError(f"{path}: no text has {CONTEXT + 1} signs")
    return np.repeat(np.arange(len(cut)), [len(signs) for signs in cut]), np.concatenate(cut)
