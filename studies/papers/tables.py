"""Evidence of claims about committed tables: rows that no recorded run stands behind any more.

Such rows have seeds and settings, but neither run ids nor versions: a claim about them is judged as any other, and
is not compared with today's code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.errors import UserError, unknown
from harness.report.data.published import read_fields
from studies.papers.claims import PaperClaim, PaperClaims, settings_text
from studies.papers.observations import FILE, Observation, read_observations

Row = Mapping[str, str]


def evidence(claims: PaperClaims) -> list[Observation]:
    """Return all observations of the claims of a folder: those written down, and the rows of its tables."""
    return [*read_observations(claims.folder / FILE), *from_tables(claims)]


def from_tables(claims: PaperClaims) -> list[Observation]:
    """Read the observations of the claims that are about tables.

    Raises
    ------
    UserError
        If a table is missing, a column unknown, or a side of a claim has no row, or two rows of one seed.
    """
    about = [claim for claim in claims.claims if claim.table]
    tables = {name: _rows(claims.folder / name) for name in {claim.table for claim in about}}
    return [
        observation
        for claim in about
        for arm, where in claim.arms.items()
        for observation in _arm(claim, arm, {**claim.at, **where}, tables[claim.table])
    ]


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        return read_fields(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; a claim is about it") from None


def _arm(claim: PaperClaim, arm: str, where: Mapping[str, Any], rows: Sequence[Row]) -> list[Observation]:
    """Return the observations of one side of a claim, one a seed."""
    columns = rows[0] if rows else {}
    for name in (*where, claim.measure.name, claim.over):
        if name not in columns:
            raise unknown(f"column of {claim.table} in {claim.id}", name, columns)
    matching = [row for row in rows if all(row[name] == str(value) for name, value in where.items())]
    by_seed = {row[claim.over]: row for row in matching}
    if not matching or len(by_seed) < len(matching):
        found = "two rows of one seed" if matching else "no row"
        raise UserError(f"{claim.id}: {claim.table} has {found} with {settings_text(where)}")
    return [
        Observation(
            *(claim.id, claim.question, arm, None, "", seed, float(row[claim.measure.name]), False),
            *("", ""),
        )
        for seed, row in by_seed.items()
    ]
