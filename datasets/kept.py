"""Tables as they were read, kept in the cache: reading a text file takes several times as long.

A kept table is used only for the same bytes of the source, read with the same options by the same code. The file
begins with the checksum of the rest; where that is wrong, or others can write the folder, the table is read anew.
"""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

import datasets
from datasets.cache import Found, cache_dir, make_cache_folder, sha256, source_digest, trusted
from datasets.dataset import Column, Dataset
from datasets.errors import DataError
from datasets.limits import content

MOST_BYTES = 2**26  # of a table in the cache; larger ones are read anew
READERS = ("numpy", "pandas")  # packages whose versions may show in what is read
FOLDERS = list(datasets.__path__)
#: Of the code that is imported; None if it was edited before the last of it was, as then it may be of two states.
SOURCE = datasets.SOURCE if source_digest(FOLDERS) == datasets.SOURCE else None
NO_CACHE = (OSError, RuntimeError)  # the latter: no home for it


def kept(name: str, found: Found, options: Mapping[str, object], read: Callable[[], Dataset]) -> Dataset:
    """Return a table from the cache, or read it and keep it there.

    Parameters
    ----------
    name : str
        Data set, for the name of the file.
    found : Found
        The file that is read.
    options : Mapping
        Options of the reader.
    read : Callable
        Reads the file.
    """
    if SOURCE is None:
        return read()
    what = repr([str(found.path), found.source, sorted(options.items())])
    digest = sha256(found.path)
    key = " ".join([what, digest, SOURCE, *map(version, READERS)])
    place = f"{name}-{hashlib.sha256(what.encode(errors='surrogateescape')).hexdigest()[:16]}.table"
    if (file := _recalled(place)) is not None and str(file["key"]) == key:
        return _restored(file)
    data = read()
    arrays = _arrays(data)
    if arrays is None or sum(array.nbytes for array in arrays.values()) > MOST_BYTES:
        return data
    if sha256(found.path) == digest and source_digest(FOLDERS) == SOURCE:  # both as they were before
        with suppress(*NO_CACHE):  # it is read again next time
            _write(cache_dir("tables") / place, {"key": np.array(key), **arrays})
    return data


def _recalled(place: str) -> Mapping[str, Any] | None:
    """Return the arrays of a file of the cache; None if there is none, or not what was written."""
    with suppress(*NO_CACHE, DataError):
        path = cache_dir("tables") / place
        if path.exists() and trusted(path.parent):
            seal, _, rest = content(path).partition(b"\n")
            if hashlib.sha256(rest).hexdigest().encode() == seal:
                return cast(Mapping[str, Any], np.load(io.BytesIO(rest)))
    return None


def _arrays(data: Dataset) -> dict[str, Column] | None:
    """Return a table as arrays of numbers and text; None if a column holds something else, or long texts."""
    values = {field.name: getattr(data, field.name) for field in fields(data)}
    tensors = [name for name, value in values.items() if isinstance(value, Tensor)]
    about = {name: value for name, value in values.items() if name not in (*tensors, "columns")}
    found = {name: values[name].numpy() for name in tensors}
    columns = []
    for number, (name, column) in enumerate(data.columns.items()):
        columns.append((name, column.dtype.kind))
        if column.dtype.kind not in "OU":
            found[f"column {number}"] = column
            continue
        if any(not isinstance(value, str) for value in column):
            return None
        texts, places = np.unique(column, return_inverse=True)
        if 4 * len(texts) * max(map(len, texts), default=0) > MOST_BYTES:
            return None
        plain = texts.astype(np.str_)
        if plain.tolist() != texts.tolist():  # a text that ends with a null character
            return None
        found[f"texts {number}"], found[f"places {number}"] = plain, places.astype(np.int32)
    return {"about": np.array(json.dumps([about, tensors, columns])), **found}


def _restored(file: Mapping[str, Any]) -> Dataset:
    """Return the table of `_arrays`."""
    about, tensors, kinds = json.loads(str(file["about"]))
    columns = {}
    for number, (name, kind) in enumerate(kinds):
        if kind in "OU":
            texts = file[f"texts {number}"]
            columns[name] = (texts.astype(object) if kind == "O" else texts)[file[f"places {number}"]]
        else:
            columns[name] = file[f"column {number}"]
    made: dict[str, Any] = {
        **{name: tuple(value) if isinstance(value, list) else value for name, value in about.items()},
        **{name: torch.from_numpy(file[name]) for name in tensors},
        "reveals": {name: tuple(others) for name, others in about["reveals"].items()},
        "columns": columns,
    }
    return Dataset(**made)


def _write(path: Path, arrays: Mapping[str, Column]) -> None:
    make_cache_folder(path.parent)
    if not trusted(path.parent):
        return
    whole = io.BytesIO()
    np.savez(whole, **arrays)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".part-") as folder:
        part = Path(folder) / path.name
        part.write_bytes(hashlib.sha256(whole.getvalue()).hexdigest().encode() + b"\n" + whole.getvalue())
        part.replace(path)
