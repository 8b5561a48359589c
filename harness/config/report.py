"""Report settings: ranking, comparisons, tables and figures.

One `ReportSpec` is read from the ``report`` section of a suite file (`harness.config.suite` shows all fields), kept
in ``suite.json``, overridden by command options and passed to `harness.report`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.config.run import RunSpec
from harness.config.system import System
from harness.config.yaml import mapping, shown
from harness.core.registry import UserError, unknown
from harness.metrics import METRICS, better_is_higher, described, recall

FIELDS = ("by", "baseline", "target", "pivot", "curves", "along", "select", "overview", "chosen")
SELECT_FIELDS = ("by", "near", "show", "published")
AGAINST = ("round", "bytes")
#: Measures other than the metrics of `harness.metrics`; less is better for all of them.
COSTS = (
    *("bytes", "bytes_up", "bytes_down", "flops", "oracle_calls", "seconds", "epsilon"),
    *("stationarity", "distance", "consensus", "outer_loss"),
)
#: Column of the leaderboard -> the cost read at the first evaluation that reaches the target.
COSTS_TO_TARGET = {
    "rounds_to_target": "round",
    "bytes_to_target": "bytes",
    "oracle_calls_to_target": "oracle_calls",
}


class Target(NamedTuple):
    """A value of a measure to reach.

    Attributes
    ----------
    measure : str
        A metric or another measure of an evaluation.
    value : float
        Lower bound if larger is better, else upper bound.
    """

    measure: str
    value: float

    def __str__(self) -> str:
        """Return text such as ``stationarity <= 0.01``."""
        return f"{self.measure} {'>=' if better_is_higher(self.measure) else '<='} {self.value:g}"


class Pivot(NamedTuple):
    """A table by two settings.

    Attributes
    ----------
    rows, columns : str
        Dotted names of settings, such as ``algorithm.local_steps``; ``topology.kind`` and similar names stand for
        the section.
    measure : str or None
        A metric, a cost or a cost to the target; None for the measure that ranks.
    """

    rows: str
    columns: str
    measure: str | None = None


class Published(NamedTuple):
    """Figures of a paper, as printed there.

    Attributes
    ----------
    where : Mapping[str, Any]
        Settings of their tables, by dotted or nested names.
    values : Mapping[str, tuple[str, ...]]
        Algorithm -> its figures, one for each measure shown.
    """

    where: Mapping[str, Any]
    values: Mapping[str, tuple[str, ...]]


class Choice(NamedTuple):
    """Model selection after a grid search.

    Attributes
    ----------
    by : str
        Measure that chooses.
    near : tuple of (str, float), or None
        A second measure (the guard), and how far from its best value a chosen setting may be.
    show : tuple[str, ...]
        Measures of the table.
    published : tuple[Published, ...]
        Figures of papers, shown beside the results.
    """

    by: str
    near: tuple[str, float] | None = None
    show: tuple[str, ...] = ("accuracy",)
    published: tuple[Published, ...] = ()


@dataclass(frozen=True)
class ReportSpec:
    """Settings of a report.

    Attributes
    ----------
    by : str
        Measure that ranks.
    baseline : str or None
        Algorithm that others are compared with.
    target : Target or None
        Value to reach; the report says at what cost each cell did.
    pivots : tuple[Pivot, ...]
        Tables by two settings.
    choice : Choice or None
        Model selection after a grid search.
    curves : tuple of (str, str)
        Further figures: a measure and its x axis.
    along : str or None
        Setting or section in which the runs of one panel of learning curves differ.
    overview : tuple of str
        Measures to map over all algorithms, budgets and pruning ratios.
    chosen : tuple of str
        Settings that somebody chose for every row by itself: rows are compared though they differ in these.
    system : System or None
        Network and device to price rounds by; an option of commands, not kept with a suite.
    figures : tuple of str
        Formats of figures besides SVG: png, pdf. Likewise an option of commands.
    style : str or None
        A matplotlib style, or a file of one. Likewise.

    Raises
    ------
    UserError
        If a measure is unknown.
    """

    by: str = "accuracy"
    baseline: str | None = None
    target: Target | None = None
    pivots: tuple[Pivot, ...] = ()
    choice: Choice | None = None
    curves: tuple[tuple[str, str], ...] = ()
    along: str | None = None
    overview: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    system: System | None = None
    figures: tuple[str, ...] = ("png",)
    style: str | None = None

    def __post_init__(self) -> None:
        check_measure("measure to rank by", self.by)
        if self.target is not None:
            check_measure("measure to reach", self.target.measure)
        for measure in (*self.overview, *(measure for measure, _ in self.curves)):
            check_measure("measure to draw", measure)

    def stored(self) -> dict[str, Any]:
        """Return the settings as ``suite.json`` keeps them; `read_report` reads them."""
        select: dict[str, Any] | None = None
        if self.choice is not None:
            by, near, show, published = self.choice
            select = {"by": by, "near": dict([near]) if near else {}, "show": list(show)}
            select["published"] = [
                {"where": one.where, "values": {name: list(of) for name, of in one.values.items()}}
                for one in published
            ]
        return {
            "by": self.by,
            "baseline": self.baseline,
            "target": self.target and {self.target.measure: self.target.value},
            "pivot": [[name for name in pivot if name is not None] for pivot in self.pivots],
            "curves": [list(pair) for pair in self.curves],
            "select": select,
            "along": self.along,
            "overview": list(self.overview),
            "chosen": list(self.chosen),
        }


def known(measure: str) -> bool:
    """Return whether a measure is a metric or a cost, so that its direction is known."""
    return described(measure) is not None or measure in COSTS


def check_measure(what: str, name: str) -> None:
    """Raise UserError with the nearest name unless a measure exists."""
    if not known(name):
        raise unknown(what, name, [*METRICS, *COSTS])


def read_report(given: Any) -> ReportSpec:
    """Read the ``report`` section of a suite file; fields that are null count as absent.

    Raises
    ------
    UserError
        If a field, a measure or a section of a run is unknown, or a value has another form than
        `harness.config.suite` shows.
    """
    given = mapping("report", given)
    for key in given:
        if key not in FIELDS:
            raise unknown("field of report", key, FIELDS)
    given = {key: value for key, value in given.items() if value is not None}
    for key in ("by", "baseline"):
        if not isinstance(given.get(key, ""), str):
            raise UserError(f"report.{key}: a name is needed, given {shown(given[key])}")
    along, overview, chosen = given.get("along"), given.get("overview", []), given.get("chosen", [])
    for name, listed in (("overview", overview), ("chosen", chosen)):
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            what = "measures" if name == "overview" else "settings"
            raise UserError(f"report.{name}: a list of {what}, given {shown(listed)}")
    for path in (*([] if along is None else [along]), *chosen):
        if not isinstance(path, str) or path.split(".")[0] not in RunSpec.model_fields:
            raise unknown("section of a run", path, RunSpec.model_fields)
    return ReportSpec(
        by=given.get("by", "accuracy"),
        baseline=given.get("baseline"),
        target=read_target(mapping("report.target", given["target"])) if "target" in given else None,
        pivots=_pivots(given.get("pivot", [])),
        choice=read_choice(given.get("select")),
        curves=_curves(given.get("curves", [])),
        along=along,
        overview=tuple(overview),
        chosen=tuple(chosen),
    )


def read_stored(stored: Mapping[str, Any]) -> ReportSpec:
    """Read the report settings of ``suite.json``, and register its metrics of plugins that are not loaded."""
    recall(stored.get("metrics", {}))
    return read_report({key: value for key, value in stored.items() if key not in ("metrics", "command")})


def read_target(given: Mapping[str, Any] | str | None) -> Target | None:
    """Read ``{measure: value}`` or ``measure=value``.

    Raises
    ------
    UserError
        If it is neither.
    """
    if given is None:
        return None
    pairs = dict([given.partition("=")[::2]]) if isinstance(given, str) else given
    try:
        ((measure, value),) = pairs.items()
        if isinstance(value, bool):
            raise TypeError
        return Target(measure, float(value))
    except (TypeError, ValueError):
        raise UserError(
            f"target: one measure and its value, as in stationarity=0.01; given {given!r}"
        ) from None


def read_choice(given: Any) -> Choice | None:
    """Read ``report.select``.

    Raises
    ------
    UserError
        If a field or a measure is unknown, or a value has another form than `harness.config.suite` shows.
    """
    if given is None:
        return None
    where = "report.select"
    for key in mapping(where, given):
        if key not in SELECT_FIELDS:
            raise unknown(f"field of {where}", key, SELECT_FIELDS)
    near = tuple(mapping(f"{where}.near", given.get("near") or {}).items())
    show = given.get("show", ["accuracy"])
    if not isinstance(show, list | tuple):
        raise UserError(f"{where}.show: a list of measures, given {shown(show)}")
    choice = Choice(str(given.get("by")), near[0] if near else None, tuple(map(str, show)))
    for name in (choice.by, *choice.show, *(guard for guard, _ in near)):
        if not known(name):
            raise unknown(f"measure of {where}", name, [*METRICS, "selection_...", "train_...", *COSTS])
    if len(near) > 1 or any(
        isinstance(off, bool) or not isinstance(off, int | float) or off < 0 for _, off in near
    ):
        raise UserError(f"{where}.near: one measure and a distance of at least 0, given {given['near']!r}")
    listed = given.get("published") or []
    if not isinstance(listed, list):
        raise UserError(f"{where}.published: a list is needed, given {shown(listed)}")
    return choice._replace(published=tuple(_published(f"{where}.published", one, choice) for one in listed))


def _published(where: str, given: Any, choice: Choice) -> Published:
    """Read one paper's figures."""
    values = mapping(f"{where}.values", mapping(where, given).get("values", {}))
    if not all(isinstance(of, list | tuple) and len(of) == len(choice.show) for of in values.values()):
        raise UserError(
            f"{where}: one figure for each measure shown ({', '.join(choice.show)}), given {shown(dict(values))}"
        )
    settings = mapping(f"{where}.where", given.get("where", {}))
    return Published(settings, {name: tuple(str(figure) for figure in of) for name, of in values.items()})


def _lists(given: Any) -> list[Any]:
    """Return a list of lists; one list of names stands for a list of it."""
    listed = given if isinstance(given, list) else [given]
    return [listed] if listed and isinstance(listed[0], str) else listed


def _curves(given: Any) -> tuple[tuple[str, str], ...]:
    """Read one further picture or a list of them."""
    listed = _lists(given)
    for one in listed:
        if not isinstance(one, list) or len(one) != 2 or not isinstance(one[0], str) or one[1] not in AGAINST:
            raise UserError(f"report.curves: [measure, {' or '.join(AGAINST)}], given {shown(one)}")
    return tuple((measure, against) for measure, against in listed)


def _pivots(given: Any) -> tuple[Pivot, ...]:
    """Read one pivot or a list of them."""
    listed = _lists(given)
    for one in listed:
        if not isinstance(one, list) or len(one) not in (2, 3) or not all(isinstance(n, str) for n in one):
            raise UserError(f"report.pivot: [rows, columns] or [rows, columns, measure], given {shown(one)}")
        for name in one[:2]:
            if name.split(".")[0] not in RunSpec.model_fields:
                raise unknown("section of a run", name.split(".")[0], RunSpec.model_fields)
    return tuple(Pivot(*one) for one in listed)
