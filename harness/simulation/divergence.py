"""Detection of runs that are no longer finite.

Under privacy of unit client only what has passed the mechanism may decide whether a run is done or has failed. Rows
that clients keep are made of their own data, without noise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.core.clients.cohort import Cohort
from harness.core.clients.row_table import RowTable, one_row


def keep_finite(before: Any, after: Any, runs: tuple[int, ...], cohort: Cohort) -> Any:
    """Return the state ``after`` a round, where clients keep their old rows for those that are not finite.

    Parameters
    ----------
    before, after : NamedTuple of tensors
        States; ``before`` None stands for zeros.
    runs : tuple of int
        Leading axes of stacked runs, ``()`` or ``(R,)``.
    cohort : Cohort
        The cohort of the round.
    """
    if all(field.is_meta or bool(touched(field, cohort).isfinite().all()) for field in after):
        return after
    old = type(after)(*map(torch.zeros_like, after)) if before is None else before
    return type(after)(*(_kept(a, b, len(runs), cohort) for a, b in zip(old, after, strict=True)))


def touched(field: Tensor, cohort: Cohort) -> Tensor:
    """Return what a round may have changed of a field of the state: of a table of rows those of the cohort."""
    return cohort.take(field) if isinstance(field, RowTable) else field


def distinct(rows: Tensor) -> Tensor:
    """Return rows ``(..., total, P)``; the first only where all are views of it."""
    return rows[..., :1, :] if one_row(rows) else rows


def _kept(old: Tensor, new: Tensor, axes: int, cohort: Cohort) -> Tensor:
    if new.ndim <= axes + 1:  # a vector of the server
        return new
    rows = touched(new, cohort)
    finite = rows.isfinite().all(-1, keepdim=True)
    if rows is new:
        return torch.where(finite, new, old)
    return cohort.put(new, torch.where(finite, rows, cohort.take(old)))


def finite_runs(fields: Any, runs: tuple[int, ...]) -> Tensor:
    """Return which runs have finite fields only, ``(R,)``, or ``(1,)`` for a single run."""
    count = runs[0] if runs else 1
    finite = torch.ones(count, dtype=torch.bool)
    for field in fields:
        if field.is_meta:  # of a dry run, which has no values
            continue
        finite = finite & field.isfinite().reshape(count, -1).all(-1).to(finite.device)
    return finite
