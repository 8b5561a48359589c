"""Records of runs: which of them can be computed again, and which tables can be made of those by others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datasets.errors import DataError
from harness.config.recorded import FROZEN, named_parts, own_version, run_id
from harness.config.recorded import versions as versions_of
from harness.config.run import RunSpec, read_spec
from harness.core.errors import UserError
from harness.simulation.build import frozen_part, identify
from harness.storage.files import Damaged
from harness.storage.run_files import ENDS
from harness.storage.run_folder import RunFolder
from harness.storage.seals import read_sealed
from harness.storage.store import RunRecord, Store

#: Sections of a spec that a record holds as objects.
SECTIONS = ("algorithm", "data", "partition", "problem", "model", "privacy", "compression")


class Unrepeatable(UserError):
    """A run that cannot be computed again here, which says nothing about its values."""


def repeatable(recorded: RunFolder) -> RunSpec:
    """Return the spec of a finished run if it can be computed again here.

    Raises
    ------
    Unrepeatable
        If its noise, its code or its data are not here.
    UserError
        If the record contradicts itself.
    """
    spec, recorded_versions = read_identity(recorded)
    refuse_unrepeatable(spec, recorded_versions)
    try:
        checked = read_spec(spec)
        current_id = identify(checked)
    except (UserError, DataError, OSError) as error:
        raise Unrepeatable(f"it cannot be prepared here: {error}") from None
    refuse_other_weights(checked, recorded_versions)
    if current_id != recorded.path.name:
        raise other_data(checked)
    return checked


def refuse_unrepeatable(spec: Mapping[str, Any], recorded_versions: Mapping[str, Any]) -> None:
    """Refuse a recorded spec if its noise or code is not available here.

    Parameters
    ----------
    spec : Mapping
        The spec, of which settings at their defaults may be left out.
    recorded_versions : Mapping
        The versions of the code that made the run, see `harness.config.recorded.versions`.

    Raises
    ------
    Unrepeatable
        If the run cannot be computed again here.
    """
    if (spec.get("privacy") or {}).get("secure_rng"):
        raise Unrepeatable(
            "its noise came from the system's entropy (privacy.secure_rng) and cannot be drawn again"
        )
    if not (current_versions := versions_of(spec)):
        raise Unrepeatable(
            "it uses a part that is not registered here; load its plugin with --plugin FILE.py"
        )
    # What is frozen in a model takes building it, see `refuse_other_weights`.
    recorded_versions = {name: value for name, value in recorded_versions.items() if name != FROZEN}
    if recorded_versions != current_versions:
        names = sorted(
            name
            for name in {*recorded_versions, *current_versions}
            if recorded_versions.get(name) != current_versions.get(name)
        )
        differences = (
            f"{name} {recorded_versions.get(name, 'none')}, here {current_versions.get(name, 'none')}"
            for name in names
        )
        raise Unrepeatable(f"it was made by other versions: {'; '.join(differences)}")


def other_data(spec: RunSpec) -> Unrepeatable:
    """Return the error for a run if the data here differ from its own."""
    strict = spec.privacy is not None and spec.privacy.strict
    secret = " or, as it is strict, another user computed it" if strict else ""
    return Unrepeatable(f"the data here differ from those that it was computed on{secret}")


def refuse_other_weights(spec: RunSpec, recorded_versions: Mapping[str, Any]) -> None:
    """Refuse a spec if its model has a frozen part here that differs from the recorded one."""
    if frozen_part(spec) != recorded_versions.get(FROZEN, ""):
        raise Unrepeatable("the frozen part of the model here differs from the one that it was computed with")


def read_identity(recorded: RunFolder) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return spec and versions of a run.

    Raises
    ------
    Damaged
        If its ``spec.json`` does not hold them.
    UserError
        If its id does not follow from spec, data and versions.
    Unrepeatable
        If that cannot be told without a plugin.
    """
    started, _ = read_sealed(recorded.path / "spec.json", "spec", "digest")
    spec, digest = started["spec"], started["digest"]
    sections = [spec.get(name) for name in SECTIONS] if isinstance(spec, dict) else [spec]
    if not all(section is None or isinstance(section, dict) for section in sections) or None is spec:
        raise Damaged(recorded.path / "spec.json")
    versions_of_run = started.get("versions", versions_of(spec))  # records of earlier versions have none
    if isinstance(versions_of_run, dict) and (parts := _missing_plugins(spec, versions_of_run)):
        raise Unrepeatable(f"{parts} of a plugin is not loaded; give --plugin FILE.py")
    if (
        not isinstance(versions_of_run, dict)
        or run_id(spec, str(digest), versions_of_run) != recorded.path.name
    ):
        raise UserError("its id does not follow from its spec, data and versions")
    return spec, versions_of_run


def _missing_plugins(spec: Mapping[str, Any], versions: Mapping[str, Any]) -> str:
    """Return the parts of plugins that a run used and that are not here; empty if none."""
    names, plugins = named_parts(spec), versions.get("plugins", {})
    sections = plugins if isinstance(plugins, dict) else ()
    return ", ".join(
        f"{section} {names.get(section, '')}"
        for section in sections
        if own_version(section, names.get(section, "")) is None
    )


def checked_record(store: Store, id: str) -> RunRecord:
    """Return the record of another person's run, after checking that tables can use it.

    Whether its values are true is for `replay` to decide.

    Raises
    ------
    UserError
        If it contradicts itself, is no record of a run, or is of a run that nobody else can repeat.
    """
    spec, versions = read_identity(store.folder(id))
    checked = read_spec(spec).model_dump(mode="json")
    started, _ = read_sealed(store.folder(id).path / "spec.json")
    if run_id(checked, str(started["digest"]), versions) != id:
        raise UserError("its spec is not written as this version writes it")
    if (checked.get("data") or {}).get("path") is not None:
        raise UserError("its data come from a file of the submitter, so nobody else can repeat it")
    if (checked.get("privacy") or {}).get("secure_rng"):
        raise UserError("under privacy.secure_rng nobody can repeat it")
    if (checked.get("privacy") or {}).get("strict"):
        raise UserError(
            "under privacy.strict its data are named by a secret of the user, so nobody else can repeat it"
        )
    record = store.record(id, checked)
    rounds = [line.get("round") for line in record.rounds]
    if record.status not in ENDS.values():
        why = f": {record.reason}" if record.reason else ""
        raise UserError(f"it is {record.status}{why}; only runs that ended count")
    if record.status == "done" and (not rounds or rounds[-1] != checked["rounds"]):
        raise UserError(f"it is marked as finished, but its last evaluation is of round {rounds[-1:]}")
    return record
