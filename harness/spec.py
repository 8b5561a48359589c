"""A run as a value: what a run file may say, checked and completed, and the hash that names the run.

The vocabulary is the contract with users; README.md shows a whole file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

import algorithms
from compression import CODECS, ratio_at
from datasets import catalog
from datasets.csv import parse_address
from datasets.partition import PARTITIONS
from datasets.topology import TOPOLOGIES
from datasets.vertical import VERTICAL
from harness import models
from harness.core.algorithm import ALGORITHMS, Algorithm
from harness.core.policy import Ratio, Share
from harness.core.registry import PLUGGED, Incompatible, UserError, unknown
from harness.problems import PROBLEMS
from harness.reading import bounded, read, shown

algorithms.load()

T = TypeVar("T")
Named = dict[str, Any]


class Section(BaseModel):
    """A part of a run file; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Data(Section):
    """Which data.

    Attributes
    ----------
    name : str
        A data set's name, or ``csv``.
    path : str or None
        A file or folder of the user's own copy.
    label : str or None
        Column of the label (csv).
    sensitive : str, list of str or None
        Sensitive attribute, where there is a choice; several are crossed.
    keep_sensitive, normalize, missing, drop
        Options of the loader, see `datasets.catalog.load`.
    binary : {"halves"} or None
        Make two classes: the lower half of the labels negative, the upper half positive.
    drop_negatives : float
        Share of the negative samples that is left out, drawn anew with every seed; of the training samples
        only where the test samples are the source's own.
    """

    name: str
    path: str | None = None
    label: str | None = None
    sensitive: str | tuple[str, ...] | None = None
    keep_sensitive: bool | None = None
    normalize: Literal["standard", "half", "none"] | None = None
    missing: Literal["error", "drop", "fill"] | None = None
    drop: str | tuple[str, ...] | None = None
    binary: Literal["halves"] | None = None
    drop_negatives: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: object) -> object:
        """Read ``adult`` and ``csv:file.csv?label=y&sensitive=g``."""
        if not isinstance(given, str):
            return given
        if given.startswith("csv:"):
            path, address = parse_address(given)
            return {"name": "csv", "path": path, **address}
        return {"name": given}

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in (*catalog.names(), *catalog.ALIASES):
            raise unknown("data set", name, (*catalog.names(), *catalog.ALIASES))
        return catalog.ALIASES.get(name, name)


RECORD = {"sampling": "poisson", "adjacency": "add-remove"}  # how records are drawn, and whom that protects
BUDGETS = ("epsilon", "epsilon_release", "epsilon_nominal", "noise_multiplier")
LARGEST = 1e9  # epsilon or noise multiplier; the smallest is its inverse
SMALLEST_DELTA = 1e-30


