"""Run specs: the validated content of a run file, and the hash that identifies the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import to_jsonable_python

import algorithms
from datasets.files import FORMATS
from datasets.partition import PARTITIONS
from datasets.topology import TOPOLOGIES
from datasets.vertical import VERTICAL
from harness import models
from harness.config import notebook
from harness.config.attacks import AttackSpec
from harness.config.fields import (
    SECTIONS,
    CohortSpec,
    DataSpec,
    Named,
    PartitionSpec,
    checked,
    construct,
    defaults,
    settings_of,
)
from harness.config.yaml import bounded, shown
from harness.core.algorithm import ALGORITHMS
from harness.core.registry import PLUGGED, Incompatible, UserError, unknown
from harness.core.wire.compression_settings import Compression, steps_of
from harness.core.wire.privacy_settings import USER_RECORDS, PrivacySpec
from harness.core.wire.section import Section
from harness.problems import PROBLEMS

algorithms.load()

#: Version of clipping, noise and accounting; part of the identity of runs with privacy.
PRIVACY_VERSION = 3
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
USUAL_PROBLEM = "classify"
MOST_ROUNDS = 1_000_000


class RunSpec(Section):
    """A complete run; runs with equal specs are the same run.

    Attributes
    ----------
    data, partition, problem, model, algorithm, compression, cohort, topology : see their classes
        The parts of the run. ``problem``, ``model``, ``algorithm`` and ``topology`` hold a name and all settings,
        defaults included.
    rounds, eval_every : int
        Communication rounds, and the number of rounds between evaluations.
    seed : int
        Seed of every random draw.
    precision : {"float32", "float64", "bfloat16"}
        Precision of the computation. bfloat16 applies to forward and backward passes of networks; parameters,
        gradients and operations on them (steps, sums, clipping, noise) are float32.
    attacks : AttackSpec or None
        Attacks on what the run releases, carried out at its end; they change nothing of the run.
    """

    data: DataSpec | None = None
    partition: PartitionSpec | None = None
    problem: Named = Field(
        default_factory=lambda: Named({"kind": USUAL_PROBLEM}, PROBLEMS[USUAL_PROBLEM].settings())
    )
    model: Named | None = None
    algorithm: Named
    privacy: PrivacySpec | None = None
    compression: Compression = Compression()
    cohort: CohortSpec | None = None
    topology: Named | None = None
    rounds: int = Field(default=100, ge=1, le=MOST_ROUNDS)
    eval_every: int = Field(default=10, ge=1)
    seed: int = Field(default=0, ge=0)
    precision: Literal["float32", "float64", "bfloat16"] | None = None
    attacks: AttackSpec | None = None

    @field_validator("algorithm", "problem", "model", "topology", mode="before")
    @classmethod
    def _part(cls, given: object, info: ValidationInfo) -> Named | None:
        """Make a named part from its settings; model and topology may be absent."""
        section = str(info.field_name)
        if given is None and section in ("model", "topology"):
            return None
        key = "kind" if section in ("problem", "topology") else "name"
        name, settings = _named(section, given, key)
        if section == "model":
            if name not in models.names():
                raise unknown(section, name, models.names())
            complete = models.complete(name, settings)
            return Named({key: name, **complete}, complete)
        made: Any = construct(f"{section}.{name}", _class_of(section, name), settings)
        return Named({key: name, **settings_of(made)}, made)

    @model_validator(mode="after")
    def _together(self) -> RunSpec:
        problem = PROBLEMS[self.problem["kind"]]
        if self.precision is None:
            object.__setattr__(self, "precision", "float64" if problem.float64 else "float32")
        if problem.data == "own":
            for name in ("data", "partition", "model"):
                if getattr(self, name) is not None:
                    raise UserError(f"{name}: problem {problem.name} has its own data; remove {name}")
            if self.precision == "bfloat16":
                raise Incompatible(f"precision: bfloat16 is for networks; problem {problem.name} has none")
        else:
            for name in ("data", "partition", "model"):
                if getattr(self, name) is None:
                    raise UserError(
                        f"{name}: missing; problem {problem.name} needs data, partition and model"
                    )
            columns = self.partition is not None and self.partition.kind in VERTICAL
            if columns != (problem.data == "vertical"):
                wanted = " or ".join(VERTICAL) if problem.data == "vertical" else "one that deals rows"
                raise Incompatible(
                    f"partition.kind: problem {problem.name} needs {wanted}, given {self.partition}"
                )
            if columns and self.cohort is not None:
                raise Incompatible("cohort: parties hold different columns; all take part in every round")
        meta = ALGORITHMS[self.algorithm["name"]].meta
        if problem.kind not in meta.solves:
            raise Incompatible(
                f"algorithm {meta.name} solves problems of kind {' or '.join(meta.solves)}; "
                f"problem {problem.name} is {problem.kind}"
            )
        if meta.gossip and self.topology is None:
            raise UserError(f"topology: missing; algorithm {meta.name} has no server and needs one")
        if meta.gossip and self.cohort is not None:
            raise Incompatible(
                f"cohort: algorithm {meta.name} has no server; all nodes take part in every round"
            )
        if not meta.gossip and self.topology is not None:
            raise Incompatible(f"topology: algorithm {meta.name} has a server; remove topology")
        steps = [step for step in steps_of(self.compression.alpha) if isinstance(step[1], tuple)]
        if steps and problem.kind != "vertical":
            raise Incompatible(
                "compression.alpha: only parties of a vertical problem have ratios of their own that change; their "
                "models are not contained in each other"
            )
        if self.privacy is not None:
            if meta.pooled:
                raise Incompatible(
                    f"privacy: algorithm {meta.name} collects the raw data of all clients, so no mechanism applies"
                )
            object.__setattr__(self, "privacy", self._sampled(self.privacy))
            if self.privacy.placement == "distributed":
                self._refuse_codes()
            if self.attacks is not None and (self.privacy.strict or self.privacy.secure_rng):
                raise Incompatible(
                    "attacks: they repeat the run and compare with private data, which neither privacy.strict nor "
                    "privacy.secure_rng allows; remove attacks or these"
                )
        if self.clients is not None and self.cohort is not None and self.cohort.size > self.clients:
            raise UserError(
                f"cohort.size: at most the {self.clients} clients there are, given {self.cohort.size}"
            )
        return self

    def _refuse_codes(self) -> None:
        """Refuse codes of single messages where clients send integers to a sum."""
        given = self.compression
        coded = given.codec != "float32" and not given.downlink
        chosen = given.sparsifies and given.select != "random_k"
        if coded or chosen or given.joins:
            raise Incompatible(
                "compression: with privacy.placement distributed clients send integers of privacy.bits, all the "
                "same entries; of settings for their messages only alpha and select random_k remain"
            )

    def _sampled(self, privacy: PrivacySpec) -> PrivacySpec:
        """Fill in how units are sampled, and the adjacency that follows."""
        if privacy.unit != "client":
            # All parties of a vertical problem know who is in a batch, so sampling amplifies nothing.
            vertical = PROBLEMS[self.problem["kind"]].kind == "vertical"
            if vertical and privacy.unit == "user":
                raise UserError(
                    "privacy.unit: parties of a vertical problem hold columns of the same people; use unit record"
                )
            possible = {"sampling": ("poisson",), "adjacency": ("zero-out", "add-remove")}
            if vertical:
                possible = {"sampling": ("full",), "adjacency": ("replace",)}
            for name, allowed in possible.items():
                if getattr(privacy, name) not in (None, *allowed):
                    raise UserError(
                        f"privacy.{name}: unit {privacy.unit} is accounted by {' or '.join(allowed)} in problem "
                        f"{self.problem['kind']}, given {getattr(privacy, name)}; remove privacy.{name}"
                    )
            if vertical and privacy.noise != "shared":
                raise UserError(
                    "privacy.noise: per_client is for clients with records of their own; the parties of a vertical "
                    "problem share them; use shared"
                )
            given: dict[str, Any] = {
                name: getattr(privacy, name) or usual[0] for name, usual in possible.items()
            }
            if privacy.unit == "user":
                given["user_records"] = privacy.user_records or USER_RECORDS
            return privacy.model_copy(update=given)
        balanced = self.cohort is not None and self.cohort.kind == "balanced"
        usual = "poisson" if privacy.placement == "central" and not balanced else "fixed"
        sampling = privacy.sampling or ("full" if self.cohort is None else usual)
        if balanced and sampling != "fixed":
            raise UserError(
                f"privacy.sampling: balanced cohorts are public and not drawn, given {sampling}; use fixed, "
                "or cohort kind random"
            )
        if (sampling == "full") != (self.cohort is None):
            raise UserError(
                f"privacy.sampling: {sampling} {'needs a cohort' if self.cohort is None else 'takes everybody'}; "
                f"{'give cohort.size' if self.cohort is None else 'remove cohort'}"
            )
        adjacency = privacy.adjacency or ("add-remove" if sampling == "poisson" else "replace")
        return PrivacySpec.model_validate(
            privacy.model_dump() | {"sampling": sampling, "adjacency": adjacency}
        )

    @property
    def clients(self) -> int | None:
        """Number of clients, if the spec determines it."""
        return self.partition.clients if self.partition else None

    def protected(self, **settings: bool) -> RunSpec:
        """Return the run with settings of ``privacy``; a run without privacy is unchanged."""
        if self.privacy is None:
            return self
        return self.model_copy(update={"privacy": self.privacy.model_copy(update=settings)})

    def identity(self, digest: str) -> str:
        """Return the run's identity: a hash of everything that determines its result.

        Settings at their defaults are omitted, so that a new option does not rename older runs. Changing a default
        requires a new version of the part that it belongs to (tests/golden/defaults.json).

        Parameters
        ----------
        digest : str
            Digest of the data read.
        """
        spec = self.model_dump(mode="json")
        return run_id(spec, digest, versions(spec))


def run_id(spec: Mapping[str, Any], digest: str, versions: Mapping[str, Any]) -> str:
    """Return the identity of a run by its recorded spec, the digest of its data, and the versions of its code."""
    named = essential(spec)
    if "data" in named:
        named["data"].pop("path", None)  # the digest identifies the data
    text = json.dumps({"spec": named, "data": digest, "versions": versions}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def versions(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the versions of the code that a recorded spec names; empty if a part of it is not registered.

    ``plugins`` holds the versions of the plugins of named parts, and of parts that a notebook defines; it is absent
    without any. ``data`` is the version of the reader of a file's format; other data sets have none, as their
    digests name what was read.
    """
    names = named_parts(spec)
    names["problem"] = names["problem"] or USUAL_PROBLEM
    partitions = {"": 1, **{name: kind.version for name, kind in {**PARTITIONS, **VERTICAL}.items()}}
    if not (names["algorithm"] in ALGORITHMS and names["problem"] in PROBLEMS):
        return {}
    if names["partition"] not in partitions:
        return {}
    found = {section: version_of(section, name) for section, name in names.items()}
    plugins = {key: version for key, version in found.items() if version}
    return {
        "algorithm": ALGORITHMS[names["algorithm"]].meta.version,
        "problem": PROBLEMS[names["problem"]].version,
        "partition": partitions[names["partition"]],
        **({"data": FORMATS[names["data"]].version} if names["data"] in FORMATS else {}),
        **({"privacy": PRIVACY_VERSION} if spec.get("privacy") is not None else {}),
        **({"plugins": plugins} if plugins else {}),
    }


