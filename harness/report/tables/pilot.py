"""The suite file of a pilot run: the candidates of the references on data of one's own."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml

from harness.config.builtin import path_of
from harness.config.recorded import BUILT_IN
from harness.config.yaml import read_yaml
from harness.report.data.evidence import Row
from harness.report.data.recommendation import ALONE, SAME
from harness.report.data.references import ReferenceAnswer
from harness.report.data.specs import in_text, settings_of

#: Data where none are named.
BLANK = {"name": "csv", "path": "mine.csv", "label": "label", "client": "client"}
SEEDS, BUDGET = 10, 48  # reported seeds of every row; settings that a search tries first
CHOOSING = ("accuracy", "auroc", "eqopp", "worst_group", "loss")  # measures that a search can choose by
HEAD = """\
# A pilot run: the candidates of the references, tuned on your data{blank}.
# {same[0]} and {same[1]} are one method here: what they differ by is what this table cannot tell apart.
# `plan` says what this file costs, `suite` runs it, and `recommend results --suite pilot` answers from its results.
"""
FILL_IN = ";\n# replace path, label and client by a file of yours and its columns"


def pilot(asked: ReferenceAnswer, data: Any = None, clients: int | None = None) -> str:
    """Return the suite file as YAML.

    Parameters
    ----------
    asked : ReferenceAnswer
        The answers of the references.
    data : str or dict, optional
        Section ``data`` of a run file; without it there are names to fill in.
    clients : int, optional
        Deal the data to so many clients at random, where no column names them.
    """
    partition = (
        {"kind": "natural"} if data is None or clients is None else {"kind": "iid", "clients": clients}
    )
    rows = [row for row in asked.rows_to_try if row["model_for"] != ALONE]
    methods = [str(row["algorithm"]) for row in rows]
    ranges = _ranges(asked, [*methods, *SAME, "local", "centralized"])
    blocks: dict[str, dict[str, Any]] = {}
    for row in rows:
        block = blocks.setdefault(json.dumps(_parts(row)), {**_parts(row), "algorithm": []})
        block["algorithm"].append(_method(row, ranges))
    plain = blocks.setdefault("{}", {"algorithm": []})
    plain["algorithm"] = list(SAME) + [one for one in plain["algorithm"] if one not in SAME]
    compressions = list({str(kind): kind for kind in map(_compression, rows)}.values())
    for block in blocks.values():
        block["privacy"] = _budgets(asked, rows)
        if any(compressions):
            block["compression"] = compressions
        block["seed"] = f"0..{SEEDS - 1}"
    by = asked.recommendation.by
    suite = {
        "suite": "pilot",
        "base": {
            "data": data or BLANK,
            "partition": {**partition, "selection": 0.2},
            "model": "logistic",
            "rounds": 10,
            "eval_every": 1000,
        },
        "sweep": [*blocks.values(), {"algorithm": ["local", "centralized"], "seed": f"0..{SEEDS - 1}"}],
        "tune": {"settings": ranges, "metric": by if by in CHOOSING else "auroc", "budget": BUDGET},
        "report": {"by": by, "baseline": SAME[0]},
    }
    head = HEAD.format(blank="" if data else FILL_IN, same=SAME)
    return head + yaml.safe_dump(suite, sort_keys=False, default_flow_style=None, width=100)


def _parts(row: Row) -> dict[str, Any]:
    """Return the model and the problem of a row, where they are not the usual ones, as lists of a sweep."""
    parts: dict[str, Any] = {}
    if row["model"] not in (None, "logistic"):
        parts["model"] = [{"name": row["model"], **_settings(row, "model")}]
    if row["problem"] not in (None, "classify"):
        parts["problem"] = [{"kind": row["problem"], **_settings(row, "problem")}]
    return parts


def _compression(row: Row) -> dict[str, Any]:
    """Return what a row does to messages, where that is not to send them whole."""
    ratios = {name: row[name] for name in ("alpha", "beta") if row[name]}
    codec = {"codec": row["codec"]} if row["codec"] not in (None, "float32") else {}
    return {**ratios, **codec, **_settings(row, "compression")}


def _settings(row: Row, section: str) -> dict[str, Any]:
    """Return the settings of a section of a row."""
    named = {name: value for name, value in settings_of(row).items() if name.startswith(f"{section}.")}
    return {name.partition(".")[2]: yaml.safe_load(value) for name, value in named.items()}


def _method(row: Row, ranges: Collection[str]) -> str | dict[str, Any]:
    """Return a method, with the settings that no search chooses and that are not at their defaults."""
    name = str(row["algorithm"])
    usual = BUILT_IN["algorithm"].get(name, {}).get("defaults", {})
    own = {
        field: yaml.safe_load(value)
        for field, value in settings_of(row).items()
        if field in usual and f"algorithm.{field}" not in ranges and in_text(field, usual[field]) != value
    }
    return {"name": name, **own} if own else name


def _budgets(asked: ReferenceAnswer, rows: Sequence[Row]) -> list[dict[str, Any] | None]:
    """Return no privacy, and that of the rows at the epsilon that was asked for."""
    kinds: list[dict[str, Any] | None] = [None]
    for condition in asked.recommendation.conditions:
        if condition.name in ("epsilon", "epsilon_total") and condition.upper:
            for row in rows:
                if row["dp_unit"] is None:
                    continue
                kind = {"unit": row["dp_unit"], "placement": row["dp_placement"], "clip": 1}
                kind["epsilon"] = (
                    int(epsilon) if (epsilon := float(condition.value)).is_integer() else epsilon
                )
                if row["delta"] not in (None, 1e-5):
                    kind["delta"] = row["delta"]
                if kind not in kinds:
                    kinds.append(kind)
    return kinds[:2]


def _ranges(asked: ReferenceAnswer, methods: Sequence[str]) -> Mapping[str, Any]:
    """Return the ranges that the references were searched in, of the settings that the methods have."""
    suite = asked.recommendation.answers[0].federation.suite
    ranges: dict[str, Any] = read_yaml(path_of(suite))["tune"]["settings"]
    private = any(kind is not None for kind in _budgets(asked, asked.rows_to_try))
    kept = {}
    for name, range_ in ranges.items():
        section, _, field = name.rpartition(".")
        theirs = range_.get("algorithms", methods) if isinstance(range_, dict) else methods
        having = [one for one in methods if one in theirs and field in BUILT_IN["algorithm"][one]["defaults"]]
        if having if section == "algorithm" else private if section == "privacy" else name == "rounds":
            kept[name] = range_
    return kept