class PrivacySpec(Section):
    """The Gaussian mechanism a run uses. Exactly one of the four budgets is given.

    Attributes
    ----------
    unit : {"client", "record"}
        Whose participation is hidden: all of a client's data, or one record.
    placement : {"local", "central"}
        Who adds noise: each client to what it transmits, or the server to the average.
    clip : float, list of float or "adaptive"
        Bound on the joint L2 norm of a message; a list bounds each part of it.
    epsilon : float or None
        Budget of the whole run, over all releases.
    epsilon_release : float or None
        Exact epsilon of each single release.
    epsilon_nominal : float or None
        Input of the classic formula ``sqrt(2 ln(1.25 / delta)) clip / epsilon``.
    noise_multiplier : float or None
        Standard deviation of the noise over the sensitivity; 0 clips only.
    delta : float
        Of every epsilon.
    adjacency : {"replace", "add-remove"} or None
        Default: add-remove with Poisson sampling, else replace.
    sampling : {"poisson", "fixed", "full"} or None
        How the cohort is drawn. Default: full without a cohort; with one fixed if local, poisson if central.
    accountant : {"rdp", "prv"}
        For sampled draws.
    server_clip : float or None
        Bound on the averaged message, applied by the server. Messages that it sees one by one stay as they are.
    strict : bool
        Take nothing of the clients' data as public, neither their numbers of samples nor what standardizes
        them; what rests on such knowledge is refused, and averages are plain where the algorithm leaves it open.
    """

    unit: Literal["client", "record"] = "client"
    placement: Literal["local", "central"] = "local"
    clip: float | tuple[float, ...] | Literal["adaptive"] = 10.0
    epsilon: float | None = Field(default=None, gt=0)
    epsilon_release: float | None = Field(default=None, gt=0)
    epsilon_nominal: float | None = Field(default=None, gt=0)
    noise_multiplier: float | None = Field(default=None, ge=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    adjacency: Literal["replace", "add-remove"] | None = None
    sampling: Literal["poisson", "fixed", "full"] | None = None
    accountant: Literal["rdp", "prv"] = "rdp"
    server_clip: float | None = Field(default=None, gt=0)
    strict: bool = False

    @model_validator(mode="after")
    def _sound(self) -> PrivacySpec:
        named = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(named) != 1:
            raise UserError(
                f"privacy: give exactly one of {', '.join(BUDGETS)}; given {' and '.join(named) or 'none'}"
            )
        norms = self.clip if isinstance(self.clip, tuple) else (self.clip,)
        if not norms or any(not isinstance(norm, str) and not norm > 0 for norm in norms):
            raise UserError(f"privacy.clip: clip norms are above 0, given {self.clip}")
        if self.noise_multiplier != 0 and any(norm == math.inf for norm in norms):
            raise UserError("privacy.clip: an infinite clip norm goes with noise_multiplier 0 only")
        if self.delta < SMALLEST_DELTA:
            raise UserError(f"privacy.delta: at least {SMALLEST_DELTA:g}, given {self.delta}")
        given = getattr(self, named[0])
        if given > LARGEST or 0 < given < 1 / LARGEST:
            raise UserError(f"privacy.{named[0]}: between {1 / LARGEST:g} and {LARGEST:g}, given {given}")
        if self.unit == "record":
            if self.server_clip is not None:
                raise UserError("privacy: unit record has no server_clip, the server adds no noise")
            if self.placement == "central" or isinstance(self.clip, tuple | str) or self.sampling == "fixed":
                raise UserError(
                    "privacy: unit record protects every local gradient, with one clip norm and Poisson batches; "
                    "leave placement and sampling away and give clip as a number"
                )
            if self.epsilon_nominal is not None:
                raise UserError("privacy: unit record has no nominal epsilon")
            return self
        if self.placement == "local":
            if self.adjacency == "add-remove":
                raise UserError(
                    "privacy.adjacency: a client that protects itself replaces its data; use replace"
                )
            if self.sampling == "poisson":
                raise UserError(
                    "privacy.sampling: local placement is not amplified by sampling, the server knows who sends; "
                    "use fixed or full"
                )
            if self.clip == "adaptive":
                raise UserError(
                    "privacy.clip: an adaptive norm needs a server that counts; use placement central"
                )
        elif self.adjacency == "add-remove" and self.sampling in ("fixed", "full"):
            raise UserError(
                f"privacy.adjacency: with {self.sampling} cohorts one client is replaced by another; use replace, "
                "or sampling poisson"
            )
        elif self.adjacency == "replace" and self.sampling == "poisson":
            raise UserError("privacy.adjacency: Poisson cohorts are accounted by add-remove")
        return self


def _each(ratio: Ratio) -> bool:
    """Whether a ratio is one for each client."""
    return isinstance(ratio, tuple) and not isinstance(ratio[0], tuple)


def _steps(ratio: Ratio) -> list[tuple[int, Share]]:
    """Return the steps of a schedule; none if it is constant."""
    return [step for step in ratio if isinstance(step, tuple)] if isinstance(ratio, tuple) else []


class CompressionSpec(Section):
    """How messages and models are made smaller.

    Attributes
    ----------
    alpha : float, list of floats, or list of [round, ratio]
        Share of the model's hidden units (neurons, filters) that is removed, in [0, 1): of every client's model,
        of each client's (which are then contained in each other), or a schedule of the first (of both in vertical
        problems); what has been removed stays removed.
    beta : float, list of floats, or list of [round, ratio]
        Share of a message's entries that is dropped, in [0, 1): of every client's, of each client's, or a
        schedule of both.
    select : {"top_k", "random_k", "threshold"}
        The largest entries are kept, or a random choice that all know from the seed, or all entries whose
        absolute value is at least ``threshold`` (beta then stays 0).
    threshold : float or None
        Above 0.
    codec : str
        Number format on the wire: float64, float32, float16, bfloat16, q1 .. q8 (stochastic), sign.
    error_feedback : bool
        Add what was not sent to the client's next message; not with random_k, whose mask is part of the rules.
    downlink : bool
        Drop and code what the server sends like what clients send; not with error feedback, as models are sent,
        and what is missing of a model is not to be added to the next one.
    """

    alpha: Ratio = 0.0
    beta: Ratio = 0.0
    select: Literal["top_k", "random_k", "threshold"] = "top_k"
    threshold: float | None = Field(default=None, gt=0)
    codec: str = "float32"
    error_feedback: bool = False
    downlink: bool = False

    @field_validator("codec")
    @classmethod
    def _codec(cls, name: str) -> str:
        if name not in CODECS:
            raise unknown("codec", name, CODECS)
        return name

    @field_validator("alpha", "beta")
    @classmethod
    def _ratios(cls, ratio: Any) -> Any:
        steps = ratio if isinstance(ratio, tuple) else (ratio,)
        if not steps or any(isinstance(step, tuple) and step[0] < 0 for step in steps):
            raise UserError(f"compression: a schedule has steps, from round 0 on; given {ratio}")
        ratio_at(ratio, 0)
        return ratio

    @model_validator(mode="after")
    def _together(self) -> CompressionSpec:
        if (self.select == "threshold") != (self.threshold is not None) or (
            self.threshold and self.beta != 0.0
        ):
            raise UserError("compression: select threshold goes with a threshold, and without beta")
        if self.error_feedback and (self.select == "random_k" or self.downlink):
            raise UserError("compression: error_feedback goes with select top_k, and without downlink")
        if self.downlink and (_each(self.beta) or any(_each(ratio) for _, ratio in _steps(self.beta))):
            raise UserError("compression: downlink needs one beta for all clients")
        return self


class Cohort(Section):
    """Who takes part in a round.

    Attributes
    ----------
    size : int
        Clients a round, drawn without replacement.
    """

    size: int = Field(ge=1)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: object) -> object:
        """Read ``10``."""
        return {"size": given} if isinstance(given, int) else given