def version_of(section: str, name: str) -> str | None:
    """Return the version of a part of a plugin or a notebook; None for ours."""
    return PLUGGED.get((section, name)) or notebook.version(section, name)


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
    usual, found = _usual_fields(RunSpec), {}
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
    fields = _usual_fields(SECTIONS[section]) if section in SECTIONS else {}
    name = "" if section in plugged else _name(section, part)
    if section == "model":
        return {**fields, **(_usual_model(name) if name in models.names() else {})}
    kinds: dict[str, Any] = {
        "algorithm": ALGORITHMS,
        "problem": PROBLEMS,
        "topology": TOPOLOGIES,
        "partition": PARTITIONS if name in PARTITIONS else VERTICAL,
    }
    if name not in kinds.get(section, ()):
        return fields
    made = kinds[section][name]
    return {**fields, **_usual_values(made.settings if section == "problem" else made)}


def _name(section: str, part: object) -> str:
    """Return the name in a recorded section; empty without one."""
    name = part.get(NAMES.get(section, "")) if isinstance(part, Mapping) else None
    return name if isinstance(name, str) else ""


@cache
def _usual_fields(cls: type[Section]) -> dict[str, Any]:
    """Return the defaults of a section, as they are recorded."""
    optional = {name: field for name, field in cls.model_fields.items() if not field.is_required()}
    usual = {name: field.get_default(call_default_factory=True) for name, field in optional.items()}
    written: dict[str, Any] = to_jsonable_python(usual)
    written.pop("settings", None)  # those of a partition are recorded beside its fields
    return written


