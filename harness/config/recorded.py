"""Recorded specs: what a run's name follows from, and the settings at their defaults."""

from __future__ import annotations

import hashlib
import json
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from datasets.files import FORMATS
from datasets.partition import PARTITIONS
from datasets.topology import TOPOLOGIES
from datasets.vertical import VERTICAL
from harness import models
from harness.config import notebook
from harness.config.fields import SECTIONS
from harness.config.run import USUAL_PROBLEM, RunSpec
from harness.config.settings import defaults
from harness.core.algorithm import ALGORITHMS, Release
from harness.core.registry import PLUGGED
from harness.core.settings.privacy_kinds import SECRET
from harness.core.settings.section import Section
from harness.problems import PROBLEMS
from harness.storage.store import Store

#: The registered parts that have settings or versions, by the sections that name them.
PARTS: dict[str, Any] = {
    "algorithm": ALGORITHMS,
    "problem": PROBLEMS,
    "topology": TOPOLOGIES,
    "partition": ChainMap(PARTITIONS, VERTICAL),
    "data": FORMATS,  # other data sets have no version, as their digests name what was read
}

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


class Special(NamedTuple):
    """A version that is part of the identity of some runs only.

    Attributes
    ----------
    version : int
        Raised when the numbers of these runs move.
    sections : tuple of str
        Sections that it belongs to: runs that may differ in one of them may differ in it.
    concerns : Callable
        Whether it decides something in the run of a recorded spec.
    """

    version: int
    sections: tuple[str, ...]
    concerns: Callable[[Mapping[str, Any]], bool]


def identity(spec: RunSpec, digest: str) -> str:
    """Return a run's identity: a hash of everything that determines its result.

    Settings at their defaults are omitted, so that a new option does not rename older runs. Changing a default
    requires a new version of the part that it belongs to (tests/golden/defaults.json).

    Parameters
    ----------
    spec : RunSpec
        The run.
    digest : str
        Digest of the data read.
    """
    written = spec.model_dump(mode="json")
    return run_id(written, digest, versions(written))


