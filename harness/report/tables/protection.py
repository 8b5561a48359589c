"""Comparison of protected cells of an algorithm with the same cell without protection."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from harness.report.data.results import Cell, Results, first_of_each, grouped
from harness.report.data.specs import data_name, file_name, is_coded, is_compressed, largest_ratio
from harness.report.tables.text import PRUNED, pruned_texts


class Comparison(NamedTuple):
    """Protected cells of one algorithm and the same cell without protection.

    Attributes
    ----------
    measure : str
        Measure to compare.
    plain : Cell
        The cell without privacy and compression; if all cells are compressed, without privacy.
    protected : tuple[Cell, ...]
        At least one cell with the same spec except for privacy and compression; or for privacy.
    """

    measure: str
    plain: Cell
    protected: tuple[Cell, ...]

    @property
    def shared(self) -> str:
        """The compression that all cells have, in words; empty if one has none."""
        return label(self.plain) if self.plain.is_protected else ""

    @property
    def texts(self) -> list[str]:
        """The words for what each protected cell has and the other has not."""
        return [
            text.replace(f", {self.shared}" if self.shared else "", "") for text in labels(self.protected)
        ]

    @property
    def heads(self) -> list[str]:
        """The same, after what the other cell has."""
        return ["no privacy" if self.shared else label(self.plain), *self.texts]


def compare_protection(
    results: Results, measure: str = "accuracy", baseline: str | None = None
) -> list[Comparison]:
    """Return the most informative comparison of protected with unprotected cells on each data set, the best first.

    Only cells with a value count. Preferred is the baseline, then a cell without compression, then the comparison
    with the most protected cells, then the one with the best unprotected cell, then the first by name. Data sets
    on which the baseline is not compared, but on others it is, are left out.
    """
    measured = (cell for cell in results.cells if cell.values(measure))
    families = grouped(measured, lambda cell: cell.shared_key(("privacy", "compression")))
    comparisons = []
    for members in sorted(families.values(), key=lambda members: members[0].algorithm):
        plain, protected = _compared(members)
        if plain and protected:
            comparisons.append(Comparison(measure, plain[0], tuple(protected)))

    def weight(comparison: Comparison) -> tuple[bool, bool, int, float]:
        plain, value = comparison.plain, comparison.plain.score(measure)
        return plain.algorithm == baseline, not comparison.shared, len(comparison.protected), value

    def data_of(comparison: Comparison) -> tuple[str | None, str | None]:
        data = comparison.plain.spec.get("data")
        return data_name(data), comparison.plain.records[0].digest if file_name(data) else None

    every = list(first_of_each(sorted(comparisons, key=weight, reverse=True), data_of).values())
    with_baseline = [comparison for comparison in every if comparison.plain.algorithm == baseline]
    return with_baseline or every


def _compared(members: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """Return cells without protection and with it; if all are compressed, those of one compression and privacy."""
    if all(is_compressed(cell.spec) for cell in members):
        alike = grouped(members, lambda cell: json.dumps(cell.spec["compression"], sort_keys=True))
        pairs = [_parted(some, lambda cell: bool(cell.spec.get("privacy"))) for some in alike.values()]
        return max(pairs, key=lambda pair: (bool(pair[0]), len(pair[1])))
    return _parted(members, lambda cell: cell.is_protected)


def _parted(cells: Sequence[Cell], test: Callable[[Cell], bool]) -> tuple[list[Cell], list[Cell]]:
    """Return the cells that fail a test, and in order those that pass it."""
    return [cell for cell in cells if not test(cell)], sorted(filter(test, cells), key=_order)


def label(cell: Cell) -> str:
    """Describe a cell's protection in words."""
    compression, claim = cell.spec.get("compression") or {}, cell.privacy()
    parts = []
    if claim is not None:
        epsilon = claim.get("epsilon_total")
        finite = epsilon is not None and epsilon < float("inf")
        parts.append(f"ε = {epsilon:.3g}" if finite else "clipped, no noise")
        if "mechanism" in claim:
            parts.append(f"{claim['mechanism']} noise")
        if "noise_cohort" in claim:
            parts.append(f"extrapolated to cohorts of {claim['noise_cohort']:,}")
        if (cell.spec.get("privacy") or {}).get("noise") == "per_client":
            parts.append("noise per client")
    parts += pruned_texts({name: largest_ratio(compression.get(name)) for name in PRUNED})
    if compression.get("rank"):
        parts.append(f"layers as factors of rank {compression['rank']}")
    if is_coded(compression):
        parts.append(f"sent as {compression['codec']}")
    return ", ".join(parts) or "no privacy, nothing pruned"


def labels(cells: Sequence[Cell]) -> list[str]:
    """Describe the protection of cells in words, with the placement of noise where they are equal otherwise."""
    texts = [label(cell) for cell in cells]
    return [
        f"{text}, {_unit_or_placement(cell)}" if texts.count(text) > 1 else text
        for cell, text in zip(cells, texts, strict=True)
    ]


def _unit_or_placement(cell: Cell) -> str:
    """Return who adds noise, or for whose protection where that is less than a client."""
    privacy = cell.spec.get("privacy") or {}
    if privacy.get("unit", "client") != "client":
        return f"unit {privacy['unit']}"
    return f"{privacy.get('placement')} noise"


def _order(cell: Cell) -> tuple[bool, bool, float, str]:
    """Sort privacy alone first, then compression alone, then both; weaker protection first."""
    claim = cell.privacy() or {}
    compression = cell.spec.get("compression") or {}
    pruned = [largest_ratio(compression.get(name)) or 0.0 for name in ("alpha", "beta")]
    alone = not (claim and (any(pruned) or compression.get("rank")))
    return not alone, not claim, -(claim.get("epsilon_total") or 0) or sum(pruned), cell.key