class Partition(Section):
    """How the data are dealt to clients; the fields besides these are the kind's own.

    Attributes
    ----------
    kind : str
        A partition's name.
    clients : int or None
        How many; None where the kind knows (one per value of a column).
    test : float or "official"
        Share of each client's data held out for testing, or the source's own test set.
    stratify : tuple of {"label", "group"}
        What that split keeps in proportion.
    limit : int or None
        Use only so many samples.
    standardize : bool
        Whether columns that the data set marks as continuous are standardized, by all training samples.
    selection : float
        Share of each client's training samples that no algorithm trains on: hyper-parameters are chosen by them.
    settings : dict
        The kind's own settings.
    """

    kind: str
    clients: int | None = Field(default=None, ge=1)
    test: float | Literal["official"] = 0.3
    stratify: tuple[Literal["label", "group"], ...] = ()
    limit: int | None = Field(default=None, ge=2)
    standardize: bool = True
    selection: float = Field(default=0.0, ge=0, lt=1)
    settings: Named = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, given: object) -> object:
        """Move the kind's own settings, which users write beside the others, into ``settings``."""
        given = {"kind": given} if isinstance(given, str) else given
        if not isinstance(given, Mapping) or "kind" not in given:
            return given
        kind = str(given["kind"])
        settings = given.get("settings", {})
        if not isinstance(settings, Mapping):
            raise UserError(f"partition.settings: named fields are needed, given {shown(settings)}")
        own = {k: v for k, v in given.items() if k not in cls.model_fields} | dict(settings)
        rest = {k: v for k, v in given.items() if k in cls.model_fields and k != "settings"}
        if kind in VERTICAL:
            cut = construct(f"partition.{kind}", VERTICAL[kind], own, also=cls.model_fields)
            usual = _settings(VERTICAL[kind]())  # left away, as these partitions once had no settings
            return {**rest, "settings": {k: v for k, v in _settings(cut).items() if v != usual[k]}}
        if kind not in PARTITIONS:
            raise unknown("partition", kind, [*PARTITIONS, *VERTICAL])
        made = construct(f"partition.{kind}", PARTITIONS[kind], own, also=cls.model_fields)
        return {**rest, "settings": _settings(made)}

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write the kind's own settings beside the others, as users do."""
        content: dict[str, Any] = write(self)
        settings: dict[str, Any] = content.pop("settings", {})
        return content | settings


