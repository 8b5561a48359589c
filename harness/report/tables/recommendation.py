"""The answer to given bounds in sentences and as rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.config.conditions import Condition
from harness.config.recorded import BUILT_IN, RUN_FIELDS
from harness.core.registry import counted
from harness.core.units import size
from harness.report.data.evidence import SEARCHES, TOTALS, Estimate, Row
from harness.report.data.recommendation import (
    ALONE,
    COMMON,
    SAME,
    SCOPE,
    Answer,
    Obstacle,
    RatedRow,
    Recommendation,
)
from harness.report.data.specs import in_text
from harness.report.tables.text import (
    EXTRAPOLATED,
    extrapolation,
    in_points,
    in_sentence,
    quantity,
    signed,
    words,
)

MOST = 10  # rows in a terminal
FEW = 3  # federations that have several rows each
MOST_NAMES = 4  # of methods in a sentence
BUDGETS = ("epsilon", "epsilon_total")
LITTLE = 0.5  # share of the bytes of the best row that is worth a word


def recommendation_rows(answer: Recommendation) -> list[dict[str, Any]]:
    """Return a row for every row within the bounds, by federation: settings, value, loss, certainty."""
    several = len(answer.answers) > 1
    return [_row(own, rated, answer, several) for own in answer.answers for rated in own.rows]


def sentences(answer: Recommendation) -> list[str]:
    """Return the answer in sentences: of one federation what to take, of several what holds on most of them.

    If no row is within the bounds, they say which bound excludes what is within the others.
    """
    found = [own for own in answer.answers if own.rows]
    if not found:
        return nothing(answer)
    if len(found) == 1:
        empty = [federation_text(own) for own in answer.answers if not own.rows]
        missing = [f"Nothing is within the bounds on {listed(empty, MOST)}."] if empty else []
        return [*federation_sentences(found[0], answer), *missing]
    return [
        *unknown_budgets(answer.conditions, answer.answers),
        *_over_federations(found, answer),
    ]


def notes(answer: Recommendation) -> list[str]:
    """Return what belongs below the table: how many rows there are, and what marks and lone clients mean."""
    shown = [rated for own in answer.answers for rated in own.rows]
    bounds = " and ".join(map(bound_text, answer.conditions))
    alone = sorted({rated.algorithm for rated in shown if rated.row["model_for"] == ALONE})
    lines = []
    if shown:
        lines.append(
            f"{len(shown)} of {counted(answer.considered, 'row')} are within {bounds}, on average over seeds."
        )
    if alone:
        lines.append(
            f"{', '.join(alone)}: every client learns alone. Nothing is sent, so no bound on bytes excludes it; it "
            "has no model for clients without data."
        )
    nearest = [obstacle.nearest for obstacle in answer.obstacles]
    return [*lines, *filter(None, [extrapolation(rated.row["noise_cohort"] for rated in (*shown, *nearest))])]


def federation_sentences(answer: Answer, whole: Recommendation) -> list[str]:
    """Return two to five sentences on one federation that has rows within the bounds."""
    by, best = whole.by, answer.best
    take = f"On {federation_text(answer)}, take"
    warning = []
    if answer.alone_is_better:
        loss = 0.0 if answer.loss_alone is None else -answer.loss_alone.mean
        value = "" if answer.alone is None else figure(by, answer.alone.mean)
        warning = [
            f"On {federation_text(answer)}, clients alone, with nothing sent, reach {in_sentence(by)} {value}: "
            f"better by {difference(by, loss)} than all methods within the bounds, for the clients that trained."
        ]
        take = "Of those methods, take"
    return [
        *unknown_budgets(whole.conditions, [answer]),
        *warning,
        f"{take} {best.algorithm}{_model(best.row)} with {settings_text(best.row)}: "
        f"{in_sentence(by)} {_expected(answer.estimates[best.key], best, by)}, {guarantee(best.row)}"
        f"{_certainty(best)}.",
        _next_best(answer, by),
        *_other_purpose(answer, by),
        *_yardsticks(answer, by),
    ]


def federation_text(answer: Answer) -> str:
    """Return a federation as ``insurance (194 clients)``."""
    own = answer.federation
    clients = f" ({counted(own.clients, 'client')})" if own.clients else ""
    return f"{own.dataset or 'the problem'}{clients}"


def settings_text(row: Row) -> str:
    """Return the settings of a row that are not at their defaults, as ``lr 0.64, local_steps 17, rounds 10``."""
    usual = BUILT_IN["algorithm"].get(row["algorithm"], {}).get("defaults", {})
    problem = BUILT_IN["problem"].get(row["problem"] or "", {}).get("defaults", {})
    parts = []
    for text in (row["settings"] or "").split():
        name, _, value = text.partition("=")
        section, _, field = name.rpartition(".")
        default = (usual if not section else problem if section == "problem" else {}).get(field)
        own = section in ("model", "problem", "cohort") or (not section and field not in RUN_FIELDS)
        if own and (default is None or in_text(name, default) != value):
            parts.append(f"{name if section else field} {value}")
    parts.append(f"rounds {row['rounds']}")
    if row["clip"] is not None:
        parts.append(f"clip {row['clip'] if isinstance(row['clip'], str) else quantity(row['clip'])}")
    for name, effect in (("alpha", "of hidden units pruned"), ("beta", "of messages dropped")):
        if row[name]:
            parts.append(f"{100 * row[name]:.3g} % {effect}")
    if row["codec"] not in (None, "float32", "float64"):
        parts.append(f"codec {row['codec']}")
    return ", ".join(parts)


def guarantee(row: Row) -> str:
    """Return the privacy of a row in words."""
    if row["model_for"] == ALONE:
        return "with nothing sent"
    if row["dp_unit"] is None:
        return "without privacy"
    epsilon = row["epsilon_total"]
    amount = "clipped, no noise" if epsilon is None or math.isinf(epsilon) else f"ε = {_epsilon(row)}"
    mechanism = f"{row['dp_mechanism']} " if row["dp_mechanism"] not in (None, "independent") else ""
    return f"under {amount} for a {row['dp_unit']} ({mechanism}{row['dp_placement']} noise)"


def protection_text(row: Row) -> str:
    """Return privacy and compression of a row in the words of a table."""
    parts = []
    if row["dp_unit"] is not None:
        epsilon = row["epsilon_total"]
        parts.append(
            "clipped, no noise" if epsilon is None or math.isinf(epsilon) else f"ε = {_epsilon(row)}"
        )
        if row["dp_mechanism"] not in (None, "independent"):
            parts.append(f"{row['dp_mechanism']} noise")
        if row["noise_cohort"] is not None:
            parts.append(f"extrapolated to cohorts of {row['noise_cohort']:,}")
    for name, effect in (("alpha", "pruned"), ("beta", "dropped")):
        if row[name]:
            parts.append(f"{100 * row[name]:.3g} % {effect}")
    if row["codec"] not in (None, "float32", "float64"):
        parts.append(f"sent as {row['codec']}")
    return ", ".join(parts) or "no privacy, nothing pruned"


def readable_rows(answer: Recommendation) -> list[dict[str, Any]]:
    """Return at most `MOST` rows for a terminal: the best of each method, of many federations the first of each."""
    found = [own for own in answer.answers if own.rows]
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
    federations = sum(bool(own.rows) for own in answer.answers)
    what = "the first of each federation" if federations > FEW else "the best of each method first"
    more = f"; {shown} of {len(answer.rows)} rows, all with --json" if shown < len(answer.rows) else ""
    return f"Within all bounds, {what}{more}"


def bound_text(condition: Condition) -> str:
    """Return a bound with bytes in their units."""
    if condition.name.startswith("bytes") and condition.name in TOTALS and isinstance(condition.value, float):
        return f"{condition.name} {condition.sign} {size(condition.value)}"
    return str(condition)


def listed(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Return names as ``a, b and c``, many as ``a, b, c, d and 3 more``."""
    shown = [*names[:most], f"{len(names) - most} more"] if len(names) > most + 1 else list(names)
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _best_of_methods(answer: Answer) -> list[RatedRow]:
    """Return the first row of each method; all rows where there is only one."""
    firsts = {rated.algorithm: rated for rated in reversed(answer.rows)}
    if len(firsts) == 1:
        return list(answer.rows)
    return [rated for rated in answer.rows if firsts[rated.algorithm] is rated]


