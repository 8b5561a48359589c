"""Run specs: the validated content of a run file, and the hash that identifies the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

import algorithms
from datasets.partition import PARTITIONS
from datasets.topology import TOPOLOGIES
from datasets.vertical import VERTICAL
from harness import models
from harness.config.fields import (
    CohortSpec,
    DataSpec,
    Named,
    PartitionSpec,
    checked,
    construct,
    defaults,
    settings_of,
)
from harness.config.yaml import bounded, read, shown
from harness.core.algorithm import ALGORITHMS
from harness.core.registry import PLUGGED, Incompatible, UserError, unknown
from harness.core.wire.settings import Compression, PrivacySpec, Section, steps_of
from harness.problems import PROBLEMS

algorithms.load()


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
    """

    data: DataSpec | None = None
    partition: PartitionSpec | None = None
    problem: Named = Field(
        default_factory=lambda: Named({"kind": "classify"}, PROBLEMS["classify"].settings())
    )
    model: Named | None = None
    algorithm: Named
    privacy: PrivacySpec | None = None
    compression: Compression = Compression()
    cohort: CohortSpec | None = None
    topology: Named | None = None
    rounds: int = Field(default=100, ge=1)
    eval_every: int = Field(default=10, ge=1)
    seed: int = Field(default=0, ge=0)
    precision: Literal["float32", "float64", "bfloat16"] | None = None

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
        if self.clients is not None and self.cohort is not None and self.cohort.size > self.clients:
            raise UserError(
                f"cohort.size: at most the {self.clients} clients there are, given {self.cohort.size}"
            )
        return self

    def _sampled(self, privacy: PrivacySpec) -> PrivacySpec:
        """Fill in how units are sampled, and the adjacency that follows."""
        if privacy.unit == "record":
            # All parties of a vertical problem know who is in a batch, so sampling amplifies nothing.
            vertical = PROBLEMS[self.problem["kind"]].kind == "vertical"
            fixed = (
                {"sampling": "full", "adjacency": "replace"}
                if vertical
                else {"sampling": "poisson", "adjacency": "add-remove"}
            )
            for name, only in fixed.items():
                if getattr(privacy, name) not in (None, only):
                    raise UserError(
                        f"privacy.{name}: unit record is accounted by {only} in problem {self.problem['kind']}, "
                        f"given {getattr(privacy, name)}; remove privacy.{name}"
                    )
            return privacy.model_copy(update=fixed)
        usual = "full" if self.cohort is None else "fixed" if privacy.placement == "local" else "poisson"
        sampling = privacy.sampling or usual
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

    def strictly(self) -> RunSpec:
        """Return the run with ``privacy.strict``; a run without privacy is unchanged."""
        if self.privacy is None:
            return self
        return self.model_copy(update={"privacy": self.privacy.model_copy(update={"strict": True})})

    def _named_settings(self) -> dict[str, tuple[Named, dict[str, Any]]]:
        """Return settings and defaults of the named parts."""
        named = {
            "algorithm": (self.algorithm, defaults(ALGORITHMS[self.algorithm["name"]])),
            "problem": (self.problem, defaults(PROBLEMS[self.problem["kind"]].settings)),
        }
        if self.model is not None:
            named["model"] = (self.model, models.complete(self.model["name"], {}))
        if self.topology is not None:
            named["topology"] = (self.topology, defaults(TOPOLOGIES[self.topology["kind"]]))
        if self.partition is not None:
            kind = {**PARTITIONS, **VERTICAL}[self.partition.kind]
            named["partition"] = (self.partition.settings, defaults(kind))
        return named

    def plugins(self) -> dict[str, str]:
        """Return the sections that name a part of a plugin, with the version of its code."""
        named = {
            "algorithm": self.algorithm["name"],
            "problem": self.problem["kind"],
            "data": self.data.name if self.data else "",
            "partition": self.partition.kind if self.partition else "",
        }
        return {key: PLUGGED[key, name] for key, name in named.items() if (key, name) in PLUGGED}

    def identity(self, digest: str) -> str:
        """Return the run's identity: a hash of everything that determines its result.

        Settings at their defaults are omitted, so that a new option does not rename older runs. Changing a default
        requires a new version of the part that it belongs to (tests/golden/defaults.json).

        Parameters
        ----------
        digest : str
            Digest of the data read.
        """
        partitions = {**PARTITIONS, **VERTICAL}
        versions = {
            "algorithm": ALGORITHMS[self.algorithm["name"]].meta.version,
            "problem": PROBLEMS[self.problem["kind"]].version,
            "partition": partitions[self.partition.kind].version if self.partition else 1,
            **({"plugins": plugins} if (plugins := self.plugins()) else {}),
        }
        spec = self.model_dump(mode="json", exclude_defaults=True)
        for section, (settings, usual) in self._named_settings().items():
            for key, value in settings.items():
                if key in usual and value == usual[key]:
                    spec.get(section, {}).pop(key, None)
        if "data" in spec:
            spec["data"].pop("path", None)  # the digest identifies the data
        text = json.dumps({"spec": spec, "data": digest, "versions": versions}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_spec(given: Mapping[str, Any]) -> RunSpec:
    """Validate the content of a run file.

    Raises
    ------
    UserError
        If a field is not valid.
    """
    bounded("run", given)
    for key in given:
        if key not in RunSpec.model_fields:
            raise unknown("field of a run", key, RunSpec.model_fields)
    spec: RunSpec = checked("", lambda: RunSpec.model_validate(given))
    bounded("run", spec.model_dump())  # pydantic reads the text "nan" as a float
    return spec


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping."""
    try:
        content = read(str(path), path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{path} must hold named fields, such as 'data: adult'")
    return content


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