class RunSpec(Section):
    """One run, completely: two runs with equal specs are the same run.

    Attributes
    ----------
    data, partition, problem, model, algorithm, compression, cohort, topology : see their classes
        What is run. ``problem``, ``model``, ``algorithm`` and ``topology`` hold a name and all settings of
        the thing named, defaults included.
    rounds, eval_every : int
        Communication rounds, and after how many of them an evaluation takes place.
    seed : int
        Of every random draw.
    precision : {"float32", "float64"}
        Of the computation.
    """

    data: Data | None = None
    partition: Partition | None = None
    problem: Named = Field(default_factory=lambda: {"kind": "classify"})
    model: Named | None = None
    algorithm: Named
    privacy: PrivacySpec | None = None
    compression: CompressionSpec = CompressionSpec()
    cohort: Cohort | None = None
    topology: Named | None = None
    rounds: int = Field(default=100, ge=1)
    eval_every: int = Field(default=10, ge=1)
    seed: int = Field(default=0, ge=0)
    precision: Literal["float32", "float64"] | None = None

    @field_validator("algorithm", mode="before")
    @classmethod
    def _algorithm(cls, given: object) -> Named:
        name, settings = _named("algorithm", given, "name")
        return {"name": name, **_settings(construct(f"algorithm.{name}", ALGORITHMS[name], settings))}

    @field_validator("problem", mode="before")
    @classmethod
    def _problem(cls, given: object) -> Named:
        kind, settings = _named("problem", given, "kind")
        return {"kind": kind, **_settings(construct(f"problem.{kind}", PROBLEMS[kind].settings, settings))}

    @field_validator("topology", mode="before")
    @classmethod
    def _topology(cls, given: object) -> Named | None:
        if given is None:
            return None
        kind, settings = _named("topology", given, "kind")
        if kind not in TOPOLOGIES:
            raise unknown("topology", kind, TOPOLOGIES)
        return {"kind": kind, **_settings(construct(f"topology.{kind}", TOPOLOGIES[kind], settings))}

    @field_validator("model", mode="before")
    @classmethod
    def _model(cls, given: object) -> Named | None:
        if given is None:
            return None
        name, settings = _named("model", given, "name")
        if name not in models.names():
            raise unknown("model", name, models.names())
        return {"name": name, **models.complete(name, settings)}

    @model_validator(mode="after")
    def _together(self) -> RunSpec:
        problem = PROBLEMS[self.problem["kind"]]
        if self.precision is None:
            object.__setattr__(self, "precision", "float64" if problem.float64 else "float32")
        if problem.data == "own":
            for name in ("data", "partition", "model"):
                if getattr(self, name) is not None:
                    raise UserError(f"{name}: problem {problem.name} brings its own; leave {name} away")
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
            raise Incompatible(f"topology: algorithm {meta.name} has a server; leave topology away")
        steps = [step for step in _steps(self.compression.alpha) if isinstance(step[1], tuple)]
        if steps and problem.kind != "vertical":
            raise Incompatible(
                "compression.alpha: only parties of a vertical problem have ratios of their own that change; their "
                "models are not contained in each other"
            )
        if self.privacy is not None:
            if meta.pooled:
                raise Incompatible(
                    f"privacy: algorithm {meta.name} collects everybody's raw data; nothing protects them"
                )
            object.__setattr__(self, "privacy", self._sampled(self.privacy))
        if self.clients is not None and self.cohort is not None and self.cohort.size > self.clients:
            raise UserError(
                f"cohort.size: at most the {self.clients} clients there are, given {self.cohort.size}"
            )
        return self

    def _sampled(self, privacy: PrivacySpec) -> PrivacySpec:
        """Settle how units are drawn, and which neighbors that protects."""
        if privacy.unit == "record":
            # Parties of a vertical problem all know who is in a batch: nothing is amplified by drawing it.
            known = PROBLEMS[self.problem["kind"]].kind == "vertical"
            way = {"sampling": "full", "adjacency": "replace"} if known else RECORD
            for name, only in way.items():
                if getattr(privacy, name) not in (None, only):
                    raise UserError(
                        f"privacy.{name}: unit record is accounted by {only} in problem {self.problem['kind']}, "
                        f"given {getattr(privacy, name)}; leave placement and sampling away"
                    )
            return privacy.model_copy(update=way)
        usual = "full" if self.cohort is None else "fixed" if privacy.placement == "local" else "poisson"
        sampling = privacy.sampling or usual
        if (sampling == "full") != (self.cohort is None):
            raise UserError(
                f"privacy.sampling: {sampling} {'needs a cohort' if self.cohort is None else 'takes everybody'}; "
                f"{'give cohort.size' if self.cohort is None else 'leave cohort away'}"
            )
        adjacency = privacy.adjacency or ("add-remove" if sampling == "poisson" else "replace")
        return PrivacySpec.model_validate(
            privacy.model_dump() | {"sampling": sampling, "adjacency": adjacency}
        )

    @property
    def clients(self) -> int | None:
        """Number of clients as far as the spec alone tells."""
        return self.partition.clients if self.partition else None

    def make_algorithm(self) -> Algorithm:
        """Return the algorithm with its hyper-parameters."""
        settings = {k: v for k, v in self.algorithm.items() if k != "name"}
        return ALGORITHMS[self.algorithm["name"]](**settings)

    def strictly(self) -> RunSpec:
        """Return the run that takes nothing private as public; one without privacy is left as it is."""
        if self.privacy is None:
            return self
        return self.model_copy(update={"privacy": self.privacy.model_copy(update={"strict": True})})

    def _named_settings(self) -> dict[str, tuple[Named, Named]]:
        """Return settings and defaults of everything that the run names."""
        found = {
            "algorithm": (self.algorithm, defaults(ALGORITHMS[self.algorithm["name"]])),
            "problem": (self.problem, defaults(PROBLEMS[self.problem["kind"]].settings)),
        }
        if self.model is not None:
            found["model"] = (self.model, models.complete(self.model["name"], {}))
        if self.topology is not None:
            found["topology"] = (self.topology, defaults(TOPOLOGIES[self.topology["kind"]]))
        if self.partition is not None:
            kind = {**PARTITIONS, **VERTICAL}[self.partition.kind]
            found["partition"] = (self.partition.settings, defaults(kind))
        return found

    def plugins(self) -> dict[str, str]:
        """Return the sections that name something of a plugin, with the version of its code."""
        named = {
            "algorithm": self.algorithm["name"],
            "problem": self.problem["kind"],
            "data": self.data.name if self.data else "",
            "partition": self.partition.kind if self.partition else "",
        }
        return {key: PLUGGED[key, name] for key, name in named.items() if (key, name) in PLUGGED}

    def identity(self, digest: str) -> str:
        """Return the run's name: a hash of all that decides its result.

        Settings at their defaults are left out of it, so that a new option does not rename older runs.
        A default that changes needs a new version of what it belongs to (tests/golden/defaults.json).

        Parameters
        ----------
        digest : str
            Of the data really read.
        """
        dealt = {**PARTITIONS, **VERTICAL}
        versions = {
            "algorithm": ALGORITHMS[self.algorithm["name"]].meta.version,
            "problem": PROBLEMS[self.problem["kind"]].version,
            "partition": dealt[self.partition.kind].version if self.partition else 1,
            **({"plugins": plugins} if (plugins := self.plugins()) else {}),
        }
        spec = self.model_dump(mode="json", exclude_defaults=True)
        for section, (settings, usual) in self._named_settings().items():
            for key, value in settings.items():
                if key in usual and value == usual[key]:
                    spec.get(section, {}).pop(key, None)
        if "data" in spec:
            spec["data"].pop("path", None)  # the digest says what was read; where it lay does not matter
        text = json.dumps({"spec": spec, "data": digest, "versions": versions}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


SECTIONS: dict[str, type[Section]] = {
    "data": Data,
    "partition": Partition,
    "privacy": PrivacySpec,
    "compression": CompressionSpec,
    "cohort": Cohort,
}


def read_spec(given: Mapping[str, Any]) -> RunSpec:
    """Check a run file's content.

    Raises
    ------
    UserError
        Naming the field, what was given and what is allowed.
    """
    bounded("run", given)
    for key in given:
        if key not in RunSpec.model_fields:
            raise unknown("field of a run", key, RunSpec.model_fields)
    spec: RunSpec = _checked("", lambda: RunSpec.model_validate(given))
    bounded("run", spec.model_dump())  # also the text "nan" is a float to pydantic
    return spec


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping, safely."""
    try:
        content = read(str(path), path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{path} must hold named fields, such as 'data: adult'")
    return content


def construct(
    where: str, cls: type[T], settings: Mapping[str, Any], also: Mapping[str, Any] | None = None
) -> T:
    """Make a dataclass of settings, converting types ("1e-3" is a number) and refusing unknown names.

    Parameters
    ----------
    where : str
        Path of the section, for messages.
    cls : type
        The dataclass.
    settings : Mapping
        What the user gave.
    also : Mapping, optional
        Further names to mention as allowed.
    """
    allowed = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for key in settings:
        if key not in allowed:
            raise unknown(f"setting of {where}", key, [*allowed, *(also or ())])
    made: T = _checked(where, lambda: TypeAdapter(cls).validate_python(dict(settings)))
    for name in allowed:
        bounded(
            f"{where}.{name}", getattr(made, name), finite=True
        )  # also the text "inf" is a float to pydantic
    return made


def _checked(where: str, make: Any) -> Any:
    """Turn pydantic's report into one clear line."""
    try:
        return make()
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        path = ".".join([part for part in (where, *map(str, first["loc"])) if part])
        if isinstance(cause, UserError):
            raise cause from None
        if first["type"] == "extra_forbidden":
            allowed = (
                SECTIONS[str(first["loc"][0])].model_fields if len(first["loc"]) > 1 else RunSpec.model_fields
            )
            raise unknown(f"field of {first['loc'][0]}", first["loc"][-1], allowed) from None
        given = "" if first["type"] == "missing" else f", given {shown(first['input'])}"
        message = str(cause) if cause is not None else first["msg"]
        raise UserError(f"{path}: {message[0].lower()}{message[1:]}{given}") from None


def _named(section: str, given: object, key: str) -> tuple[str, dict[str, Any]]:
    """Split ``name`` or ``{name: ..., setting: ...}`` into name and settings."""
    given = {key: given} if isinstance(given, str) else given
    if not isinstance(given, Mapping) or not isinstance(given.get(key), str):
        raise UserError(f"{section}: give a name, or {key} and settings, given {shown(given)}")
    return given[key], {k: v for k, v in given.items() if k != key}


def defaults(cls: type) -> Named:
    """Return the defaults of a dataclass; fields that must be given have none."""
    found = {}
    for field in fields(cls):
        if field.default is not MISSING:
            found[field.name] = field.default
        elif field.default_factory is not MISSING:
            found[field.name] = field.default_factory()
    return found


def _settings(thing: Any) -> dict[str, Any]:
    return {field.name: getattr(thing, field.name) for field in fields(thing)}
