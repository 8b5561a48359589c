"""Pivot tables of one measure by two settings.

Cells that differ in other settings than these two and the algorithm's hyper-parameters are in separate tables; in
tables of costs to a target, runs may also differ in length. A topology is printed with the name of the algorithm,
unless it is one of the two settings. Of several hyper-parameters the best is shown, with a note; settings with all
seeds done take precedence over settings with failed seeds. What lacks the section of a setting, as a run without
privacy has no budget, is in the tables of what it agrees with otherwise; a note names what is in none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any, NamedTuple

from harness.config.report import COSTS, COSTS_TO_TARGET, Pivot, Target
from harness.core.errors import UserError, unknown
from harness.core.units import count, counted, size
from harness.metrics import METRICS, better_is_higher, described
from harness.report.data.budgets import ASKED
from harness.report.data.results import DIGEST_LETTERS, Cell, Results, grouped
from harness.report.tables.sheet import Sheet, in_markdown, latex_comment
from harness.report.tables.text import distinguishing, quantity, words
from harness.storage.cells import as_csv

BUDGETS = ("epsilon", *(f"privacy.{name}" for name in ASKED))
#: How tables call settings; others by their field, or by section and field where that says too little.
HEADINGS = {
    "algorithm.name": "algorithm",
    "data.name": "data",
    "model.name": "model",
    "epsilon": "ε",
    "privacy.epsilon": "ε",
    "privacy.epsilon_nominal": "nominal ε",
    "privacy.epsilon_release": "ε of a release",
}
NO_PRIVACY = "no privacy"
NO_SETTING = "none"  # name of the row or column of what has no such setting
Settings = tuple[tuple[str, str], ...]  # dotted names and values


class Place(NamedTuple):
    """An entry of a table.

    Attributes
    ----------
    text : str
        Printed text.
    values : Mapping[int, float]
        Seed to value.
    settings : str
        The hyper-parameters chosen.
    value : float or None
        A value that belongs to no seed.
    """

    text: str
    values: Mapping[int, float] = MappingProxyType({})
    settings: str = ""
    value: float | None = None


class Grid(NamedTuple):
    """One table.

    Attributes
    ----------
    title, corner, note : str
        Title; text of the upper left corner; note above the table.
    rows, columns : tuple[str, ...]
        Values of the two settings.
    places : dict[tuple[str, str], Place]
        Entries by row and column; combinations that were not run are absent.
    answers : tuple[str, ...]
        What the table says, in sentences above it; the note then stands below.
    """

    title: str
    corner: str
    note: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    places: dict[tuple[str, str], Place]
    answers: tuple[str, ...] = ()

    @classmethod
    def of_texts(
        cls, title: str, corner: str, note: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]
    ) -> Grid:
        """Return a table of texts: a text for each column, by row."""
        places = {
            (row, column): Place(text)
            for row, texts in rows.items()
            for column, text in zip(columns, texts, strict=True)
        }
        return cls(title, corner, note, tuple(rows), tuple(columns), places)

    def lines(self) -> list[tuple[str, list[str]]]:
        """Return every row's name and texts."""
        here = {key: place.text for key, place in self.places.items()}
        return [(row, [here.get((row, column), "") for column in self.columns]) for row in self.rows]

    def worded(self) -> list[bool]:
        """Return whether each column holds words, which stand at the left, and no numbers."""
        texts = zip(*(texts for _, texts in self.lines()), strict=True)
        return [any(own) and all(text[:1].isalpha() for text in own if text) for own in texts]

    def sheet(self) -> Sheet:
        """Return the texts for Markdown and LaTeX."""
        rows = [[name, *texts] for name, texts in self.lines()]
        return Sheet([self.corner, *self.columns], [False, *(True for _ in self.columns)], rows)


