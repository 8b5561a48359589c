"""Privacy statements in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from harness.core.units import counted
from harness.report.data.exposed import most_exposed
from harness.report.data.results import Cell
from harness.report.tables.rows import Board
from harness.report.tables.text import EXTRAPOLATED, is_empty, quantity
from privacy.trade_off import accuracy_bound

#: Explanations of noise placement, privacy unit, neighbors and sampling; see docs/privacy.md.
PLACEMENTS = {
    "central": "a trusted server adds the noise, to averages of clipped messages",
    "local": "each client adds the noise itself",
    "distributed": "clients add shares of the noise to integers, of which the server learns only the sum",
}
UNITS = {
    "client": "one client with all its data",
    "record": "one record of a client",
    "user": "one user inside a client, with all training records",
}
CHANGES = {
    "replace": "replaced",
    "add-remove": "added or removed",
    "zero-out": "zeroed out, with public numbers of clients and samples",
}
SAMPLINGS = {
    "poisson": "drawn in secret (Poisson)",
    "without-replacement": "drawn in secret (fixed size)",
    "fixed": "public, each client charged for its rounds",
    "full": "everybody",
}
#: What is drawn, by unit, unless it is the participants of a round.
DRAWN = {"record": "records of a batch", "user": "users of a batch"}
UNEVEN = 0.8  # a median below this share of the largest epsilon is worth a sentence
#: Of facts that older records list as public, which their epsilon does not cover.
LISTED_BEFORE = ("computed from private data", "the test data", "a digest of the data")
MOST_MEANT = 4  # epsilons that are explained
MOST_EXPOSED = 8  # rows of one client that are listed


def uncovered_sentence(facts: Iterable[str]) -> str:
    """Return a sentence on what an epsilon does not cover."""
    return f"Not covered by ε: {'; '.join(facts) or 'not recorded'}."


def uncovered_by(cells: Iterable[Cell]) -> list[str]:
    """Return the facts that the epsilons of finished runs do not cover, as recorded."""
    facts: dict[str, None] = {}
    for cell in cells:
        for run in cell.done[:1]:
            end = run.record.final
            facts |= dict.fromkeys(
                [*end.get("not_covered", ()), *public_and_private(end.get("public", ()))[1]]
            )
    return list(facts)


def describe_draws(claim: Mapping[str, Any]) -> str | None:
    """Describe the draws of which an epsilon is composed; None where that is not recorded."""
    if not claim.get("composition"):
        return None
    return "; ".join(
        f"{counted(event['draws'], 'draw')} at rate {event['rate']:.4g} ({event['sampling']}) with "
        f"{counted(event['releases'], 'release')} each, noise multiplier {event['noise_multiplier']:.5g}"
        for event in claim["composition"]
    )


def public_and_private(facts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the public facts of a record, and those that older versions listed as public by mistake."""
    public: list[str] = []
    private: list[str] = []
    for fact in facts:
        (private if any(mark in fact for mark in LISTED_BEFORE) else public).append(fact)
    return public, private


def in_words(claim: Mapping[str, Any], names: Sequence[str] = ()) -> str:
    """Describe a privacy statement in a few sentences, with the names of clients where all have one."""
    return " ".join([guarantee(claim), *remarks(claim, names)])


def guarantee(claim: Mapping[str, Any]) -> str:
    """Describe the kind of a guarantee, which many rows may share."""
    placement, unit = str(claim.get("placement")), str(claim.get("unit"))
    change, sampling = str(claim.get("adjacency")), str(claim.get("sampling"))
    who = DRAWN.get(unit, "participants")
    noise = f"noise is correlated over {counted(claim['bands'], 'round')}; " if "bands" in claim else ""
    noise += of_user(claim)
    if claim.get("dropouts"):
        noise += f"it holds without the noise of {claim['dropouts']:.0%} of a cohort; "
    text = (
        f"Privacy: {placement} placement ({PLACEMENTS.get(placement, placement)}); the unit is "
        f"{UNITS.get(unit, unit)}, {CHANGES.get(change, change)}; {who}: {SAMPLINGS.get(sampling, sampling)}; "
        f"{noise}ε is the total of the run at delta {claim.get('delta')}."
    )
    if "noise_cohort" in claim:
        text += (
            f" It is extrapolated: the noise is that of cohorts of {counted(claim['noise_cohort'], 'client')}, "
            "which is no guarantee for those that are simulated."
        )
    return text + ties_to_others(claim)


def remarks(claim: Mapping[str, Any], names: Sequence[str] = ()) -> list[str]:
    """Return sentences on what is particular to a row: who has the largest epsilon, and what to beware of."""
    warning = [f"Warning: {claim['warning']}."] if claim.get("warning") else []
    return [*_exposed_sentences(claim, names), *warning]


