"""Formats of a user's files, their addresses, and what to call the data in one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from datasets.errors import DataError, nearest

#: Suffixes of the files of every format.
SUFFIXES: dict[str, tuple[str, ...]] = {
    "csv": (".csv",),
    "parquet": (".parquet",),
    "arrow": (".arrow", ".feather"),
    "excel": (".xlsx", ".xlsm"),
    "files": (),
    "leaf": (),
    "tff": (),
    "images": (),
}
FILES = "files"  # several files, each of the format that its suffix says
FEDERATED = ("leaf", "tff", "images")  # formats that name the clients themselves
POLICIES = ("error", "drop", "fill")  # for missing cells
OTHERWISE = "*"  # in a mapping of policies: columns that it does not name

# Query keys of an address ``FORMAT:PATH?KEY=VALUE&...``; ``missing.COLUMN``, ``labels.VALUE``,
# ``rename.COLUMN``, ``map.COLUMN.VALUE`` and ``scale.COLUMN`` besides.
LISTS = ("sensitive", "drop", "text", "encode", "na")
MAPPINGS = ("missing", "labels", "rename", "map", "scale")
MARKS = ("delimiter", "encoding", "decimal", "thousands", "dates", "header")
COUNTS = {"rare": "a number of rows", "header": "the number of a line"}
ROLES = ("label", "client", "user", "input")
KEYS = (
    *ROLES, "encoder", "keep_sensitive", "rare", "positive", "normalize", "split", *MAPPINGS, *MARKS, *LISTS,
)  # fmt: skip

#: What readers of other libraries call them.
SYNONYMS = {"sep": "delimiter", "separator": "delimiter", "target": "label"}

#: Parts of a date, and how dates are often written.
PARTS = ["dd", "mm", "yyyy"]
WRITTEN_DATES = ("dd.mm.yyyy", "mm/dd/yyyy", "dd/mm/yyyy", "yyyy-mm-dd")

#: How a mapping is written in an address.
WRITTEN = {
    "labels": "labels.OLD=NEW; the column of labels is label=COLUMN",
    "rename": "rename.OLD=NEW",
    "map": "map.COLUMN.OLD=NEW",
    "scale": "scale.COLUMN=FACTOR",
}


def name_of_file(name: object, path: object, files: object = None) -> str | None:
    """Return what to call the data of a user's file or files; None for a data set of the catalog."""
    if name in SUFFIXES and isinstance(files, Mapping):
        names = [str(one) for one in files]
        return " + ".join(names[:3]) + (f" + {len(names) - 3} more" if len(names) > 3 else "")
    return Path(str(path)).name if name in SUFFIXES and path else None


def is_pattern(path: str) -> bool:
    """Whether a path is a pattern of several, such as ``hospital/*.csv``."""
    return "*" in path and not Path(path).exists()


def kind_of_file(path: Path) -> str | None:
    """Return the format that the suffix of a file says; None if it says none."""
    return next((name for name, suffixes in SUFFIXES.items() if path.suffix.lower() in suffixes), None)


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
        rest = address
        name = kind_of_file(Path(address.partition("?")[0])) or ""
        if not name:
            return None
    path, _, query = rest.partition("?")
    options: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        key, dot, column = key.partition(".")
        if key not in KEYS:
            raise DataError(f"{address!r}: unknown option {key!r}; {nearest(SYNONYMS.get(key, key), KEYS)}")
        if not equals or (dot and key not in MAPPINGS) or (key in WRITTEN and not dot):
            expected = WRITTEN.get(key, f"{key}=VALUE")
            raise DataError(f"{address!r}: {part!r} is not {expected}")
        value = unquote(value)
        if key == "map":
            column, dot, old = column.partition(".")
            if not dot:
                raise DataError(f"{address!r}: {part!r} is not {WRITTEN[key]}")
            values = options.setdefault(key, {}).setdefault(unquote(column), {})
            if values.setdefault(unquote(old), value) != value:
                raise DataError(f"{address!r}: {part.partition('=')[0]} is given twice")
        elif key in MAPPINGS:
            mapping, column = options.setdefault(key, {}), unquote(column) if dot else OTHERWISE
            if column in mapping:
                raise DataError(f"{address!r}: {key} is given twice")
            mapping[column] = read_factor(f"{address!r}: scale.{column}", value) if key == "scale" else value
        elif key == "na" and value.startswith("[") and value.endswith("]"):  # as in a run file
            options[key] = [*as_list(options.get(key)), *map(str.strip, value[1:-1].split(","))]
        elif key in LISTS and key in options:
            options[key] = [*as_list(options[key]), value]
        elif key in options:
            raise DataError(f"{address!r}: {key} is given twice")
        elif key == "keep_sensitive":
            if value not in ("true", "false"):
                raise DataError(f"{address!r}: keep_sensitive is {value!r}; allowed: true, false")
            options[key] = value == "true"
        elif key in COUNTS:
            if not value.isdecimal():
                raise DataError(f"{address!r}: {key} is {value!r}; give {COUNTS[key]}, at least 1")
            options[key] = int(value)
        else:
            options[key] = value
    if (mapping := options.get("missing")) is not None and set(mapping) == {OTHERWISE}:
        options["missing"] = mapping[OTHERWISE]
    return {"name": name, "path": unquote(path), **options}


