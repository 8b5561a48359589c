"""Formatting of numbers and names of measures."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd

from harness.core.registry import counted
from harness.metrics import parted

K = TypeVar("K", bound=Hashable)


def words(measure: str) -> str:
    """Return the display name of a measure."""
    special = {"auroc": "AUROC", "eqopp": "EqOpp gap", "eqodds": "EqOdds gap", "dp_gap": "Parity gap"}
    special |= {"mae": "MAE", "rmse": "RMSE", "r2": "R²", "worst_mae": "Worst MAE", "mae_gap": "MAE gap"}
    special |= {"lira_auc": "LiRA AUC", "rmia_auc": "RMIA AUC", "transcript_auc": "Transcript AUC"}
    special |= {"inversion_psnr": "Inversion PSNR"}
    prefix, name = parted(measure)
    if prefix:
        return f"{prefix.replace('_', ' ').capitalize()} {special.get(name, name.replace('_', ' '))}"
    return special.get(measure, measure.replace("_", " ").capitalize())


def quantity(value: float | None, digits: int = 4) -> str:
    """Return a number with `digits` significant digits; empty for None or NaN."""
    return "" if is_empty(value) else f"{value:.{digits}g}"


def size(value: float | None) -> str:
    """Return bytes as ``4.91 MB`` (powers of 1000)."""
    return _scaled(value, ("B", "kB", "MB", "GB", "TB", "PB"))


def count(value: float | None) -> str:
    """Return a large number as ``3.2 M`` (powers of 1000)."""
    return _scaled(value, ("", "k", "M", "G", "T", "P")).rstrip()


def work(value: float | None) -> str:
    """Return floating-point operations as ``3.2 GFLOP``."""
    return _scaled(value, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def duration(seconds: float | None) -> str:
    """Return a time as ``3.2 s``, ``14 min`` or ``2.1 h``."""
    if seconds is None or is_empty(seconds):
        return ""
    return (
        f"{seconds:.3g} s"
        if seconds < 120
        else f"{seconds / 60:.3g} min"
        if seconds < 7200
        else f"{seconds / 3600:.3g} h"
    )


def energy(joules: float | None) -> str:
    """Return an energy as ``3.2 kJ``."""
    return _scaled(joules, ("J", "kJ", "MJ", "GJ", "TJ"))


def share(value: float | None) -> str:
    """Return a share as ``32 %``."""
    return "" if value is None or is_empty(value) else f"{100 * value:.0f} %"


def _scaled(value: float | None, units: Sequence[str]) -> str:
    if value is None or is_empty(value):
        return ""
    step = 0 if value < 1000 else min(len(units) - 1, math.floor(math.log10(value) / 3 + 1e-9))
    return f"{value:.0f} {units[0]}" if step == 0 else f"{value / 1000**step:.3g} {units[step]}"


EXTRAPOLATED = "†"  # beside an epsilon of larger cohorts than are simulated


def extrapolation(cohorts: Iterable[Any]) -> str:
    """Return what the mark means, given the cohorts that rows are extrapolated to; empty if none is."""
    known = [int(cohort) for cohort in cohorts if not is_empty(cohort)]
    if not known:
        return ""
    return (
        f"{EXTRAPOLATED} Extrapolated: the noise is that of cohorts of up to {counted(max(known), 'client')}, in "
        "federations that are larger in proportion; it is no guarantee for the clients that were simulated."
    )


def telling(members: Mapping[K, tuple[str, Sequence[str]]]) -> dict[K, list[str]]:
    """Return the texts of every member that not all members of its group have.

    Parameters
    ----------
    members : Mapping
        Member -> its group, and its texts, such as ``algorithm.lr=0.1``.
    """
    common: dict[str, set[str]] = {}
    for group, texts in members.values():
        common.setdefault(group, set(texts)).intersection_update(texts)
    return {
        key: [text for text in texts if text not in common[group]] for key, (group, texts) in members.items()
    }


def without_section(setting: str) -> str:
    """Return ``lr=0.1`` for ``algorithm.lr=0.1``."""
    name, equals, value = setting.partition("=")
    return f"{name.rpartition('.')[2]}{equals}{value}"


def is_empty(value: Any) -> bool:
    """Return whether a field of a table is empty."""
    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value)
