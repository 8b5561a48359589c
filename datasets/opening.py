"""The content of a user's tables: one file, a pattern of files, or files by the names of clients.

Columns and values that the files write differently are made alike here, before the columns have roles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from datasets import arrow, csv, excel, image_folders, leaf, tff
from datasets.dataset import Column
from datasets.doubts import DATE, dates_written, kind_problem
from datasets.encoding import Cells, Content, Kind
from datasets.errors import DataError, nearest, tried, warn
from datasets.formats import FEDERATED, FILES, SUFFIXES, Reading, is_pattern, kind_of_file
from datasets.limits import check_exists, check_shape
from datasets.numerals import MISSING_MARKS, read_texts

ORIGIN = "client"  # the column that holds the names of the files
REST = "*"  # in a map of values: every other value, and in what it becomes that value
FEW = 2  # different numbers, up to which they look like codes
MIDDLE = (5, 95)  # percentiles between which most numbers are


class Format(NamedTuple):
    """A format: its reader, the version of it, and the suffixes of its files."""

    read: Callable[[Path, Reading], Content]
    version: int
    suffixes: tuple[str, ...]


def _several(path: Path, reading: Reading) -> Content:
    raise DataError(f"{path}: files name several tables; give one of them")


FORMATS = {
    "csv": Format(csv.read_columns, csv.VERSION, SUFFIXES["csv"]),
    "parquet": Format(arrow.read_parquet, arrow.VERSION, SUFFIXES["parquet"]),
    "arrow": Format(arrow.read_arrow, arrow.VERSION, SUFFIXES["arrow"]),
    "excel": Format(excel.read_columns, excel.VERSION, SUFFIXES["excel"]),
    "leaf": Format(leaf.read_leaf, leaf.VERSION, SUFFIXES["leaf"]),
    "tff": Format(tff.read_tff, tff.VERSION, SUFFIXES["tff"]),
    "images": Format(image_folders.read_folders, image_folders.VERSION, SUFFIXES["images"]),
    # A change of one of the readers may be one of the table.
    FILES: Format(_several, csv.VERSION + arrow.VERSION + excel.VERSION, ()),
}
Map = Mapping[str, Mapping[str, str]]


class Part(NamedTuple):
    """One file of a table, with the name of its client, and its own content."""

    name: str
    path: Path
    content: Content


def open_table(kind: str, options: Mapping[str, Any]) -> Content:
    """Read a table, and make its columns and values alike.

    Parameters
    ----------
    kind : str
        A name in `FORMATS`.
    options : Mapping
        ``path``, a file, a folder of files where the format has one, or a pattern such as ``hospital/*.csv``; or
        ``files``, which maps names of clients to paths, or to options that hold for one file: ``path``, those of
        `Reading`, ``rename``, ``map`` and ``scale``. Those hold for all files where they stand beside.

    Returns
    -------
    Content
        Of several files, with a further column `ORIGIN` of the names; their digest is that of names and digests.

    Raises
    ------
    DataError
        If a file does not exist or cannot be read, or files do not go together: the message names file and column.
    """
    given = options.get("files")
    path = options.get("path")
    if (given is None) == (path is None):
        raise DataError(
            "data.files names tables by their clients, and data.path one table; give one of them"
            if path is not None
            else f"data set {kind!r} needs the path of a file: {example(kind)}"
        )
    if kind in FEDERATED and (given is not None or is_pattern(str(path))):
        raise DataError(f"{kind} files name their clients themselves; give one path: {example(kind)}")
    if given is not None:
        named = {name: one if isinstance(one, Mapping) else {"path": one} for name, one in given.items()}
    elif is_pattern(str(path)):
        matches = matching_files(str(path))
        named = {match.stem: {"path": match} for match in matches}
        if len(named) < len(matches):
            raise DataError(f"two files of {path} have one name; name them by data.files")
    else:
        content = _opened(kind, Path(str(path)).expanduser(), options)
        return alike(str(path), content, {}, options)
    found = tried(partial(_files, name, own.get("path")) for name, own in named.items())
    parts = tried(
        partial(_part, kind, name, file, own, options)
        for (name, own), files in zip(named.items(), found, strict=True)
        for file in files
    )
    _check_shared(parts, options)
    return _joined(parts, _listed(options.get("drop")), options)


def _part(kind: str, name: str, path: Path, own: Mapping[str, Any], options: Mapping[str, Any]) -> Part:
    """Return one of several files, with its own settings and those of all."""
    content = _opened(_kind(kind, path), path, {**options, **own})
    return Part(name, path, alike(str(path), content, options, own))


def _check_shared(parts: Sequence[Part], options: Mapping[str, Any]) -> None:
    """Refuse names, values and factors of all files that concern none of them."""
    columns = dict.fromkeys(name for part in parts for name in part.content.columns)
    for key in ("rename", "map", "scale"):
        used = options.get(key) or {}
        targets = used.values() if key == "rename" else used
        if strange := [column for column in targets if column not in columns]:
            named = ", ".join(map(repr, strange))
            raise DataError(f"data.{key}: no file has a column {named}; {nearest(strange, columns)}")


def example(kind: str) -> str:
    """Return an address of a format."""
    return f"{kind}:PATH" + ("" if kind in FEDERATED else "?label=COLUMN")


def _listed(names: Any) -> Sequence[str]:
    return [names] if isinstance(names, str) else list(names or ())


def _kind(kind: str, path: Path) -> str:
    """Return the format of one of several files: as it is named, or as its suffix says."""
    if kind != FILES:
        return kind
    found = kind_of_file(path)
    if found is None:
        suffixes = [suffix for some in SUFFIXES.values() for suffix in some]
        raise DataError(f"{path}: its suffix says no format; {nearest(path.suffix, suffixes)}")
    return found


def matching_files(pattern: str) -> list[Path]:
    """Return the files of a pattern, sorted; raise `DataError` if there is none."""
    whole = Path(pattern).expanduser()
    steps = whole.parts
    first = next(place for place, step in enumerate(steps) if is_pattern(step))
    found = sorted(Path(*steps[:first]).glob(str(Path(*steps[first:]))))
    if not found:
        raise DataError(f"no file is called like {pattern}")
    return found


def _files(name: str, path: Any) -> list[Path]:
    if not path:
        raise DataError(f"data.files: {name!r} has no path")
    return matching_files(str(path)) if is_pattern(str(path)) else [Path(str(path)).expanduser()]


def _opened(kind: str, path: Path, options: Mapping[str, Any]) -> Content:
    check_exists(kind, path)
    return FORMATS[kind].read(path, Reading.of(options))


def alike(where: str, content: Content, shared: Mapping[str, Any], own: Mapping[str, Any]) -> Content:
    """Return a content with columns renamed, values mapped and numbers scaled.

    Parameters
    ----------
    where : str
        The file, for messages.
    content : Content
        What it holds.
    shared, own : Mapping
        Options of all files, and of this one: ``rename``, ``map`` and ``scale``. Those of this one win, and what
        they name must be in it; what all files share need not be in each.

    Raises
    ------
    DataError
        If something is named that is not there, or two columns would have one name.
    """
    if strange := [old for old in own.get("rename") or {} if old not in content.columns]:
        named = ", ".join(map(repr, strange))
        raise DataError(f"{where}: rename names {named}; {nearest(strange, content.columns)}")
    names = {**(shared.get("rename") or {}), **(own.get("rename") or {})}
    columns: dict[str, Callable[[Kind], Cells]] = {}
    for old, read in content.columns.items():
        name = names.get(old, old)
        if name in columns:
            raise DataError(f"{where} would have two columns {name!r}; rename or drop one of them")
        columns[name] = read
    maps: dict[str, dict[str, str]] = {}
    for section in (shared.get("map") or {}, own.get("map") or {}):
        for column, values in section.items():
            maps[column] = {**maps.get(column, {}), **values}
    for key in ("map", "scale"):
        if strange := [column for column in own.get(key) or {} if column not in columns]:
            named = ", ".join(map(repr, strange))
            raise DataError(f"{where}: {key} names a column {named}; {nearest(strange, columns)}")
    plain = Reading() if content.typed else Reading.of({**shared, **own})
    own_maps = own.get("map") or {}
    for column, values in maps.items():
        if column in columns:
            expected = [value for value in own_maps.get(column, {}) if value != REST]
            columns[column] = partial(_mapped, where, column, columns[column], values, expected, plain)
    for column, factor in {**(shared.get("scale") or {}), **(own.get("scale") or {})}.items():
        if column in columns:
            columns[column] = partial(_scaled, where, column, columns[column], factor)
    return content._replace(columns=columns, reading=plain)


def _mapped(
    where: str,
    name: str,
    read: Callable[[Kind], Cells],
    values: Mapping[str, str],
    expected: Sequence[str],
    reading: Reading,
    kind: Kind,
) -> Cells:
    """Return the cells of a column with other values, which may be numbers then.

    Raises
    ------
    DataError
        If a value does not occur that is expected: a mistyped one would change nothing, without a word.
    """
    cells = read("text")
    rest = values.get(REST)
    known = {old: new for old, new in values.items() if old != REST}
    texts: Column = cells.values
    different = {*texts[~cells.missing].tolist()}
    becomes = {
        text: known.get(text, text if rest is None else rest.replace(REST, text)) for text in different
    }
    written = {*texts.tolist()}
    if strange := [old for old in expected if old not in written]:
        raise DataError(
            f"{where}: map names {', '.join(map(repr, strange))}, which is no value of the column {name!r}; "
            f"{nearest(strange, sorted(different)[:20])}"
        )
    mapped = [
        known.get(text, "") if gone else becomes[text]
        for text, gone in zip(texts.tolist(), cells.missing.tolist(), strict=True)
    ]
    return read_texts(f"{where}: the column {name!r}", mapped, reading, kind, MISSING_MARKS)


def _scaled(where: str, name: str, read: Callable[[Kind], Cells], factor: float, kind: Kind) -> Cells:
    """Return the numbers of a column in another unit; raise `DataError` if it is text or dates."""
    cells = read(kind)
    if cells.missing.all():
        return cells
    if not cells.numeric or cells.dates:
        found = "dates" if cells.dates else "text"
        raise DataError(f"{where}: scale multiplies numbers, and the column {name!r} is {found} there")
    return cells._replace(values=cells.values * factor, grouped="")  # who gives a factor has read the numbers


def _joined(parts: Sequence[Part], dropped: Sequence[str], options: Mapping[str, Any]) -> Content:
    """Return the table of several files, one below the other, with the column of their names."""
    first = parts[0]
    tried(partial(_check_joinable, part, first, dropped) for part in parts)
    names = [name for name in first.content.columns if name not in dropped]
    rows = [part.content.rows for part in parts]
    check_shape(first.path, sum(rows), len(names) + 1)
    label = options.get("label")
    columns: dict[str, Callable[[Kind], Cells]] = {
        name: partial(_stacked, name, parts, name == label) for name in names
    }
    for name in dropped:
        if any(name in part.content.columns for part in parts):
            columns[name] = partial(_left_out, name, parts)
    origin = np.repeat(np.array([part.name for part in parts], dtype=object), rows)
    columns[ORIGIN] = lambda _: Cells(origin, np.zeros(len(origin), dtype=bool))
    lines = "".join(f"{part.name} {part.content.digest}\n" for part in parts)
    digest = hashlib.sha256(lines.encode()).hexdigest()
    typed = all(part.content.typed for part in parts)
    return Content(columns, sum(rows), digest, typed=typed)


def _check_joinable(part: Part, first: Part, dropped: Sequence[str]) -> None:
    """Refuse a file that cannot stand below the first, as it has other columns."""
    if part.content.arrays and not {*part.content.arrays} <= {*dropped}:
        raise DataError(
            f"{part.path} has a column of arrays, {next(iter(part.content.arrays))!r}, and several files are "
            "joined by cells; give one file with a column of the clients, or drop it"
        )
    if ORIGIN in part.content.columns:
        raise DataError(
            f"{part.path} has a column {ORIGIN!r}, as the names of the files are called; rename it: "
            f"rename: {{{ORIGIN}: another name}}"
        )
    for one, other in ((part, first), (first, part)):
        there = {*one.content.columns, *dropped}
        lacking = [name for name in other.content.columns if name not in there]
        if lacking:
            raise DataError(_lacks(one, other, lacking))


def _lacks(one: Part, other: Part, names: Sequence[str]) -> str:
    """Return what to set for columns that one file has and another has not, or not under these names."""
    own = [column for column in one.content.columns if column not in other.content.columns]
    if len(names) == 1:
        return (
            f"{one.path} lacks the column {names[0]!r}, which {other.path} has; if it has another name there, give "
            f"rename, as in rename: {{NAME: {names[0]}}}, else drop={names[0]} ({nearest(names[0], own)})"
        )
    there = ", ".join(map(repr, own)) or "no others"
    return (
        f"{one.path} lacks the columns {', '.join(map(repr, names))}, which {other.path} has, and has {there} "
        f"instead; give rename for those with another name there, as in rename: {{NAME: {names[0]}}}, and drop the "
        "others"
    )


def _left_out(name: str, parts: Sequence[Part], _: Kind) -> Cells:
    """Return a column that is left out as text, for descriptions; files may lack it."""
    cells = [
        part.content.columns[name]("text")
        if name in part.content.columns
        else Cells(np.full(part.content.rows, "", dtype=object), np.ones(part.content.rows, dtype=bool))
        for part in parts
    ]
    return Cells(
        np.concatenate([one.values for one in cells]), np.concatenate([one.missing for one in cells])
    )


def _stacked(name: str, parts: Sequence[Part], is_label: bool, kind: Kind) -> Cells:
    """Return a column of all files; its cells must be of one kind.

    Raises
    ------
    DataError
        If it is numbers in one file and text in another, or labels have no value in common.
    """
    cells = [part.content.columns[name](kind) for part in parts]
    numeric = {one.numeric for one in cells if not one.missing.all()}
    if len(numeric) > 1:
        number = next(part for part, one in zip(parts, cells, strict=True) if one.numeric)
        part, text = next((part, one) for part, one in zip(parts, cells, strict=True) if not one.numeric)
        problem = kind_problem(name, text, part.content, tells_apart=False)
        words = dict.fromkeys(text.values[~text.missing].tolist())
        examples = ", ".join(map(repr, list(words)[:3]))
        raise DataError(
            f"{part.path}: {problem}"
            if problem
            else f"{part.path}: the column {name!r} is dates of text there, such as {examples}, and numbers in "
            f"{number.path}; set {dates_written(words)} to read them as days, or give drop={name}"
            if all(map(DATE.fullmatch, words))
            else f"{part.path}: the column {name!r} is text there, such as {examples}, and numbers in "
            f"{number.path}; give map, as in map: {{{name}: {{{next(iter(words))}: ...}}}}, or text={name}"
        )
    if len({one.dates for one in cells if not one.missing.all()}) > 1:
        dated, other = (
            next(
                part
                for part, one in zip(parts, cells, strict=True)
                if one.dates == wanted and not one.missing.all()
            )
            for wanted in (True, False)
        )
        raise DataError(
            f"{other.path}: the column {name!r} is numbers there, and dates in {dated.path}, which are read as "
            f"days since 1970; write dates in both, or give drop={name}"
        )
    if kind == "guess":
        _compare(name, parts, cells, is_label=is_label)
    is_number = numeric == {True} or (not numeric and kind != "text")
    values = [
        np.full(len(one.missing), np.nan) if is_number else np.full(len(one.missing), "", dtype=object)
        for one in cells
    ]
    values = [
        one.values if one.numeric == is_number else empty for one, empty in zip(cells, values, strict=True)
    ]
    codes = next((one.codes for one in cells if one.codes), ())
    grouped = next((one.grouped for one in cells if one.grouped), "")
    dates = any(one.dates for one in cells)
    missing = np.concatenate([one.missing for one in cells])
    undated = next((one.undated for one in cells if one.undated), "")
    return Cells(np.concatenate(values), missing, codes, grouped, dates, undated)


def _compare(name: str, parts: Sequence[Part], cells: Sequence[Cells], *, is_label: bool) -> None:
    """Warn of a file in which a column seems to have another code or unit; labels are refused."""
    present = [one.values[~one.missing] for one in cells]
    known = [(part, values) for part, values in zip(parts, present, strict=True) if len(values)]
    for part, values in known[1:]:
        other, usual = known[0]
        own, theirs = {*values.tolist()}, {*usual.tolist()}
        text = values.dtype == object
        coded = len(own) <= FEW and len(theirs) <= FEW and not (own <= theirs or theirs <= own)
        low, high = np.percentile(values, MIDDLE) if not text else (0.0, 0.0)
        below, above = np.percentile(usual, MIDDLE) if not text else (0.0, 0.0)
        apart = not text and not coded and (low > above or high < below)
        if (text and not own & theirs) or coded:
            lists = [", ".join(f"{value!r}" if text else f"{value:.15g}" for value in sorted(some)[:4])
                     for some in (own, theirs)]  # fmt: skip
            line = (
                f"the column {name!r} has {lists[0]} in {part.path}, and {lists[1]} in {other.path}; if they mean "
                f"the same, give map for one of the files, as in map: {{{name}: {{{sorted(own)[0]}: ...}}}}"
            )
            if is_label:
                raise DataError(f"{part.path}: {line}")
            warn(part.path, [line])
            return
        if apart:
            warn(
                part.path,
                [
                    f"the column {name!r} lies mostly from {low:.4g} to {high:.4g} in {part.path}, and from "
                    f"{below:.4g} to {above:.4g} in {other.path}; if the units differ, give scale, as in scale: "
                    f"{{{name}: FACTOR}}"
                ],
            )
            return
