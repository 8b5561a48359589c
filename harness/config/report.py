"""Report settings: ranking, comparisons, tables and figures.

One `ReportSpec` is read from the ``report`` section of a suite file (`harness.config.suite` shows all fields), kept
in ``suite.json``, overridden by command options and passed to `harness.report`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator

from harness.config.recorded import RUN_FIELDS
from harness.config.settings import construct
from harness.config.system import System
from harness.config.yaml import mapping, shown
from harness.core.errors import UserError, unknown
from harness.metrics import METRICS, better_is_higher, described, recall
from harness.storage.store import Store

#: Field of the section -> field of `ReportSpec`.
FIELDS = {
    **{name: name for name in ("by", "baseline", "target", "curves", "along", "overview", "chosen", "same")},
    **{"pivot": "pivots", "select": "choice"},
}
AGAINST = ("round", "bytes")
AUTOMATIC = "automatic"  # the measure that ranks follows from the results
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


def known(measure: str) -> bool:
    """Return whether a measure is a metric or a cost, so that its direction is known."""
    return described(measure) is not None or measure in COSTS


def check_measure(what: str, name: str) -> str:
    """Return the name of a measure; raise UserError with the nearest name if there is none."""
    if not known(name):
        raise unknown(what, name, [*METRICS, "selection_...", "train_...", *COSTS])
    return name


def _setting(path: str) -> str:
    """Return the dotted name of a setting if it is in a section of a run."""
    if path.split(".")[0] not in RUN_FIELDS:
        raise unknown("section of a run", path.split(".")[0], RUN_FIELDS)
    return path


def _near(value: Any) -> Any:
    """Read the guard of a choice: a measure and a distance."""
    if value is None or isinstance(value, tuple):
        return value
    pairs = list(mapping("report.select.near", value).items())
    if len(pairs) > 1 or any(
        isinstance(off, bool) or not isinstance(off, int | float) or off < 0 for _, off in pairs
    ):
        raise UserError(f"report.select.near: one measure and a distance of at least 0, given {value!r}")
    return pairs[0] if pairs else None


def _printed_values(value: Any) -> tuple[str, ...]:
    """Read the values of an algorithm as they are printed."""
    return tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)


Selected = Annotated[str, AfterValidator(partial(check_measure, "measure of report.select"))]


@dataclass(frozen=True)
class Published:
    """Values of a paper, as printed there.

    Attributes
    ----------
    where : Mapping[str, Any]
        Settings of their tables, by dotted or nested names.
    values : Mapping[str, tuple[str, ...]]
        Algorithm -> its values, one for each measure shown.
    """

    where: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Annotated[tuple[str, ...], BeforeValidator(_printed_values)]] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class Choice:
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
        Values of papers, shown beside the results.
    """

    by: Selected
    near: Annotated[tuple[Selected, float] | None, BeforeValidator(_near)] = None
    show: tuple[Selected, ...] = ("accuracy",)
    published: tuple[Published, ...] = ()

    def __post_init__(self) -> None:
        for values in (printed for publication in self.published for printed in publication.values.values()):
            if len(values) != len(self.show):
                raise UserError(
                    f"report.select.published: one value for each measure shown ({', '.join(self.show)}), "
                    f"given {', '.join(values)}"
                )


def read_target(target: Any) -> Target | None:
    """Read ``{measure: value}`` or ``measure=value``.

    Raises
    ------
    UserError
        If it is neither.
    """
    if target is None or isinstance(target, Target):
        return target
    pairs = dict([target.partition("=")[::2]]) if isinstance(target, str) else target
    try:
        ((measure, value),) = pairs.items()
        if isinstance(value, bool):
            raise TypeError
        return Target(measure, float(value))
    except (AttributeError, TypeError, ValueError):
        raise UserError(
            f"target: one measure and its value, as in stationarity=0.01; given {target!r}"
        ) from None


def read_choice(value: Any) -> Choice | None:
    """Read ``report.select``.

    Raises
    ------
    UserError
        If a field or a measure is unknown, or a value has another form than `harness.config.suite` shows.
    """
    if value is None or isinstance(value, Choice):
        return value
    return construct("report.select", Choice, mapping("report.select", value))


def _lists(value: Any) -> Any:
    """Return a list of lists; one list of names stands for a list of it."""
    return [value] if isinstance(value, list) and value and isinstance(value[0], str) else value


def read_pivot(value: Any) -> Pivot:
    """Read one table by two settings: rows, columns and perhaps a measure."""
    if (
        not isinstance(value, list | tuple)
        or len(value) not in (2, 3)
        or not all(isinstance(n, str) for n in value)
    ):
        raise UserError(f"report.pivot: [rows, columns] or [rows, columns, measure], given {shown(value)}")
    return Pivot(_setting(value[0]), _setting(value[1]), *value[2:])


def _curve(value: Any) -> Any:
    """Read one further figure."""
    if not isinstance(value, list | tuple) or len(value) != 2 or value[1] not in AGAINST:
        raise UserError(f"report.curves: [measure, {' or '.join(AGAINST)}], given {shown(value)}")
    return value


