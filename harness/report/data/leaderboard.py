"""The leaderboard: one row per cell, a pure function of run records.

Figures are those of the last evaluation of finished runs, averaged over seeds. A cell without a finished run keeps
its row with empty figures; its counts and reasons explain them. Empty means "does not apply" or "not measured",
never zero.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pandas as pd
import scipy  # its parts are imported at their first use, as they are slow to import

from harness.config.recorded import model_meta
from harness.config.report import COSTS_TO_TARGET, Target, check_measure
from harness.config.system import System
from harness.core.registry import unknown
from harness.metrics import better_is_higher
from harness.report.data.columns import COLUMNS, LEADERBOARD
from harness.report.data.comparison import add_comparison, add_gaps, add_relative_bytes, refuse_ranks
from harness.report.data.identity import known_versions, plugged
from harness.report.data.released import SHARED, draws_of_run, released
from harness.report.data.results import Cell, Results, telling_settings
from harness.report.data.specs import (
    clients,
    data_files,
    data_name,
    largest_ratio,
    part_name,
    partition_text,
)
from harness.report.data.statistics import exact_stdev
from harness.report.data.system_costs import system_costs

if TYPE_CHECKING:
    from harness.storage.store import RunRecord

# fmt: off
PRIVACY = (
    "epsilon_release", "epsilon_total", "adjacency", "sampling", "accountant", "noise_multiplier",
    "epsilon_nominal", "releases", "epsilon_median",
)
REFERENCE = "fedavg"  # whose bytes others are compared with, unless there is a baseline
MEANS = ("bytes_up", "bytes_down", "flops", "oracle_calls", "seconds")
#: Kind of a column -> its type in a leaderboard, if not all counts are whole.
TYPES: dict[str, Any] = {"text": "str", "count": "float64", "number": "float64", "flag": "boolean"}
ORDER = (
    "suite", "dataset", "partition", "problem", "task", "rank", "algorithm", "settings", "epsilon_total", "alpha",
    "beta", "cell",
)
# fmt: on


def leaderboard(
    records: Iterable[RunRecord],
    by: str = "accuracy",
    baseline: str | None = None,
    target: Target | None = None,
    system: System | None = None,
) -> pd.DataFrame:
    """Return one row per cell: runs that differ in nothing but their seed, not in data or code either.

    Parameters
    ----------
    records : Iterable[RunRecord]
        Run records in any order, of one suite or of several.
    by : str
        Measure to rank by: a metric of `harness.metrics` or one of `COSTS`, each in its own direction. Ranks
        count within a task (suite, data, partition, problem); ties share the smallest rank; cells without the
        value have no rank.
    baseline : str, optional
        Name of an algorithm. ``paired_difference`` is then the mean over common seeds of this cell minus the
        baseline in measure `by`, ``paired_ci95`` the half width of its t interval; ``paired_low``, ``paired_high``,
        ``paired_p``, ``effect_size`` and ``detectable`` are those of `harness.report.data.statistics.Paired`, and
        ``paired_p_holm`` is adjusted for all comparisons in the same setting. The baseline cell has the same spec
        except for algorithm and seed (and topology, if the baseline has none), and for what a search chose. Of
        several settings of the baseline the best by `by` is used, which can only favor the baseline.
        ``compared`` says over how many seeds, or why a cell is not comparable.
    target : Target, optional
        ``reached`` counts the seeds that reached it. ``rounds_to_target``, ``bytes_to_target`` (both ways) and
        ``oracle_calls_to_target`` are the costs up to the first evaluation that did: means over seeds, empty
        unless all runs of the cell reached it.
    system : System, optional
        Network and device. ``system_seconds`` is then the time of the run on them, ``seconds_to_target`` that up to
        the target, ``system_joules`` the energy of all clients, and ``waiting`` the share of a round that the mean
        client waits for the slowest: means over seeds, see `harness.report.data.system_costs`.

    Returns
    -------
    pd.DataFrame
        Columns `LEADERBOARD`, then ``NAME_mean`` and ``NAME_std`` of every other metric, then the mean over seeds
        of every diagnostic that some run recorded. ``*_std`` are sample standard deviations (empty for one seed),
        ``accuracy_ci95`` half widths of 95 % t intervals.
        The privacy columns are those of the seed with the largest epsilon; ``epsilon_asked`` is the spec's.
        ``epsilon_of`` says whose the total is, ``epsilon_median`` is that of the median client (or person).
        ``model_for`` says whom the trained model is for: everybody, each client, or each client alone.
        ``tuned`` says how settings were chosen, ``epsilon_with_search`` what that would cost
        (`harness.executors.tuning.report_of`); it is in no other column.
        ``eqopp_low`` and ``eqopp_high`` are the 95 % interval of the gap between groups, ``eqopp_detectable`` the
        gap that the test samples can tell from none, with ``eqopp_positives`` positive ones in the smallest group;
        ``unranked`` says why cells are not ranked by it. ``pareto`` marks the cells that no other of the task
        dominates in accuracy, bytes (both ways) and epsilon. ``seeds`` is the number asked for; ``missing`` counts
        the runs not finished yet, ``damaged`` those whose files are not what was written, which count as not
        finished. ``settings`` holds the hyper-parameters and what else tells the cell from its neighbors; ``task``
        and ``cell`` are digests of what is ranked together and of the row itself. ``bytes_relative`` are the bytes
        both ways over those of the baseline (default: fedavg) without privacy and compression on the same data.
        ``spec`` holds all settings but the seed that are not at their defaults, as JSON: with a seed of
        ``seed_list`` it is a run file that repeats a run of the row. A user's file is named by ``data_digest``, the
        SHA-256 of the data, in place of its path. ``versions`` are those of the code, as JSON. ``noise_code`` is
        the digest of the code that keys the noise of a private row, and ``released`` what its finished runs have
        released, see `harness.report.data.released`.

    Raises
    ------
    UserError
        If `by`, `baseline` or the target's measure is unknown.
    """
    check_measure("measure to rank by", by)
    if target is not None:
        check_measure("measure to reach", target.measure)
    results = Results.of(records)
    key = (by, baseline, target, system)
    return results.once(("leaderboard", *key), lambda: _leaderboard(results, *key)).copy()


def _leaderboard(
    results: Results, by: str, baseline: str | None, target: Target | None, system: System | None
) -> pd.DataFrame:
    found = results.cells
    if baseline is not None:
        names = {cell.algorithm for cell in found}
        if baseline not in names:
            raise unknown("baseline", baseline, names)
    metrics = results.metrics
    extra = [f"{m}_{part}" for m in metrics for part in ("mean", "std") if f"{m}_{part}" not in LEADERBOARD]
    diagnostics = [name for name in results.diagnostics if name not in (*LEADERBOARD, *metrics, *extra)]
    texts = telling_settings(found)
    files = data_files(record for cell in found for record in cell.records)
    rows = [
        {
            **_description(cell),
            "dataset": _data(cell, files),
            **_figures(cell, metrics, diagnostics),
            "settings": texts[cell.key],
            "ranked_by": by,
        }
        for cell in found
    ]
    if target is not None:
        for row, cell in zip(rows, found, strict=True):
            row |= {"target": str(target), "reached": len(cell.at_target(target, "round"))}
            row |= {name: _mean(cell.costs(target, name).values()) for name in COSTS_TO_TARGET}
    if system is not None:
        for row, cell in zip(rows, found, strict=True):
            row |= _on_system(cell, system, target)
    _add_ranks(rows, found, by)
    _add_pareto(rows, found)
    add_gaps(rows, found)
    refuse_ranks(rows, found, by)
    add_relative_bytes(rows, found, by, baseline or REFERENCE)
    if baseline is not None:
        add_comparison(rows, found, by, baseline)
    frame = _typed(pd.DataFrame(rows, columns=[*LEADERBOARD, *extra, *diagnostics], dtype=object))
    return frame.sort_values(list(ORDER), na_position="last", ignore_index=True)


def _on_system(cell: Cell, system: System, target: Target | None) -> dict[str, Any]:
    """Return the columns of a network and a device."""
    costs = [found for run in cell.done if (found := system_costs(run, system, target)) is not None]
    reached = [one.to_target for one in costs if one.to_target is not None]
    return {
        "system": str(system),
        "system_seconds": _mean(one.seconds for one in costs),
        "seconds_to_target": _mean(reached) if len(reached) == len(cell.runs) else None,
        "system_joules": _mean(one.joules for one in costs),
        "waiting": _mean(one.waiting for one in costs),
    }


def half_width(values: Sequence[float]) -> float | None:
    """Return the half width of the 95 % t interval of the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    return float(scipy.special.stdtrit(len(values) - 1, 0.975)) * exact_stdev(values) / math.sqrt(len(values))


