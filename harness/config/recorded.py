"""Recorded specs: what a run's name follows from, and the settings at their defaults.

Versions and defaults of the built-in parts are those of ``parts.json``, so that commands that read results import
neither torch nor the parts. Where a run is made, they are compared with the classes (`check_current`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.core.errors import UserError
from harness.storage.store import Store
from privacy.event import SECRET

if TYPE_CHECKING:
    from harness.config.run import RunSpec

#: Facts about the built-in parts by kind and name, as `harness.config.parts.facts` returns them.
BUILT_IN: dict[str, dict[str, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("parts.json").read_text(encoding="utf-8")
)

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

FROZEN = "model"  # among the versions: the digest of the model's frozen part

RUN_DEFAULTS: dict[str, Any] = BUILT_IN["section"]["run"]["defaults"]
RUN_FIELDS = ("algorithm", *RUN_DEFAULTS)  # the algorithm alone has no default


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


def identity(spec: RunSpec, digest: str, frozen: str = "") -> str:
    """Return a run's identity: a hash of everything that determines its result.

    Settings at their defaults are omitted, so that a new option does not rename older runs. Changing a default
    requires a new version of the part that it belongs to (``parts.json``).

    Parameters
    ----------
    spec : RunSpec
        The run.
    digest : str
        Digest of the data read.
    frozen : str
        Digest of the frozen part of the model; empty without any.

    Raises
    ------
    UserError
        See `check_current`.
    """
    written = spec.model_dump(mode="json")
    check_current(written)
    return run_id(written, digest, versions(written, frozen))


def run_id(spec: Mapping[str, Any], digest: str, versions: Mapping[str, Any]) -> str:
    """Return the identity of a run by its recorded spec, the digest of its data, and the versions of its code."""
    named = essential(spec)
    if "data" in named:
        named["data"].pop("path", None)  # the digest identifies the data
        if isinstance(files := named["data"].get("files"), Mapping):
            named["data"]["files"] = {
                name: {key: value for key, value in file.items() if key != "path"}
                if isinstance(file, Mapping)
                else {}
                for name, file in files.items()
            }
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
        if not isinstance(here, Mapping) or here != versions(spec, here.get(FROZEN, ""))
        else f"has settings, data or versions of another run than {id}"
    )


def results_folder(root: Path) -> Store:
    """Return a results folder that others may have written: runs are those that their ids name."""
    return Store(root, misnamed)


def versions(spec: Mapping[str, Any], frozen: str = "") -> dict[str, Any]:
    """Return the versions of the code that a recorded spec names; empty if a part of it is not registered.

    ``plugins`` holds the versions of the plugins of named parts, and of parts that a notebook defines; it is absent
    without any. ``data`` is the version of the reader of a file's format; other data sets have none, as their
    digests name what was read. ``model`` is the digest ``frozen`` of the frozen part of the model, absent without
    any. Those of `SPECIAL` are there where they decide something.
    """
    names = named_parts(spec)
    names["problem"] = names["problem"] or RUN_DEFAULTS["problem"]["kind"]
    always = {section: part(section, names[section]).get("version") for section in ("algorithm", "problem")}
    always["partition"] = part("partition", names["partition"]).get("version") if names["partition"] else 1
    if None in always.values():
        return {}
    data = part("data", names["data"]).get("version")
    plugins = {section: version for section, name in names.items() if (version := own_version(section, name))}
    return {
        **always,
        **({"data": data} if data else {}),
        **({FROZEN: frozen} if frozen else {}),
        **{name: special.version for name, special in SPECIAL.items() if special.concerns(spec)},
        **({"plugins": plugins} if plugins else {}),
    }


def part(kind: str, name: str) -> Mapping[str, Any]:
    """Return the facts about a part, see `harness.config.parts.facts`; empty if there is none of the name."""
    if not name or name in BUILT_IN[kind]:
        return BUILT_IN[kind].get(name, {})
    from harness.config import parts  # torch and all parts, which only a part of a plugin or a notebook needs

    return parts.facts(kind, name)


def own_version(section: str, name: str) -> str | None:
    """Return the version of a part of a plugin or a notebook; None for ours."""
    return part(section, name).get("own_version")


def model_meta(algorithm: str) -> dict[str, Any]:
    """Return what records hold of an algorithm's `Meta`, as tables need it; empty if it is not registered."""
    facts = part("algorithm", algorithm)
    return {"family": facts["row"]["family"], "pooled": facts["pooled"]} if facts else {}


