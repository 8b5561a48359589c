"""Answers of the references about data that nothing was run on, in sentences and as rows."""

from __future__ import annotations

from typing import Any

from harness.core.units import counted
from harness.report.data.recommendation import ALONE, COMMON, Answer, RatedRow
from harness.report.data.references import ReferenceAnswer, Shape, distance
from harness.report.tables.rated_rows import (
    bound_text,
    difference,
    estimate_text,
    guarantee_text,
    interval_over,
    settings_text,
    value_of,
    within_text,
)
from harness.report.tables.recommendation import alone_text, listed, nearest_miss, nothing, unknown_budgets
from harness.report.tables.text import in_sentence

NEAR, FAR = 1.0, 2.5  # distances, in doublings


def sentences(asked: ReferenceAnswer) -> list[str]:
    """Return how near the references are, what each says, whether they agree, and what a pilot run would settle."""
    answer = asked.recommendation
    lines = [_nearness(asked)]
    found = answer.found
    if not found:
        return [*lines, *nothing(answer)]
    lines += unknown_budgets(answer.conditions, answer.answers)
    lines += [_said_of(one, asked) for one in answer.answers]
    return [*lines, _agreement(asked, found), *_kinds(found), _pilot(asked, found)]


def nearest_rows(asked: ReferenceAnswer) -> list[dict[str, Any]]:
    """Return a row for each of the nearest federations: its shape, its distance, and the methods that it is for."""
    return [
        {
            "data": answer.federation.dataset,
            "suite": answer.federation.suite,
            "clients": shape.clients,
            "samples": shape.samples,
            "skew": shape.skew,
            "distance": distance(asked.own, shape),
            "candidates": answer.candidates,
        }
        for answer, shape in zip(asked.recommendation.answers, asked.shapes, strict=True)
    ]


def shape_text(shape: Shape) -> str:
    """Return a shape as ``300 clients with 150 samples and skew 0.1``."""
    parts = [] if shape.clients is None else [counted(f"{shape.clients:,.0f}", "client")]
    if shape.samples is not None:
        parts.append(f"{'with ' if parts else ''}{counted(f'{shape.samples:,.0f}', 'sample')}")
    if shape.skew is not None:
        parts.append(f"{'and ' if parts else ''}skew {shape.skew:.2g}")
    return " ".join(parts)


def _nearness(asked: ReferenceAnswer) -> str:
    """Return how far the federations are, in words."""
    words: dict[str, list[str]] = {"near": [], "some way from": [], "far from": []}
    for answer, shape in zip(asked.recommendation.answers, asked.shapes, strict=True):
        far = distance(asked.own, shape)
        word = "near" if far < NEAR else "some way from" if far < FAR else "far from"
        words[word].append(f"{answer.federation.dataset} ({_short(asked.own, shape)})")
    parts = [f"{word} {listed(names)}" for word, names in words.items() if names]
    warning = "" if words["near"] else "; no reference is near, so take what they say as a hint"
    return f"Your {shape_text(asked.own)} are {', '.join(parts)}{warning}."


def _short(own: Shape, other: Shape) -> str:
    """Return a federation's shape in the parts that are known of one's own."""
    kept = (theirs if mine is not None else None for mine, theirs in zip(own, other, strict=True))
    return shape_text(Shape(*kept))