def _description(cell: Cell) -> dict[str, Any]:
    """Return the columns on the spec, its privacy, and the status of its runs."""
    spec, statuses = cell.spec, [record.status for record in cell.records]
    asked, compression = spec.get("privacy") or {}, spec.get("compression") or {}
    given = cell.privacy() or {}
    counted = {status: statuses.count(status) for status in ("done", "failed", "skipped", "damaged")}
    row: dict[str, Any] = {
        "suite": cell.suite,
        "profile": cell.records[0].profile,
        "partition": partition_text(spec.get("partition")),
        "problem": part_name(spec.get("problem")),
        "model": part_name(spec.get("model")),
        "algorithm": cell.algorithm,
        "dp_unit": given.get("unit", asked.get("unit")),
        "dp_placement": given.get("placement", (asked.get("placement") or "local") if asked else None),
        "dp_mechanism": asked.get("mechanism", "independent") if asked else None,
        "noise_cohort": asked.get("noise_cohort"),
        "delta": given.get("delta", asked.get("delta")),
        "clip": _norm(given.get("clip", asked.get("clip"))),
        "epsilon_asked": asked.get("epsilon"),
        "alpha": largest_ratio(compression.get("alpha")),
        "beta": largest_ratio(compression.get("beta")),
        "codec": compression.get("codec"),
        "rounds": spec.get("rounds"),
        "clients": next((r.final["clients"] for r in cell.records if "clients" in r.final), clients(spec)),
        "seeds": len(statuses),
        **counted,
        "missing": len(statuses) - sum(counted.values()),
        "data_source": "; ".join(sorted({record.source for record in cell.records if record.source})) or None,
        "reasons": _reasons(cell.records),
        "task": cell.task,
        "cell": cell.key,
        **_repeatable(cell),
    }
    row["model_for"] = model_for(cell)
    row["released"] = released(cell.done)
    row["epsilon_of"] = most_exposed(given, row["clients"])
    if search := cell.records[0].search:
        tune, cost = search["tune"], search["epsilon"]
        seeds = " ".join(map(str, tune["seeds"]))
        row["tuned"] = f"best of {len(search['trials'])} by selection_{tune['metric']}, seeds {seeds}"
        if any(
            draws_of_run(record) == SHARED for record in cell.records
        ):  # in records of earlier versions too
            cost = None
            row["tuned"] += "; what it costs is not given: the search's runs share draws"
        row["epsilon_with_search"] = math.inf if cost == "inf" else cost
    return row | {name: given.get(name) for name in PRIVACY}