def ties_to_others(claim: Mapping[str, Any]) -> str:
    """Describe what ties a run to others: draws that it shares, and noise that it repeats."""
    text = ""
    if str(claim.get("secret_draws", "")).startswith("shared"):
        text += " Runs of this seed come from one joint draw; they do not compose as independent."
    if str(claim.get("secret_draws", "")).startswith("paired"):
        text += " Runs of this seed share their noise, as those of a search do: ε is of one run alone."
    if "noise_code" in claim:
        text += (
            f" Its noise is {claim['noise_code']}: where these differ, the two releases differ without noise."
        )
    return text


def of_user(claim: Mapping[str, Any]) -> str:
    """Name a user's mechanism, its plugin and the accountant; empty for ours."""
    if "mechanism_version" not in claim:
        return ""
    return (
        f"mechanism {claim['mechanism']} ({claim['mechanism_version'] or 'of this process'}), of bounded L1 norm, "
        f"composed by accountant {claim.get('accountant')}; "
    )


def _exposed_sentences(claim: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Name the client with the largest epsilon, where clients differ much."""
    largest, middle = claim.get("epsilon_total"), claim.get("epsilon_median")
    if not is_uneven(largest, middle):
        return []
    exposed = most_exposed(claim)
    if exposed is None:
        return []
    who = exposed.first(names)
    loud = exposed.unit == "client" and claim.get("unit") in ("record", "user")
    return [
        f"ε is that of {who}, the largest; the median {exposed.unit} has {middle:.3g}.",
        *([loudest(who, str(claim["unit"]))] if loud else []),
    ]


def is_uneven(largest: Any, middle: Any) -> bool:
    """Return whether the median epsilon is well below the largest."""
    numeric = isinstance(largest, float) and isinstance(middle, float)
    return numeric and middle < UNEVEN * largest


def loudest(who: str, unit: str) -> str:
    """Return that one client's budget sets the noise for all."""
    return (
        f"{who[0].upper()}{who[1:]} sets the noise of all clients, as its {unit}s are drawn most often; "
        "privacy.noise: per_client gives each client its own."
    )


def exposure(board: Board) -> list[str]:
    """Return sentences on whose the epsilons of a leaderboard are, where those of clients are very different."""
    rows_by_owner: dict[str, list[str]] = {}
    loud: dict[str, None] = {}
    for row in board.rows:
        if is_empty(row["epsilon_median"]) or not is_uneven(row["epsilon_total"], row["epsilon_median"]):
            continue
        who, exposed = board.most_exposed(row), board.exposed.get(row["cell"])
        mark = "" if is_empty(row["noise_cohort"]) else EXTRAPOLATED
        text = f"{row['algorithm']} {row['epsilon_total']:.3g}{mark} ({row['epsilon_median']:.3g})"
        rows_by_owner.setdefault(who, []).append(text)
        if row["dp_unit"] != "client" and exposed and exposed.unit == "client" and exposed.number is not None:
            loud[loudest(who, str(row["dp_unit"]))] = None
    lines = []
    for who, rows in rows_by_owner.items():
        texts = list(dict.fromkeys(rows))
        more = f" and {len(texts) - MOST_EXPOSED} more" if len(texts) > MOST_EXPOSED else ""
        lines.append(
            f"ε is that of {who}, the largest (in brackets the median): {', '.join(texts[:MOST_EXPOSED])}{more}."
        )
    return [*loud, *lines]


def meaning(frame: pd.DataFrame) -> str:
    """Explain in two sentences what the epsilons of a leaderboard bound; empty if none is finite and above zero.

    The probability is that of `privacy.trade_off.accuracy_bound`. Extrapolated epsilons are left out, as they bound
    nothing for the clients that were simulated.
    """
    private = frame[(frame["epsilon_total"] > 0) & frame["noise_cohort"].isna() & frame["delta"].notna()]
    bounds: dict[str, float] = {}
    for epsilon, delta in zip(private["epsilon_total"].tolist(), private["delta"].tolist(), strict=True):
        if math.isfinite(epsilon):
            name = quantity(epsilon, 3)
            bounds[name] = max(accuracy_bound(epsilon, delta), bounds.get(name, 0.0))
    if not bounds:
        return ""
    names = sorted(bounds, key=float)
    every = max(1, -(-(len(names) - 1) // (MOST_MEANT - 1)))
    chances = [f"{100 * bounds[name]:.4g} % at ε {name}" for name in [*names[:-1:every], names[-1]]]
    if len(chances) > 1:
        chances = [f"{', '.join(chances[:-1])} and {chances[-1]}"]
    units = " or ".join(UNITS.get(unit, unit) for unit in dict.fromkeys(private["dp_unit"].dropna()))
    deltas = " or ".join(f"{delta:g}" for delta in sorted(set(private["delta"])))
    return (
        f"ε limits what all protected messages of a run reveal about {units}, whatever else an attacker knows; "
        "it does not cover evaluations and what else the run lists under not_covered (done.json). "
        "Of two data sets that differ in nothing else and are equally likely, an attacker names the one that was "
        f"used with a probability of at most {chances[0]} (delta {deltas}), from ε and delta alone, where a blind "
        "guess has 50 %; the command epsilon prints the bound from the mechanism, which is usually lower."
    )