def tabulate(results: Results, pivot: Pivot, by: str, target: Target | None = None) -> list[Grid]:
    """Return the tables of a pivot.

    Tables with a single row are omitted if others have more.

    Raises
    ------
    UserError
        If the measure or a setting is unknown, or there is no target for a cost to it.
    """
    measure = pivot.measure or by
    if described(measure) is None and measure not in COSTS and measure not in COSTS_TO_TARGET:
        raise unknown("measure of a pivot", measure, [*METRICS, *COSTS, *COSTS_TO_TARGET])
    if measure in COSTS_TO_TARGET and target is None:
        raise UserError(f"pivot: {measure} needs a target")
    cells = results.cells
    settings = {name for cell in cells for name in cell.settings}
    for name in (pivot.rows, pivot.columns):
        if cells and name not in settings:
            raise unknown("setting to tabulate by", name, sorted(settings))
    groups: dict[Settings, list[Cell]] = {}
    lacking: list[tuple[Cell, Settings]] = []
    for cell in cells:
        fixed = _table_settings(cell, pivot._replace(measure=measure))
        if pivot.rows in cell.settings and pivot.columns in cell.settings:
            groups.setdefault(fixed, []).append(cell)
        else:
            lacking.append((cell, fixed))
    omitted = [cell for cell, fixed in lacking if not _join(cell, fixed, pivot, groups)]
    telling = _distinguishing(groups)
    grids = {
        fixed: _grid(members, pivot, measure, target, telling[fixed])
        for fixed, members in sorted(groups.items())
    }
    tables = {fixed: grid for fixed, grid in grids.items() if len(grid.rows) > 1} or grids
    omitted += [cell for fixed in grids if fixed not in tables for cell in groups[fixed]]
    whole = list(tables.values())
    if whole and (names := sorted({cell.algorithm for cell in omitted})):
        text = f"{counted(len(omitted), 'cell')} of {', '.join(names)}"
        sentence = f"In no table of these settings, or alone in one: {text}."
        whole[-1] = whole[-1]._replace(note=f"{whole[-1].note} {sentence}")
    return whole


def _join(cell: Cell, fixed: Settings, pivot: Pivot, groups: Mapping[Settings, list[Cell]]) -> bool:
    """Add a cell without a setting of the pivot to the tables that it agrees with in all sections that it has."""
    sections = {name.partition(".")[0] for name in (pivot.rows, pivot.columns)}
    absent = sections - {name.partition(".")[0] for name in cell.settings}

    def rest(items: Settings) -> set[tuple[str, str]]:
        return {item for item in items if item[0].partition(".")[0] not in absent}

    matches = [members for other, members in groups.items() if rest(other) == rest(fixed)]
    for members in matches:
        members.append(cell)
    return bool(matches)


def _table_settings(cell: Cell, pivot: Pivot) -> Settings:
    """Return the settings that all cells of a cell's table share."""

    def moving(name: str) -> bool:
        section, _, last = name.partition(".")
        whole = {p.rpartition(".")[0] for p in pivot[:2] if p.endswith((".kind", ".name"))}
        tuned = section == "algorithm" and last != "name"
        tuned |= section == "topology" and "algorithm.name" in pivot[:2]
        tuned |= pivot.measure in COSTS_TO_TARGET and name in ("rounds", "eval_every")
        return name in ("seed", *pivot[:2]) or section in whole or tuned

    settings = {name: value for name, value in cell.given.items() if name in cell.variant or not moving(name)}
    record = cell.records[0]
    if record.digest and not any(name.startswith("data.") for name in pivot[:2]):
        settings["data.digest"] = record.digest[:DIGEST_LETTERS]
    return tuple(sorted({"suite": cell.suite, "profile": cell.records[0].profile, **settings}.items()))


def _distinguishing(tables: Iterable[Settings]) -> dict[Settings, Settings]:
    """Return, for every table, data, problem and algorithm, and the settings that distinguish it from others."""
    headings = {
        fixed: tuple(item for item in fixed if item[0] in ("data.name", "problem.kind", "algorithm.name"))
        for fixed in tables
    }
    telling = distinguishing({fixed: (names, fixed) for fixed, names in headings.items()})
    return {fixed: names + tuple(telling[fixed]) for fixed, names in headings.items()}


def _grid(
    members: Sequence[Cell],
    pivot: Pivot,
    measure: str,
    target: Target | None,
    telling: Sequence[tuple[str, str]],
) -> Grid:
    rivals = grouped(
        members,
        lambda cell: (_value(cell.settings, pivot.rows, pivot), _value(cell.settings, pivot.columns, pivot)),
    )
    places = {key: _place(cells, measure, target) for key, cells in rivals.items()}
    short = [HEADINGS.get(name, name.rpartition(".")[2]) for name in pivot[:2]]
    if short[0] == short[1] or "kind" in short or "name" in short:
        short = [HEADINGS.get(name, name) for name in pivot[:2]]
    most = max(len(cells) for cells in rivals.values())
    notes = ["Mean ± sample standard deviation over seeds."]
    if most > 1:
        notes.append(f"The best of up to {most} settings of the algorithm in every place.")
    if measure in COSTS_TO_TARGET:
        notes.append(f"To {target}; 'not reached' where a seed did not.")
    where = ", ".join(
        value if name.endswith((".name", ".kind")) else f"{name}={value}" for name, value in telling
    )
    return Grid(
        title=f"{words(measure)}: {where}" if where else words(measure),
        corner=f"{short[0]} \\ {short[1]}",
        note=" ".join(notes),
        rows=ordered(pivot.rows, (row for row, _ in rivals)),
        columns=ordered(pivot.columns, (column for _, column in rivals)),
        places=places,
    )


