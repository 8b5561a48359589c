"""Recorded specs: what a run's name follows from, and the settings at their defaults.

Nothing here imports the parts that a spec names, so that results are read without them; see `harness.config.parts`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from harness.config.parts import parts
from harness.storage.store import Store

#: Sections that name a part, and the field that holds the name.
NAMES = {
    "algorithm": "name", "data": "name", "model": "name",
    "partition": "kind", "problem": "kind", "topology": "kind", "compression": "codec",
    "privacy": "mechanism",
}  # fmt: skip
PLUGGABLE = (
    "problem",
    "data",
    "partition",
    "model",
    "compression",
    "privacy",
)  # besides algorithms; metrics are no part of a run
#: Version of clipping, noise and accounting; part of the identity of runs with privacy.
PRIVACY_VERSION = 3
#: Version of how users are kept together in validation data and in attacks.
USERS_VERSION = 1
#: Version of adaptive clipping; part of the identity of runs with such a clip.
ADAPTIVE_CLIP_VERSION = 2
SECRET = ("poisson", "without-replacement")  # sampling that nobody sees; `privacy.event` is slow to import
#: Version of secret draws that are a run's own; part of the identity of runs that have them.
DRAWS_VERSION = 1
#: Versions that belong to a section under another name: who leaves out the section leaves them out too.
OF_SECTION = {"adaptive_clip": "privacy", "draws": "privacy"}
USUAL_PROBLEM = "classify"


def fields_of_run() -> list[str]:
    """Return the names of a run's sections and other fields; only ``algorithm`` has no default."""
    return ["algorithm", *parts().fields("run")]


def run_id(spec: Mapping[str, Any], digest: str, versions: Mapping[str, Any]) -> str:
    """Return the identity of a run by its recorded spec, the digest of its data, and the versions of its code."""
    named = essential(spec)
    if "data" in named:
        named["data"].pop("path", None)  # the digest identifies the data
    text = json.dumps({"spec": named, "data": digest, "versions": versions}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def misnamed(id: str, started: Mapping[str, Any]) -> str:
    """Say why an id does not follow from what a record says of its run; empty if it does.

    Nothing is said of records whose versions are not those of the code here, such as those of plugins that are not
    loaded: their defaults are not known.
    """
    spec, digest = started["spec"], started.get("digest")
    if not digest:  # a record of a first version, or of a run that has not begun
        return ""
    here = started.get("versions")
    if run_id(spec, digest, versions(spec) if here is None else here) == id:
        return ""
    return (
        ""
        if here is None or here != versions(spec)
        else f"has settings, data or versions of another run than {id}"
    )


def results_folder(root: Path) -> Store:
    """Return a results folder that others may have written: runs are those that their ids name."""
    return Store(root, misnamed)


def versions(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the versions of the code that a recorded spec names; empty if a part of it is not registered.

    ``plugins`` holds the versions of the plugins of named parts, and of parts that a notebook defines; it is absent
    without any. ``data`` is the version of the reader of a file's format; other data sets have none, as their
    digests name what was read. ``users`` is there where `USERS_VERSION` decides something.
    """
    names, known = named_parts(spec), parts()
    names["problem"] = names["problem"] or USUAL_PROBLEM
    found = {section: known.version(section, names[section]) for section in ("algorithm", "problem")}
    found["partition"] = known.version("partition", names["partition"]) if names["partition"] else 1
    if None in found.values():
        return {}
    data = known.version("data", names["data"])
    own = {section: known.own_version(section, name) for section, name in names.items()}
    plugins = {section: version for section, version in own.items() if version}
    return {
        **found,
        **({"data": data} if data else {}),
        **({"privacy": PRIVACY_VERSION} if spec.get("privacy") is not None else {}),
        **({"users": USERS_VERSION} if _keeps_users(spec) else {}),
        **({"adaptive_clip": ADAPTIVE_CLIP_VERSION} if _adaptive(spec) else {}),
        **({"draws": DRAWS_VERSION} if draws_of(spec.get("privacy")) == "own" else {}),
        **({"plugins": plugins} if plugins else {}),
    }


def _keeps_users(spec: Mapping[str, Any]) -> bool:
    """Whether a run has users, and attacks or validation data, with privacy or without."""
    named = [part for section in ("data", "privacy") if isinstance(part := spec.get(section), Mapping)]
    return any(part.get("user") for part in named) and bool(
        spec.get("attacks") or _name("problem", spec.get("problem")) == "fair_weights"
    )


def _adaptive(spec: Mapping[str, Any]) -> bool:
    privacy = spec.get("privacy")
    return isinstance(privacy, Mapping) and privacy.get("clip") == "adaptive"


def draws_of(privacy: Any) -> str | None:
    """Return whose the secret draws of a recorded section are: own, shared, secure, or None without secret draws.

    Under ``secure_rng`` they come from the system's entropy and have always been the run's own: no version tells.
    """
    if not isinstance(privacy, Mapping) or privacy.get("sampling") not in SECRET:
        return None
    return "secure" if privacy.get("secure_rng") else str(privacy.get("draws", "own"))


def named_parts(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the names in the sections of a recorded spec that a plugin or a notebook may bring."""
    return {section: _name(section, spec.get(section)) for section in ("algorithm", *PLUGGABLE)}


def essential(spec: Mapping[str, Any], plugged: Collection[str] = ()) -> dict[str, Any]:
    """Return a recorded spec without the settings at their defaults, which older records may lack.

    Parts that are not registered, as in skipped combinations, keep all their settings.

    Parameters
    ----------
    spec : Mapping
        The spec.
    plugged : Collection[str]
        Sections that name a part of a plugin. It keeps all settings, so that the result does not depend on whether
        the plugin is loaded.
    """
    usual, found = parts().fields("run"), {}
    for section, value in spec.items():
        if section in usual and value == usual[section]:
            continue
        if isinstance(value, Mapping):
            omitted = _usual_settings(section, value, plugged)
            value = {key: own for key, own in value.items() if key not in omitted or own != omitted[key]}
            if not value:
                continue
        found[section] = value
    return found


def completed(spec: Mapping[str, Any], plugged: Collection[str] = ()) -> dict[str, Any]:
    """Return a recorded spec with the defaults of the settings that it lacks in its sections; see `essential`."""
    return {
        section: {**_usual_settings(section, value, plugged), **value}
        if isinstance(value, Mapping)
        else value
        for section, value in spec.items()
    }


def _usual_settings(section: str, part: Mapping[str, Any], plugged: Collection[str]) -> dict[str, Any]:
    """Return the defaults of a section and of what it names."""
    name, known = "" if section in plugged else _name(section, part), parts()
    return {**known.fields(section), **(known.defaults(section, name) or {})}


def _name(section: str, part: object) -> str:
    """Return the name in a recorded section; empty without one."""
    name = part.get(NAMES.get(section, "")) if isinstance(part, Mapping) else None
    return name if isinstance(name, str) else ""
