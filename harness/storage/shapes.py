"""Shapes of the files of a results folder, as readers rely on them.

A folder may come from others, whose checksums say nothing of its content. What is read is compared with these
models first; other fields may be there and are kept, so that newer versions can add some.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from harness.storage.files import Damaged, is_name, json_value

Number = Annotated[float, Field(allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0, le=1 << 62)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(max_length=4096)]
Epsilon = Number | Literal["inf"] | None


class Shape(BaseModel):
    """A JSON object with fields that are checked, and others that are not."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


def _ratio(value: Any) -> Any:
    """Check a pruning ratio: a number, or a list of them by client or of steps with a round each."""
    if isinstance(value, list):
        if not value:
            raise ValueError("a list of ratios is empty")
        for part in value:
            _ratio(part)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a ratio is a number")
    return value


Ratio = Annotated[Any, AfterValidator(_ratio)]


class Part(Shape):
    """A section of a spec that names a part by its ``name`` or ``kind``."""

    name: Name | None = None
    kind: Name | None = None
    clients: Whole | None = None
    path: Name | None = None
    size: Number | None = None
    settings: dict[str, Any] = Field(default_factory=dict)


class Algorithm(Part):
    """The section ``algorithm``."""

    name: Name
    outer_rounds: Whole | None = None


class Protection(Shape):
    """The section ``privacy``."""

    unit: Name | None = None
    placement: Name | None = None
    mechanism: Name | None = None
    clip: Number | Name | list[Number] | None = None
    epsilon: Number | Name | None = None
    delta: Number | None = None
    noise_cohort: Whole | None = None


class Compressed(Shape):
    """The section ``compression``."""

    alpha: Ratio | None = None
    beta: Ratio | None = None
    codec: Name | None = None


class Refused(Shape):
    """The spec of a combination that was refused; a section may be a bare name."""

    algorithm: Algorithm | Name
    data: Part | Name | None = None
    partition: Part | Name | None = None
    problem: Part | Name | None = None
    model: Part | Name | None = None
    topology: Part | Name | None = None
    cohort: Part | Whole | None = None
    privacy: Protection | None = None
    compression: Compressed | None = None
    attacks: dict[str, Any] | list[Any] | None = None
    rounds: Whole = 0
    eval_every: Whole = 1
    seed: Annotated[int, Field(ge=0)] = 0


class Spec(Refused):
    """The spec of a run."""

    algorithm: Algorithm
    data: Part | None = None
    partition: Part | None = None
    problem: Part | None = None
    model: Part | None = None
    topology: Part | None = None
    cohort: Part | None = None
    seed: Annotated[int, Field(ge=0)]


class Versions(Shape):
    """Versions of the code that a run names."""

    plugins: dict[str, Name | None] = Field(default_factory=dict)


class Held(Shape):
    """Sample counts of clients, as `datasets.client_statistics` packs them."""

    splits: dict[str, Annotated[str, Field(pattern=r"^[0-9 ]*$")]]
    classes: dict[str, Annotated[str, Field(pattern=r"^[0-9 ]*$")]]
    groups: dict[str, Annotated[str, Field(pattern=r"^[0-9 ]*$")]]
    names: list[Name] = Field(default_factory=list)

    @model_validator(mode="after")
    def _of_as_many_clients(self) -> Held:
        sizes = {
            len(counts.split())
            for part in (self.splits, self.classes, self.groups)
            for counts in part.values()
        }
        if len(sizes | ({len(self.names)} if self.names else set())) > 1 or not self.splits:
            raise ValueError("counts are of different numbers of clients")
        return self


class Meta(Shape):
    """The facts of a run's algorithm that tables need."""

    family: Name
    pooled: bool


class Tested(Shape):
    """The samples that a run is tested on, the positive class of two, and the accuracy of a constant answer."""

    samples: Whole | None = None
    digest: Name | None = None
    positive: Name | None = None
    constant: Share | None = None


class Started(Shape):
    """``spec.json``: what was written when a run began."""

    spec: Spec
    source: Name
    id: Name | None = None
    digest: Name = ""
    versions: Versions = Field(default_factory=lambda: Versions())
    plugins: dict[str, Any] = Field(default_factory=dict)
    held: Held | None = None
    tested: Tested | None = None
    code: Name | None = None
    meta: Meta | None = None


class Timing(Shape):
    """The values that differ between executions."""

    seconds: Number = 0