def check_current(spec: Mapping[str, Any]) -> None:
    """Raise UserError if ``parts.json`` has another version of a part of a run, or other defaults, than the code.

    Ids follow from the file, and would then be those of other runs. An algorithm of ours that it does not have is
    refused too: its runs would have other ids once it has.
    """
    sections = [("section", name) for name in ("run", *spec) if name in BUILT_IN["section"]]
    for kind, name in [*sections, *((section, _name(section, spec.get(section))) for section in NAMES)]:
        if name in BUILT_IN[kind] and not _current(kind, name):
            raise UserError(
                f"{kind} {name}: its version or defaults are not those in harness/config/parts.json; to renew the "
                "file: python -m tests.golden.update --defaults"
            )
    name = _name("algorithm", spec.get("algorithm"))
    if name not in BUILT_IN["algorithm"] and _is_ours(name):
        raise UserError(
            f"algorithm {name} is not in harness/config/parts.json; to add it: "
            "python -m tests.golden.update --defaults"
        )


@cache
def _is_ours(algorithm: str) -> bool:
    """Whether an algorithm is in the package of algorithms."""
    from harness.config import parts  # loaded already, where runs are made

    found = parts.KINDS["algorithm"]
    return algorithm in found and found[algorithm].__module__.partition(".")[0] == "algorithms"


@cache
def _current(kind: str, name: str) -> bool:
    """Whether the file has the version and the defaults of a built-in part."""
    from harness.config import parts  # loaded already, where runs are made

    real = parts.facts(kind, name)
    return all(BUILT_IN[kind][name].get(fact) == real.get(fact) for fact in ("version", "defaults"))


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
    usual = BUILT_IN["algorithm"].get(name, {}).get("defaults", {})
    protected = isinstance(privacy, Mapping) and privacy.get("unit", "client") == "client"
    if (
        not protected or "release" not in usual
    ):  # a setting of all that derive from `Release`, and of no other
        return False
    settings = {**usual, **spec["algorithm"]}
    if settings["release"] != "value":
        return False
    joins_late = name == "fedbioacc" and spec.get("cohort") is not None
    return joins_late or any(settings.get(key) for key in ("weight_decay", _ONCE_PROTECTED.get(name, "")))


def draws_of(privacy: Any) -> str | None:
    """Return whose the secret draws of a recorded section are: own, shared, secure, or None without secret draws.

    Paired runs share their noise as well, also those without secret draws: paired.

    Under ``secure_rng`` they come from the system's entropy and have always been the run's own: no version tells.
    """
    if not isinstance(privacy, Mapping):
        return None
    if privacy.get("draws") == "paired":
        return "paired"
    if privacy.get("sampling") not in SECRET:
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
    """Return the names in a recorded spec that a plugin or a notebook may bring: by section, and the encoder's."""
    named = {section: _name(section, spec.get(section)) for section in ("algorithm", *PLUGGABLE)}
    data = spec.get("data")
    encoder = data.get("encoder") if isinstance(data, Mapping) else None
    return {**named, "encoder": encoder if isinstance(encoder, str) else ""}


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
    usual, kept = RUN_DEFAULTS, {}
    for section, value in spec.items():
        if section in usual and value == usual[section]:
            continue
        if isinstance(value, Mapping):
            omitted = _usual_settings(section, value, plugged)
            value = {key: setting for key, setting in value.items() if omitted.get(key, ...) != setting}
            if not value:
                continue
        kept[section] = value
    return kept


def completed(spec: Mapping[str, Any], plugged: Collection[str] = ()) -> dict[str, Any]:
    """Return a recorded spec with the defaults of the settings that it lacks in its sections; see `essential`."""
    return {
        section: {**_usual_settings(section, value, plugged), **value}
        if isinstance(value, Mapping)
        else value
        for section, value in spec.items()
    }


def _usual_settings(section: str, settings: Mapping[str, Any], plugged: Collection[str]) -> dict[str, Any]:
    """Return the defaults of a section and of the part that it names."""
    fields: dict[str, Any] = BUILT_IN["section"].get(section, {}).get("defaults", {})
    if section in plugged or section not in NAMES:
        return fields
    return {**fields, **part(section, _name(section, settings)).get("defaults", {})}


def _name(section: str, part: object) -> str:
    """Return the name in a recorded section; empty without one."""
    name = part.get(NAMES.get(section, "")) if isinstance(part, Mapping) else None
    return name if isinstance(name, str) else ""