def _expected(estimate: Estimate, best: RatedRow, by: str) -> str:
    """Return a value with its interval, and what that covers."""
    if not estimate.over:
        return f"{figure(by, estimate.mean)} is expected, by {counted(best.seeds, 'seed')} and without an interval"
    return f"{estimate_text(by, estimate)} is expected (95 % interval {interval_over(best.row, estimate)})"


def estimate_text(by: str, estimate: Estimate) -> str:
    """Return a value with its interval: ``0.819 [0.813, 0.825]``."""
    value, ends = figure(by, estimate.mean), (estimate.low, estimate.high)
    if not estimate.over:
        return value
    if in_points(by):  # a share beyond 0 or 1 is none
        ends = max(0.0, ends[0]), min(1.0, ends[1])
    return f"{value} [{figure(by, ends[0])}, {figure(by, ends[1])}]"


def interval_over(row: Row, estimate: Estimate) -> str:
    """Return what an interval covers."""
    if estimate.over == SEARCHES:
        return f"over {SEARCHES}"
    tuned = ", without the luck of the search for settings" if row["tuned"] else ""
    return f"over {counted(row['done'], 'seed')}{tuned}"


def _certainty(best: RatedRow) -> str:
    """Return in how many seeds the bounds hold, where not in all."""
    return "" if best.within == best.seeds else f"; {_within(best)} seeds were within all bounds"


