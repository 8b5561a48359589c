"""Formats of a user's files, and what to call the data in one."""

from __future__ import annotations

from pathlib import Path

#: Suffixes of the files of every format.
SUFFIXES = {"csv": (".csv",), "parquet": (".parquet",), "arrow": (".arrow", ".feather")}


def name_of_file(name: object, path: object) -> str | None:
    """Return what to call the data of a user's file; None for a data set of the catalog."""
    return Path(str(path)).name if name in SUFFIXES and path else None
