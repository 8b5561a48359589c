"""The rows of a leaderboard, and what tells them apart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property

import pandas as pd

from harness.config.report import ReportSpec
from harness.report.data.clients import client_names
from harness.report.data.evidence import Row, rows_of
from harness.report.data.exposed import MostExposed, most_exposed_of
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Cell, Results, grouped
from harness.report.data.specs import settings_of
from harness.report.tables.text import EXTRAPOLATED, distinguishing, is_empty, quantity

USUAL = ReportSpec()


class Board:
    """A leaderboard for readers: what is asked of its rows twice is found once.

    Parameters
    ----------
    frame : pd.DataFrame
        The leaderboard, which must not change any more.
    cells : iterable of Cell, optional
        The runs of its rows, which know the names of clients.
    """

    def __init__(self, frame: pd.DataFrame, cells: Iterable[Cell] = ()) -> None:
        self.frame = frame
        self.cells = {cell.key: cell for cell in cells}

    def parts(self) -> list[Board]:
        """Return a leaderboard for every task."""
        parts = [part for _, part in self.frame.groupby("task", sort=False, dropna=False)]
        if len(parts) == 1:
            return [self]
        known = self.cells
        return [
            Board(part.reset_index(drop=True), [known[key] for key in part["cell"] if key in known])
            for part in parts
        ]

    @property
    def by(self) -> str:
        """The measure that ranks."""
        return str(self.rows[0]["ranked_by"]) if self.rows else "accuracy"

    @property
    def baseline(self) -> str | None:
        """The algorithm that rows are compared with, if any is."""
        return next(iter(self.frame["baseline"].dropna()), None)

    @cached_property
    def exposed(self) -> dict[str, MostExposed | None]:
        """Cell -> whose its largest epsilon is."""
        return {key: most_exposed_of(cell) for key, cell in self.cells.items()}

    def most_exposed(self, row: Row) -> str:
        """Return whose the largest epsilon of a row is, by name where clients have names."""
        exposed = self.exposed.get(row["cell"])
        if exposed is None:
            return str(row["epsilon_of"])
        return exposed.text(client_names(self.cells[row["cell"]].records[0].final))

    @cached_property
    def rows(self) -> list[Row]:
        """The rows as mappings from column name to value."""
        return rows_of(self.frame)

    @cached_property
    def tasks(self) -> dict[str, dict[str, str]]:
        """Cell -> names of its dataset, problem and partition."""
        return task_names(self.rows)

    @cached_property
    def _telling(self) -> dict[str, dict[str, str]]:
        """Cell -> the traits that distinguish it from the other cells of its task and algorithm."""
        traits = {row["cell"]: _traits(row) for row in self.rows}
        distinguishing = {}
        for rows in grouped(self.rows, lambda row: (row["task"], row["algorithm"])).values():
            members = [row["cell"] for row in rows]
            names = set(_distinguishing([traits[cell] for cell in members]))
            for cell in members:
                distinguishing[cell] = {name: text for name, text in traits[cell].items() if name in names}
        return distinguishing

    def variants(self, beside: Collection[str] = ()) -> dict[str, str]:
        """Return cell -> the fewest words that distinguish it from the other cells of its task and algorithm.

        Traits with a column of their own, `beside` (keys of `_traits`), are not repeated.
        """
        return {
            cell: " ".join(text for name, text in traits.items() if name not in beside)
            for cell, traits in self._telling.items()
        }


def board_of(results: Results, spec: ReportSpec = USUAL) -> Board:
    """Return the leaderboard of results for readers, made once."""
    spec = results.ranked(spec)
    key = (spec.by, spec.baseline, spec.target, spec.system)
    if key not in results.boards:
        results.boards[key] = Board(leaderboard(results, *key), results.cells)
    board: Board = results.boards[key]
    return board


def task_names(rows: Sequence[Row]) -> dict[str, dict[str, str]]:
    """Return cell -> names of its dataset, problem and partition, as ``adult(sensitive=race2)``.

    Brackets hold the settings in which cells of the same name differ. Absent parts are empty.
    """
    texts = {row["cell"]: {"partition": plain("partition")(row)} for row in rows}
    for column, section in (("dataset", "data."), ("problem", "problem.")):
        settings = distinguishing(
            {
                row["cell"]: (
                    str(row[column]),
                    [t for t in (row["settings"] or "").split() if t.startswith(section)],
                )
                for row in rows
            }
        )
        for row in rows:
            name, differs = plain(column)(row), [t[len(section) :] for t in settings[row["cell"]]]
            texts[row["cell"]][column] = f"{name}({', '.join(differs)})" if differs else name
    return texts


def _distinguishing(family: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the traits that distinguish members, without redundant ones.

    Settings of the algorithm are kept even if redundant.
    """
    telling = [
        name for name in dict.fromkeys(n for traits in family for n in traits) if _differs(name, family)
    ]

    def kinds(names: Sequence[str]) -> int:
        return len({tuple(traits.get(name) for name in names) for traits in family})

    for name in [name for name in reversed(telling) if "." in name and not name.startswith("algorithm.")]:
        rest = [other for other in telling if other != name]
        if kinds(rest) == kinds(telling):
            telling = rest
    return telling


