"""The column of leaderboards with all that runs have released, which `privacy.joint` composes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from harness.config.recorded import draws_of
from harness.report.data.results import Run
from harness.storage.store import RunRecord

OWN, SHARED, PAIRED = "own", "shared", "paired"
PUBLIC = ("fixed", "full")  # sampling that amplifies nothing


def draws_of_run(record: RunRecord) -> str | None:
    """Return whose the secret draws of a run were: `OWN`, or `SHARED` with the runs of its seed; None without any.

    `PAIRED` runs of a seed share their noise as well.

    Records of earlier versions, whose versions name none of draws, shared them unless they came from the system.
    """
    setting = draws_of(record.spec.get("privacy"))
    if setting is None or setting == "secure":
        return setting and OWN
    if setting == PAIRED:
        return PAIRED
    return OWN if setting == OWN and "draws" in record.versions else SHARED


def released(runs: Sequence[Run]) -> str | None:
    """Return the releases of finished runs as JSON: seed, owner of the draws, events; None without privacy.

    Events are ``[noise multiplier, rate, times, sampling]``, of a unit that is at least as exposed as all others.
    They are null where no unit is, noise is of a user's mechanism, or an earlier version did not record them.
    """
    releases = [
        [run.seed, draws_of_run(run.record), _events(run.record)]
        for run in runs
        if run.record.spec.get("privacy") is not None
    ]
    return json.dumps(releases) if releases else None


def _events(record: RunRecord) -> list[list[Any]] | None:
    """Return the events of a run; of public draws in records without them, what bounds them."""
    claim = record.final.get("privacy") or {}
    if "events" in record.final:
        events = record.final["events"]
        return events if isinstance(events, list) and all(map(_is_event, events)) else None
    noise, number = claim.get("noise_multiplier"), claim.get("releases")
    if claim.get("sampling") in PUBLIC and "mechanism_version" not in claim and number and noise is not None:
        return [[noise, 1.0, number, "poisson"]]
    return None


def _is_event(value: object) -> bool:
    """Return whether something in a record, which may be anybody's, is an event."""
    kinds = (int | float, int | float, int, str)
    same_length = isinstance(value, list) and len(value) == len(kinds)
    return same_length and all(map(isinstance, value, kinds))  # type: ignore[call-overload]