def _value(flat: Mapping[str, str], name: str, pivot: Pivot) -> str:
    """Return the name of a cell's row or column."""
    if name not in flat:
        return NO_PRIVACY if name in BUDGETS else NO_SETTING  # other noise is in no table, see `_join`
    if name in BUDGETS:
        return flat[name].removesuffix(".0")
    beside = name == "algorithm.name" and "topology.kind" not in pivot[:2] and "topology.kind" in flat
    return f"{flat[name]} ({flat['topology.kind']})" if beside else flat[name]


def _place(rivals: Sequence[Cell], measure: str, target: Target | None) -> Place:
    """Return the values of the best of some cells."""
    sign = -1 if better_is_higher(measure) else 1
    scored = []
    for cell in rivals:
        if measure in COSTS_TO_TARGET:
            assert target is not None
            values = cell.costs(target, measure)
        else:
            values = cell.values(measure)
        if values:
            short = len(values) < len(cell.records)  # a mean over the remaining seeds would be biased
            scored.append((short, sign * fmean(values.values()), cell.key, values, cell))
    if not scored:
        statuses = {record.status for cell in rivals for record in cell.records}
        missed = measure in COSTS_TO_TARGET and "done" in statuses
        return Place("not reached" if missed else "/".join(sorted(statuses - {"done"})))
    short, _, _, values, best = min(scored, key=lambda entry: entry[:3])
    settings = {k.partition(".")[2]: v for k, v in best.settings.items() if k.startswith("algorithm.")}
    text = with_spread(values, measure) + (f" ({len(values)}/{len(best.records)} seeds)" if short else "")
    return Place(text, values, " ".join(f"{k}={v}" for k, v in settings.items()))


def with_spread(values: Mapping[int, float], measure: str) -> str:
    """Return mean and standard deviation over seeds in the measure's format; empty without values."""
    if not values:
        return ""
    spread = f" ± {value_text(stdev(values.values()), measure)}" if len(values) > 1 else ""
    return value_text(fmean(values.values()), measure) + spread


def value_text(value: float, measure: str) -> str:
    """Return a value in its measure's format."""
    if measure.startswith("bytes"):
        return size(value)
    if measure in ("flops", "oracle_calls", "oracle_calls_to_target"):
        return count(value)
    metric = described(measure)
    return quantity(value, 3) if metric is None else format(value, f"z{metric.format}")


def ordered(setting: str, values: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct values, numbers by size before words; budgets from no privacy down."""
    falling = setting in BUDGETS

    def order(value: str) -> tuple[bool, float, str]:
        try:
            return falling, -float(value) if falling else float(value), value
        except ValueError:
            return not falling, 0.0, value

    return tuple(sorted(set(values), key=order))


def grids_markdown(grids: Sequence[Grid]) -> str:
    """Return the tables in GitHub's Markdown."""
    lines: list[str] = []
    for grid in grids:
        note, table = [in_markdown(grid.note), ""], [*grid.sheet().markdown(), ""]
        answers = [f"- {in_markdown(answer)}" for answer in grid.answers]
        lines += [f"### {in_markdown(grid.title)}", ""]
        lines += [*answers, "", *table, *note] if answers else [*note, *table]
    return "\n".join(lines)


def grids_latex(grids: Sequence[Grid]) -> str:
    """Return the tables as LaTeX ``tabular`` environments (package booktabs), titles and notes as comments."""
    lines: list[str] = []
    for grid in grids:
        comments = map(latex_comment, (grid.title, *grid.answers, grid.note))
        lines += [*comments, *grid.sheet().latex(), ""]
    return "\n".join(lines)


def grids_csv(grids: Sequence[Grid]) -> str:
    """Return CSV with one line per entry and seed, in full precision."""
    rows: list[tuple[Any, ...]] = [("table", "row", "column", "seed", "value", "settings")]
    for grid in grids:
        for (row, column), place in sorted(grid.places.items()):
            for seed, value in sorted(place.values.items()):
                rows.append((grid.title, row, column, seed, value, place.settings))
            if place.value is not None:
                rows.append((grid.title, row, column, "", place.value, place.settings))
    return as_csv(rows)