class Claim(Shape):
    """A privacy statement."""

    unit: Name | None = None
    placement: Name | None = None
    adjacency: Name | None = None
    sampling: Name | None = None
    accountant: Name | None = None
    mechanism: Name | None = None
    mechanism_version: Name | None = None
    clip: Number | Name | list[Number] | None = None
    delta: Number | None = None
    epsilon_release: Epsilon = None
    epsilon_total: Epsilon = None
    epsilon_median: Epsilon = None
    epsilon_nominal: Epsilon = None
    noise_multiplier: Number | Literal["inf"] | None = None
    releases: Whole | None = None
    draws: Whole | None = None
    unit_most: Whole = 0
    units_most: Whole = 0
    bands: Whole = 1
    dropouts: Number | None = None
    noise_cohort: Whole = 1
    secret_draws: Name | None = None
    noise_code: Name | None = None
    warning: Name | None = None


class Evaluation(Shape):
    """A line of ``rounds.jsonl``."""

    round: Whole
    metrics: dict[str, Number | None] = Field(default_factory=dict)
    bytes_up: Number | None = None
    bytes_down: Number | None = None
    flops: Number | None = None
    oracle_calls: Number | None = None
    privacy: Claim | None = None
    diagnostics: dict[str, Number | None] | None = None
    parties: dict[str, Any] | list[Any] | None = None
    timing: Timing = Field(default_factory=lambda: Timing())


EVALUATIONS = TypeAdapter(list[Evaluation])


class Group(Shape):
    """Rates of a sensitive group."""

    group: Name | Number
    n: Whole
    positives: Whole | None = None
    accuracy: Number | None = None
    tpr: Number | None = None
    fpr: Number | None = None
    positive_rate: Number | None = None


class Mixing(Shape):
    """Speed at which a graph averages."""

    p: Number


class ByClient(Shape):
    """Results of clients with names, by column."""

    client: list[Name]
    n: list[Whole]
    positives: list[Whole] | None = None
    accuracy: list[Number | None] | None = None
    auroc: list[Number | None] | None = None
    sensitivity_95: list[Number | None] | None = None
    mae: list[Number | None] | None = None
    loss: list[Number | None] | None = None

    @model_validator(mode="after")
    def _columns_of_one_length(self) -> ByClient:
        if len({len(column) for _, column in self if column is not None}) > 1:
            raise ValueError("columns differ in length")
        return self


class Done(Evaluation):
    """``done.json``: the last evaluation, and what is known at the end."""

    round: Whole = 0
    clients: Whole = 0
    groups: list[Group] | None = None
    by_client: ByClient | None = None
    mixing: Mixing = Field(default_factory=lambda: Mixing(p=0.0))
    public: list[Name] | None = None
    not_covered: list[Name] = Field(default_factory=list)
    attacks: dict[str, Any] | None = None


class Failed(Shape):
    """``failed.json``."""

    reason: str
    status: Literal["failed", "stopped"] = "failed"
    timing: Timing = Field(default_factory=lambda: Timing())


ENDS: Mapping[str, type[Shape]] = {"done.json": Done, "failed.json": Failed}


class Trial(Shape):
    """One setting of a search."""

    settings: dict[str, Any] = Field(default_factory=dict)
    seeds: list[Whole] = Field(default_factory=list)
    values: Annotated[list[Number | None], Field(min_length=1)]
    tests: Annotated[list[Number | None], Field(min_length=1)]


class Finalist(Shape):
    """A setting that a search could have chosen as well."""

    trial: Whole
    share: Number
    metrics: dict[Name, dict[Name, Number]] = Field(default_factory=dict)


class Price(Shape):
    """The privacy of the runs of a search."""

    runs: Whole
    unfinished: Whole
    epsilon: Epsilon


class Search(Shape):
    """A search for settings."""

    paths: list[Name]
    trials: list[Trial]
    chosen: Whole | None
    finalists: list[Finalist] = Field(default_factory=list)
    epsilon: Epsilon
    distribution: Name | None = None
    price: Price | None = None

    @model_validator(mode="after")
    def _chosen_is_there(self) -> Search:
        named = [finalist.trial for finalist in self.finalists]
        named += [] if self.chosen is None else [self.chosen]
        if any(number >= len(self.trials) for number in named):
            raise ValueError("the chosen trial is missing")
        return self


