"""Suites: many runs from one file.

::

    suite: quickstart                  # its name, also its folder
    title: what it shows
    base: {...}                        # a run file's fields
    sweep:                             # lists expand by cross product, see `harness.config.sweep`; blocks add up
      algorithm: [fedavg, {name: scaffold, lr: 0.05}]
      partition.alpha: [0.1, 1.0]      # dotted paths reach into sections
      seed: [0, 1, 2]
    profiles:                          # each may replace base fields and the sweep
      smoke: {base: {rounds: 20}}
      paper: {base: {rounds: 500}}
    report:
      by: accuracy                     # what ranks
      baseline: fedavg                 # what others are compared with
      target: {accuracy: 0.8}          # what it takes to get there: rounds, bytes, oracle calls
      pivot: [algorithm.local_steps, algorithm.lr]   # a table by two settings, and by a measure if named third
      curves: [outer_loss, bytes]      # a picture more: a measure, against round or bytes
      select:                          # after a grid search: each seed chooses a setting of every algorithm
        by: selection_eqopp            # by figures of samples that are neither trained nor tested on,
        near: {selection_accuracy: 0.02}   # among the settings whose other figure is so near to the best one's
        show: [accuracy, eqopp]        # measures of the table
        published:                     # what a paper prints for the same: as many figures as are shown
          - where: {data.name: adult}
            values: {fedavg: [.8239 ± .0167, .0420 ± .0034]}
      overview: [accuracy, auroc]      # one map of all algorithms, budgets and ratios of pruned messages a measure
      along: compression               # runs that differ in this section or setting alone share a panel
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config.run import RunSpec, read_yaml
from harness.config.sweep import Combination, assign, expand, mapping
from harness.config.yaml import bounded, shown
from harness.core.registry import UserError, unknown

FOLDER = Path(__file__).parent / "suites"
FIELDS = ("suite", "title", "base", "sweep", "profiles", "report")
REPORT_FIELDS = ("by", "baseline", "target", "pivot", "curves", "along", "select", "overview")
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{,99}"  # also of its folder
TAKEN = ("all", "runs", "store.json")  # by others in a results folder
AGAINST = ("round", "bytes")


@dataclass(frozen=True)
class Suite:
    """A suite in one of its profiles, expanded.

    Attributes
    ----------
    name, title, profile : str
        As in the file.
    cells : tuple[Cell, ...]
        Every combination, each once.
    by : str
        Column that ranks the table.
    baseline : str or None
        Algorithm that others are compared with.
    target : Mapping[str, Any] or None
        A measure and the value that is good enough.
    pivots : tuple of tuple of str
        Tables by two settings: rows, columns and, if it is not `by`, the measure shown.
    curves : tuple of (str, str)
        Further pictures: a measure, and what it is drawn against.
    select : Mapping[str, Any] or None
        How settings are chosen after a grid search, and what is shown of them.
    along : str or None
        The setting, or section, in which the runs of a panel of learning curves differ.
    overview : tuple of str
        Measures that are drawn of all algorithms, budgets and ratios at once.
    """

    name: str
    title: str
    profile: str
    cells: tuple[Combination, ...]
    by: str = "accuracy"
    baseline: str | None = None
    target: Mapping[str, Any] | None = None
    pivots: tuple[tuple[str, ...], ...] = ()
    curves: tuple[tuple[str, str], ...] = ()
    select: Mapping[str, Any] | None = None
    along: str | None = None
    overview: tuple[str, ...] = ()


def names() -> list[str]:
    """Return the suites that come with the harness."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_suite(name: str, profile: str = "smoke", instead: Mapping[str, Any] | None = None) -> Suite:
    """Read a suite by its name or from a file, and expand it.

    Parameters
    ----------
    name : str
        A suite's name, or a YAML file.
    profile : str
        One of its sizes.
    instead : Mapping, optional
        Lists that take the place of those in every block of its sweep.

    Raises
    ------
    UserError
        If anything in it is not valid.
    """
    path = Path(name)
    if not path.suffix:
        if name not in names():
            raise unknown("suite", name, names())
        path = FOLDER / f"{name}.yaml"
    return make_suite(read_yaml(path), profile, path.stem, instead)