def _repeatable(cell: Cell) -> dict[str, str | None]:
    """Return all that is needed to repeat the runs of a cell."""
    record = cell.records[0]
    versions = known_versions(record)
    return {
        "spec": json.dumps(cell.runs[0].identity.settings, sort_keys=True),
        "seed_list": " ".join(str(run.seed) for run in cell.runs),
        "data_digest": record.digest or None,
        "versions": json.dumps(versions, sort_keys=True) if versions else None,
        "noise_code": " ".join(sorted({record.code for record in cell.records if record.code})) or None,
    }


def _data(cell: Cell, files: Mapping[str, str]) -> str | None:
    """Return the name of a cell's data; a user's file is named by itself and its digest."""
    digest, data = cell.records[0].digest, cell.spec.get("data")
    if digest in files:
        return f"{files[digest]} {digest[:6]}"
    return data_name(data)


def _figures(cell: Cell, metrics: Iterable[str], diagnostics: Iterable[str]) -> dict[str, Any]:
    """Return costs, metrics and diagnostics over seeds."""
    row = {name: _mean(cell.values(name).values()) for name in (*MEANS, *diagnostics)}
    row["spectral_gap"] = _mean(
        run.record.final["mixing"]["p"] for run in cell.done if "mixing" in run.record.final
    )
    for name in {"accuracy", "worst_client", "eqopp", "auroc", *metrics}:
        values = list(cell.values(name).values())
        row[f"{name}_mean"] = _mean(values)
        row[f"{name}_std"] = exact_stdev(values) if len(values) > 1 else None
    row["accuracy_ci95"] = half_width(list(cell.values("accuracy").values()))
    return row