def _said_of(answer: Answer, asked: ReferenceAnswer) -> str:
    """Return the answer of one federation in a sentence."""
    where, by = answer.federation.dataset, asked.recommendation.by
    if not answer.rows:
        bounds = " and ".join(map(bound_text, asked.recommendation.conditions))
        miss = f"; {nearest_miss(answer.obstacles[0])}" if answer.obstacles else ""
        return f"On {where} nothing is within {bounds}{miss}."
    best = answer.best
    estimate = answer.estimates[best.key]
    parts = [
        f"On {where} {best.algorithm} ({settings_text(best.row)}) is first, with {in_sentence(by)} "
        f"{estimate_text(by, estimate)} {guarantee_text(best.row)}"
    ]
    if answer.equal:
        parts.append(f"not told apart from {listed([row.algorithm for row in answer.equal])}")
    if better := _better(answer):
        value = value_of(by, answer.estimates[better.key].mean)
        parts.append(
            f"{better.algorithm} reaches {value}, with {within_text(better)} seeds within the bounds"
        )
    common = next((row for row in answer.rows if row.row["model_for"] == COMMON), None)
    if common is not None and best.row["model_for"] != COMMON:
        value = value_of(by, answer.estimates[common.key].mean)
        parts.append(f"with one model for everybody {common.algorithm} is best, {value}")
    if best.row["model_for"] != ALONE and (alone := alone_text(answer, by)):
        parts.append(alone)
    return "; ".join(parts) + "."


def _better(answer: Answer) -> RatedRow | None:
    """Return the best row that is better than the first, which is within the bounds in more seeds."""
    losses = answer.losses
    ahead = [
        row for row in answer.rivals if losses[row.key].mean < 0 and answer.is_difference(losses[row.key])
    ]
    return min(ahead, key=lambda row: losses[row.key].mean, default=None)


def _agreement(asked: ReferenceAnswer, found: list[Answer]) -> str:
    """Return whether the federations agree."""
    over = {interval_over(one.best.row, one.estimates[one.best.key]) for one in found}
    covers = f"Intervals are 95 %, {listed(sorted(over))}." if over else ""
    if len(found) == 1:
        return f"Only one of them has an answer. {covers}".rstrip()
    every = "all of them" if len(found) == len(asked.shapes) else "both that have an answer"
    first = f"first, or not told apart from the first, on {every}. {covers}".rstrip()
    first += _beside_lone_clients(found)
    if asked.agreed:
        return f"They agree: {listed(asked.agreed)} {'is' if len(asked.agreed) == 1 else 'are'} {first}"
    return f"They do not agree: no method is {first}"


def _beside_lone_clients(found: list[Answer]) -> str:
    """Return on how many federations the first row is not seen to be ahead of clients that learn alone."""
    ahead = [
        one.loss_alone is not None and one.loss_alone.mean > 0 and one.is_difference(one.loss_alone)
        for one in found
        if one.best.row["model_for"] != ALONE and one.loss_alone is not None
    ]
    behind = ahead.count(False)
    if not behind:
        return ""
    where = "none of them" if behind == len(ahead) else f"{len(ahead) - behind} of {len(ahead)}"
    return f" What is first is seen to be ahead of clients alone, who send nothing, on {where}."


def _kinds(found: list[Answer]) -> list[str]:
    """Return how to ask about one kind of privacy, where the answers have several."""
    kinds = {
        name: sorted({str(one.best.row[name]) for one in found if one.best.row[name] is not None})
        for name in ("dp_unit", "dp_placement")
    }
    several = [f"--where '{name} == {values[0]}'" for name, values in kinds.items() if len(values) > 1]
    if not several:
        return []
    return [f"Their ε protect different things; {' or '.join(several)} asks about one of them."]


def _pilot(asked: ReferenceAnswer, found: list[Answer]) -> str:
    """Return what a pilot run would settle, and how to make it."""
    by, methods = asked.recommendation.by, asked.to_try
    half = sorted(
        (loss.high - loss.low) / 2
        for one in found
        for row in one.rows
        if row.algorithm in methods and (loss := one.losses[row.key]).over and row is not one.best
    )
    open_ = f"; differences below about {difference(by, half[len(half) // 2])} may stay open" if half else ""
    what = (
        f"which of {listed(methods)} is best"
        if len(methods) > 1
        else f"whether {methods[0]} holds what it promises"
    )
    return (
        f"A pilot run would settle {what} on your data, and whether it beats clients alone{open_}. "
        "--pilot pilot.yaml writes its suite file."
    )
