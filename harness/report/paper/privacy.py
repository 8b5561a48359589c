"""The privacy statement of a paper: the unit, who adds noise, the composition and the most exposed client."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.report.data.clients import client_names
from harness.report.data.exposed import most_exposed, person_or_client
from harness.report.data.results import Cell, grouped
from harness.report.tables.privacy import (
    CHANGES,
    DRAWN,
    PLACEMENTS,
    SAMPLINGS,
    UNITS,
    of_user,
    public_and_private,
    uncovered_by,
    uncovered_sentence,
)
from harness.report.tables.text import quantity

LONGEST = 1500  # characters of one assumption; only lists of columns are longer


def privacy_statement(cells: Sequence[Cell]) -> str:
    """Return what holds for the private ones of some cells, kind by kind; empty if there are none.

    Everything is read from records.
    """
    private = [(cell, claim) for cell in cells if (claim := cell.privacy()) is not None]
    if not private:
        return ""
    names = ("unit", "placement", "adjacency", "sampling", "delta", "mechanism")
    kinds = grouped(private, lambda member: tuple(str(member[1].get(name)) for name in names))
    protected = [cell for members in kinds.values() for cell, _ in members]
    public = {
        fact
        for cell in protected
        for fact in public_and_private(cell.done[0].record.final.get("public", ()))[0]
    }
    text = f"{uncovered_sentence(map(_short, uncovered_by(protected)))} {' '.join(map(_paragraph, kinds.values()))}"
    if public:
        text += f" Taken as public: {'; '.join(sorted(map(_short, public)))}."
    return text + " Rows without ε have no privacy."


def _paragraph(members: Sequence[tuple[Cell, Mapping[str, Any]]]) -> str:
    statements = [statement for _, statement in members]
    first = statements[0]
    unit, placement = str(first.get("unit")), str(first.get("placement"))
    change, sampling = str(first.get("adjacency")), str(first.get("sampling"))
    who = person_or_client(first)
    about = f"the most exposed {who}" if unit in ("client", who) else f"a {unit} of the most exposed {who}"
    exposed = _distinct(_most_exposed(cell, statement) for cell, statement in members)

    def all_of(name: str) -> list[Any]:
        return [statement[name] for statement in statements if statement.get(name) is not None]

    users = _distinct(of_user(statement).removesuffix("; ") or None for statement in statements)
    facts = [
        f"Differential privacy of {UNITS.get(unit, unit)} (unit {unit}), neighbors being data in which it is "
        f"{CHANGES.get(change, change)} (adjacency {change}); {PLACEMENTS.get(placement, placement)} (placement "
        f"{placement}); {DRAWN.get(unit, 'participants of a round')}: {SAMPLINGS.get(sampling, sampling)} "
        f"(sampling {sampling}).",
        f"Messages are clipped to norm {_distinct(all_of('clip'))}; the noise multiplier is "
        f"{_span(all_of('noise_multiplier'))}.",
        f"ε is that of all protected messages of a run about {about}, at δ = {first.get('delta')}: "
        f"{_span(all_of('releases'))} {'' if users else 'Gaussian '}releases, composed by the accountant "
        f"{_distinct(all_of('accountant'))}.",
        f"It is {_span(all_of('epsilon_total'))} over the rows, and for the median {who} "
        f"{_span(all_of('epsilon_median')) or 'not recorded'}.",
        f"Most exposed: {exposed}." if exposed else "",
        f"Noise: {users}." if users else "",
        "Noise is correlated between rounds (banded)." if all_of("bands") else "",
        f"Generator: {_distinct(all_of('generator'))}." if all_of("generator") else "",
        f"Arithmetic: {_distinct(all_of('arithmetic'))}." if all_of("arithmetic") else "",
        *(f"Warning: {warning}." for warning in dict.fromkeys(all_of("warning"))),
        "ε is extrapolated where the noise is that of larger cohorts than were simulated."
        if any("noise_cohort" in statement for statement in statements)
        else "",
    ]
    return " ".join(filter(None, facts))


def _most_exposed(cell: Cell, statement: Mapping[str, Any]) -> str | None:
    """Return the client with the largest ε, by its name where clients have names."""
    final = cell.records[0].final
    exposed = most_exposed(statement, final.get("clients"))
    return exposed and exposed.text(client_names(final))


def _distinct(values: Iterable[Any]) -> str:
    """Return the different values, numbers in order."""
    distinct = {value for value in map(_hashable, values) if value is not None}
    return ", ".join(map(_text, sorted(distinct, key=lambda v: (isinstance(v, str), v))))


def _hashable(value: Any) -> Any:
    return str(value) if isinstance(value, list | tuple | dict) else value


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _span(values: Iterable[Any]) -> str:
    """Return the least and the largest of numbers."""
    numbers = [float(value) for value in values if value is not None]
    low, high = (quantity(end(numbers), 3) if numbers else "" for end in (min, max))
    return low if low == high else f"{low} to {high}"


def _short(fact: str) -> str:
    return textwrap.shorten(fact, LONGEST, placeholder=" and more")
