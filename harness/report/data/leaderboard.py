"""The leaderboard: one row per cell, a pure function of run records.

Values are those of the last evaluation of finished runs, averaged over seeds. A cell without a finished run keeps
its row with empty values; its counts and reasons explain them. Empty means "does not apply" or "not measured",
never zero.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import pandas as pd

from harness.config.recorded import model_meta
from harness.config.report import COSTS, COSTS_TO_TARGET, Target, check_measure
from harness.config.system import System
from harness.core.errors import unknown
from harness.metrics import GAPS, better_is_higher, split_measure
from harness.report.data.columns import COLUMNS, LEADERBOARD
from harness.report.data.comparison import comparison, gaps, refuse_ranks, relative_bytes
from harness.report.data.exposed import clients_of, most_exposed_of
from harness.report.data.identity import known_versions, plugged
from harness.report.data.procedure import Procedures
from harness.report.data.protection_change import protection_changes
from harness.report.data.released import PAIRED, SHARED, draws_of_run, released
from harness.report.data.resolution import Resolution
from harness.report.data.results import Cell, Results, grouped, telling_settings
from harness.report.data.specs import data_files, data_name, largest_ratio, part_name, partition_text
from harness.report.data.statistics import t_half
from harness.report.data.system_costs import SystemCosts, system_costs
from harness.report.data.tuning import Searched
from harness.storage.store import RunRecord

PRIVACY = (
    *("epsilon_release", "epsilon_total", "adjacency", "sampling", "accountant", "noise_multiplier"),
    *("epsilon_nominal", "releases", "epsilon_median"),
)
REFERENCE = "fedavg"  # whose bytes others are compared with, unless there is a baseline
COUNTED = ("bytes_up", "bytes_down", "flops", "oracle_calls")
MEANS = (*COUNTED, "seconds")
ALWAYS = ("accuracy", "worst_client", "eqopp", "auroc")  # metrics that have columns in every leaderboard
#: Values of every leaderboard that follow from the runs of a row, and from nothing else in the table.
OF_RUNS = (
    *("done", "failed", *PRIVACY, *COUNTED, "accuracy_ci95", "accuracy_constant", "spectral_gap"),
    *(f"{metric}_{part}" for metric in ALWAYS for part in ("mean", "std")),
)
#: Fields of `SystemCosts` and their columns.
SYSTEM = {"seconds": "system_seconds", "joules": "system_joules", "waiting": "waiting"}
#: Kind of a column -> its type in a leaderboard, if not all counts are whole.
TYPES: dict[str, Any] = {"text": "str", "count": "float64", "number": "float64", "flag": "boolean"}
LOSS = "loss of a row"  # no column of a leaderboard has spaces
ORDER = (
    *("suite", "dataset", "partition", "problem", "task", "rank", LOSS, "algorithm", "settings"),
    *("epsilon_total", "alpha", "beta", "cell"),
)


def leaderboard(
    results: Results,
    by: str = "accuracy",
    baseline: str | None = None,
    target: Target | None = None,
    system: System | None = None,
) -> pd.DataFrame:
    """Return one row per cell: runs that differ in nothing but their seed, not in data or code either.

    Parameters
    ----------
    results : Results
        Runs in any order, of one suite or of several.
    by : str
        Measure to rank by: a metric of `harness.metrics` or one of `COSTS`, each in its own direction. Ranks
        count within a task (suite, data, partition, problem). A row has the rank after all rows that are better
        and that the table tells from it (`harness.report.data.resolution`); cells without the value have none.
    baseline : str, optional
        Name of an algorithm that every row is compared with over common seeds, see
        `harness.report.data.comparison.comparison`.
    target : Target, optional
        Value of a measure to reach; costs to it are means over seeds, empty unless all runs of the cell reached it.
    system : System, optional
        Network and device that time and energy are computed for, see `harness.report.data.system_costs`.

    Returns
    -------
    pd.DataFrame
        Columns `LEADERBOARD`, then ``NAME_mean`` and ``NAME_std`` of every other metric, then the mean over seeds
        of every diagnostic that some run recorded; docs/columns.md says what they mean. The privacy columns are
        those of the seed with the largest epsilon.

    Raises
    ------
    UserError
        If `by`, `baseline` or the target's measure is unknown.
    """
    check_measure("measure to rank by", by)
    if target is not None:
        check_measure("measure to reach", target.measure)
    cells, metrics = results.cells, results.metrics
    if baseline is not None and baseline not in (algorithms := {cell.algorithm for cell in cells}):
        raise unknown("baseline", baseline, algorithms)
    extra = [f"{m}_{part}" for m in metrics for part in ("mean", "std") if f"{m}_{part}" not in LEADERBOARD]
    diagnostics = [name for name in results.diagnostics if name not in (*LEADERBOARD, *metrics, *extra)]
    resolution, means = Resolution(cells, by), _means(cells, by)
    parts = [_descriptions(cells), _values(cells, metrics, diagnostics), gaps(cells)]
    parts += [protection_changes(cells, resolution)]
    parts += [] if target is None else [_to_target(cells, target)]
    parts += [] if system is None else [_on_system(cells, system, target)]
    parts += [] if baseline is None else [comparison(cells, by, baseline, resolution.procedures)]
    frame = pd.concat(parts, axis=1).reindex(columns=[*LEADERBOARD, *extra, *diagnostics])
    frame["ranked_by"] = by
    frame["bytes_relative"] = relative_bytes(cells, by, baseline or REFERENCE)
    frame["rank"] = _ranks(cells, means, resolution)
    frame["resolution"] = [resolution.of(cell) or None for cell in cells]
    frame["pareto"] = _pareto(frame, cells, by, losses := -means if better_is_higher(by) else means)
    if split_measure(by)[1] in GAPS:
        refuse_ranks(frame, cells, by)
    return _ordered(typed(frame.astype(object)), losses)


def _ordered(frame: pd.DataFrame, losses: pd.Series[Any]) -> pd.DataFrame:
    """Return the rows by task and rank; of those that share a rank the best first."""
    keys = frame[[name for name in ORDER if name != LOSS]].assign(
        **{LOSS: losses.where(frame["rank"].notna())}
    )
    return frame.loc[keys.sort_values(list(ORDER), na_position="last").index].reset_index(drop=True)


def is_of_runs(column: str) -> bool:
    """Return whether a column has the same field whenever the runs of its row are made again.

    Not so are times, and what compares the row with others.
    """
    return column in OF_RUNS or column not in LEADERBOARD


def _descriptions(cells: Sequence[Cell]) -> pd.DataFrame:
    """Return the columns on specs, their privacy, and the status of runs."""
    texts, files = telling_settings(cells), data_files(record for cell in cells for record in cell.records)
    rows = [
        {**_description(cell), "dataset": _data(cell, files), "settings": texts[cell.key]} for cell in cells
    ]
    return _of_cells(cells, rows)


def _of_cells(cells: Sequence[Cell], rows: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> pd.DataFrame:
    """Return rows, or columns, as a table by cell."""
    return pd.DataFrame(rows, index=[cell.key for cell in cells], dtype=object)


def _values(cells: Sequence[Cell], metrics: Sequence[str], diagnostics: Sequence[str]) -> pd.DataFrame:
    """Return costs, metrics and diagnostics over seeds."""

    def over_seeds(measure: str, summary: Callable[[Sequence[float]], float | None]) -> list[float | None]:
        return [summary(list(cell.values(measure).values())) for cell in cells]

    columns = {name: over_seeds(name, _mean) for name in (*MEANS, *diagnostics)}
    for name in {*ALWAYS, *metrics}:
        columns[f"{name}_mean"] = over_seeds(name, _mean)
        columns[f"{name}_std"] = over_seeds(name, lambda own: stdev(own) if len(own) > 1 else None)
    columns["accuracy_ci95"] = over_seeds("accuracy", half_width)
    columns["accuracy_constant"] = [_mean(cell.constant_accuracies) for cell in cells]
    mixing = ([run.record.final.get("mixing", {}).get("p") for run in cell.done] for cell in cells)
    columns["spectral_gap"] = [_mean(p for p in own if p is not None) for own in mixing]
    return _of_cells(cells, columns)


def _to_target(cells: Sequence[Cell], target: Target) -> pd.DataFrame:
    """Return the columns of the costs of reaching a target."""
    costs = {name: [_mean(cell.costs(target, name).values()) for cell in cells] for name in COSTS_TO_TARGET}
    reached = [len(cell.at_target(target, "round")) for cell in cells]
    return _of_cells(cells, {"target": str(target), "reached": reached, **costs})


def _on_system(cells: Sequence[Cell], system: System, target: Target | None) -> pd.DataFrame:
    """Return the columns of a network and a device."""
    rows = []
    for cell in cells:
        every = (system_costs(run, system, target) for run in cell.done)
        costs = pd.DataFrame(
            [run for run in every if run is not None], columns=SystemCosts._fields, dtype=object
        )
        reached = costs["to_target"].dropna()
        row = {column: _mean(costs[name]) for name, column in SYSTEM.items()}
        rows.append(row | {"seconds_to_target": _mean(reached) if len(reached) == len(cell.runs) else None})
    return _of_cells(cells, rows).assign(system=str(system))


def half_width(values: Sequence[float]) -> float | None:
    """Return the half width of the 95 % t interval of the mean; None for fewer than two values."""
    return None if len(values) < 2 else t_half(stdev(values), len(values))


def _description(cell: Cell) -> dict[str, Any]:
    """Return the columns on the spec, its privacy, and the status of its runs."""
    spec, statuses = cell.spec, [record.status for record in cell.records]
    compression = spec.get("compression") or {}
    counted = {status: statuses.count(status) for status in ("done", "failed", "skipped", "damaged")}
    return {
        "suite": cell.suite,
        "profile": cell.records[0].profile,
        "partition": partition_text(spec.get("partition")),
        "problem": part_name(spec.get("problem")),
        "model": part_name(spec.get("model")),
        "algorithm": cell.algorithm,
        "alpha": largest_ratio(compression.get("alpha")),
        "beta": largest_ratio(compression.get("beta")),
        "codec": compression.get("codec"),
        "rounds": spec.get("rounds"),
        "clients": clients_of(cell),
        "seeds": len(statuses),
        **counted,
        "missing": len(statuses) - sum(counted.values()),
        "data_source": "; ".join(sorted({record.source for record in cell.records if record.source})) or None,
        "reasons": _reasons(cell.records),
        "task": cell.task,
        "cell": cell.key,
        "model_for": model_for(cell),
        **_privacy(cell),
        **_search(cell),
        **_repeatable(cell),
    }


def _privacy(cell: Cell) -> dict[str, Any]:
    """Return the columns on privacy: what was asked for, and the statement of the seed with the largest epsilon."""
    asked, claim, exposed = cell.spec.get("privacy") or {}, cell.privacy() or {}, most_exposed_of(cell)
    return {
        "dp_unit": claim.get("unit", asked.get("unit")),
        "dp_placement": claim.get("placement", (asked.get("placement") or "local") if asked else None),
        "dp_mechanism": asked.get("mechanism", "independent") if asked else None,
        "noise_cohort": asked.get("noise_cohort"),
        "delta": claim.get("delta", asked.get("delta")),
        "clip": _norm(claim.get("clip", asked.get("clip"))),
        "epsilon_asked": asked.get("epsilon"),
        "epsilon_of": exposed and exposed.text(),
        "released": released(cell.done),
        **{name: claim.get(name) for name in PRIVACY},
    }


def _search(cell: Cell) -> dict[str, Any]:
    """Return how settings were chosen by a search, and what it would cost; nothing without one."""
    if not (search := cell.records[0].search):
        return {}
    tune, cost = search["tune"], search["epsilon"]
    tuned = _way(Searched((cell,), search))
    # In records of earlier versions too.
    if any(draws_of_run(record) in (SHARED, PAIRED) for record in cell.records):
        tuned, cost = f"{tuned}; what it costs is not given: the search's runs share draws", None
    fields = {"tuned": tuned, "epsilon_with_search": math.inf if cost == "inf" else cost}
    low, high = Procedures(tune["metric"]).mean(cell) or (None, None)
    return {**fields, "procedure_low": low, "procedure_high": high}


def _way(search: Searched) -> str:
    """Describe how a search chose."""
    trials, measure = search.found["trials"], f"selection_{search.tune['metric']}"
    number = len(trials)
    if not search.by_surface:
        return f"best of {number} by {measure}, seeds {' '.join(map(str, search.tune['seeds']))}"
    runs = sum(len(trial["values"]) for trial in trials)
    return f"surface of {measure} over {number} settings and {runs} runs at this budget"


def _repeatable(cell: Cell) -> dict[str, str | None]:
    """Return all that is needed to repeat the runs of a cell, which `harness.report.data.published` reads."""
    record = cell.records[0]
    versions = known_versions(record)
    codes = [record.code for record in cell.records]
    several = len({*codes} - {""}) > 1
    return {
        "spec": json.dumps(cell.runs[0].identity.settings, sort_keys=True),
        "seed_list": " ".join(str(run.seed) for run in cell.runs),
        "data_digest": record.digest or None,
        "versions": json.dumps(versions, sort_keys=True) if versions else None,
        "noise_code": " ".join(code or "none" for code in codes) if several else max(codes) or None,
    }


def _data(cell: Cell, files: Mapping[str, str]) -> str | None:
    """Return the name of a cell's data; a user's file is named by itself and its digest."""
    digest, data = cell.records[0].digest, cell.spec.get("data")
    if digest in files:
        return f"{files[digest]} {digest[:6]}"
    return data_name(data)


def model_for(cell: Cell) -> str | None:
    """Return whom the trained model is for, so that only rows of one purpose are compared.

    None if it is not known: for algorithms of plugins in records of earlier versions, and combinations that were
    refused.
    """
    record = cell.records[0]
    meta = ({} if "algorithm" in plugged(record) else model_meta(cell.algorithm)) or record.meta
    if not meta:
        return None
    if meta["pooled"]:
        return "everybody, from pooled data"
    if cell.done and not any(cell.values("bytes").values()):
        return "each client alone, nothing shared"
    asked = cell.spec["algorithm"] if isinstance(cell.spec.get("algorithm"), dict) else {}
    outer = asked.get("outer_rounds")  # of a bilevel method: whether a common model is trained after them
    inner = meta["family"] == "bilevel" and (outer is None or outer >= cell.spec["rounds"])
    return "each client" if meta["family"] == "personalized" or inner else "everybody"


def _norm(clip: Any) -> Any:
    """Return a clip norm: a number, ``adaptive``, or ``0.5/1`` for the parts of a message."""
    return "/".join(f"{part:g}" for part in clip) if isinstance(clip, list | tuple) else clip


def _reasons(records: Iterable[RunRecord]) -> str | None:
    """Return the distinct reasons, with the numbers of runs."""
    counts = Counter(" ".join(record.reason.split()) for record in records if record.reason)
    return "; ".join(f"{text} ({n} runs)" if n > 1 else text for text, n in counts.items()) or None


def _means(cells: Sequence[Cell], by: str) -> pd.Series[Any]:
    """Return the means of a measure by cell, empty where there is none or it says nothing."""
    means = [None if cell.empty_gap(by) else _mean(cell.values(by).values()) for cell in cells]
    return pd.Series(means, [cell.key for cell in cells], dtype="float64")


def _ranks(cells: Sequence[Cell], means: pd.Series[Any], resolution: Resolution) -> pd.Series[Any]:
    """Return the ranks within each task."""
    ranks: pd.Series[Any] = pd.Series(None, index=means.index, dtype="Int64")
    known = [cell for cell in cells if pd.notna(means[cell.key])]
    for rivals in grouped(known, lambda cell: cell.task).values():
        keys = [cell.key for cell in rivals]
        ranks[keys] = resolution.ranks(rivals, means[keys].tolist())
    return ranks


def _pareto(frame: pd.DataFrame, cells: Sequence[Cell], by: str, losses: pd.Series[Any]) -> pd.Series[Any]:
    """Return which cells no other of their task dominates; no privacy counts as infinite epsilon.

    Where a cost ranks, accuracy stands beside bytes and epsilon.
    """
    costs = pd.DataFrame({"loss": -frame["accuracy_mean"].astype("float64") if by in COSTS else losses})
    costs["bytes"] = [_mean(cell.values("bytes").values()) for cell in cells]
    costs["epsilon"] = frame["epsilon_total"].astype("float64").fillna(math.inf)
    costs = costs[frame["noise_cohort"].isna()].dropna().astype("float64")
    marks: pd.Series[Any] = pd.Series(None, index=frame.index, dtype=object)
    for _, rivals in costs.groupby(frame["task"].loc[costs.index]):
        points = rivals.to_numpy()
        beaten = [((points <= point).all(1) & (points < point).any(1)).any() for point in points]
        marks[rivals.index] = [not lost for lost in beaten]
    return marks


def _mean(values: Iterable[float]) -> float | None:
    """Return the mean, the very value (an integer stays one) where all are equal; None without values."""
    values = list(values)
    if not values:
        return None
    return values[0] if values.count(values[0]) == len(values) else fmean(values)


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Give every column its type: text, integer where all are whole, truth value, or float.

    Clip norms are numbers as long as all of them are.
    """
    kinds = {name: COLUMNS[name].kind for name in LEADERBOARD}
    if any(isinstance(norm, str) for norm in frame["clip"]):
        kinds["clip"] = "text"
        frame["clip"] = frame["clip"].map(
            lambda norm: norm if isinstance(norm, str) else f"{norm:g}", na_action="ignore"
        )
    for name in frame:
        kind = kinds.get(str(name), "number")
        whole = kind == "count" and all(isinstance(value, int) for value in frame[name].dropna())
        frame[name] = frame[name].astype("Int64" if whole else TYPES[kind])
    return frame