Pivots = Annotated[tuple[Annotated[Pivot, BeforeValidator(read_pivot)], ...], BeforeValidator(_lists)]
Curves = Annotated[tuple[Annotated[tuple[str, str], BeforeValidator(_curve)], ...], BeforeValidator(_lists)]
Setting = Annotated[str, AfterValidator(_setting)]


def _names(value: Any) -> Any:
    """Read the names of one method: two or more, none twice."""
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise UserError(
            f"report.same: lists of names of one method, as [fedavg, fednova]; given {shown(value)}"
        )
    if len(set(value)) < max(2, len(value)):
        raise UserError(f"report.same: two or more different names of one method, given {shown(value)}")
    return value


Namesakes = Annotated[
    tuple[Annotated[tuple[str, ...], BeforeValidator(_names)], ...], BeforeValidator(_lists)
]


@dataclass(frozen=True)
class ReportSpec:
    """Settings of a report.

    Attributes
    ----------
    by : str
        Measure that ranks; `AUTOMATIC` until the results are there (`harness.report.data.results.Results.ranked`).
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
    same : tuple of tuple of str
        Algorithms that are the same method under several names: what their rows differ by is what a table cannot
        tell apart.
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

    by: str = AUTOMATIC
    baseline: str | None = None
    target: Annotated[Target | None, BeforeValidator(read_target)] = None
    pivots: Pivots = ()
    choice: Annotated[Choice | None, BeforeValidator(read_choice)] = None
    curves: Curves = ()
    along: Setting | None = None
    overview: tuple[str, ...] = ()
    chosen: tuple[Setting, ...] = ()
    same: Namesakes = ()
    system: System | None = None
    figures: tuple[str, ...] = ("png",)
    style: str | None = None

    def __post_init__(self) -> None:
        if self.by != AUTOMATIC:
            check_measure("measure to rank by", self.by)
        if self.target is not None:
            check_measure("measure to reach", self.target.measure)
        for measure in (*self.overview, *(measure for measure, _ in self.curves)):
            check_measure("measure to draw", measure)

    def check_namesakes(self, settings: Mapping[str, Collection[str]]) -> None:
        """Refuse names of `same` that a suite does not run, or in no setting of another name of the method.

        Parameters
        ----------
        settings : Mapping
            Algorithm -> the settings that it runs in, beside its own; empty if no run of it is possible.

        Raises
        ------
        UserError
            With the nearest name that it runs, or the names that do not meet.
        """
        for names in self.same:
            for name in names:
                if name not in settings:
                    raise unknown("algorithm of report.same", name, settings)
                if not settings[name]:
                    raise UserError(f"report.same: {name} has no row to compare, as no run of it is possible")
            for name in names:
                others = [other for other in names if other != name]
                if all(set(settings[name]).isdisjoint(settings[other]) for other in others):
                    raise UserError(
                        f"report.same: {name} is compared with {' and '.join(others)} in the same setting, and "
                        "this suite has none that both run in; data, partition, model, privacy and all else but "
                        "the algorithm have to agree"
                    )

    def check_pivots(self, settings: Iterable[Collection[str]]) -> None:
        """Refuse a pivot by a setting that no run of a suite has.

        Parameters
        ----------
        settings : iterable of Collection
            The dotted names of the settings of each run.

        Raises
        ------
        UserError
            With the nearest name.
        """
        missing, known = {name for pivot in self.pivots for name in pivot[:2]}, set[str]()
        for names in settings:
            known.update(names)
            if missing <= known:
                return
        if known:  # else no run is possible
            raise unknown("setting of report.pivot", min(missing - known), sorted(known))

    def stored(self) -> dict[str, Any]:
        """Return the settings as ``suite.json`` keeps them; `read_report` reads them."""
        select = self.choice and {
            **asdict(self.choice),
            "near": dict([self.choice.near]) if self.choice.near else {},
        }
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
            "same": [list(names) for names in self.same],
        }


def read_report(content: Any) -> ReportSpec:
    """Read the ``report`` section of a suite file; fields that are null count as absent.

    Raises
    ------
    UserError
        If a field, a measure or a section of a run is unknown, or a value has another form than
        `harness.config.suite` shows.
    """
    for key in mapping("report", content):
        if key not in FIELDS:
            raise unknown("field of report", key, FIELDS)
    return construct(
        "report", ReportSpec, {FIELDS[key]: value for key, value in content.items() if value is not None}
    )


def report_settings(store: Store, suite: str | None, **options: Any) -> ReportSpec:
    """Return the report settings of a suite, or the usual ones, with options that are given in their place."""
    stored = read_stored(store.report_settings(suite)) if suite else ReportSpec()
    options |= {"target": read_target(options.get("target"))}
    return replace(stored, **{name: value for name, value in options.items() if value})


def read_stored(stored: Mapping[str, Any]) -> ReportSpec:
    """Read the report settings of ``suite.json``, and register its metrics of plugins that are not loaded."""
    recall(stored.get("metrics", {}))
    return read_report({key: value for key, value in stored.items() if key not in ("metrics", "command")})
