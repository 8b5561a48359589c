"""Comparison of cells with a baseline, seed by seed, and the power of gaps between groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import scipy  # its parts are imported at their first use, as they are slow to import

from harness.core.registry import counted
from harness.metrics import better_is_higher
from harness.report.data.results import Cell
from harness.report.data.specs import largest_ratio, part_name
from harness.report.data.statistics import (
    POWER,
    Paired,
    detectable,
    gap_of,
    holm,
    largest_of,
    paired,
    undecidable,
)
from harness.report.data.tested import APART, Pairs, pairs

#: Parts of a spec that are the method's own affair: others may differ and still do the same task.
METHOD = (
    *("algorithm", "topology", "problem", "model", "rounds", "eval_every", "precision", "cohort"),
    *("privacy", "compression"),
)


def add_comparison(rows: Sequence[dict[str, Any]], found: Sequence[Cell], by: str, baseline: str) -> None:
    """Compare every cell with the baseline's cell of the same setting, seed by seed."""
    sign = 1 if better_is_higher(by) else -1
    best: dict[tuple[str, ...], tuple[float, Cell]] = {}
    for cell in found:
        values = cell.values(by)
        if cell.algorithm == baseline and values:
            score = sign * fmean(values.values())
            for key in _settings(cell):
                if key not in best or score > best[key][0]:
                    best[key] = score, cell
    compared: list[tuple[dict[str, Any], tuple[str, ...], list[float]]] = []
    for row, cell in zip(rows, found, strict=True):
        keys = _settings(cell)
        rival = next((best[key][1] for key in keys if key in best), None)
        if cell.algorithm == baseline and rival in (None, cell):
            row["compared"] = "baseline"
            continue
        values = cell.values(by)
        found_pairs = Pairs({}, 0) if rival is None else pairs(cell, rival, by)
        if not values:
            row["compared"] = f"not comparable: no finished run with {by}"
        elif rival is None:
            row["compared"] = f"not comparable: no finished run of {baseline} in the same setting"
        elif found_pairs.differences:
            row["compared"] = _text(cell, rival, found_pairs)
            compared.append((row, keys[-1], list(found_pairs.differences.values())))
        elif found_pairs.apart:
            row["compared"] = f"not comparable: {APART} than those of {baseline}"
        else:
            row["compared"] = f"not comparable: no seed in common with {baseline}"
    families: dict[tuple[str, ...], list[tuple[dict[str, Any], Paired]]] = {}
    statistics = paired([differences for _, _, differences in compared])
    for (row, family, _), found_of in zip(compared, statistics, strict=True):
        row |= {
            "baseline": baseline,
            "paired_difference": found_of.mean,
            "paired_ci95": found_of.half,
            "paired_low": found_of.low,
            "paired_high": found_of.high,
            "paired_p": found_of.p,
            "effect_size": found_of.effect,
        }
        if found_of.p is not None:
            families.setdefault(family, []).append((row, found_of))
    for members in families.values():
        for (row, own), adjusted in zip(members, holm([row["paired_p"] for row, _ in members]), strict=True):
            row["paired_p_holm"] = adjusted
            if undecidable(own.seeds, len(members)):
                row["compared"] += f", too few for a p below .05 among {len(members)} comparisons"
            elif own.std is not None:
                row["detectable"] = detectable(own.seeds, len(members)) * own.std


def _settings(cell: Cell) -> list[tuple[str, ...]]:
    """Return digests of what two algorithms must share to be compared seed by seed, the strictest first.

    A baseline without topology serves those that have one; one of another problem (as classification, for a fair
    classification) those on the same data that have none of their own.
    """
    parts = ("algorithm",), ("algorithm", "topology"), ("algorithm", "topology", "problem")
    with_topology = cell.spec.get("topology") is not None
    return [(str(len(own)), cell.shared_key(own)) for own in parts[not with_topology :]]


