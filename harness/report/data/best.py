"""The best cells of a table, and those that are not significantly worse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.report.data.comparison import RIVALS
from harness.report.data.leaderboard import model_for
from harness.report.data.resolution import Resolution
from harness.report.data.results import Cell, grouped
from harness.report.data.statistics import ALPHA, holm, paired_statistics, undecidable
from harness.report.data.tested import seed_pairs

RULE = (
    "Bold: the best mean of the rows with the same data, partition, privacy and compression and the same purpose "
    "(a model for everybody, or one for each client), and all rows that are not significantly worse (p ≥ .05 in "
    "a sign-flip test over common seeds, after Holm). Where seeds are too few for a p below .05, only the best is "
    "bold. Of rows that were searched for, also those that another search could have put first. Where a method has "
    "rows under two names, also all that are behind by no more than those differ. Gaps between groups count only "
    "where no run predicts one class for all."
)


def best_of(cells: Iterable[Cell], measures: Sequence[str]) -> set[tuple[str, str]]:
    """Return the cells to print in bold, as cell key and measure; `RULE` says which.

    A cell without rivals is not printed in bold.
    """
    done = [cell for cell in cells if cell.done]
    groups = grouped(done, lambda cell: (cell.shared_key(RIVALS), model_for(cell)))
    found = set()
    for measure in measures:
        resolution = Resolution(done, measure)
        for members in groups.values():
            found |= {(cell.key, measure) for cell in level_with_best(members, resolution)}
    return found


def level_with_best(members: Sequence[Cell], resolution: Resolution) -> list[Cell]:
    """Return the best of some cells, then those that are not told apart from it; none without a rival.

    A difference is told if a sign-flip test finds it, and if it is beyond what searches and namesakes explain.
    """
    measure = resolution.measure
    rivals = [cell for cell in members if cell.values(measure) and not cell.empty_gap(measure)]
    if len(rivals) < 2:
        return []
    scores = {cell.key: cell.score(measure) for cell in rivals}
    most = max(scores.values())
    best = [cell for cell in rivals if scores[cell.key] == most]
    rest = [cell for cell in rivals if scores[cell.key] < most]
    differences = {cell.key: list(seed_pairs(best[0], cell, measure).differences.values()) for cell in rest}
    tested = [cell for cell in rest if not undecidable(len(differences[cell.key]), len(rest))]
    ps = [test.p or 1.0 for test in paired_statistics([differences[cell.key] for cell in tested])]
    level = {cell.key for cell, p in zip(tested, holm(ps), strict=True) if p >= ALPHA}
    return [*best, *(cell for cell in rest if cell.key in level or not resolution.apart(best[0], cell))]
