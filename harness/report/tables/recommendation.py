"""The answer to given bounds in sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from harness.config.conditions import Condition
from harness.core.units import counted, size
from harness.report.data.evidence import Estimate
from harness.report.data.recommendation import ALONE, COMMON, SAME, Answer, Obstacle, RatedRow, Recommendation
from harness.report.tables.rated_rows import (
    BUDGETS,
    MOST,
    bound_text,
    column_text,
    difference,
    estimate_text,
    guarantee_text,
    interval_over,
    model_text,
    protection_text,
    settings_text,
    value_of,
    within_text,
)
from harness.report.tables.text import extrapolation, in_sentence

MOST_NAMES = 4  # of methods in a sentence
LITTLE = 0.5  # share of the bytes of the best row that is worth a word


def sentences(answer: Recommendation) -> list[str]:
    """Return the answer in sentences: of one federation what to take, of several what holds on most of them.

    If no row is within the bounds, they say which bound excludes what is within the others.
    """
    found = answer.found
    if not found:
        return nothing(answer)
    empty = [federation_text(own) for own in answer.answers if not own.rows]
    missing = [f"Nothing is within the bounds on {listed(empty, MOST)}."] if empty else []
    if len(found) == 1:
        return [*federation_sentences(found[0], answer), *missing]
    budgets = unknown_budgets(answer.conditions, answer.answers)
    return [*budgets, _over_federations(found), *missing, _one_by_one(found)]


def warnings(answer: Recommendation) -> list[str]:
    """Return what to beware of: a measure that favors own models, searches without the bound, uncovered models."""
    rows = answer.rows
    own = [rated for rated in rows if rated.row["model_for"] not in (None, COMMON)]
    bounds_bytes = any(condition.name.startswith("bytes") for condition in answer.conditions)
    said = []
    if answer.by == "auroc" and (own or any(each.alone is not None for each in answer.answers)):
        said.append(
            "AUROC over all samples favors models of each client's own, and clients alone, as they know that "
            "client's share of positives: --by auroc_clients compares them with one model for everybody fairly."
        )
    if bounds_bytes and any(rated.row.get("tuned") for rated in rows):
        said.append(
            "The searches for settings had no bound on bytes, so it favors methods whose search chose few rounds: "
            "tune with rounds that keep the bound before you trust the order."
        )
    if any(rated.row["dp_unit"] == "client" for rated in own):
        said.append(
            "Epsilon covers what the server releases; models of a client's own are trained without noise."
        )
    return said


def notes(answer: Recommendation) -> list[str]:
    """Return what belongs below the table: how many rows there are, and what marks and lone clients mean."""
    shown = answer.rows
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
        value = "" if answer.alone is None else value_of(by, answer.alone.mean)
        warning = [
            f"On {federation_text(answer)}, clients alone, with nothing sent, reach {in_sentence(by)} {value}: "
            f"better by {difference(by, loss)} than all methods within the bounds, for the clients that trained."
        ]
        take = "Of those methods, take"
    return [
        *unknown_budgets(whole.conditions, [answer]),
        *warning,
        f"{take} {best.algorithm}{model_text(best.row)} with {settings_text(best.row)}: "
        f"{in_sentence(by)} {_expected(answer.estimates[best.key], best, by)}, {guarantee_text(best.row)}"
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


def listed(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Return names as ``a, b and c``, many as ``a, b, c, d and 3 more``."""
    shown = [*names[:most], f"{len(names) - most} more"] if len(names) > most + 1 else list(names)
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _expected(estimate: Estimate, best: RatedRow, by: str) -> str:
    """Return a value with its interval, and what that covers."""
    if not estimate.over:
        mean, seeds = value_of(by, estimate.mean), counted(best.seeds, "seed")
        return f"{mean} is expected, by {seeds} and without an interval"
    return f"{estimate_text(by, estimate)} is expected (95 % interval {interval_over(best.row, estimate)})"


def _certainty(best: RatedRow) -> str:
    """Return in how many seeds the bounds hold, where not in all."""
    return "" if best.within == best.seeds else f"; {within_text(best)} seeds were within all bounds"


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
            f"{within_text(rival)} seeds are within the bounds"
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
        f"{common.algorithm}, with {value_of(by, answer.estimates[common.key].mean)}."
    ]


def _yardsticks(answer: Answer, by: str) -> list[str]:
    """Return what lone clients, methods without privacy, and pooled data reach."""
    plain, best = answer.without_privacy, answer.best.row
    parts = [] if best["model_for"] == ALONE or answer.alone_is_better else [alone_text(answer, by)]
    if plain is not None and best["dp_unit"] is not None:
        parts.append(f"without privacy the best reaches {value_of(by, plain.mean)}")
    if answer.pooled is not None:
        parts.append(f"pooled data give {value_of(by, answer.pooled.mean)}")
    text = "; ".join(filter(None, parts))
    return [f"{text[0].upper()}{text[1:]}."] if text else []


def alone_text(answer: Answer, by: str) -> str:
    """Return what clients reach alone, and how that compares with the first row; empty if it was not run."""
    if answer.alone is None or answer.loss_alone is None:
        return ""
    loss = answer.loss_alone
    said = f"clients alone, with nothing sent, reach {value_of(by, answer.alone.mean)}"
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


def _over_federations(found: Sequence[Answer]) -> str:
    """Return what holds on most federations."""
    counts = Counter(method for own in found for method in dict.fromkeys(own.candidates))
    most = max(counts.values())
    names = sorted(method for method, count in counts.items() if count == most)
    every = "both federations" if len(found) == 2 else f"all {len(found)} federations"
    are = "is" if len(names) == 1 else "are"
    if most == len(found):
        return f"On {every} {listed(names)} {are} first, or not told apart from the first."
    if most == 1:
        return "No method is first, or not told apart from the first, on two federations."
    return (
        f"No method is first, or not told apart from the first, on {every}; on {most} of them {are} "
        f"{listed(names)}."
    )


def _one_by_one(found: Sequence[Answer]) -> str:
    """Return how to ask about the first federation alone."""
    row = found[0].best.row
    column = "dataset" if len({own.federation.dataset for own in found}) > 1 and row["dataset"] else "clients"
    return f"For settings and what cannot be told apart, ask about one: --where '{column} == {row[column]}'."


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
    for absence in answer.absences:
        values = ["empty" if value is None else str(value) for value in absence.values]
        condition = absence.condition
        lines.append(f"{condition.name} is {listed(values)} in all that is within the other bounds.")
    if not answer.obstacles and not answer.absences:
        lines.append(
            "No single bound does it: at least two exclude everything. Give up or loosen more than one."
        )
    return lines


def nearest_miss(obstacle: Obstacle, where: str = "") -> str:
    """Return which row misses a bound by the least, and with what."""
    row, name = obstacle.nearest, obstacle.condition.name
    value = column_text(name, row.values[name], row.row["noise_cohort"])
    return f"{row.algorithm}{where} ({protection_text(row.row)}) comes nearest, with {value}"
