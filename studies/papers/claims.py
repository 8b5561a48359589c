"""Claims of papers, as ``claims.yaml`` states them: a measure, the runs that show it, and what is expected.

::

    suite: kgt-minimax
    paper: https://arxiv.org/abs/2405.04566
    claims:
      heterogeneity:
        says: Rounds do not grow with heterogeneity
        where: Theorem 1                      # in the paper
        measure: {rounds_to: {stationarity: 0.02}}
        scale: log
        at: {problem.condition: 10}           # settings of every run
        of: {problem.heterogeneity: 2}        # settings of the runs measured
        than: {problem.heterogeneity: 0}      # and of those they are compared with
        expect: {ratio_below: 1.5, least_ratio: 1.1}
        verdict: held

docs/claims.md explains every field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.report import COSTS_TO_TARGET, Target, check_measure, read_target
from harness.config.run import RunSpec
from harness.config.suite import checked_name
from harness.config.yaml import mapping, read_yaml, shown
from harness.core.errors import UserError, unknown
from harness.metrics import better_is_higher
from harness.report.data.specs import digest
from harness.report.data.tidy import NAMED
from harness.report.verdict import VERDICTS, Hypothesis

FILE = "claims.yaml"
FIELDS = ("suite", "paper", "claims", "curves")
CLAIM_FIELDS = (
    *("says", "where", "table", "measure", "scale", "at", "of", "than", "along", "choose", "over"),
    *("expect", "paper_value", "verdict", "confounded", "reading"),
)
NEEDED = ("says", "measure", "of", "expect")
QUESTION = (
    "table",
    "measure",
    "at",
    "of",
    "than",
    "along",
    "choose",
    "over",
)  # what decides which observations are read
SCALES = ("linear", "log")
#: Measure of a claim -> the cost that is read when a target is reached.
REACHED = {column.removesuffix("_target"): cost for column, cost in COSTS_TO_TARGET.items()}
MEASURES = ("measure", "max", "min", *REACHED)
EXPECTED = {"above": "least", "below": "least", "within": None}
RATIOS = {"ratio_above": "least_ratio", "ratio_below": "least_ratio", "ratio_within": None}


class Measure(NamedTuple):
    """A value that is read from every run.

    Attributes
    ----------
    name : str
        Measure of an evaluation: a metric, a cost, or another column of the tidy table.
    how : str
        ``at`` a round, the mean of the ``last`` evaluations, ``max`` or ``min`` of all, or one of `REACHED`.
    number : float
        The round, the number of evaluations, or the value to reach.
    """

    name: str
    how: str = "last"
    number: float = 1

    @property
    def target(self) -> Target | None:
        """The value to reach; None for another measure."""
        return Target(self.name, self.number) if self.how in REACHED else None

    @property
    def better_is_higher(self) -> bool:
        """Whether larger values are better, for a choice between settings."""
        return self.how == "max" or (self.how in ("at", "last") and better_is_higher(self.name))

    def __str__(self) -> str:
        """Return text such as ``rounds to stationarity <= 0.02``."""
        if self.target is not None:
            return f"{self.how.replace('_', ' ')} {self.target}"
        if self.how in ("max", "min"):
            return f"{self.how}imum of {self.name}"
        if self.how == "at":
            return f"{self.name} at round {self.number:g}"
        return self.name if self.number == 1 else f"{self.name}, mean of the last {self.number:g} evaluations"


class Choice(NamedTuple):
    """Choice of a setting left open, by the best mean of a measure on seeds that are not reported."""

    by: Measure
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class PaperClaim:
    """One claim of a paper.

    Attributes
    ----------
    id : str
        Suite and name, ``kgt-minimax/heterogeneity``.
    says : str
        The claim in words.
    where : str
        Its place in the paper; may be empty.
    table : str
        Name of a committed table beside ``claims.yaml`` whose rows are the evidence, by its columns; empty: runs.
    measure : Measure
        What is read from every run, or the column that is read from every row.
    scale : {"linear", "log"}
        Whether values are compared as they are or by their logarithms.
    at : Mapping[str, Any]
        Settings of all its runs, by dotted name; a list means any of its values.
    arms : Mapping[str, Mapping[str, Any]]
        Settings of the runs ``of``, and of those compared with, ``than``.
    along : str or None
        Setting over whose logarithm a slope is fitted.
    choose : Choice or None
        How settings left open are chosen.
    over : str
        The seed that repeats: each of its values gives one value of the claim.
    expect : Hypothesis
        What is expected of the value; on a log scale of its logarithm.
    expected : str
        The same in words.
    paper_value : str
        The paper's value, as printed; may be empty.
    verdict : str
        The verdict written down; empty if there is none.
    confounded : str
        What else differs between the sides, so that no interval judges the claim; empty if nothing is known to.
    reading : str
        What it means, in a sentence or two.
    question : str
        Digest of what decides which observations are read.
    """

    id: str
    says: str
    where: str
    table: str
    measure: Measure
    scale: str
    at: Mapping[str, Any]
    arms: Mapping[str, Mapping[str, Any]]
    along: str | None
    choose: Choice | None
    over: str
    expect: Hypothesis
    expected: str
    paper_value: str
    verdict: str
    confounded: str
    reading: str
    question: str

    @property
    def ratio(self) -> bool:
        """Whether the value is the logarithm of a ratio, or of a positive number, that readers want to see."""
        return self.scale == "log" and self.along is None

    @property
    def compared(self) -> str:
        """A sentence with the measure and the runs compared."""
        arms = {name: settings_text(where) for name, where in self.arms.items()}
        text = f"{self.measure}{f' in {self.table}' if self.table else ''}: {arms['of']}"
        if "than" in arms:
            text += f" {'over' if self.ratio else 'minus'} {arms['than']}"
        text += f", slope over log({self.along})" if self.along else ""
        return text + (f", at {settings_text(self.at)}" if self.at else "")


class Curve(NamedTuple):
    """A line of a picture: its panel, its name, and the settings of its runs."""

    panel: str
    line: str
    of: Mapping[str, Any]


@dataclass(frozen=True)
class PaperClaims:
    """The claims of one folder.

    Attributes
    ----------
    folder : Path
        Where ``claims.yaml`` is.
    suite : str
        Suite whose runs are the evidence.
    paper : str
        Address of the paper; may be empty.
    claims : tuple[PaperClaim, ...]
        In the order of the file.
    curves : tuple[Curve, ...]
        Lines of a picture.
    curves_measure : str
        What they show; empty without curves.
    curves_at : Mapping[str, Any]
        Settings of the runs of all of them.
    """

    folder: Path
    suite: str
    paper: str
    claims: tuple[PaperClaim, ...]
    curves: tuple[Curve, ...] = ()
    curves_measure: str = ""
    curves_at: Mapping[str, Any] = field(default_factory=dict)


def read_claims(folder: Path) -> PaperClaims:
    """Read ``claims.yaml`` of a folder.

    Raises
    ------
    UserError
        If a field, a measure or a section of a run is unknown, or a value has another form than docs/claims.md
        describes.
    """
    path = folder / FILE
    content = _fields(str(path), read_yaml(path), FIELDS)
    suite = checked_name(content.get("suite", folder.resolve().name))
    claims = mapping(f"{path}: claims", content.get("claims"))
    if not claims:
        raise UserError(f"{path}: at least one claim is needed")
    paper_claims = tuple(
        _claim(suite, name, content_of_claim, f"{path}: {name}") for name, content_of_claim in claims.items()
    )
    paper = str(content.get("paper") or "")
    if "curves" not in content:
        return PaperClaims(folder, suite, paper, paper_claims)
    at = f"{path}: curves"
    section = _fields(at, content["curves"], ("measure", "at", "lines"))
    lines = [_fields(f"{at}: lines", line, Curve._fields) for line in section["lines"]]
    curves = tuple(
        Curve(str(line["panel"]), str(line["line"]), _settings(f"{at}: of", line["of"])) for line in lines
    )
    shared = _settings(f"{at}: at", section.get("at", {}))
    return PaperClaims(folder, suite, paper, paper_claims, curves, str(section["measure"]), shared)


def settings_text(where: Mapping[str, Any]) -> str:
    """Return settings as ``fedavg lr=0.1``; the names of parts stand without their section."""
    texts = []
    for name, value in where.items():
        section, _, last = name.partition(".")
        values = value if isinstance(value, list) else [value]
        text = "/".join("none" if item is None else str(item) for item in values)
        texts.append(text if NAMED.get(section) == last else f"{last or section}={text}")
    return " ".join(texts) or "all runs"


def _fields(where: str, content: Any, allowed: Collection[str]) -> dict[str, Any]:
    """Return named fields; raise UserError if one is unknown."""
    fields = mapping(where, content)
    for key in fields:
        if key not in allowed:
            raise unknown(f"field of {where}", key, allowed)
    return dict(fields)


def _claim(suite: str, name: str, content: Any, at: str) -> PaperClaim:
    """Read one claim; `at` is where it stands, for messages."""
    content = {key: value for key, value in _fields(at, content, CLAIM_FIELDS).items() if value is not None}
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise UserError(f"{at}: a claim is named by small letters, digits, '-' and '_', given {shown(name)}")
    for key in NEEDED:
        if key not in content:
            raise UserError(f"{at}: {key} is missing; a claim has at least {', '.join(NEEDED)}")
    scale, verdict = content.get("scale", "linear"), content.get("verdict", "")
    if scale not in SCALES:
        raise unknown(f"scale of {at}", scale, SCALES)
    if verdict not in ("", *VERDICTS):
        raise unknown(f"verdict of {at}", verdict, VERDICTS)
    table = _table(at, content)
    read = mapping if table else _settings
    arms = {arm: dict(read(f"{at}: {arm}", content[arm])) for arm in ("of", "than") if arm in content}
    along, over = content.get("along"), content.get("over", "seed")
    for key, setting in (("along", along), ("over", over)):
        if setting is not None:
            _check_setting(f"{at}: {key}", setting)
    if not over.endswith("seed"):  # values of another setting are no draws from one distribution
        raise UserError(f"{at}: over: a setting that ends in seed, such as problem.seed; given {over}")
    expect, expected = _expectation(f"{at}: expect", content["expect"], scale == "log" and along is None)
    return PaperClaim(
        id=f"{suite}/{name}",
        says=str(content["says"]),
        where=str(content.get("where", "")),
        table=table,
        measure=read_measure(f"{at}: measure", content["measure"]),
        scale=scale,
        at=dict(read(f"{at}: at", content.get("at", {}))),
        arms=arms,
        along=along,
        choose=_choice(f"{at}: choose", content["choose"]) if "choose" in content else None,
        over=over,
        expect=expect,
        expected=expected,
        paper_value=str(content.get("paper_value", "")),
        verdict=verdict,
        confounded=" ".join(str(content.get("confounded", "")).split()),
        reading=" ".join(str(content.get("reading", "")).split()),
        question=digest([suite, {key: content[key] for key in QUESTION if key in content}]),
    )


def _table(at: str, content: Mapping[str, Any]) -> str:
    """Return the name of the table that a claim is about; empty if it is about runs."""
    table = content.get("table", "")
    if not table:
        return ""
    if not isinstance(table, str) or Path(table).name != table:
        raise UserError(f"{at}: table: the name of a file beside {FILE}, given {shown(table)}")
    if not isinstance(content["measure"], str) or "along" in content or "choose" in content:
        raise UserError(f"{at}: a claim about a table measures one of its columns, without along and choose")
    return table


def read_measure(where: str, content: Any) -> Measure:
    """Read a measure: a name, or one of the forms in docs/claims.md."""
    if isinstance(content, str):
        return Measure(content)
    content = mapping(where, content)
    kinds = [key for key in content if key in MEASURES]
    if len(kinds) != 1:
        _fields(where, content, (*MEASURES, "round", "last"))
        raise UserError(f"{where}: one of {', '.join(MEASURES)}, given {shown(dict(content))}")
    (kind,) = kinds
    _fields(where, content, (kind, "round", "last") if kind == "measure" else (kind,))
    further = [key for key in content if key != kind]
    if kind in REACHED:
        target = read_target(mapping(f"{where}.{kind}", content[kind]))
        assert target is not None  # it is None for None, which is no mapping
        check_measure(f"measure to reach in {where}", target.measure)
        return Measure(target.measure, kind, target.value)
    if not isinstance(content[kind], str):
        raise UserError(f"{where}.{kind}: the name of a measure, given {shown(content[kind])}")
    if len(further) > 1:
        raise UserError(f"{where}: round or last, not both")
    if not further:
        return Measure(content[kind], "last" if kind == "measure" else kind)
    number, lowest = content[further[0]], 0 if further[0] == "round" else 1
    if isinstance(number, bool) or not isinstance(number, int) or number < lowest:
        raise UserError(f"{where}.{further[0]}: a whole number of at least {lowest}, given {shown(number)}")
    return Measure(content[kind], "at" if further[0] == "round" else "last", number)


def _settings(where: str, content: Any) -> dict[str, Any]:
    """Return settings by dotted name, of nested or dotted ones; the bare name of a part is that of its section."""
    settings: dict[str, Any] = {}

    def add(prefix: str, part: Mapping[str, Any]) -> None:
        for name, value in part.items():
            if isinstance(value, Mapping):
                add(f"{prefix}{name}.", mapping(where, value))
            elif f"{prefix}{name}" in NAMED and value is not None:
                settings[f"{name}.{NAMED[name]}"] = value
            else:
                settings[prefix + name] = value

    add("", mapping(where, content))
    for name in settings:
        _check_setting(where, name)
    return settings


def _check_setting(where: str, name: Any) -> None:
    """Raise UserError unless a setting is of a section of a run, or ``profile``."""
    allowed = [*RunSpec.model_fields, "profile"]
    if not isinstance(name, str) or name.split(".")[0] not in allowed:
        raise unknown(f"section of a run in {where}", name, allowed)


def _choice(where: str, content: Any) -> Choice:
    content = _fields(where, content, Choice._fields)
    seeds = content.get("seeds")
    whole = isinstance(seeds, list) and all(isinstance(s, int) and not isinstance(s, bool) for s in seeds)
    if not whole or not seeds:
        raise UserError(f"{where}.seeds: a list of seeds that are not reported, given {shown(seeds)}")
    by = read_measure(f"{where}.by", content.get("by", {}))
    if by.how in ("at", "last"):
        check_measure(f"measure of {where}", by.name)  # its direction must be known
    return Choice(by, tuple(seeds))


def _expectation(where: str, content: Any, ratio: bool) -> tuple[Hypothesis, str]:
    """Read an expectation, as a hypothesis and in words; ratios are turned into logarithms."""
    content = mapping(where, content)
    allowed = {**EXPECTED, **(RATIOS if ratio else {})}
    kinds = [key for key in content if key in allowed]
    if len(kinds) != 1:
        hint = "" if ratio else "; ratios go with scale: log, without along"
        raise UserError(f"{where}: one of {', '.join(allowed)}{hint}; given {shown(dict(content))}")
    (kind,) = kinds
    as_ratio, beside = kind in RATIOS, allowed[kind]
    _fields(where, content, (kind,) if beside is None else (kind, beside))
    numbers = content[kind] if beside is None else [content[kind], content.get(beside)]
    if not isinstance(numbers, list) or len(numbers) != 2 or not all(_finite(number) for number in numbers):
        form = "[lowest, highest]" if beside is None else f"a number, with {beside} (what would matter)"
        raise UserError(f"{where}.{kind}: {form}; given {shown(dict(content))}")
    first, second = map(float, numbers)
    if as_ratio:
        if first <= 0 or second <= 0:
            raise UserError(f"{where}: ratios are above 0, given {shown(dict(content))}")
        first, second = math.log(first), math.log(second)
    display, factor = (math.exp, "a factor ") if ratio else (float, "")
    if beside is None:
        if first >= second:
            raise UserError(f"{where}.{kind}: [lowest, highest], given {shown(content[kind])}")
        return Hypothesis(first, second), f"{display(first):.4g} to {display(second):.4g}"
    if second <= 0:
        raise UserError(f"{where}.{beside}: a number above {int(as_ratio)}, given {shown(content[beside])}")
    upper = kind.endswith("below")
    text = f"{'<' if upper else '>'} {display(first):.4g} (least: {factor}{display(second):.4g})"
    return Hypothesis(None if upper else first, first if upper else None, second), text


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