def run_id(spec: Mapping[str, Any], digest: str, versions: Mapping[str, Any]) -> str:
    """Return the identity of a run by its recorded spec, the digest of its data, and the versions of its code."""
    named = essential(spec)
    if "data" in named:
        named["data"].pop("path", None)  # the digest identifies the data
    text = json.dumps({"spec": named, "data": digest, "versions": versions}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def misnamed(id: str, started: Mapping[str, Any]) -> str:
    """Return why an id does not follow from the record of its run; empty if it does.

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
    digests name what was read. Those of `SPECIAL` are there where they decide something.
    """
    names = named_parts(spec)
    names["problem"] = names["problem"] or USUAL_PROBLEM
    found = {section: _version(section, names[section]) for section in ("algorithm", "problem")}
    found["partition"] = _version("partition", names["partition"]) if names["partition"] else 1
    if None in found.values():
        return {}
    data = _version("data", names["data"])
    own = {section: own_version(section, name) for section, name in names.items()}
    plugins = {section: version for section, version in own.items() if version}
    return {
        **found,
        **({"data": data} if data else {}),
        **{name: one.version for name, one in SPECIAL.items() if one.concerns(spec)},
        **({"plugins": plugins} if plugins else {}),
    }


def own_version(section: str, name: str) -> str | None:
    """Return the version of a part of a plugin or a notebook; None for ours."""
    return PLUGGED.get((section, name)) or notebook.version(section, name)


def model_meta(algorithm: str) -> dict[str, Any]:
    """Return what records hold of an algorithm's `Meta`, as tables need it; empty if it is not registered."""
    if algorithm not in ALGORITHMS:
        return {}
    meta = ALGORITHMS[algorithm].meta
    return {"family": meta.family, "pooled": meta.pooled}


def _keeps_users(spec: Mapping[str, Any]) -> bool:
    """Whether a run has users, and attacks or validation data, with privacy or without."""
    named = [part for section in ("data", "privacy") if isinstance(part := spec.get(section), Mapping)]
    return any(part.get("user") for part in named) and bool(
        spec.get("attacks") or _name("problem", spec.get("problem")) == "fair_weights"
    )


def _adaptive(spec: Mapping[str, Any]) -> bool:
    privacy = spec.get("privacy")
    return isinstance(privacy, Mapping) and privacy.get("clip") == "adaptive"


#: Settings of single algorithms that make terms once protected with the gradients, as weight decay was in all.
_ONCE_PROTECTED = {"codasca": "prox", "feddyn": "momentum", "fedsgda_m": "average_prev"}


def _known_terms(spec: Mapping[str, Any]) -> bool:
    """Whether messages have known terms that were once clipped and noised with the gradients."""
    privacy, name = spec.get("privacy"), _name("algorithm", spec.get("algorithm"))
    made = ALGORITHMS[name] if name in ALGORITHMS and not own_version("algorithm", name) else None
    if not isinstance(privacy, Mapping) or privacy.get("unit", "client") != "client" or made is None:
        return False
    settings = {**_settings("algorithm", name), **spec["algorithm"]}
    if not issubclass(made, Release) or settings["release"] != "value":
        return False
    joins_late = name == "fedbioacc" and spec.get("cohort") is not None
    return joins_late or any(settings.get(one) for one in ("weight_decay", _ONCE_PROTECTED.get(name, "")))


def draws_of(privacy: Any) -> str | None:
    """Return whose the secret draws of a recorded section are: own, shared, secure, or None without secret draws.

    Under ``secure_rng`` they come from the system's entropy and have always been the run's own: no version tells.
    """
    if not isinstance(privacy, Mapping) or privacy.get("sampling") not in SECRET:
        return None
    return "secure" if privacy.get("secure_rng") else str(privacy.get("draws", "own"))


#: By their names: clipping, noise and accounting; how users are kept together in validation data and in attacks;
#: adaptive clipping; secret draws that are a run's own; known terms of messages.
SPECIAL = {
    "privacy": Special(3, ("privacy",), lambda spec: spec.get("privacy") is not None),
    "users": Special(1, ("attacks", "privacy"), _keeps_users),
    "adaptive_clip": Special(2, ("privacy",), _adaptive),
    "draws": Special(1, ("privacy",), lambda spec: draws_of(spec.get("privacy")) == "own"),
    "known_terms": Special(1, ("algorithm", "cohort", "privacy"), _known_terms),
}


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
    usual, found = _fields(RunSpec), {}
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
    name = "" if section in plugged else _name(section, part)
    fields = _fields(SECTIONS[section]) if section in SECTIONS else {}
    return {**fields, **_settings(section, name)}


@cache
def _fields(cls: type[Section]) -> dict[str, Any]:
    """Return the defaults of a section's own fields, as they are recorded."""
    optional = {name: field for name, field in cls.model_fields.items() if not field.is_required()}
    usual = {name: field.get_default(call_default_factory=True) for name, field in optional.items()}
    written: dict[str, Any] = to_jsonable_python(usual)
    written.pop("settings", None)  # those of a partition are recorded beside its fields
    return written


def _settings(section: str, name: str) -> dict[str, Any]:
    """Return the defaults of a part's settings, as they are recorded; empty if it is not registered."""
    if section == "model":
        return _of_model(name) if name in models.names() else {}
    if section == "data" or (part := _part(section, name)) is None:
        return {}
    return _of_class(part.settings if section == "problem" else part)


def _of_model(name: str) -> dict[str, Any]:
    written: dict[str, Any] = to_jsonable_python(models.complete(name, {}))
    return written


@cache
def _of_class(cls: type) -> dict[str, Any]:
    written: dict[str, Any] = to_jsonable_python(defaults(cls))
    return written


def _version(section: str, name: str) -> int | None:
    """Return the version of a part; None if it has none or is not registered."""
    part = _part(section, name)
    number: int | None = getattr(part.meta if section == "algorithm" and part else part, "version", None)
    return number


def _part(section: str, name: str) -> Any:
    """Return what is registered under a name of a section; None if nothing is."""
    return PARTS[section][name] if section in PARTS and name in PARTS[section] else None


def _name(section: str, part: object) -> str:
    """Return the name in a recorded section; empty without one."""
    name = part.get(NAMES.get(section, "")) if isinstance(part, Mapping) else None
    return name if isinstance(name, str) else ""
