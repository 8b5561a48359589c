"""Comparison of cells with a baseline, seed by seed, and the power of gaps between groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import pandas as pd
import scipy  # its parts are imported at their first use, as they are slow to import

from harness.core.units import counted
from harness.report.data.procedure import Interval, Procedures
from harness.report.data.results import Cell
from harness.report.data.specs import part_name
from harness.report.data.statistics import (
    POWER,
    Paired,
    detectable,
    gap_of,
    holm,
    largest_of,
    paired_statistics,
    undecidable,
)
from harness.report.data.tested import APART, SeedPairs, seed_pairs

#: Parts of a spec in which rivals may differ: data, partition, privacy and compression are the same.
RIVALS = ("algorithm", "topology", "problem", "model", "rounds", "eval_every", "precision", "cohort")
#: Parts of a spec that are the method's own affair: others may differ and still do the same task.
METHOD = (*RIVALS, "privacy", "compression")

#: Fields of `Paired` and their columns.
PAIRED = {
    "mean": "paired_difference", "half": "paired_ci95", "low": "paired_low", "high": "paired_high", "p": "paired_p",
    "effect": "effect_size",
}  # fmt: skip


def comparison(cells: Sequence[Cell], by: str, baseline: str, procedures: Procedures) -> pd.DataFrame:
    """Return the columns of the comparison of every cell with the baseline's cell of the same setting.

    Differences are of common seeds with the same test samples: this cell minus the baseline. The baseline cell has
    the same spec except for algorithm and seed (and topology, if the baseline has none), and for what a search
    chose. Of several settings of the baseline the best by `by` is used, which can only favor the baseline.
    """
    best = _best(cells, by, baseline)
    texts: dict[str, str] = {}
    settings: dict[str, tuple[str, ...]] = {}
    differences: dict[str, list[float]] = {}
    intervals: dict[str, Interval | None] = {}
    for cell in cells:
        keys = _settings(cell)
        rival = next((best[key] for key in keys if key in best), None)
        if cell.algorithm == baseline and (rival is None or rival.key == cell.key):
            texts[cell.key] = "baseline"
            continue
        common = SeedPairs({}, 0) if rival is None else seed_pairs(cell, rival, by)
        texts[cell.key] = _text(cell, rival, common, by, baseline)
        if rival is not None and common.differences:
            intervals[cell.key] = procedures.difference(cell, rival)
            settings[cell.key], differences[cell.key] = keys[-1], list(common.differences.values())
    statistics = paired_statistics(list(differences.values()))
    table = pd.DataFrame(statistics, index=list(differences), columns=Paired._fields, dtype=object)
    families = table["p"].dropna().groupby(pd.Series(settings, dtype=object))
    table["paired_p_holm"] = families.transform(lambda ps: pd.Series(holm(ps.tolist()), index=ps.index))
    table["detectable"] = None
    for place, end in enumerate(("paired_procedure_low", "paired_procedure_high")):
        table[end] = [interval and interval[place] for interval in intervals.values()]
    sizes = families.transform("size").to_dict()
    for key, summary in zip(differences, statistics, strict=True):
        tests, seeds, std = sizes.get(key, 0), summary.seeds, summary.std
        if not tests:
            continue
        if undecidable(seeds, tests):
            texts[key] += f", too few for a p below .05 among {tests} comparisons"
        elif std is not None:
            table.loc[key, "detectable"] = detectable(seeds, tests) * std
    table = table.rename(columns=PAIRED).assign(baseline=baseline).drop(columns=["std", "seeds"])
    return table.reindex([cell.key for cell in cells]).assign(compared=pd.Series(texts, dtype=object))


def _best(cells: Sequence[Cell], by: str, baseline: str) -> dict[tuple[str, ...], Cell]:
    """Return the best cell of the baseline in every setting."""
    scored = [cell for cell in cells if cell.algorithm == baseline and cell.values(by)]
    best: dict[tuple[str, ...], Cell] = {}
    for cell in sorted(scored, key=lambda cell: cell.score(by), reverse=True):
        for key in _settings(cell):
            best.setdefault(key, cell)
    return best


def _settings(cell: Cell) -> list[tuple[str, ...]]:
    """Return digests of what two algorithms must share to be compared seed by seed, the strictest first.

    A baseline without topology serves those that have one; one of another problem (as classification, for a fair
    classification) those on the same data that have none of their own.
    """
    parts = ("algorithm",), ("algorithm", "topology"), ("algorithm", "topology", "problem")
    with_topology = cell.spec.get("topology") is not None
    return [(str(len(excluded)), cell.shared_key(excluded)) for excluded in parts[not with_topology :]]


def _text(cell: Cell, rival: Cell | None, common: SeedPairs, by: str, baseline: str) -> str:
    """Return the number of seeds of a comparison, and its other problem; or the reason why there is none."""
    if not cell.values(by):
        return f"not comparable: no finished run with {by}"
    if rival is None:
        return f"not comparable: no finished run of {baseline} in the same setting"
    if not common.differences:
        why = f"{APART} than those of" if common.apart else "no seed in common with"
        return f"not comparable: {why} {baseline}"
    seeds = len(common.differences)
    missing = len(cell.runs) - seeds - common.apart
    problem, other_problem = (part_name(member.spec.get("problem")) for member in (cell, rival))
    facts = [
        counted(seeds, "seed"),
        f"{missing} without a pair" if missing else "",
        f"{counted(common.apart, 'seed')} with {APART}" if common.apart else "",
        "" if problem == other_problem else f"with {other_problem}",
    ]
    return ", ".join(fact for fact in facts if fact)


def relative_bytes(cells: Sequence[Cell], by: str, baseline: str) -> list[float]:
    """Return the bytes of each cell, both ways, as a share of the baseline's on the same data and partition.

    The baseline's run is the one without privacy and compression; of several models and settings the best. NaN
    where one of the two is not known.
    """
    frame = pd.DataFrame(
        {
            "setting": [cell.shared_key(METHOD) for cell in cells],
            "value": [cell.score(by) if cell.values(by) else None for cell in cells],
            "bytes": [cell.mean("bytes") if cell.values("bytes") else None for cell in cells],
            "plain": [cell.algorithm == baseline and not cell.is_protected for cell in cells],
        }
    ).astype({"value": "float64", "bytes": "float64", "plain": bool})
    best = frame[frame["plain"]].dropna().sort_values(["value", "bytes"]).groupby("setting")["bytes"].last()
    return (frame["bytes"] / frame["setting"].map(best[best > 0])).tolist()


def gaps(cells: Sequence[Cell]) -> pd.DataFrame:
    """Return the interval of the gap between groups, and the gap that the test samples distinguish from none.

    The test samples of seeds overlap, so their number counts once; the spread over seeds counts besides. The gap is
    that of the two most different groups, so the more groups, the wider the interval (studentized range).
    """
    gaps_by_cell = {cell.key: row for cell in cells if (row := _gap(cell))}
    columns = ["eqopp_low", "eqopp_high", "eqopp_detectable", "eqopp_positives"]
    return pd.DataFrame(
        list(gaps_by_cell.values()), index=list(gaps_by_cell), columns=columns, dtype=object
    ).reindex([cell.key for cell in cells])


def _gap(cell: Cell) -> tuple[float, float, float, int] | None:
    """Return the ends of a cell's interval, the detectable gap, and the fewest positive samples of a group."""
    each = [gap for run in cell.done if (gap := gap_of(run.record.final.get("groups") or []))]
    values = list(cell.values("eqopp").values())
    if not each or not values:
        return None
    error, reach = fmean(gap.error for gap in each), largest_of(max(gap.groups for gap in each))
    spread = stdev(values) ** 2 / len(values) if len(values) > 1 else 0.0
    half = reach * math.sqrt(error**2 + spread)
    mean = fmean(values)
    beyond = float(scipy.special.ndtri(POWER))  # standard errors beyond the bound, for a test with power
    positives = min(gap.positives for gap in each)
    return max(0.0, mean - half), min(1.0, mean + half), (reach + beyond) * error, positives


def refuse_ranks(frame: pd.DataFrame, cells: Sequence[Cell], by: str) -> None:
    """Note why rows have no rank by gap, and take those of tasks whose test samples cannot tell best from worst.

    Rows that predict one class have none. Gaps of two cells are compared as those of two samples would be, which
    errs on the side of refusing: their test samples are the same.
    """
    frame["unranked"] = pd.Series(None, index=frame.index, dtype=object)
    constant = [cell.key for cell in cells if cell.empty_gap(by)]
    frame.loc[constant, "unranked"] = f"not ranked by {by}: a model that predicts one class has a gap of 0"
    if by != "eqopp":
        return
    ranked = frame[frame["rank"].notna() & frame["eqopp_detectable"].notna()]
    for _, members in ranked.groupby("task"):
        difference = members["eqopp_mean"].max() - members["eqopp_mean"].min()
        least = math.sqrt(2) * members["eqopp_detectable"].min()
        if difference >= least:
            continue
        frame.loc[members.index, "rank"] = None
        frame.loc[members.index, "unranked"] = (
            f"not ranked by eqopp: gaps differ by {difference:.3f}, and with {members['eqopp_positives'].min()} "
            f"positive test samples in the smallest group differences below {least:.3f} cannot be told"
        )