class Tune(Shape):
    """Record of a search for settings."""

    metric: Name
    seeds: list[int] = Field(default_factory=list)


class Tuning(Shape):
    """The searches of a suite."""

    tune: Tune
    searches: list[Search]


class Cell(Shape):
    """A run of a suite. Its settings count until the run begins, which then has its own record."""

    id: Name
    spec: Spec | None = None
    digest: Name = ""
    versions: Versions = Field(default_factory=lambda: Versions())
    search: Whole | None = None
    of: Whole | None = None
    seed: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _of_and_seed(self) -> Cell:
        if (self.of is None) != (self.seed is None):
            raise ValueError("a run of a spec has a seed")
        return self


class SharedSpec(Shape):
    """Settings that runs of a suite share which differ in their seed alone."""

    spec: Spec
    digest: Name = ""
    versions: Versions = Field(default_factory=lambda: Versions())
    search: Whole | None = None


class RefusedCell(Cell):
    """A combination that was refused."""

    id: None = None  # type: ignore[assignment] # it has no run
    spec: Refused  # type: ignore[assignment] # as it was asked for
    reason: str


def _kind(cell: Any) -> str:
    return "run" if isinstance(cell, dict) and cell.get("id") is not None else "refused"


AnyCell = Annotated[
    Annotated[Cell, Tag("run")] | Annotated[RefusedCell, Tag("refused")], Discriminator(_kind)
]


def _format(text: str) -> str:
    if re.search("[0-9]{3}", text):  # of more digits than a screen has
        raise ValueError("a format is short")
    format(0.5, text)
    return text


class MetricAbout(Shape):
    """The facts of a plugin's metric that tables need."""

    direction: Literal["max", "min"]
    format: Annotated[str, Field(max_length=16), AfterValidator(_format)]
    description: Name
    unit: Name = ""
    least: Number | None = None
    most: Number | None = None


class ReportSettings(Shape):
    """Settings of a suite's report, which `harness.config.report` reads."""

    chosen: list[Name] = Field(default_factory=list)
    same: list[list[Name]] = Field(default_factory=list)
    metrics: dict[Annotated[str, Field(pattern=r"^\w{1,100}$")], MetricAbout] = Field(default_factory=dict)


class SuiteRecord(Shape):
    """``suite.json``."""

    suite: Annotated[Name, AfterValidator(lambda name: _checked(is_name(name), name))]
    profile: Name
    title: Name = ""
    report: ReportSettings = Field(default_factory=lambda: ReportSettings())
    specs: list[SharedSpec] = Field(default_factory=list)
    cells: list[AnyCell]
    tuning: Tuning | None = None
    searches_for: Name | None = None

    @model_validator(mode="after")
    def _cells_fit(self) -> SuiteRecord:
        searches = len(self.tuning.searches) if self.tuning else 0
        made = [*(spec.search for spec in self.specs), *(cell.search for cell in self.cells)]
        if any(number is not None and number >= searches for number in made):
            raise ValueError("a search is missing")
        if any(cell.of is not None and cell.of >= len(self.specs) for cell in self.cells):
            raise ValueError("a spec is missing")
        return self


def evaluations(lines_read: list[bytes]) -> list[dict[str, Any]] | None:
    """Return all evaluations, parsed at once; None if one of the lines is damaged or is none."""
    opened = max((line.count(b"{") + line.count(b"[") for line in lines_read), default=0)
    try:
        lines: list[dict[str, Any]] = json_value(b"[%b]" % b",".join(lines_read), opened)
        EVALUATIONS.validate_python(lines)
    except ValueError:
        return None
    return lines if len(lines) == len(lines_read) else None


def evaluation(line: bytes) -> dict[str, Any] | None:
    """Return an evaluation; None if the line is damaged, incomplete, or none."""
    parsed = evaluations([line]) if line.endswith(b"\n") else None
    return parsed[0] if parsed else None


def _checked(good: bool, value: str) -> str:
    if not good:
        raise ValueError("it is not the name of a folder")
    return value


def check_shape(path: Path, shape: type[Shape], content: Any) -> None:
    """Raise Damaged, with what is wrong, unless the content of a file has a shape."""
    try:
        shape.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place, message = ".".join(map(str, first["loc"])), str(first["msg"]).removeprefix("Value error, ")
        why = f"{place}: {message[:1].lower()}{message[1:]}" if place else message
        raise Damaged(path, f"is damaged: {why}") from None