def _within(rated: RatedRow) -> str:
    """Return in how many seeds the bounds hold; of published rows about how many."""
    about = "" if rated.counted or rated.within == rated.seeds else "about "
    return f"{about}{rated.within} of {rated.seeds}"


def _next_best(answer: Answer, by: str) -> str:
    """Return what the next best method costs, and what cannot be told apart from the first."""
    best = answer.best.algorithm
    if not answer.rivals:
        return f"No other method that sends anything is within the bounds; {best} stands alone."
    rival = answer.rivals[0]
    loss = answer.losses[rival.key]
    said = f"The next best, {rival.algorithm}, costs {difference(by, loss.mean)}"
    if loss.over:
        said += f" ({difference(by, loss.low, sign=True)} to {difference(by, loss.high, sign=True)})"
    if loss.mean < 0:
        said = (
            f"{rival.algorithm} is better by {difference(by, -loss.mean)}, but only "
            f"{_within(rival)} seeds are within the bounds"
        )
    if not answer.equal:
        return f"{said}; every other method can be told apart from {best}{_luck(answer, by)}."
    names = listed([rated.algorithm for rated in answer.equal])
    return f"{said}; {best} cannot be told apart from {names}{_luck(answer, by)}{_least(answer)}."


def _luck(answer: Answer, by: str) -> str:
    """Return what the rows of one method differ by; empty without such rows."""
    if not answer.luck:
        return ""
    names = " and ".join(SAME)
    off = difference(by, answer.luck)
    return f" ({names}, one method here, differ by {off}: less than that counts for nothing)"


def _least(answer: Answer) -> str:
    """Return which of the rows that cannot be told apart sends far less than the first; empty if none does."""
    sent = {
        rated.key: float(rated.values["bytes"])
        for rated in answer.rows
        if rated.values["bytes"] and not answer.is_apart(rated)
    }
    most = sent.get(answer.best.key)
    if not most or min(sent.values()) > LITTLE * most:
        return ""
    least = min((rated for rated in answer.rows if rated.key in sent), key=lambda rated: sent[rated.key])
    return f"; of these, {least.algorithm} sends least: {size(sent[least.key])} in place of {size(most)}"


