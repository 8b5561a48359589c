"""Formats of a user's files, their addresses, and what to call the data in one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from datasets.errors import DataError, nearest

#: Suffixes of the files of every format.
SUFFIXES = {"csv": (".csv",), "parquet": (".parquet",), "arrow": (".arrow", ".feather")}
POLICIES = ("error", "drop", "fill")  # for missing cells
OTHERWISE = "*"  # in a mapping of policies: columns that it does not name

# Query keys of an address ``FORMAT:PATH?KEY=VALUE&...``; ``missing.COLUMN`` and ``labels.VALUE`` besides.
LISTS = ("sensitive", "drop", "text")
MAPPINGS = ("missing", "labels")
KEYS = ("label", "client", "user", "keep_sensitive", "rare", "positive", *MAPPINGS, *LISTS)


def name_of_file(name: object, path: object) -> str | None:
    """Return what to call the data of a user's file; None for a data set of the catalog."""
    return Path(str(path)).name if name in SUFFIXES and path else None


def parse_address(address: str) -> dict[str, Any] | None:
    """Split ``csv:PATH?label=..&sensitive=..`` into name, path and options; None for any other text.

    The format may be left out where the path's suffix tells it. A repeated key gives a list,
    ``missing.COLUMN=POLICY`` and ``labels.OLD=NEW`` mappings. Special characters are percent-encoded (``%26``,
    ``%3F``).

    Raises
    ------
    DataError
        If an option is unknown, or given twice.
    """
    name, colon, rest = address.partition(":")
    if not colon or name not in SUFFIXES:
        suffix, rest = Path(address.partition("?")[0]).suffix.lower(), address
        name = next((name for name, known in SUFFIXES.items() if suffix in known), "")
        if not name:
            return None
    path, _, query = rest.partition("?")
    options: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        key, dot, column = key.partition(".")
        if key not in KEYS:
            raise DataError(f"{address!r}: unknown option {key!r}; {nearest(key, KEYS)}")
        if not equals or (dot and key not in MAPPINGS) or (key == "labels" and not dot):
            renames = "labels.OLD=NEW; the column of labels is label=COLUMN"
            wanted = renames if key == "labels" else f"{key}=VALUE"
            raise DataError(f"{address!r}: {part!r} is not {wanted}")
        value = unquote(value)
        if key in MAPPINGS:
            given, column = options.setdefault(key, {}), unquote(column) if dot else OTHERWISE
            if column in given:
                raise DataError(f"{address!r}: {key} is given twice")
            given[column] = value
        elif key in LISTS and key in options:
            options[key] = [*listed(options[key]), value]
        elif key in options:
            raise DataError(f"{address!r}: {key} is given twice")
        elif key == "keep_sensitive":
            if value not in ("true", "false"):
                raise DataError(f"{address!r}: keep_sensitive is {value!r}; allowed: true, false")
            options[key] = value == "true"
        elif key == "rare":
            if not value.isdecimal():
                raise DataError(f"{address!r}: rare is {value!r}; give a number of rows, at least 1")
            options[key] = int(value)
        else:
            options[key] = value
    if (given := options.get("missing")) is not None and set(given) == {OTHERWISE}:
        options["missing"] = given[OTHERWISE]
    return {"name": name, "path": unquote(path), **options}


def listed(given: str | Sequence[str] | None) -> list[str]:
    """Return one name, several or none as a list."""
    if given is None:
        return []
    return [given] if isinstance(given, str) else list(given)
