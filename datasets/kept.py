"""Tables as they were read, kept in the cache: reading a file of text takes five times as long or more.

A kept table is used only for the same bytes of the source, read with the same options by the same code.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datasets.cache import Found, cache_dir, sha256, source_digest
from datasets.dataset import Column, Dataset

MOST_BYTES = 2**26  # of the features; larger tables are read anew
READERS = ("numpy", "pandas")  # packages whose versions may show in what is read


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
    what = json.dumps([str(found.path), found.source, options], sort_keys=True, default=list)
    path = cache_dir("tables") / f"{name}-{hashlib.sha256(what.encode()).hexdigest()[:16]}.npz"
    key = " ".join(
        [what, sha256(found.path), source_digest([str(Path(__file__).parent)]), *map(version, READERS)]
    )
    with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), np.load(path) as file:
        if str(file["key"]) == key:
            return _restored(file)
    data = read()
    if data.x.nbytes <= MOST_BYTES and (arrays := _arrays(data)) is not None:
        with suppress(OSError):  # it is read again next time
            _write(path, {"key": np.array(key), **arrays})
    return data


def _arrays(data: Dataset) -> dict[str, Column] | None:
    """Return a table as arrays of numbers and text; None if a column holds something else."""
    tensors = {field.name: getattr(data, field.name) for field in fields(data)}
    plain = {name: value for name, value in tensors.items() if not isinstance(value, Tensor)}
    del plain["columns"]
    found = {
        f"tensor {name}": value.numpy() for name, value in tensors.items() if name not in (*plain, "columns")
    }
    for name, column in data.columns.items():
        if column.dtype.kind not in "OU":
            found[f"column {name}"] = column
            continue
        if column.dtype.kind == "O" and any(type(value) is not str for value in column):
            return None
        values, places = np.unique(column, return_inverse=True)
        found[f"{column.dtype.kind} values {name}"] = values.astype(np.str_)
        found[f"{column.dtype.kind} places {name}"] = places.astype(np.int32)
    about = {**plain, "columns": list(data.columns)}
    return {"about": np.array(json.dumps(about)), **found}


def _restored(file: Mapping[str, Any]) -> Dataset:
    """Return the table of `_arrays`."""
    about, names = json.loads(str(file["about"])), set(file)
    columns = {}
    for name in about["columns"]:
        if f"column {name}" in names:
            columns[name] = file[f"column {name}"]
            continue
        kind = "U" if f"U values {name}" in names else "O"
        values = file[f"{kind} values {name}"]
        columns[name] = (values if kind == "U" else values.astype(object))[file[f"{kind} places {name}"]]
    made: dict[str, Any] = {
        **{name: tuple(value) if isinstance(value, list) else value for name, value in about.items()},
        **{name[7:]: torch.from_numpy(file[name]) for name in names if name.startswith("tensor ")},
        "reveals": {name: tuple(others) for name, others in about["reveals"].items()},
        "columns": columns,
    }
    return Dataset(**made)


def _write(path: Path, arrays: Mapping[str, Column]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".part-") as folder:
        part = Path(folder) / path.name
        np.savez(part, **arrays)  # type: ignore[arg-type]
        part.replace(path)