@cache
def _usual_values(cls: type) -> dict[str, Any]:
    written: dict[str, Any] = to_jsonable_python(defaults(cls))
    return written


def _usual_model(name: str) -> dict[str, Any]:
    written: dict[str, Any] = to_jsonable_python(models.complete(name, {}))
    return written


def read_spec(given: Mapping[str, Any]) -> RunSpec:
    """Validate the content of a run file.

    Raises
    ------
    UserError
        If a field is not valid.
    """
    bounded("run", given)
    return validated(given)


def validated(given: Mapping[str, Any]) -> RunSpec:
    """Do what `read_spec` does, of content that is known to be bounded."""
    for key in given:
        if key not in RunSpec.model_fields:
            raise unknown("field of a run", key, RunSpec.model_fields)
    spec: RunSpec = checked("", lambda: RunSpec.model_validate(given))
    bounded("run", spec.model_dump())  # pydantic reads the text "nan" as a float
    return spec


def _named(section: str, given: object, key: str) -> tuple[str, dict[str, Any]]:
    """Split ``name`` or ``{name: ..., setting: ...}`` into name and settings."""
    given = {key: given} if isinstance(given, str) else given
    if not isinstance(given, Mapping) or not isinstance(given.get(key), str):
        raise UserError(f"{section}: give a name, or {key} and settings, given {shown(given)}")
    return given[key], {k: v for k, v in given.items() if k != key}


def _class_of(section: str, name: str) -> type[Any]:
    """Return the dataclass that holds the settings of an algorithm, a problem or a topology."""
    if section == "algorithm":
        return ALGORITHMS[name]
    if section == "problem":
        return PROBLEMS[name].settings
    if name not in TOPOLOGIES:
        raise unknown(section, name, TOPOLOGIES)
    return TOPOLOGIES[name]
