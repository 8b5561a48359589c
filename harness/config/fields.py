"""Sections of a run file: data, partition, privacy, compression and cohort."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from datasets import catalog
from datasets.encoders import ENCODERS, EncoderSettings
from datasets.errors import DataError, together, tried
from datasets.formats import FILES, POLICIES, Reading, as_list, name_of_file, parse_address, read_factor
from datasets.partition import PARTITIONS
from datasets.vertical import VERTICAL
from harness.config.settings import construct, settings_of
from harness.config.yaml import shown
from harness.core.errors import UserError, unknown
from harness.core.settings.compression import Compression
from harness.core.settings.privacy_section import PrivacyFields
from harness.core.settings.section import Section


class Named(dict[str, Any]):
    """Settings of a named part of a run, defaults included, and the object that they make.

    It is written to files as a dictionary. The object is made once, when the settings are checked.

    Parameters
    ----------
    content : Mapping
        Name and settings.
    made : object
        What they make.
    """

    def __init__(self, content: Mapping[str, Any], made: Any = None) -> None:
        super().__init__(content)
        self.made = made

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        """Return the schema of a value that validators make, written as a plain dictionary."""
        plain = core_schema.plain_serializer_function_ser_schema(dict)
        return core_schema.is_instance_schema(cls, serialization=plain)


class Policies(dict[str, Any]):
    """Column to policy, or value to name; hashable, as the data sets that were read are kept by their settings."""

    def __hash__(self) -> int:  # type: ignore[override] # nobody changes it
        """Return the hash of the content."""
        return hash(frozenset(self.items()))


def _text(value: Any, decimal: str | None = None) -> Any:
    """Return a number as the text that a file has, with its decimal sign; other values as they are."""
    return f"{value:.15g}".replace(".", decimal or ".") if isinstance(value, int | float) else value


def _nested(value: Mapping[str, Any]) -> Policies:
    """Return a mapping of texts and mappings as a hashable one."""
    return Policies({key: _nested(one) if isinstance(one, Mapping) else one for key, one in value.items()})


def _words(where: str, value: Mapping[Any, Any], decimal: str | None = None) -> dict[str, str]:
    """Return a mapping of texts, in which numbers are what a file has and null is a missing cell.

    Raises
    ------
    UserError
        If YAML has read a word as a truth value.
    """
    for part in (part for pair in value.items() for part in pair):
        if isinstance(part, bool):
            raise UserError(f"{where}: YAML reads a word as {shown(part)}; write yes and no in quotes")
        if not isinstance(part, str | int | float | None):
            raise UserError(f"{where}: a text is needed, given {shown(part)}")
    return {
        str(_text(old, decimal)): "" if new is None else str(_text(new, decimal))
        for old, new in value.items()
    }


def _mapped(value: object, decimal: str | None) -> dict[str, dict[str, str]]:
    """Return the values that columns get, written as in a file with a decimal sign."""
    if not isinstance(value, Mapping) or not all(isinstance(one, Mapping) for one in value.values()):
        raise UserError(
            f"data.map: columns with their values are needed, as in {{sex: {{f: w}}}}, given {shown(value)}"
        )
    return {str(_text(column)): _words(f"data.map.{column}", one, decimal) for column, one in value.items()}


#: Settings that one of several files may have of its own.
OF_A_FILE = ("path", "rename", "map", "scale", *(name for name in Reading._fields if name != "split"))


class DataSpec(Section):
    """The data.

    Attributes
    ----------
    name : str
        A data set's name, or the format of files, such as ``csv``, ``parquet`` or ``leaf``.
    path : str or None
        File or folder of a local copy.
    label : str or None
        Column of the label (files).
    sensitive : str, list of str or None
        Sensitive attribute, if there is a choice; several are crossed.
    client, user : str or None
        Columns that say who holds a sample, and which of its users it is about (files); they are no features.
    input : str or None
        Column of images, vectors or texts that become the features (files).
    keep_sensitive, normalize, missing, drop, text, rare, positive, labels
        Options of the loader, see `datasets.catalog.load`.
    delimiter, encoding, decimal, thousands, dates, header, na, split
        How a file is read, see `datasets.formats.Reading`.
    files : dict or None
        Name of a client to its file: a path or a pattern, or ``path`` with settings of this file.
    rename, map, scale : dict or None
        Names of columns, and values and factors by column, of what files write differently; see
        `datasets.opening.open_table`.
    encoder : str or None
        The encoder that makes features of images, or of columns of text, once.
    size : int or None
        The side of an image in pixels, or the most tokens of a text, that it reads; None without an encoder.
    encode : str, tuple of str or None
        Columns of text that it reads.
    norm : float or None
        Norm to which its features are scaled; None leaves them.
    until : str or None
        Layer after which an encoder of images stops; None: the last.
    binary : {"halves"} or None
        Make two classes: the lower half of the labels is negative, the upper half positive.
    drop_negatives : float
        Share of the negative samples that is dropped, drawn with the run's seed; only training samples are dropped
        if the source has its own test set.
    """

    shape: ClassVar[str] = "the name of a data set, or named fields such as {name: adult}"

    name: str
    path: str | None = None
    label: str | None = None
    sensitive: str | tuple[str, ...] | None = None
    client: str | None = None
    user: str | None = None
    input: str | None = None
    keep_sensitive: bool | None = None
    normalize: Literal["standard", "half", "none"] | None = None
    missing: str | Annotated[dict[str, str], AfterValidator(Policies)] | None = None
    drop: str | tuple[str, ...] | None = None
    text: str | tuple[str, ...] | None = None
    rare: int | None = Field(default=None, ge=1)
    positive: str | None = None
    labels: Annotated[dict[str, str], AfterValidator(Policies)] | None = None
    delimiter: str | None = None
    encoding: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    dates: str | None = None
    header: int | None = Field(default=None, ge=1)
    na: str | tuple[str, ...] | None = None
    split: str | None = None
    files: Annotated[dict[str, Any], AfterValidator(_nested)] | None = None
    rename: Annotated[dict[str, str], AfterValidator(Policies)] | None = None
    map: Annotated[dict[str, dict[str, str]], AfterValidator(_nested)] | None = None
    scale: Annotated[dict[str, float], AfterValidator(Policies)] | None = None
    encoder: str | None = None
    size: int | None = Field(default=None, ge=1)
    encode: str | tuple[str, ...] | None = None
    norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    until: str | None = None
    binary: Literal["halves"] | None = None
    drop_negatives: float = Field(default=0.0, ge=0, lt=1)

    @property
    def short_name(self) -> str:
        """The short name of the data: that of the file, or of the data set."""
        return name_of_file(self.name, self.path, self.files) or self.name

    def encoder_settings(self, code: str | None = "") -> EncoderSettings | None:
        """Return the step that makes features, by an encoder whose own code has a digest; None without any."""
        if self.encoder is None:
            return None
        columns = tuple(as_list(self.encode))
        return EncoderSettings(
            encoder=self.encoder,
            size=self.size,
            columns=columns,
            norm=self.norm,
            until=self.until,
            code=code,
        )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        """Read ``adult`` and ``csv:file.csv?label=y&sensitive=g``, also beside further fields."""
        value = {"name": value} if isinstance(value, str) else value
        if isinstance(value, Mapping) and isinstance(value.get("name"), str):
            return {**value, **(parse_address(value["name"]) or {})}
        if isinstance(value, Mapping) and "files" in value:
            return {"name": FILES, **value}
        return value

    @field_validator("missing", mode="before")
    @classmethod
    def _policy(cls, value: object) -> object:
        """Refuse unknown policies, of all columns or of one."""
        for policy in value.values() if isinstance(value, Mapping) else (value or POLICIES[0],):
            if policy not in POLICIES:
                raise unknown("value of data.missing", policy, POLICIES)
        return (
            {str(column): policy for column, policy in value.items()} if isinstance(value, Mapping) else value
        )

    @field_validator("positive", mode="before")
    @classmethod
    def _class(cls, value: object) -> object:
        """Read 1 and true as the text that a file has."""
        return str(value).lower() if isinstance(value, bool) else _text(value)

    @field_validator("labels", mode="before")
    @classmethod
    def _renamed(cls, value: object) -> object:
        """Read numbers as text; refuse what YAML does not read as it is written."""
        if not isinstance(value, Mapping):
            return value
        for part in (part for pair in value.items() for part in pair):
            if isinstance(part, bool | None):
                raise UserError(
                    f"data.labels: YAML reads a word as {shown(part)}; write yes, no and null in quotes"
                )
        return {_text(old): _text(new) for old, new in value.items()}

    @field_validator("files", mode="before")
    @classmethod
    def _named_files(cls, value: object, info: ValidationInfo) -> object:
        """Check the settings that single files have."""
        if value is None:
            return value
        if not isinstance(value, Mapping) or not value:
            raise UserError(
                "data.files: names of clients with their files are needed, as in {Aalen: a.csv}, given "
                f"{shown(value)}"
            )
        shared = info.data.get("decimal")
        read = tried(
            partial(cls._of_a_file, f"data.files.{name}", one, shared) for name, one in value.items()
        )
        return dict(zip(map(str, map(_text, value)), read, strict=True))

    @classmethod
    def _of_a_file(cls, where: str, given: object, decimal: str | None) -> object:
        if isinstance(given, str):
            return given
        if not isinstance(given, Mapping):
            raise UserError(
                f"{where}: a path is needed, or path with settings of this file, given {shown(given)}"
            )
        errors = [
            unknown(f"setting of {where}", str(name), OF_A_FILE) for name in given if name not in OF_A_FILE
        ]
        if not isinstance(given.get("path"), str):
            errors.append(UserError(f"{where}.path: missing; give the file"))
        if errors:
            raise together(errors)
        settings = dict(given)
        checks: dict[str, Callable[[Any], Any]] = {
            "na": cls._codes,
            "rename": cls._renamed_columns,
            "map": partial(_mapped, decimal=given.get("decimal") or decimal),
            "scale": cls._scaled_columns,
        }
        try:
            settings |= {
                name: check(given[name]) for name, check in checks.items() if given.get(name) is not None
            }
            if isinstance(settings.get("na"), list):
                settings["na"] = tuple(settings["na"])
            Reading.of(settings)
        except DataError as error:
            raise UserError(f"{where}: {error}") from None
        return settings

    @field_validator("rename", mode="before")
    @classmethod
    def _renamed_columns(cls, value: object) -> object:
        return _words("data.rename", value) if isinstance(value, Mapping) else value

    @field_validator("map", mode="before")
    @classmethod
    def _mapped_values(cls, value: object, info: ValidationInfo) -> object:
        return value if value is None else _mapped(value, info.data.get("decimal"))

    @field_validator("scale", mode="before")
    @classmethod
    def _scaled_columns(cls, value: object) -> object:
        if value is None:
            return value
        if not isinstance(value, Mapping):
            raise UserError(
                "data.scale: columns with their factors are needed, as in {weight: 0.001}, given "
                f"{shown(value)}"
            )
        return {str(_text(column)): read_factor(f"data.scale.{column}", one) for column, one in value.items()}

    @field_validator("na", mode="before")
    @classmethod
    def _codes(cls, value: object) -> object:
        """Read numbers such as -999 as what is written in a cell."""
        if isinstance(value, (list, tuple)):
            return [cls._codes(code) for code in value]
        return value if isinstance(value, bool) else _text(value)

    @model_validator(mode="after")
    def _encoded(self) -> DataSpec:
        """Fill in the size that an encoder reads, and refuse settings that it does not take."""
        if self.encoder is None:
            for name in ("size", "encode", "norm", "until"):
                if getattr(self, name) is not None:
                    raise UserError(f"data.{name}: is for encoders; give data.encoder: {', '.join(ENCODERS)}")
            return self
        if self.encoder not in ENCODERS:
            raise unknown("encoder", self.encoder, ENCODERS)
        entry = ENCODERS[self.encoder]
        if entry.reads == "texts" and not self.encode:
            raise UserError(
                f"data.encode: missing; name the column of text that encoder {self.encoder} reads, or several"
            )
        if self.until is not None and (entry.reads == "texts" or self.norm is not None):
            other = "encoders of texts" if entry.reads == "texts" else "data.norm, which is for features"
            raise UserError(f"data.until: cannot go with {other}; remove one")
        if entry.reads == "images":
            for name in ("encode", "normalize"):
                if getattr(self, name) is not None:
                    raise UserError(
                        f"data.{name}: encoder {self.encoder} reads images and scales pixels itself; remove it"
                    )
        if self.size is None:
            object.__setattr__(self, "size", entry.size)
        return self

    @model_validator(mode="after")
    def _signs(self) -> DataSpec:
        Reading.of(self.model_dump())
        return self

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in (*catalog.names(), *catalog.ALIASES):
            raise unknown("data set", name, (*catalog.names(), *catalog.ALIASES))
        return catalog.ALIASES.get(name, name)


class CohortSpec(Section):
    """The clients that take part in a round.

    Attributes
    ----------
    size : int or None
        Clients per round; of a secret Poisson cohort the expected number, drawn at rate ``size / clients``.
    rate : float or None
        Instead of a size: public probability with which each client takes part in a secret Poisson cohort, however
        many clients there are.
    divisor : float or None
        With a rate: the public number that sums of messages are divided by, about ``rate`` times the clients that
        are expected. It stays the same when a client joins or leaves.
    kind : {"random", "balanced"}
        Whether the clients of each round are drawn, or take turns in a random order, so that each takes part
        equally often. Balanced cohorts are public.
    """

    shape: ClassVar[str] = "a whole number of clients, or named fields such as {size: 10}"

    size: int | None = Field(default=None, ge=1)
    rate: float | None = Field(default=None, gt=0, lt=1)
    divisor: float | None = Field(default=None, gt=0)
    kind: Literal["random", "balanced"] = "random"

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        """Read ``10``."""
        return {"size": value} if isinstance(value, int) else value

    @model_validator(mode="after")
    def _check(self) -> CohortSpec:
        if (self.size is None) == (self.rate is None):
            raise UserError(
                "cohort: give either size, clients per round, or rate, the public probability of each client"
            )
        if (self.rate is None) != (self.divisor is None):
            raise UserError(
                "cohort.divisor: a rate needs the public number that sums of messages are divided by, about rate "
                "times the clients, and a size has none; give rate and divisor, or size alone"
            )
        if self.rate is not None and self.kind != "random":
            raise UserError("cohort.kind: a rate is of clients that are drawn; use random, or a size")
        return self

    @property
    def expected(self) -> float:
        """Clients per round, or the public number that stands for it."""
        clients = self.size if self.divisor is None else self.divisor
        assert clients is not None
        return clients

    def share(self, total: int) -> float:
        """Return the probability with which each of ``total`` clients takes part."""
        return self.rate if self.size is None and self.rate is not None else self.expected / total


class PartitionSpec(Section):
    """Partition of the data among clients. Further fields are settings of the kind.

    Attributes
    ----------
    kind : str
        A partition's name.
    clients : int or None
        Number of clients; None if the kind determines it (one per value of a column).
    test : float or "official"
        Share of each client's data held out for testing, or the source's test set.
    stratify : tuple of {"label", "group"}
        Proportions that this split preserves.
    limit : int or None
        Largest number of samples to use.
    standardize : bool
        Whether to standardize the continuous columns of the data set over all training samples.
    selection : float
        Share of each client's training samples that is held out for hyper-parameter selection.
    selection_seed : int or None
        Seed that draws the samples of ``selection`` among all samples, so that they are the same whatever the
        run's seed and no run trains or tests on them. None: the run's seed, within each client.
    settings : dict
        Settings of the kind.
    """

    shape: ClassVar[str] = "a kind, or named fields such as {kind: iid, clients: 10}"

    kind: str
    clients: int | None = Field(default=None, ge=1)
    test: float | Literal["official"] = 0.3
    stratify: tuple[Literal["label", "group"], ...] = ()
    limit: int | None = Field(default=None, ge=2)
    standardize: bool = True
    selection: float = Field(default=0.0, ge=0, lt=1)
    selection_seed: int | None = Field(default=None, ge=0)
    settings: Named = Field(default_factory=lambda: Named({}))

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: object) -> object:
        """Move the settings of the kind, which users write beside the other fields, into ``settings``."""
        value = {"kind": value} if isinstance(value, str) else value
        if not isinstance(value, Mapping) or "kind" not in value:
            return value
        kind = str(value["kind"])
        settings = value.get("settings", {})
        if not isinstance(settings, Mapping):
            raise UserError(f"partition.settings: named fields are needed, given {shown(settings)}")
        arguments = {k: v for k, v in value.items() if k not in cls.model_fields} | dict(settings)
        rest = {k: v for k, v in value.items() if k in cls.model_fields and k != "settings"}
        beside = {name: field for name, field in cls.model_fields.items() if name != "settings"}
        if kind in VERTICAL:
            part_of_columns = construct(f"partition.{kind}", VERTICAL[kind], arguments, also=beside)
            usual = settings_of(VERTICAL[kind]())  # omitted, because these partitions once had no settings
            changed = {k: v for k, v in settings_of(part_of_columns).items() if v != usual[k]}
            return {**rest, "settings": Named(changed, part_of_columns)}
        if kind not in PARTITIONS:
            raise unknown("partition", kind, [*PARTITIONS, *VERTICAL])
        part = construct(f"partition.{kind}", PARTITIONS[kind], arguments, also=beside)
        return {**rest, "settings": Named(settings_of(part), part)}

    @model_validator(mode="after")
    def _held_out(self) -> PartitionSpec:
        if self.selection_seed is not None and not self.selection:
            raise UserError(
                "partition.selection_seed: needs partition.selection, the share of samples that it draws"
            )
        return self

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write the settings of the kind beside the other fields."""
        content: dict[str, Any] = write(self)
        settings: dict[str, Any] = content.pop("settings", {})
        return content | settings


SECTIONS: dict[str, type[Section]] = {
    "data": DataSpec,
    "partition": PartitionSpec,
    "privacy": PrivacyFields,
    "compression": Compression,
    "cohort": CohortSpec,
}
