"""Suite files: many runs and their report.

::

    suite: quickstart                  # its name, also its folder
    title: a short description
    base: {...}                        # a run file's fields
    sweep:                             # lists expand by cross product, see `harness.config.sweep`; blocks add up
      algorithm: [fedavg, {name: scaffold, lr: 0.05}]
      partition.alpha: [0.1, 1.0]      # dotted paths reach into sections
      seed: [0, 1, 2]
    profiles:                          # each may replace fields of base and tune, and the sweep
      smoke: {base: {rounds: 20}, tune: {budget: 5}}
      paper: {base: {rounds: 500}}
    tune: {...}                        # settings chosen before the runs, see `harness.config.tune`
    report:
      by: accuracy                     # measure that ranks; the default depends on the results
      baseline: fedavg                 # algorithm to compare with
      target: {accuracy: 0.8}          # report rounds, bytes and oracle calls to this value
      pivot: [algorithm.local_steps, algorithm.lr]   # a table by two settings, and by a measure if named third
      curves: [outer_loss, bytes]      # a further figure: a measure, against round or bytes
      select:                          # after a grid search: each seed chooses a setting of every algorithm
        by: selection_eqopp            # by a measure on the selection samples,
        near: {selection_accuracy: 0.02}   # among the settings whose guard is within this distance of the best
        show: [accuracy, eqopp]        # measures of the table
        published:                     # values of a paper, one  per measure shown
          - where: {data.name: adult}
            values: {fedavg: [.8239 ± .0167, .0420 ± .0034]}
      overview: [accuracy, auroc]      # one map per measure over algorithms, budgets and pruning ratios
      chosen: [algorithm.lr, rounds]   # settings chosen for every row by itself; rows are compared all the same
      same: [[fedavg, fednova]]        # one method under two names: what the report cannot tell apart
      along: compression               # runs that differ only in this section or setting share a panel
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from harness.config import builtin
from harness.config.recorded import results_folder
from harness.config.report import ReportSpec, read_report, read_stored
from harness.config.run import RunSpec, read_spec
from harness.config.searches import hold_out, key_without
from harness.config.settings import checked
from harness.config.sweep import Combination, assign, expand
from harness.config.tune import TuneSpec, read_tune
from harness.config.yaml import bounded, mapping, read_yaml, shown
from harness.core.errors import UserError, unknown
from harness.core.settings.section import Section
from harness.storage.files import Damaged
from harness.storage.manifest import MANIFEST, SIGNATURE, STATEMENT
from harness.storage.run_files import CLAIM
from harness.storage.store import SEARCH
from harness.storage.store import read_suite as read_record

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{,99}"  # also the name of its folder
RECORD = "suite.json"  # what a results folder keeps of a suite
RESERVED = (
    "all",
    "runs",
    "store.json",
    CLAIM,
    MANIFEST,
    SIGNATURE,
    STATEMENT,
)  # other names in a results folder


class Profile(Section):
    """The changes that a profile makes to a suite file."""

    base: dict[str, Any] = Field(default_factory=dict)
    sweep: Any = None
    tune: dict[str, Any] = Field(default_factory=dict)


class SuiteFile(Section):
    """The sections of a suite file."""

    suite: Any = None
    title: Any = None
    base: dict[str, Any] = Field(default_factory=dict)
    sweep: Any = Field(default_factory=dict)
    profiles: dict[str, Profile] = Field(default_factory=dict)
    tune: dict[str, Any] = Field(default_factory=dict)
    report: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """A suite in one of its profiles, expanded.

    Attributes
    ----------
    name, title, profile : str
        As in the file; of a file without profiles the profile is empty.
    combinations : tuple[Combination, ...]
        The distinct combinations.
    report : ReportSpec
        Settings of its report.
    tune : TuneSpec or None
        How the combinations choose their settings; None if they have what the file says.
    """

    name: str
    title: str
    profile: str
    combinations: tuple[Combination, ...]
    report: ReportSpec
    tune: TuneSpec | None = None


def read_suite(name: str, profile: str = "smoke", instead: Mapping[str, Any] | None = None) -> Suite:
    """Read a suite by its name or from a file, and expand it.

    Parameters
    ----------
    name : str
        A suite's name, a YAML file, or the ``suite.json`` of a results folder.
    profile : str
        One of its profiles.
    instead : Mapping, optional
        Lists that replace those in every block of its sweep.

    Raises
    ------
    UserError
        If the file is not valid.
    """
    path = Path(name)
    if not path.suffix:
        path = builtin.path_of(name)
    if path.name == RECORD and (path.parent.parent / "store.json").exists():
        if instead:
            raise UserError(f"{path} lists its runs one by one; --sweep and --random change suite files")
        return _recorded(path)
    content = read_yaml(path)
    if is_run_file(content):
        raise UserError(
            f"{path} describes a run and not a suite; run, sweep and plan take it as --spec {path}, tune as it is"
        )
    return make_suite(content, profile, path.stem, instead)


def _recorded(path: Path) -> Suite:
    """Return the suite of a results folder: its runs, with the settings that a search chose."""
    content, _ = read_record(path)
    folder, combinations = results_folder(path.parent.parent), []
    for entry in content["cells"]:
        if entry["id"] is None:
            combinations.append(Combination(entry["spec"], None, str(entry["reason"])))
        elif (spec := folder.contents(entry).started.get("spec")) is None:
            raise Damaged(path, f"names run {entry['id']}, whose settings are missing")
        else:
            combinations.append(Combination({}, read_spec(spec)))
    report, name = read_stored(content.get("report", {})), checked_name(content["suite"])
    searched = (path for search in content.get("tuning", {}).get("searches", ()) for path in search["paths"])
    report = replace(report, chosen=tuple(dict.fromkeys([*report.chosen, *searched])))
    return Suite(name, str(content.get("title", name)), str(content["profile"]), tuple(combinations), report)


def is_run_file(content: Mapping[str, Any]) -> bool:
    """Whether the content of a file describes a run, and has no section of a suite."""
    return (
        bool(content.keys() & RunSpec.model_fields.keys())
        and not content.keys() & SuiteFile.model_fields.keys()
    )


def make_suite(
    content: Mapping[str, Any],
    profile: str = "smoke",
    name: str = "suite",
    instead: Mapping[str, Any] | None = None,
) -> Suite:
    """Validate and expand the content of a suite file, see `read_suite`."""
    bounded("suite", content)
    file = checked("suite", SuiteFile.model_validate, content)
    if profile not in file.profiles and file.profiles:
        raise unknown("profile", profile, file.profiles)
    chosen = file.profiles.get(profile, Profile())
    base = deepcopy(file.base)
    for path, value in chosen.base.items():
        assign(base, path, value)
    tune = read_tune({**file.tune, **chosen.tune} or None)
    blocks = file.sweep if chosen.sweep is None else chosen.sweep
    blocks = [mapping("sweep", block) for block in (blocks if isinstance(blocks, list) else [blocks])]
    expanded = expand(base, [{**block, **(instead or {})} for block in blocks], hold_out if tune else None)
    name, report = checked_name(content.get("suite", name)), read_report(file.report)
    if report.same and not instead:  # which may leave an algorithm out
        free = report.chosen if tune is None else tuple(tune.settings)
        report.check_namesakes(_settings_by_algorithm(expanded, free))
    report.check_pivots(_names(each.spec.model_dump()) for each in expanded if each.spec is not None)
    profile = profile if file.profiles else ""
    return Suite(name, str(file.title or name), profile, expanded, report, tune)


def _settings_by_algorithm(combinations: Sequence[Combination], chosen: Sequence[str]) -> dict[str, set[str]]:
    """Return algorithm -> the settings of its possible runs, beside its own, the seed and what each row chooses."""
    settings: dict[str, set[str]] = {}
    for combination in combinations:
        keys = settings.setdefault(str(combination.parts.algorithm["name"]), set())
        if combination.spec is not None:
            keys.add(key_without(combination.spec, ("algorithm", "seed", *chosen)))
    return settings


def _names(dump: Mapping[str, Any], prefix: str = "") -> set[str]:
    """Return the dotted names of the settings of a run that are set."""
    names = set[str]()
    for name, value in dump.items():
        if isinstance(value, Mapping):
            names |= _names(value, f"{prefix}{name}.")
        elif value is not None:
            names.add(prefix + name)
    return names


def checked_name(name: Any) -> str:
    """Return a suite's name, which is also the name of its folder, or raise UserError.

    Some file systems do not tell ``Runs`` from ``runs``.
    """
    if not isinstance(name, str) or not re.fullmatch(NAME, name) or name.lower() in RESERVED:
        raise UserError(
            f"suite: a name of letters, digits, '-', '_' and '.', at most 100, other than {', '.join(RESERVED)}; "
            f"given {shown(name)}"
        )
    if name.lower().endswith(SEARCH):
        raise UserError(
            f"suite: names that end in {SEARCH} are those of searches for settings, which belong to the suite "
            f"that is tuned; given {name}"
        )
    return name