def _traits(row: Row) -> dict[str, str]:
    """Return all traits of a row, the most informative first.

    The two pruning ratios are spelled out, as algorithms also have hyper-parameters called alpha and beta.
    """
    private = not is_empty(row["dp_unit"])
    traits = {"epsilon": f"ε={epsilon_text(row)}" if private else "no DP", "dp": protection(row)}
    forms = {
        "model": "{}",
        "alpha": "pruned={:g}",
        "beta": "dropped={:g}",
        "codec": "{}",
        "clip": "clip={}" if isinstance(row["clip"], str) else "clip={:g}",
    }
    for name, form in (forms | {"rounds": "rounds={}"}).items():
        traits[name] = "" if is_empty(row[name]) else form.format(row[name])
    for name, value in settings_of(row).items():
        if name in ("compression.alpha", "compression.beta"):  # in place of the largest that it reaches
            traits[name.rpartition(".")[2]] = f"{'pruned' if name.endswith('alpha') else 'dropped'}={value}"
            continue
        traits[name if "." in name else f"algorithm.{name}"] = f"{name}={value}"
    traits.pop("privacy.epsilon", None)  # said by the first
    return {name: text for name, text in traits.items() if text}


def _differs(name: str, family: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a trait distinguishes members; traits of privacy only count among private cells."""
    values = [traits[name] for traits in family if name in traits]
    optional = name in {"dp", "clip"} or name.startswith("privacy.")
    return len(set(values)) > 1 or (len(values) < len(family) and not optional)


def plain(name: str) -> Callable[[Row], str]:
    """Return a field as it is; empty where it does not apply."""
    return lambda row: "" if is_empty(row[name]) else str(row[name])


def protection(row: Row) -> str:
    """Return unit, placement and, unless it is independent, the kind of noise; empty without privacy."""
    parts = [row[name] for name in ("dp_unit", "dp_placement", "dp_mechanism") if not is_empty(row[name])]
    return "/".join(part for part in parts if part != "independent")


def epsilon_text(row: Row) -> str:
    """Return the composed epsilon, or in brackets the requested one if no run has finished."""
    if not is_empty(row["epsilon_total"]):
        return quantity(row["epsilon_total"], 3) + extrapolation(row)
    budget = row["epsilon_asked"]
    return "" if is_empty(budget) else f"({quantity(budget, 3)}{extrapolation(row)})"


def extrapolation(row: Row) -> str:
    """Return the mark of an epsilon of larger cohorts than were simulated."""
    return "" if is_empty(row["noise_cohort"]) else EXTRAPOLATED