def _text(cell: Cell, rival: Cell, found: Pairs) -> str:
    """Return over how many seeds a cell is compared, and with what if not the same problem."""
    seeds = len(found.differences)
    missing = len(cell.runs) - seeds - found.apart
    own, other = (part_name(one.spec.get("problem")) for one in (cell, rival))
    facts = [
        counted(seeds, "seed"),
        f"{missing} without a pair" if missing else "",
        found.remark,
        "" if own == other else f"with {other}",
    ]
    return ", ".join(fact for fact in facts if fact)


def add_relative_bytes(rows: Sequence[dict[str, Any]], found: Sequence[Cell], by: str, baseline: str) -> None:
    """Add the bytes of each cell, both ways, as a share of the baseline's on the same data and partition.

    The baseline's run is the one without privacy and compression; of several models and settings the best.
    """
    sign = 1 if better_is_higher(by) else -1
    best: dict[str, tuple[float, float]] = {}
    for cell in found:
        plain = not cell.spec.get("privacy") and _uncompressed(cell)
        values, sent = cell.values(by), cell.values("bytes")
        if cell.algorithm == baseline and plain and values and sent:
            key = cell.shared_key(METHOD)
            best[key] = max(
                best.get(key, (-math.inf, 0.0)), (sign * fmean(values.values()), fmean(sent.values()))
            )
    for row, cell in zip(rows, found, strict=True):
        sent = cell.values("bytes")
        reference = best.get(cell.shared_key(METHOD))
        if sent and reference is not None and reference[1]:
            row["bytes_relative"] = fmean(sent.values()) / reference[1]


def _uncompressed(cell: Cell) -> bool:
    compression = cell.spec.get("compression") or {}
    return (
        not largest_ratio(compression.get("alpha"))
        and not largest_ratio(compression.get("beta"))
        and not compression.get("rank")
        and compression.get("codec") in (None, "float32", "float64")
    )


def add_gaps(rows: Sequence[dict[str, Any]], found: Sequence[Cell]) -> None:
    """Add the interval of the gap between groups, and the gap that the test samples can tell from none.

    The test samples of seeds overlap, so their number counts once; the spread over seeds counts besides. The gap is
    that of the two most different groups, so the more groups, the wider the interval (studentized range).
    """
    for row, cell in zip(rows, found, strict=True):
        gaps = [gap for run in cell.done if (gap := gap_of(run.record.final.get("groups") or []))]
        values = list(cell.values("eqopp").values())
        if not gaps or not values:
            continue
        error, reach = fmean(gap.error for gap in gaps), largest_of(max(gap.groups for gap in gaps))
        spread = stdev(values) ** 2 / len(values) if len(values) > 1 else 0.0
        half = reach * math.sqrt(error**2 + spread)
        mean = fmean(values)
        row["eqopp_low"], row["eqopp_high"] = max(0.0, mean - half), min(1.0, mean + half)
        beyond = float(scipy.special.ndtri(POWER))  # standard errors beyond the bound, for a test with power
        row["eqopp_detectable"] = (reach + beyond) * error
        row["eqopp_positives"] = min(gap.positives for gap in gaps)


def refuse_ranks(rows: Sequence[dict[str, Any]], found: Sequence[Cell], by: str) -> None:
    """Take the ranks by gap from tasks whose test samples cannot tell the best from the worst.

    Gaps of two cells are told apart as two samples would be, which errs on the side of refusing: their test samples
    are the same.
    """
    if by != "eqopp":
        return
    tasks: dict[str, list[dict[str, Any]]] = {}
    for row, cell in zip(rows, found, strict=True):
        if row.get("rank") is not None and row.get("eqopp_detectable") is not None:
            tasks.setdefault(cell.task, []).append(row)
    for members in tasks.values():
        gaps = [row["eqopp_mean"] for row in members]
        least = math.sqrt(2) * min(row["eqopp_detectable"] for row in members)
        if max(gaps) - min(gaps) >= least:
            continue
        smallest = min(row["eqopp_positives"] for row in members)
        for row in members:
            row["rank"] = None
            row["unranked"] = (
                f"not ranked by eqopp: gaps differ by {max(gaps) - min(gaps):.3f}, and with {smallest} positive "
                f"test samples in the smallest group differences below {least:.3f} cannot be told"
            )