def _other_purpose(answer: Answer, by: str) -> list[str]:
    """Return the best method with one model for everybody, where the first has one for each client."""
    if answer.best.row["model_for"] in (None, COMMON):
        return []
    common = next((rated for rated in answer.rows if rated.row["model_for"] == COMMON), None)
    if common is None:
        return [
            "Its models are for the clients that trained; no method with one model for everybody was run."
        ]
    return [
        "Its models are for the clients that trained; with one model for everybody the best is "
        f"{common.algorithm}, with {figure(by, answer.estimates[common.key].mean)}."
    ]


def _yardsticks(answer: Answer, by: str) -> list[str]:
    """Return what lone clients, methods without privacy, and pooled data reach."""
    plain, best = answer.without_privacy, answer.best.row
    parts = [] if best["model_for"] == ALONE or answer.alone_is_better else [alone_text(answer, by)]
    if plain is not None and best["dp_unit"] is not None:
        parts.append(f"without privacy the best reaches {figure(by, plain.mean)}")
    if answer.pooled is not None:
        parts.append(f"pooled data give {figure(by, answer.pooled.mean)}")
    text = "; ".join(filter(None, parts))
    return [f"{text[0].upper()}{text[1:]}."] if text else []


def alone_text(answer: Answer, by: str) -> str:
    """Return what clients reach alone, and how that compares with the first row; empty if it was not run."""
    if answer.alone is None or answer.loss_alone is None:
        return ""
    loss = answer.loss_alone
    said = f"clients alone, with nothing sent, reach {figure(by, answer.alone.mean)}"
    if not answer.is_difference(loss):
        return f"{said}, which cannot be told apart"
    return f"{said}, {'worse' if loss.mean > 0 else 'which is better'} by {difference(by, abs(loss.mean))}"


def unknown_budgets(conditions: Iterable[Condition], answers: Sequence[Answer]) -> list[str]:
    """Return what was run in place of a budget that was not, in one sentence; none where all ran it."""
    bound = next((c.value for c in conditions if c.name in BUDGETS and c.upper), None)
    if not isinstance(bound, float):
        return []
    smaller: dict[float, list[str]] = {}
    smallest: dict[float, list[str]] = {}
    for answer in answers:
        if any(math.isclose(bound, budget, rel_tol=0.01) for budget in answer.budgets) or not answer.budgets:
            continue
        below = [budget for budget in answer.budgets if budget < bound]
        part, budget = (smaller, max(below)) if below else (smallest, min(answer.budgets))
        part.setdefault(budget, []).append(answer.federation.dataset)
    parts = [
        f"{what} budget that was run is {_budget_texts(part, len(answers) > 1)}"
        for what, part in (("the next smaller", smaller), ("the smallest", smallest))
        if part
    ]
    if not parts:
        return []
    number = sum(len(names) for part in (smaller, smallest) for names in part.values())
    what = "No run is" if number == len(answers) else "Not every federation was run"
    return [
        f"{what} at ε {bound:g}{'' if smaller or number < len(answers) else ' or less'}: {', '.join(parts)}."
    ]


def _budget_texts(budgets: Mapping[float, Sequence[str]], named: bool) -> str:
    """Return budgets with the federations that they were run on, if they are named."""
    texts = [
        f"{budget:g}" + (f" on {listed(list(dict.fromkeys(names)), MOST)}" if named else "")
        for budget, names in budgets.items()
    ]
    return "; ".join(texts)


