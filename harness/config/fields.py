"""The sections of a run file: data, partition, privacy, compression and cohort, checked and completed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
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

from compression import CODECS, ratio_at
from datasets import catalog
from datasets.csv import parse_address
from datasets.partition import PARTITIONS
from datasets.vertical import VERTICAL
from harness.config.yaml import bounded, shown
from harness.core.registry import UserError, unknown
from harness.core.wire.settings import Ratio, Share

T = TypeVar("T")
Named = dict[str, Any]


class Section(BaseModel):
    """A part of a run file; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataSpec(Section):
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
    accountant : {"rdp", "prv", "pld"}
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
    accountant: Literal["rdp", "prv", "pld"] = "rdp"
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


def steps_of(ratio: Ratio) -> list[tuple[int, Share]]:
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
        if self.downlink and (_each(self.beta) or any(_each(ratio) for _, ratio in steps_of(self.beta))):
            raise UserError("compression: downlink needs one beta for all clients")
        return self


class CohortSpec(Section):
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


class PartitionSpec(Section):
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
            usual = settings_of(VERTICAL[kind]())  # left away, as these partitions once had no settings
            return {**rest, "settings": {k: v for k, v in settings_of(cut).items() if v != usual[k]}}
        if kind not in PARTITIONS:
            raise unknown("partition", kind, [*PARTITIONS, *VERTICAL])
        made = construct(f"partition.{kind}", PARTITIONS[kind], own, also=cls.model_fields)
        return {**rest, "settings": settings_of(made)}

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write the kind's own settings beside the others, as users do."""
        content: dict[str, Any] = write(self)
        settings: dict[str, Any] = content.pop("settings", {})
        return content | settings


SECTIONS: dict[str, type[Section]] = {
    "data": DataSpec,
    "partition": PartitionSpec,
    "privacy": PrivacySpec,
    "compression": CompressionSpec,
    "cohort": CohortSpec,
}


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
    made: T = checked(where, lambda: TypeAdapter(cls).validate_python(dict(settings)))
    for name in allowed:
        bounded(
            f"{where}.{name}", getattr(made, name), finite=True
        )  # also the text "inf" is a float to pydantic
    return made


def checked(where: str, make: Any) -> Any:
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
            section = str(first["loc"][0])  # of the run itself other names were refused before
            raise unknown(f"field of {section}", first["loc"][-1], SECTIONS[section].model_fields) from None
        given = "" if first["type"] == "missing" else f", given {shown(first['input'])}"
        message = str(cause) if cause is not None else first["msg"]
        raise UserError(f"{path}: {message[0].lower()}{message[1:]}{given}") from None


def defaults(cls: type) -> Named:
    """Return the defaults of a dataclass; fields that must be given have none."""
    found = {}
    for field in fields(cls):
        if field.default is not MISSING:
            found[field.name] = field.default
        elif field.default_factory is not MISSING:
            found[field.name] = field.default_factory()
    return found


def settings_of(thing: Any) -> dict[str, Any]:
    """Return the fields of a dataclass and their values."""
    return {field.name: getattr(thing, field.name) for field in fields(thing)}