def make_suite(
    content: Mapping[str, Any],
    profile: str = "smoke",
    name: str = "suite",
    instead: Mapping[str, Any] | None = None,
) -> Suite:
    """Check and expand the content of a suite file, see `read_suite`."""
    bounded("suite", content)
    for key in content:
        if key not in FIELDS:
            raise unknown("field of a suite", key, FIELDS)
    name = checked_name(content.get("suite", name))
    profiles = mapping("profiles", content.get("profiles", {}))
    if profile not in profiles and profiles:
        raise unknown("profile", profile, profiles)
    chosen = mapping(f"profiles.{profile}", profiles.get(profile, {}))
    for key in chosen:
        if key not in ("base", "sweep"):
            raise unknown(f"field of profiles.{profile}", key, ("base", "sweep"))
    base = deepcopy(dict(mapping("base", content.get("base", {}))))
    for path, value in mapping("base", chosen.get("base", {})).items():
        assign(base, path, value)
    blocks = chosen.get("sweep", content.get("sweep", {}))
    report = mapping("report", content.get("report", {}))
    for key in report:
        if key not in REPORT_FIELDS:
            raise unknown("field of report", key, REPORT_FIELDS)
    blocks = [mapping("sweep", block) for block in (blocks if isinstance(blocks, list) else [blocks])]
    cells = expand(base, [{**block, **(instead or {})} for block in blocks])
    title = str(content.get("title", name))
    target = mapping("report.target", report["target"]) if "target" in report else None
    by, pivots = report.get("by", "accuracy"), _pivots(report.get("pivot", []))
    along = report.get("along")
    if along is not None and (not isinstance(along, str) or along.split(".")[0] not in RunSpec.model_fields):
        raise unknown("section of a run", along, RunSpec.model_fields)
    select = mapping("report.select", report["select"]) if "select" in report else None
    curves = _curves(report.get("curves", []))
    overview = report.get("overview", [])
    if not isinstance(overview, list) or not all(isinstance(measure, str) for measure in overview):
        raise UserError(f"report.overview: a list of measures, given {shown(overview)}")
    return Suite(
        *(name, title, profile, cells, by, report.get("baseline"), target, pivots, curves, select, along),
        overview=tuple(overview),
    )


def checked_name(name: Any) -> str:
    """Return a suite's name, which is also that of its folder, or raise."""
    if not isinstance(name, str) or not re.fullmatch(NAME, name) or name in TAKEN:
        raise UserError(
            f"suite: a name of letters, digits, '-', '_' and '.', at most 100, none of {', '.join(TAKEN)}; "
            f"given {shown(name)}"
        )
    return name


def _lists(given: Any) -> list[Any]:
    """Return a list of lists: one list of names stands for a list of it."""
    listed = given if isinstance(given, list) else [given]
    return [listed] if listed and isinstance(listed[0], str) else listed


def _curves(given: Any) -> tuple[tuple[str, str], ...]:
    """Read one further picture or a list of them."""
    listed = _lists(given)
    for one in listed:
        if not isinstance(one, list) or len(one) != 2 or not isinstance(one[0], str) or one[1] not in AGAINST:
            raise UserError(f"report.curves: [measure, {' or '.join(AGAINST)}], given {shown(one)}")
    return tuple((measure, against) for measure, against in listed)


def _pivots(given: Any) -> tuple[tuple[str, ...], ...]:
    """Read one pivot or a list of them."""
    listed = _lists(given)
    for one in listed:
        if not isinstance(one, list) or len(one) not in (2, 3) or not all(isinstance(n, str) for n in one):
            raise UserError(f"report.pivot: [rows, columns] or [rows, columns, measure], given {shown(one)}")
        for name in one[:2]:
            if name.split(".")[0] not in RunSpec.model_fields:
                raise unknown("section of a run", name.split(".")[0], RunSpec.model_fields)
    return tuple(tuple(one) for one in listed)