def _over_federations(found: Sequence[Answer], answer: Recommendation) -> list[str]:
    """Return what holds on most federations."""
    counts = Counter(method for own in found for method in dict.fromkeys(own.candidates))
    most = max(counts.values())
    names = sorted(method for method, count in counts.items() if count == most)
    every = "both federations" if len(found) == 2 else f"all {len(found)} federations"
    if most == len(found):
        lines = [f"On {every} {listed(names)} {_are(names)} first, or not told apart from the first."]
    elif most == 1:
        lines = ["No method is first, or not told apart from the first, on two federations."]
    else:
        lines = [
            f"No method is first, or not told apart from the first, on {every}; on {most} of them "
            f"{_are(names)} {listed(names)}."
        ]
    empty = [federation_text(own) for own in answer.answers if not own.rows]
    if empty:
        lines.append(f"Nothing is within the bounds on {listed(empty, MOST)}.")
    row = found[0].best.row
    column = "dataset" if len({own.federation.dataset for own in found}) > 1 and row["dataset"] else "clients"
    return [
        *lines,
        f"For settings and what cannot be told apart, ask about one: --where '{column} == {row[column]}'.",
    ]


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def nothing(answer: Recommendation) -> list[str]:
    """Return why no row is within the bounds."""
    bounds = " and ".join(map(bound_text, answer.conditions))
    if not answer.considered:
        return [f"No row has {in_sentence(answer.by)}."]
    lines = [f"None of {counted(answer.considered, 'row')} is within {bounds}."]
    lines += unknown_budgets(answer.conditions, answer.answers)
    for obstacle in answer.obstacles:
        dataset = obstacle.nearest.row["dataset"]
        lines.append(
            f"{bound_text(obstacle.condition)} excludes all that is within the other bounds: "
            f"{nearest_miss(obstacle, f' on {dataset}' if dataset else '')}."
        )
    if not answer.obstacles:
        lines.append(
            "No single bound does it: at least two exclude everything. Give up or loosen more than one."
        )
    return lines


def nearest_miss(obstacle: Obstacle, where: str = "") -> str:
    """Return which row misses a bound by the least, and with what."""
    row, name = obstacle.nearest, obstacle.condition.name
    value = _value_text(name, row.values[name], row.row["noise_cohort"])
    return f"{row.algorithm}{where} ({protection_text(row.row)}) comes nearest, with {value}"


def figure(by: str, value: float) -> str:
    """Return a value of a measure: shares with three digits, bytes in their units."""
    if in_points(by):
        return f"{value:.3f}"
    return size(value) if by.startswith("bytes") else quantity(value)


def difference(by: str, value: float, sign: bool = False) -> str:
    """Return a difference of a measure: of shares in points."""
    if in_points(by):
        text = signed(100 * value, "+.1f") if sign else format(100 * value, ".1f")
        return text if sign else f"{text} points"
    return size(value) if by.startswith("bytes") else quantity(value)


def _plain(by: str, value: float) -> str:
    """Return a difference without its unit."""
    return difference(by, value).removesuffix(" points")


def _model(row: Row) -> str:
    """Return what is trained, where it is no plain classification or regression by a linear model."""
    problem = f" on {row['problem']}" if row["problem"] not in (None, "classify", "regression") else ""
    return f" ({row['model']}{problem})" if row["model"] else problem


def _epsilon(row: Row) -> str:
    return f"{quantity(row['epsilon_total'], 3)}{'' if row['noise_cohort'] is None else EXTRAPOLATED}"


def _row(own: Answer, rated: RatedRow, answer: Recommendation, several: bool) -> dict[str, Any]:
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
        "method": rated.algorithm,
        "protection": protection_text(rated.row),
        words(by): estimate_text(by, own.estimates[rated.key]),
        "costs (points)" if in_points(by) else "costs": "" if is_best else _plain(by, loss.mean),
        "told apart": "" if is_best else "yes" if own.is_apart(rated) else "no",
        "within bounds": _within(rated),
        **{
            name.replace("_", " "): _value_text(name, rated.values[name], rated.row["noise_cohort"])
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
        **{name: "" if one is None else figure(answer.by, one.mean) for name, one in values.items()},
    }


def _named(own: Answer) -> dict[str, Any]:
    return {"federation": own.federation.dataset or "-", "clients": own.federation.clients}


def _finite(value: float) -> float | None:
    """Return an end of an interval; None where there is none, as JSON has no infinity."""
    return value if math.isfinite(value) else None


def _value_text(name: str, value: Any, noise_cohort: int | None) -> Any:
    """Return a value as text, with the mark of an epsilon that is extrapolated."""
    if name in TOTALS and name.startswith("bytes"):
        return size(value)
    text = quantity(value) if isinstance(value, float) else value
    marked = name.startswith("epsilon") and value is not None and noise_cohort is not None
    return f"{text}{EXTRAPOLATED}" if marked else text
