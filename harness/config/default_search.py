"""The search of a suite that names no settings to search: default ranges of those that its algorithms have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from harness.config.run import RunSpec
from harness.config.searches import LENGTHS, step_sizes
from harness.config.suite import Suite, make_suite
from harness.config.tune import SPLIT
from harness.core.errors import Incompatible
from harness.metrics import PREFIXES

# Ranges that bind are widened, see `harness.config.tune`.
STEP_SIZE = {"log_uniform": [0.003, 3]}
LOCAL_STEPS = {"log_integer": [1, 50]}
CLIP = {"log_uniform": [0.03, 3]}
ROUNDS = {"log_integer": [5, 100]}
SELECTION = 0.2  # share of the samples that choose, where the file holds out none
METRIC = "accuracy"


def default_ranges(specs: Sequence[RunSpec]) -> dict[str, Any]:
    """Return the ranges of a section ``tune`` for some runs.

    Of the step sizes of their algorithms, of local steps unless a run counts epochs, of clip norms that are one
    number, and of the rounds.
    """
    ranges: dict[str, Any] = {path: STEP_SIZE for spec in specs for path in step_sizes(spec)}
    steps, epochs = (path.partition(".")[2] for path in LENGTHS)
    if all(steps in spec.algorithm and spec.algorithm.get(epochs) is None for spec in specs):
        ranges[f"algorithm.{steps}"] = LOCAL_STEPS
    clips = [spec.privacy.clip for spec in specs if spec.privacy is not None]
    if clips and all(isinstance(clip, float) for clip in clips):
        ranges["privacy.clip"] = CLIP
    return ranges | {"rounds": ROUNDS}


def searched_suite(
    content: Mapping[str, Any],
    profile: str = "",
    *,
    name: str = "suite",
    instead: Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | None = None,
) -> Suite:
    """Return the suite of a file, with a search of its settings.

    Without ``tune.settings`` it has the ranges of `default_ranges`, and runs that hold out no samples to choose on
    hold out `SELECTION` of them.

    Parameters
    ----------
    content : Mapping
        As in a suite file.
    profile, name, instead : str, str, Mapping
        As in `make_suite`.
    search : Mapping, optional
        Fields that replace those of the section ``tune``.

    Raises
    ------
    UserError
        If the suite or its search is not valid; Incompatible if none of its runs is possible.
    """
    over = dict(instead or {})
    profiles = {key: dict(value) for key, value in (content.get("profiles") or {}).items()}
    section = {**(content.get("tune") or {}), **profiles.get(profile, {}).get("tune", {}), **(search or {})}
    plain = {**content, "profiles": {key: {**value, "tune": {}} for key, value in profiles.items()}}
    if not section.get("settings"):
        untuned = make_suite({**plain, "tune": {}}, profile, name, over)
        specs = [cell.spec for cell in untuned.combinations if cell.spec is not None]
        if not specs:
            raise Incompatible(str(untuned.combinations[0].reason))
        section["settings"] = deepcopy(default_ranges(specs))
        by = untuned.report.by
        section.setdefault("metric", by if by in PREFIXES[SPLIT] else METRIC)
        if any(spec.partition is not None and not spec.partition.selection for spec in specs):
            over.setdefault("partition.selection", [SELECTION])
    return make_suite({**plain, "tune": section}, profile, name, over)
