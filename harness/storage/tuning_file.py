"""The searches of ``suite.json``, by column: what their settings are called is written once.

::

    "settings": [{"algorithm.lr": [.1, .3], "rounds": [10, 30]}, ...]     what searches tried, each once
    "searches": [{"trials": {"settings": 0, "seeds": [[0], [0, 1]], "values": [[.71], [.76, .75]], ...},
                  "seeds": [75930879, 4674597],                           which the trials number
                  "finalists": [{"metrics": {"seeds": [0, 1], "values": {"auroc": [.77, .76], ...}}, ...}], ...}]

Results have `DIGITS` digits: of a thousand test samples one is in the third. Of a trial's results on test samples,
which choose nothing, that of the first seed is kept, as the gain by tuning follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.storage.files import Damaged

DIGITS = 6

Row = Mapping[str, Any]


def pack_tuning(tuning: Row) -> dict[str, Any]:
    """Return searches as a file has them; `unpack_tuning` is the inverse, but for digits."""
    settings: list[dict[str, list[Any]]] = []
    searches = [_packed(search, settings) for search in tuning["searches"]]
    return {**tuning, "settings": settings, "searches": searches}


def unpack_tuning(path: Path, tuning: Any) -> dict[str, Any]:
    """Return searches with a mapping for each trial; those of earlier versions, which have them, as they are.

    Raises
    ------
    Damaged
        If columns are missing or differ in length, or a number is that of nothing.
    """
    try:
        settings = tuning.get("settings", ())
        rest = {name: value for name, value in tuning.items() if name != "settings"}
        return {**rest, "searches": [_unpacked(search, settings) for search in _list(tuning["searches"])]}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise Damaged(path, "is damaged: tuning: a column is missing or has another length") from None


def _packed(search: Row, settings: list[dict[str, list[Any]]]) -> dict[str, Any]:
    """Return a search by column; what it tried is added to ``settings`` unless it is there."""
    trials = search["trials"]
    finalists = {"finalists": list(map(_with_columns, search["finalists"]))} if "finalists" in search else {}
    if len({(*trial, *trial.get("settings", ())) for trial in trials}) != 1:  # none, or of several kinds
        return {**search, **finalists}
    columns: dict[str, Any] = _columns(trials)
    columns["values"] = [list(map(_short, values)) for values in columns["values"]]
    columns["tests"] = [list(map(_short, tests[:1])) for tests in columns["tests"]]
    tried = _columns(columns.get("settings", ()))
    if tried:
        if tried not in settings:
            settings.append(tried)
        columns["settings"] = settings.index(tried)
    seeds = list(dict.fromkeys(seed for own in columns.get("seeds", ()) for seed in own))
    numbered = {seed: number for number, seed in enumerate(seeds)}
    if seeds:
        columns["seeds"] = [[numbered[seed] for seed in own] for own in columns["seeds"]]
    return {**search, **finalists, **({"seeds": seeds} if seeds else {}), "trials": columns}


def _unpacked(search: Row, settings: Sequence[Mapping[str, list[Any]]]) -> dict[str, Any]:
    columns = search["trials"]
    finalists = {}
    if "finalists" in search:
        finalists = {"finalists": list(map(_with_rows, _list(search["finalists"])))}
    if not isinstance(columns, dict):
        return {**search, **finalists}
    if isinstance(columns["settings"], int):
        columns = {**columns, "settings": _rows(_item(settings, columns["settings"]))}
    if "seeds" in search or "seeds" in columns:
        seeds = search.get("seeds", ())
        numbered = [[_item(seeds, number) for number in _list(own)] for own in columns["seeds"]]
        columns = {**columns, "seeds": numbered}
    rest = {name: value for name, value in search.items() if name != "seeds"}
    return {**rest, **finalists, "trials": _rows(columns)}


def _with_columns(finalist: Row) -> dict[str, Any]:
    """Return a finalist with its metrics by column; null where a run lacks one."""
    metrics = finalist.get("metrics")
    if not metrics:
        return dict(finalist)
    names = dict.fromkeys(name for own in metrics.values() for name in own)
    values = {name: [_short(own.get(name)) for own in metrics.values()] for name in names}
    return {**finalist, "metrics": {"seeds": list(map(int, metrics)), "values": values}}


def _with_rows(finalist: Row) -> dict[str, Any]:
    metrics = finalist.get("metrics", {})
    if "values" not in metrics:
        return dict(finalist)
    if not all(type(seed) is int for seed in metrics["seeds"]):
        raise TypeError("a seed is no number")
    by_seed: dict[str, dict[str, Any]] = {str(seed): {} for seed in metrics["seeds"]}
    for name, column in metrics["values"].items():
        for own, value in zip(by_seed.values(), column, strict=True):
            if value is not None:
                own[name] = value
    return {**finalist, "metrics": by_seed}


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return rows with the same names by column; empty without any."""
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _item(items: Sequence[Any], number: Any) -> Any:
    """Return an item by its number; raise an error for a negative one, which Python counts from the end."""
    if type(number) is not int or number < 0:
        raise IndexError(number)
    return items[number]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} where a list is needed")
    return value


def _short(value: float | None) -> float | None:
    """Return a number with `DIGITS` digits; a whole one without the zero behind its point."""
    short = None if value is None else float(f"{value:.{DIGITS}g}")
    return short if short is None or short % 1 or abs(short) > 10**DIGITS else int(short)