def read_factor(where: str, value: Any) -> float:
    """Return the factor of a column as a number; raise `DataError` if it is none above 0."""
    try:
        factor = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        factor = math.nan
    if not 0 < factor < math.inf:
        raise DataError(f"{where}: a factor above 0 is needed, such as 0.001, given {value!r}")
    return factor


def as_list(names: str | Sequence[str] | None) -> list[str]:
    """Return one name, several or none as a list."""
    if names is None:
        return []
    return [names] if isinstance(names, str) else list(names)


class Reading(NamedTuple):
    """Options for reading the cells of a file.

    Attributes
    ----------
    delimiter, encoding : str or None
        What separates the columns of a CSV file, and its encoding. None: as its header suggests; UTF-8.
    decimal, thousands : str
        The decimal sign, and what separates groups of three digits, if anything.
    dates : str or None
        How dates are written, such as ``dd.mm.yyyy``; a column of such texts becomes days since 1970. None: dates
        of text stay text.
    header : int or None
        The line of the names of columns, in CSV and Excel files; what stands above is left out. None: the first.
    na : tuple[str, ...]
        Further texts, or numbers, that stand for a missing cell.
    split : str or None
        Which rows of TFF's SQLite files are read.
    """

    delimiter: str | None = None
    encoding: str | None = None
    decimal: str = "."
    thousands: str = ""
    dates: str | None = None
    header: int | None = None
    na: tuple[str, ...] = ()
    split: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Reading:
        """Return the reading that some options describe; other options are ignored.

        Raises
        ------
        DataError
            If a sign is no single character, two signs are the same, or ``dates`` or ``header`` make no sense.
        """
        settings: dict[str, Any] = {
            name: options[name] for name in cls._fields if options.get(name) is not None
        }
        if settings.get("delimiter") in ("tab", "\\t"):
            settings["delimiter"] = "\t"
        header = settings.get("header", 1)
        if not isinstance(header, int) or isinstance(header, bool) or header < 1:
            raise DataError(f"header: the number of a line is needed, at least 1, given {header!r}")
        for name, value in settings.items():
            if name == "header":
                continue
            several = value if name == "na" and isinstance(value, list | tuple) else [value]
            if not all(isinstance(text, str) for text in several):
                raise DataError(f"{name}: a text is needed, given {value!r}")
        if (written := settings.get("dates")) is not None and (
            sorted(re.split(r"[-/. ]", written)) != PARTS
            or written == "yyyy-dd-mm"  # which looks like ISO 8601
        ):
            raise DataError(
                f"dates is {written!r}; give an order and signs, such as {', '.join(WRITTEN_DATES)}"
            )
        reading = cls(**{**settings, "na": tuple(as_list(settings.get("na")))})
        for name in ("delimiter", "decimal", "thousands"):
            sign = settings.get(name)
            if sign and (len(sign) != 1 or sign.isalnum() or sign in '"+\r\n'):
                raise DataError(
                    f"{name} is {sign!r}; give one character other than a letter, digit, quote or plus"
                )
        if reading.decimal == "-" or reading.thousands == "-" or reading.decimal in (reading.thousands, ""):
            raise DataError(
                f"decimal is {reading.decimal!r} and thousands {reading.thousands!r}; give two different signs, "
                "no minus"
            )
        return reading

    @property
    def usual(self) -> bool:
        """Whether numbers are written as Python writes them."""
        return self.decimal == "." and not self.thousands
