"""Formatting of numbers and names of measures."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, TypeVar

import pandas as pd

from harness.core.units import counted
from harness.metrics import bounds, described, split_measure

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)

#: Measures whose display name is not their own with spaces.
NAMES = {
    "auroc": "AUROC", "auroc_clients": "AUROC inside clients", "eqopp": "EqOpp gap", "eqodds": "EqOdds gap",
    "dp_gap": "Parity gap", "mae": "MAE", "rmse": "RMSE", "r2": "R²", "worst_mae": "Worst MAE",
    "mae_gap": "MAE gap", "lira_auc": "LiRA AUC", "rmia_auc": "RMIA AUC", "transcript_auc": "Transcript AUC",
    "inversion_psnr": "Inversion PSNR",
}  # fmt: skip

#: What the pruning ratios do.
PRUNED = {"alpha": "of hidden units pruned", "beta": "of message entries dropped"}


def words(measure: str) -> str:
    """Return the display name of a measure."""
    prefix, name = split_measure(measure)
    if prefix:
        return f"{prefix.replace('_', ' ').capitalize()} {NAMES.get(name, name.replace('_', ' '))}"
    return NAMES.get(measure, measure.replace("_", " ").capitalize())


def in_sentence(measure: str) -> str:
    """Return the display name of a measure as it stands inside a sentence."""
    text = words(measure)
    return text if text[:2].isupper() else text[0].lower() + text[1:]


def quantity(value: float | None, digits: int = 4) -> str:
    """Return a number with `digits` significant digits; empty for None or NaN."""
    return "" if is_empty(value) else f"{value:z.{digits}g}"


def signed(value: float, form: str) -> str:
    """Return a difference with its sign, in a format such as ``+.1f``; a zero has none."""
    text = format(value, form)
    return text if float(text) else text.lstrip("+-")


def form_of(measure: str) -> str:
    """Return the format of a measure's values."""
    metric = described(measure)
    return ".3g" if metric is None else metric.format


def possible(value: float, measure: str) -> float:
    """Return the end of an interval, or the nearest value that the measure can have."""
    least, most = bounds(measure)
    return min(max(value, least), most)


def possible_change(value: float, measure: str) -> float:
    """Return the end of an interval of a change, or the largest change that the measure can make."""
    least, most = bounds(measure)
    return min(max(value, least - most), most - least)


def change_text(value: float, measure: str, sign: str = "+") -> str:
    """Return a change of a measure: of a share in points, ``+1.9``; an empty `sign` leaves out the plus."""
    value = possible_change(value, measure)
    return signed(100 * value, f"{sign}.1f") if in_points(measure) else signed(value, f"{sign}.3g")


def span(low: float, high: float) -> str:
    """Return two whole numbers as ``38 to 42``, and equal ones as one."""
    return f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"


def spread(values: Collection[float], form: str) -> str:
    """Return mean and sample standard deviation in a format, ``0.81 ± 0.02``; empty without values."""
    if not values:
        return ""
    mean = format(fmean(values), f"z{form}")
    return f"{mean} ± {format(stdev(values), form)}" if len(values) > 1 else mean


def in_points(measure: str) -> bool:
    """Return whether a measure is a share, so that differences are percentage points."""
    return bounds(measure) == (0.0, 1.0)


def pruned_texts(ratios: Mapping[str, Any], effects: Mapping[str, str] = PRUNED) -> list[str]:
    """Return the pruning ratios that are not 0 in words, as ``90 % of message entries dropped``."""
    return [f"{100 * ratios[name]:.3g} % {effect}" for name, effect in effects.items() if ratios[name]]


def share(value: float | None) -> str:
    """Return a share as ``32 %``."""
    return "" if value is None or is_empty(value) else f"{100 * value:.0f} %"


EXTRAPOLATED = "†"  # beside an epsilon of larger cohorts than are simulated


def extrapolation(cohorts: Iterable[Any]) -> str:
    """Return the meaning of the mark, given the cohorts that rows are extrapolated to; empty without any."""
    sizes = [int(cohort) for cohort in cohorts if not is_empty(cohort)]
    if not sizes:
        return ""
    return (
        f"{EXTRAPOLATED} Extrapolated: the noise is that of cohorts of up to {counted(max(sizes), 'client')}, in "
        "federations that are larger in proportion; it is no guarantee for the clients that were simulated."
    )


def distinguishing(members: Mapping[K, tuple[Hashable, Sequence[V]]]) -> dict[K, list[V]]:
    """Return the texts of every member that not all members of its group have.

    Parameters
    ----------
    members : Mapping
        Member -> its group, and its texts, such as ``algorithm.lr=0.1``.
    """
    common: dict[Hashable, set[V]] = {}
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
