"""Rows within given bounds in words: settings, privacy, values, and how they stand to the bounds and the first."""

from __future__ import annotations

import math
from typing import Any

from harness.config.conditions import Condition
from harness.config.recorded import BUILT_IN, RUN_FIELDS
from harness.core.units import counted, size
from harness.report.data.evidence import SEARCHES, TOTALS, Estimate, Row
from harness.report.data.recommendation import ALONE, SCOPE, Answer, RatedRow, Recommendation
from harness.report.data.results import first_of_each
from harness.report.data.specs import in_text, settings_of
from harness.report.tables.text import (
    EXTRAPOLATED,
    in_points,
    possible,
    possible_change,
    pruned_texts,
    quantity,
    signed,
    words,
)

MOST = 10  # rows in a terminal
FEW = 3  # federations that have several rows each
BUDGETS = ("epsilon", "epsilon_total")


def recommendation_rows(answer: Recommendation) -> list[dict[str, Any]]:
    """Return a row for every row within the bounds, by federation: settings, value, loss, certainty."""
    return [_row(own, rated, answer) for own in answer.answers for rated in own.rows]


def readable_rows(answer: Recommendation) -> list[dict[str, Any]]:
    """Return at most `MOST` rows for a terminal: the best of each method, of many federations the first of each."""
    found = answer.found
    if len(found) > FEW:
        return [_overview(own, answer) for own in found[:MOST]]
    shown = [(own, rated) for own in found for rated in _best_of_methods(own)[: MOST // max(1, len(found))]]
    rows = [(_named(own) if len(found) > 1 else {}) | _readable(own, rated, answer) for own, rated in shown]
    if all(rated.within == rated.seeds for _, rated in shown):
        for row in rows:
            del row["within bounds"]
    return rows


def table_title(answer: Recommendation, shown: int) -> str:
    """Return the title of a table of so many of the rows within the bounds."""
    what = "the first of each federation" if len(answer.found) > FEW else "the best of each method first"
    more = f"; {shown} of {len(answer.rows)} rows, all with --json" if shown < len(answer.rows) else ""
    return f"Within all bounds, {what}{more}"


def settings_text(row: Row) -> str:
    """Return the settings of a row that are not at their defaults, as ``lr 0.64, local_steps 17, rounds 10``."""
    usual = BUILT_IN["algorithm"].get(row["algorithm"], {}).get("defaults", {})
    problem = BUILT_IN["problem"].get(row["problem"] or "", {}).get("defaults", {})
    parts = []
    for name, value in settings_of(row).items():
        section, _, field = name.rpartition(".")
        default = (usual if not section else problem if section == "problem" else {}).get(field)
        own = section in ("model", "problem", "cohort") or (not section and field not in RUN_FIELDS)
        if own and (default is None or in_text(name, default) != value):
            parts.append(f"{name if section else field} {value}")
    parts.append(f"rounds {row['rounds']}")
    if row["clip"] is not None:
        parts.append(f"clip {row['clip'] if isinstance(row['clip'], str) else quantity(row['clip'])}")
    return ", ".join([*parts, *pruned_texts(row), *_codes(row)])


def method_text(row: Row) -> str:
    """Return a row's method and its compression, by which rows of one method differ, as ``fedavg, beta 0.9``."""
    ratios = [f"{name} {row[name]:.3g}" for name in ("alpha", "beta") if row[name]]
    return ", ".join([str(row["algorithm"]), *ratios, *_codes(row)])


def _codes(row: Row) -> list[str]:
    """Return whether a row has error feedback, and its codec, if they are not the usual ones."""
    feedback = settings_of(row).get("compression.error_feedback") == "true"
    usual = row["codec"] in (None, "float32", "float64")
    return [*(["error feedback"] if feedback else []), *([] if usual else [f"codec {row['codec']}"])]


def guarantee_text(row: Row) -> str:
    """Return the privacy of a row in words."""
    if row["model_for"] == ALONE:
        return "with nothing sent"
    if row["dp_unit"] is None:
        return "without privacy"
    mechanism = f"{row['dp_mechanism']} " if row["dp_mechanism"] not in (None, "independent") else ""
    return f"under {_amount(row)} for a {row['dp_unit']} ({mechanism}{row['dp_placement']} noise)"


def protection_text(row: Row) -> str:
    """Return privacy and compression of a row in the words of a table."""
    parts = []
    if row["dp_unit"] is not None:
        parts.append(_amount(row))
        if row["dp_mechanism"] not in (None, "independent"):
            parts.append(f"{row['dp_mechanism']} noise")
        if row["noise_cohort"] is not None:
            parts.append(f"extrapolated to cohorts of {row['noise_cohort']:,}")
    parts += pruned_texts(row, {"alpha": "pruned", "beta": "dropped"})
    if row["codec"] not in (None, "float32", "float64"):
        parts.append(f"sent as {row['codec']}")
    return ", ".join(parts) or "no privacy, nothing pruned"


def bound_text(condition: Condition) -> str:
    """Return a bound with bytes in their units."""
    if condition.name.startswith("bytes") and condition.name in TOTALS and isinstance(condition.value, float):
        return f"{condition.name} {condition.sign} {size(condition.value)}"
    return str(condition)


def estimate_text(by: str, estimate: Estimate) -> str:
    """Return a value with its interval: ``0.819 [0.813, 0.825]``."""
    value = value_of(by, estimate.mean)
    if not estimate.over:
        return value
    low, high = (value_of(by, possible(end, by)) for end in (estimate.low, estimate.high))
    return f"{value} [{low}, {high}]"


def interval_over(row: Row, estimate: Estimate) -> str:
    """Return what an interval covers."""
    if estimate.over == SEARCHES:
        return f"over {SEARCHES}"
    tuned = ", without the luck of the search for settings" if row["tuned"] else ""
    return f"over {counted(row['done'], 'seed')}{tuned}"


def within_text(rated: RatedRow) -> str:
    """Return in how many seeds the bounds hold; of published rows about how many."""
    about = "" if rated.counted or rated.within == rated.seeds else "about "
    return f"{about}{rated.within} of {rated.seeds}"


def value_of(by: str, value: float) -> str:
    """Return a value of a measure: shares with three digits, bytes in their units."""
    if in_points(by):
        return f"{value:z.3f}"
    return size(value) if by.startswith("bytes") else quantity(value)


def difference(by: str, value: float, sign: bool = False) -> str:
    """Return a difference of a measure: of shares in points."""
    value = possible_change(value, by)
    if in_points(by):
        text = signed(100 * value, "+.1f") if sign else format(100 * value, "z.1f")
        return text if sign else f"{text} points"
    return size(value) if by.startswith("bytes") else quantity(value)


def model_text(row: Row) -> str:
    """Return what is trained, where it is no plain classification or regression by a linear model."""
    problem = f" on {row['problem']}" if row["problem"] not in (None, "classify", "regression") else ""
    return f" ({row['model']}{problem})" if row["model"] else problem


def column_text(name: str, value: Any, noise_cohort: int | None) -> Any:
    """Return a value as text, with the mark of an epsilon that is extrapolated."""
    if name in TOTALS and name.startswith("bytes"):
        return size(value)
    text = quantity(value) if isinstance(value, float) else value
    marked = name.startswith("epsilon") and value is not None and noise_cohort is not None
    return f"{text}{EXTRAPOLATED}" if marked else text


def _best_of_methods(answer: Answer) -> list[RatedRow]:
    """Return the first row of each method; all rows where there is only one."""
    firsts = first_of_each(answer.rows, lambda rated: rated.algorithm)
    return list(answer.rows if len(firsts) == 1 else firsts.values())


def _plain(by: str, value: float) -> str:
    """Return a difference without its unit."""
    return difference(by, value).removesuffix(" points")


def _amount(row: Row) -> str:
    """Return how much privacy a private row has."""
    epsilon, mark = row["epsilon_total"], "" if row["noise_cohort"] is None else EXTRAPOLATED
    return (
        "clipped, no noise" if epsilon is None or math.isinf(epsilon) else f"ε = {quantity(epsilon, 3)}{mark}"
    )


def _row(own: Answer, rated: RatedRow, answer: Recommendation) -> dict[str, Any]:
    low, high = rated.interval
    estimate, loss, row = own.estimates[rated.key], own.losses[rated.key], rated.row
    names = dict.fromkeys([answer.by, *(condition.name for condition in answer.conditions)])
    return {
        "algorithm": rated.algorithm,
        "data": own.federation.dataset,
        "clients": own.federation.clients,
        "protection": protection_text(row),
        "settings": settings_text(row),
        "model": row["model"],
        "problem": row["problem"],
        "model_for": row["model_for"],
        "within": rated.share,
        "within_low": low,
        "within_high": high,
        "within_counted": rated.counted,
        "seeds": rated.seeds,
        **{name: rated.values[name] for name in names if name not in ("algorithm", "dataset")},
        "low": _finite(estimate.low),
        "high": _finite(estimate.high),
        "interval_over": estimate.over or None,
        "loss": loss.mean,
        "loss_low": _finite(loss.low),
        "loss_high": _finite(loss.high),
        "loss_over": loss.over or None,
        "loss_paired": loss.paired,
        "told_apart": own.is_apart(rated),
        "same_method_differs": own.luck,
        "noise_cohort": row["noise_cohort"],
        "cell": rated.key,
    }


def _readable(own: Answer, rated: RatedRow, answer: Recommendation) -> dict[str, Any]:
    loss, by = own.losses[rated.key], answer.by
    bounds = (
        c.name for c in answer.conditions if c.upper is not None and c.name not in (by, *SCOPE, *BUDGETS)
    )
    is_best = rated is own.best
    return {
        "method": method_text(rated.row),
        "protection": protection_text(rated.row),
        words(by): estimate_text(by, own.estimates[rated.key]),
        "costs (points)" if in_points(by) else "costs": "" if is_best else _plain(by, loss.mean),
        "told apart": "" if is_best else "yes" if own.is_apart(rated) else "no",
        "within bounds": within_text(rated),
        **{
            name.replace("_", " "): column_text(name, rated.values[name], rated.row["noise_cohort"])
            for name in dict.fromkeys([*bounds, "bytes"])
        },
        "model for": rated.row["model_for"],
    }


def _overview(own: Answer, answer: Recommendation) -> dict[str, Any]:
    """Return the first row of a federation beside what it is compared with."""
    row = _readable(own, own.best, answer)
    kept = {name: row[name] for name in ("method", "protection", words(answer.by), "bytes", "model for")}
    values = {"no privacy": own.without_privacy, "alone": own.alone}
    return {
        **_named(own),
        **kept,
        "as good": counted(len(own.equal), "method"),
        **{name: "" if one is None else value_of(answer.by, one.mean) for name, one in values.items()},
    }


def _named(own: Answer) -> dict[str, Any]:
    return {"federation": own.federation.dataset or "-", "clients": own.federation.clients}


def _finite(value: float) -> float | None:
    """Return an end of an interval; None where there is none, as JSON has no infinity."""
    return value if math.isfinite(value) else None
