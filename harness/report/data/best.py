"""The best cells of a table, and those that are not significantly worse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from harness.metrics import better_is_higher
from harness.report.data.comparison import RIVALS
from harness.report.data.leaderboard import model_for
from harness.report.data.procedure import procedure_difference
from harness.report.data.results import Cell, grouped
from harness.report.data.statistics import ALPHA, holm, paired_statistics, undecidable
from harness.report.data.tested import seed_pairs

RULE = (
    "Bold: the best mean of the rows with the same data, partition, privacy and compression and the same purpose "
    "(a model for everybody, or one for each client), and all rows that are not significantly worse (p ≥ .05 in "
    "a sign-flip test over common seeds, after Holm). Where seeds are too few for a p below .05, only the best is "
    "bold. Of rows that were searched for, also those that another search could have put first."
)


def best_of(cells: Iterable[Cell], measures: Sequence[str]) -> set[tuple[str, str]]:
    """Return the cells to print in bold, as cell key and measure; `RULE` says which.

    A cell without rivals is not printed in bold.
    """
    done = (cell for cell in cells if cell.done)
    groups = grouped(done, lambda cell: (cell.shared_key(RIVALS), model_for(cell)))
    return {
        (cell.key, measure)
        for members in groups.values()
        for measure in measures
        for cell in _best(members, measure)
    }


def _best(members: Sequence[Cell], measure: str) -> list[Cell]:
    sign = 1 if better_is_higher(measure) else -1
    by_seed = {cell.key: values for cell in members if (values := cell.values(measure))}
    rivals = [cell for cell in members if cell.key in by_seed]
    if len(rivals) < 2:
        return []
    means = {key: sign * fmean(values.values()) for key, values in by_seed.items()}
    most = max(means.values())
    best = [cell for cell in rivals if means[cell.key] == most]
    rest = [cell for cell in rivals if means[cell.key] < most]
    differences = {cell.key: list(seed_pairs(best[0], cell, measure).differences.values()) for cell in rest}
    tested = [cell for cell in rest if not undecidable(len(differences[cell.key]), len(rest))]
    ps = [test.p or 1.0 for test in paired_statistics([differences[cell.key] for cell in tested])]
    equal = (
        cell
        for cell, p in zip(tested, holm(ps), strict=True)
        if p >= ALPHA or _may_be_luck(best[0], cell, measure)
    )
    return [*best, *equal]


def _may_be_luck(best: Cell, cell: Cell, measure: str) -> bool:
    """Whether another search could have turned a difference around."""
    interval = procedure_difference(best, cell, measure)
    return interval is not None and interval[0] <= 0 <= interval[1]