def model_for(cell: Cell) -> str | None:
    """Return whom the trained model is for, so that rows of other purposes are not taken for rivals.

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


def most_exposed(claim: Mapping[str, Any], total: int | None) -> str | None:
    """Return whose the largest epsilon of a privacy statement is: ``client 7``, ``all clients``."""
    if "unit_most" not in claim:
        return None
    one, number, others = person_or_client(claim), claim["unit_most"], claim["units_most"] - 1
    if others + 1 == total and one == "client":
        return "all clients"
    return f"{one} {number}" if not others else f"{one} {number} and {others} more"


def person_or_client(claim: Mapping[str, Any]) -> str:
    """Return what the units of a statement are numbered by: people in vertical runs, clients in others."""
    return "person" if "protects" in claim else "client"


def _norm(clip: Any) -> Any:
    """Return a clip norm: a number, ``adaptive``, or ``0.5/1`` for the parts of a message."""
    return "/".join(f"{part:g}" for part in clip) if isinstance(clip, list | tuple) else clip


def _reasons(records: Iterable[RunRecord]) -> str | None:
    """Return the distinct reasons, with the numbers of runs."""
    counts: dict[str, int] = {}
    for record in records:
        if record.reason:
            text = " ".join(record.reason.split())
            counts[text] = counts.get(text, 0) + 1
    return "; ".join(f"{text} ({n} runs)" if n > 1 else text for text, n in counts.items()) or None


def _add_ranks(rows: Sequence[dict[str, Any]], found: Sequence[Cell], by: str) -> None:
    """Rank within each task: 1 + the number of cells that are strictly better."""
    sign = -1 if better_is_higher(by) else 1
    losses = [None if (mean := _mean(c.values(by).values())) is None else sign * mean for c in found]
    tasks: dict[str, list[float]] = {}
    for cell, loss in zip(found, losses, strict=True):
        if loss is not None:
            tasks.setdefault(cell.task, []).append(loss)
    ordered = {task: sorted(own) for task, own in tasks.items()}
    for row, cell, loss in zip(rows, found, losses, strict=True):
        if loss is not None:
            row["rank"] = 1 + bisect_left(ordered[cell.task], loss)


def _add_pareto(rows: Sequence[dict[str, Any]], found: Sequence[Cell]) -> None:
    """Mark the cells that no other of their task dominates; no privacy counts as infinite epsilon."""
    points = []
    for row, cell in zip(rows, found, strict=True):
        size = _mean(cell.values("bytes").values())
        if row["accuracy_mean"] is not None and size is not None and not row["noise_cohort"]:
            epsilon = math.inf if row["epsilon_total"] is None else row["epsilon_total"]
            points.append(((-row["accuracy_mean"], size, epsilon), row))
    tasks: dict[str, dict[tuple[float, float, float], list[dict[str, Any]]]] = {}
    for point, row in points:
        tasks.setdefault(row["task"], {}).setdefault(point, []).append(row)
    for own in tasks.values():
        # In this order, what dominates a point comes before it: only bytes and epsilon are left to compare.
        sizes: list[float] = []  # of the cells so far that no other beats in both, rising, while ...
        epsilons: list[float] = []  # ... these fall
        for point in sorted(own):
            _, size, epsilon = point
            at = bisect_right(sizes, size)
            best = not at or epsilons[at - 1] > epsilon
            for row in own[point]:
                row["pareto"] = best
            if best:
                first, last = bisect_left(sizes, size), at
                while last < len(sizes) and epsilons[last] >= epsilon:
                    last += 1
                sizes[first:last], epsilons[first:last] = [size], [epsilon]


def _mean(values: Iterable[float]) -> float | None:
    """Return the mean, the very value (an integer stays one) where all are equal; None without values."""
    values = list(values)
    if not values:
        return None
    return values[0] if values.count(values[0]) == len(values) else fmean(values)


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
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
