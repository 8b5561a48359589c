"""The answer to given bounds in words and as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from harness.config.conditions import Condition
from harness.core.registry import counted
from harness.report.data.leaderboard import model_for
from harness.report.data.recommendation import RatedCell, Recommendation
from harness.report.tables.protection import label
from harness.report.tables.rows import Board
from harness.report.tables.text import EXTRAPOLATED, extrapolation, quantity

MOST = 10  # rows in a terminal


def recommendation_rows(
    answer: Recommendation, frame: pd.DataFrame, conditions: Sequence[Condition], by: str
) -> list[dict[str, Any]]:
    """Return a row for every cell within the bounds: its settings, its certainty and its values."""
    board = Board(frame)
    variants = board.variants()
    return [_row(rated, board, variants[rated.cell.key], conditions, by) for rated in answer.cells]


def sentences(answer: Recommendation, frame: pd.DataFrame, conditions: Sequence[Condition]) -> list[str]:
    """Return sentences on the number of cells within the bounds, or on the bound that excludes them."""
    bounds = " and ".join(map(str, conditions))
    board = Board(frame)
    if answer.cells:
        best = answer.cells[0]
        low, high = best.interval
        alone = sorted(
            {rated.cell.algorithm for rated in answer.cells if "alone" in (model_for(rated.cell) or "")}
        )
        lines = [
            f"{len(answer.cells)} of {counted(answer.considered, 'cell')} are within {bounds}, on average "
            "over seeds.",
            f"Surest: {_name(best, board)}, within all bounds in {best.within} of {counted(best.seeds, 'seed')} "
            f"({low:.0%} to {high:.0%} of further ones, 95 %).",
        ]
        if alone:
            lines.append(
                f"{', '.join(alone)}: every client learns alone. Nothing is sent, so no bound on privacy or bytes "
                "excludes it; it has no model for clients without data."
            )
        return [*lines, *filter(None, [extrapolation(_noise_cohort(rated) for rated in answer.cells)])]
    lines = [f"None of {counted(answer.considered, 'cell')} is within {bounds}."]
    for obstacle in answer.obstacles:
        nearest, name = obstacle.nearest, obstacle.condition.name
        lines.append(
            f"{obstacle.condition} excludes all that is within the other bounds: {_name(nearest, board)} comes "
            f"nearest, with {_value_text(name, nearest.values[name], _noise_cohort(nearest))}."
        )
    if note := extrapolation(_noise_cohort(obstacle.nearest) for obstacle in answer.obstacles):
        lines.append(note)
    if not answer.obstacles:
        lines.append(
            "No single bound does it: at least two exclude everything. Give up or loosen more than one."
        )
    return lines


def readable_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows for a narrow terminal, without what they share."""
    descriptions = ("algorithm", "protection", "model_for", "variant", "seeds", "noise_cohort", "cell")
    several = len({row["data"] for row in rows}) > 1
    readable_rows = []
    for row in rows:
        values = {
            k: v for k, v in row.items() if k not in (*descriptions, "data") and not k.startswith("within")
        }
        readable_rows.append(
            {
                "method": row["algorithm"],
                **({"data": row["data"]} if several else {}),
                "protection": row["protection"],
                "within bounds": f"{row['within']:.0%} ({row['within_low']:.0%} to {row['within_high']:.0%})",
                **{name: _value_text(name, value, row["noise_cohort"]) for name, value in values.items()},
            }
        )
    return readable_rows


def _row(
    rated: RatedCell, board: Board, variant: str, conditions: Sequence[Condition], by: str
) -> dict[str, Any]:
    low, high = rated.interval
    names = dict.fromkeys([by, *(condition.name for condition in conditions)])
    values = {name: rated.values[name] for name in names if name not in ("algorithm", "dataset")}
    return {
        "algorithm": rated.cell.algorithm,
        "data": _task(rated, board),
        "protection": label(rated.cell),
        "variant": variant,
        "model_for": model_for(rated.cell),
        "within": rated.share,
        "within_low": low,
        "within_high": high,
        "seeds": rated.seeds,
        **values,
        "noise_cohort": _noise_cohort(rated),
        "cell": rated.cell.key,
    }


def _noise_cohort(rated: RatedCell) -> int | None:
    """Return the cohort that a cell's epsilon is extrapolated to; None if it is a guarantee."""
    cohort: int | None = (rated.cell.spec.get("privacy") or {}).get("noise_cohort")
    return cohort


def _value_text(name: str, value: Any, noise_cohort: int | None) -> Any:
    """Return a value as text, with the mark of an epsilon that is extrapolated."""
    text = quantity(value) if isinstance(value, float) else value
    marked = name.startswith("epsilon") and value is not None and noise_cohort is not None
    return f"{text}{EXTRAPOLATED}" if marked else text


def _task(rated: RatedCell, board: Board) -> str:
    names = board.tasks[rated.cell.key]
    return ", ".join(
        filter(None, (names["dataset"], names["problem"] if names["problem"] != "classify" else ""))
    )


def _name(rated: RatedCell, board: Board) -> str:
    return f"{rated.cell.algorithm} on {_task(rated, board)} ({label(rated.cell)})"
