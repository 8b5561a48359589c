"""The second page of a statement: an evaluator's questions in the order of NIST SP 800-226, and their answers.

Guidelines for Evaluating Differential Privacy Guarantees, https://doi.org/10.6028/NIST.SP.800-226: the guarantee,
the algorithms, the deployment. What no record answers is not addressed.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.core.registry import counted
from harness.report.data.clients import client_names
from harness.report.data.exposed import most_exposed
from harness.report.statement.costs import bias
from harness.report.statement.subject import Subject, joined
from harness.report.tables.costs import data_of
from harness.report.tables.privacy import (
    CHANGES,
    SAMPLINGS,
    UNITS,
    describe_draws,
    is_uneven,
    of_user,
    public_and_private,
    ties_to_others,
    uncovered_by,
)
from harness.report.tables.text import quantity
from harness.report.tables.together import together, upward
from privacy.trade_off import accuracy_bound

NOT_ADDRESSED = "Not addressed by this report."
WEAK = 0.95  # chance of a right guess above which a guarantee excludes next to nothing
LONGEST = 330  # letters of a list of facts
TRUST = {
    "central": "The server, which sees what each {site} sends and adds the noise to their average. What leaves the "
    "server is protected, from the other {site}s too.",
    "local": "Nobody else: each {site} adds its noise before anything leaves it.",
    "distributed": "The protocol that adds messages up, so that the server learns the sum alone, and that "
    "most other "
    "{site}s add their share of the noise.",
}


class Answered(NamedTuple):
    """A question, with its answer."""

    question: str
    answer: str


def questions(subject: Subject) -> dict[str, list[Answered]]:
    """Return the answered questions by chapter."""
    return {
        "The guarantee": _guarantee(subject),
        "The algorithms": _algorithms(subject),
        "The deployment": _deployment(subject),
    }


def annex(subject: Subject) -> list[Answered]:
    """Return terms and formulas, the draws and the settings."""
    draws = [
        f"{budget}: {text}"
        for claim, budget in zip(subject.claims, subject.budgets, strict=True)
        if (text := describe_draws(claim))
    ]
    return [
        Answered(
            "AUROC",
            "The chance that a case has a higher score than another person: 0.5 is blind, 1 perfect; a point "
            "is 0.01.",
        ),
        Answered(
            "Missed",
            "100 (1 - s); s: share of cases above the lowest threshold that 95 % of the others do not exceed.",
        ),
        Answered(
            "ε and δ",
            "For neighbors D, D' and every set S of messages, P[M(D) ∈ S] ≤ exp(ε) P[M(D') ∈ S] + δ.",
        ),
        Answered(
            "Guessing right", "At most (1 + δ exp(-ε)) / (1 + exp(-ε)), both data sets being equally likely."
        ),
        Answered("Draws", "; ".join(draws) or "Not recorded."),
        Answered("Settings", _settings(subject)),
    ]


def _guarantee(subject: Subject) -> list[Answered]:
    """Answer what is promised, to whom, and what several releases reveal."""
    claims, first = subject.claims, subject.claims[0]
    unit, change = str(first.get("unit")), str(first.get("adjacency"))
    kinds = {(claim.get("unit"), claim.get("adjacency"), claim.get("placement")) for claim in claims}
    warnings = dict.fromkeys(str(claim["warning"]) for claim in claims if claim.get("warning"))
    chances = [
        f"{100 * accuracy_bound(epsilon, claim['delta']):.4g} %" if math.isfinite(epsilon) else "always"
        for claim in claims
        for epsilon in [_epsilon(claim)]
    ]
    told = [
        f"{quantity(upward(_epsilon(claim)), 3)}{' (extrapolated: no guarantee here)' * ('noise_cohort' in claim)}"
        for claim in claims
    ]
    joint = " ".join(together(subject.frame)) or f"{data_of(subject.plain)}: one private training."
    return [
        Answered(
            "What is promised?",
            f"A limit to what whoever sees all that was sent learns about any one {subject.unit}, whatever "
            "else they "
            f"know. Guessing between two data sets that differ in one, they are right at most "
            f"{subject.by_budget(chances)} of the time; a blind guess is right 50 %."
            + " Near 100 % next to nothing is excluded."
            * any(map(_is_weak, claims)),
        ),
        Answered(
            "How large are ε and δ?",
            f"ε = {joined(told)} for everything that a training sends, at "
            f"δ = {joined(quantity(claim.get('delta'), 3) for claim in claims)}. "
            + (f"Warning: {'; '.join(warnings)}." if warnings else "No warning applies to δ."),
        ),
        Answered(
            "Whom does it protect?",
            f"{UNITS.get(unit, unit).replace('client', subject.site).capitalize()}: compared are data in "
            "which it is "
            f"{CHANGES.get(change, change).replace('client', subject.site)}. {_beyond(unit, subject.site)}",
        ),
        Answered(
            "Can these ε be compared?",
            "Yes: unit, neighbors and who adds the noise are the same in all of them."
            if len(kinds) == 1
            else "No: they differ in the unit, in the neighbors, or in who adds the noise.",
        ),
        Answered(
            "What do all releases together reveal?",
            f"In this study, {joint} {_price(subject)} A federation that trains once, with settings fixed "
            "before, pays "
            "the ε of one training.",
        ),
        Answered("Does it hold for all alike?", _exposed(subject)),
    ]


def _algorithms(subject: Subject) -> list[Answered]:
    """Answer how the guarantee is reached, what it costs and whom."""
    claims, first = subject.claims, subject.claims[0]
    sampling, who = str(first.get("sampling")), {"record": "Records of a batch", "user": "Persons of a batch"}
    clips = [quantity(clip, 3) if isinstance(clip := own.get("clip"), float) else str(clip) for own in claims]
    noise = [quantity(claim.get("noise_multiplier"), 3) for claim in claims]
    search = subject.plain.records[0].search
    tuned = f", each budget with the best of {counted(len(search['trials']), 'setting')}" if search else ""
    return [
        Answered(
            "How is it reached?",
            f"What one {subject.unit} adds to a message is shortened to a norm of at most {joined(clips)}; "
            f"{of_user(first) or 'Gaussian noise is added: '}its standard deviation is {subject.by_budget(noise)} "
            f"times what one {subject.unit} can change. {who.get(str(first.get('unit')), 'Participants')}: "
            f"{SAMPLINGS.get(sampling, sampling)}. Accountant: "
            f"{joined(str(own.get('accountant')) for own in claims)}.",
        ),
        Answered(
            "Which method learns?",
            f"{subject.plain.algorithm}{tuned}. The table before these questions has the others that were run.",
        ),
        Answered("What does it cost in accuracy?", "The first sentences and the first table say it."),
        Answered("Who bears the cost?", bias(subject) or NOT_ADDRESSED),
    ]


def _deployment(subject: Subject) -> list[Answered]:
    """Answer whom one must trust, what the implementation leaves open, and what ε does not cover."""
    first, placement = subject.claims[0], str(subject.claims[0].get("placement"))
    public = {
        fact
        for cell in subject.private
        for run in cell.done[:1]
        for fact in public_and_private(run.record.final.get("public", ()))[0]
    }
    made = [str(first[name]) for name in ("generator", "arithmetic") if first.get(name)]
    attacked = any(cell.spec.get("attacks") for cell in subject.private)
    return [
        Answered(
            "Who may ask what?",
            "A training sends a fixed number of messages, all counted in ε. The model that comes out may be "
            "used without "
            "limit; further trainings on the same data add up.",
        ),
        Answered(
            "Whom must one trust?",
            f"{TRUST.get(placement, placement).format(site=subject.site)}"
            + f" A {subject.unit}'s own {subject.site} has the data as they are."
            * (first.get("unit") != "client")
            + ties_to_others(first),
        ),
        Answered(
            "Is it implemented safely?",
            f"These runs are a simulation. Generator and numbers: {_listed(made) or 'not recorded'}. Timing "
            "was not "
            "examined.",
        ),
        Answered(
            "What does ε not cover?",
            f"{_listed(uncovered_by(subject.private)) or 'Not recorded'}. Taken as known to everybody: "
            f"{_listed(sorted(public)) or 'nothing'}.",
        ),
        Answered(
            "Was it attacked?",
            "Yes, by the attacks that the runs name; the report has their success."
            if attacked
            else f"{NOT_ADDRESSED} The commands audit and check test the mechanism.",
        ),
        Answered("Who has access, and how are data secured?", NOT_ADDRESSED),
        Answered("How were the data collected, and with what consent?", NOT_ADDRESSED),
    ]


def _beyond(unit: str, site: str) -> str:
    """Name who is protected less than the unit, or more."""
    return {
        "client": f"So also each of its patients or persons, unless they have data at another {site}.",
        "record": "A person with several records is protected less: ε grows with their number.",
        "user": f"With all records at one {site}; a person with data at two is protected less.",
    }.get(unit, "")


def _exposed(subject: Subject) -> str:
    """Name whose the epsilons are."""
    claim, end = max(subject.claims, key=_epsilon), subject.private[0].records[0].final
    who, middle = most_exposed(claim, end.get("clients")), quantity(claim.get("epsilon_median"), 3)
    if who is None:
        return "Not recorded."
    if who.number is None:
        return f"Yes: ε is that of every {subject.site}."
    name = who.text(client_names(end))
    even = not is_uneven(claim.get("epsilon_total"), claim.get("epsilon_median"))
    return f"{'Nearly' if even else 'No'}: the largest ε is that of {name}; the median is {middle}."


def _price(subject: Subject) -> str:
    """Return what choosing the settings has released."""
    searches = [cell.records[0].search for cell in subject.private]
    prices = [search["price"] for search in searches if search and search.get("price")]
    if prices:
        known = [math.inf if price["epsilon"] == "inf" else price["epsilon"] for price in prices]
        runs = counted(max(price["runs"] for price in prices), "private run")
        epsilon = (
            "an ε that is not known" if None in known else f"ε = {quantity(upward(max(known)), 3)} together"
        )
        return f"The search for settings made {runs} on top: {epsilon}, had each noise of its own."
    if any(searches):
        return "What the search for settings released on top is not recorded."
    return "How settings were chosen is not recorded; choosing them by results on the data reveals more."


def _settings(subject: Subject) -> str:
    """Return the settings of the method that are not at their defaults, by budget."""
    rows = subject.frame.set_index("cell")["spec"]
    told = []
    for cell, budget in zip(subject.private, subject.budgets, strict=True):
        spec = json.loads(rows[cell.key])
        own = {
            **spec.get("algorithm", {}),
            "rounds": cell.spec.get("rounds"),
            "clip": cell.spec["privacy"].get("clip"),
        }
        told.append(
            f"{budget}: " + ", ".join(f"{name} {value}" for name, value in own.items() if name != "name")
        )
    return "; ".join(told)


def _is_weak(claim: Mapping[str, Any]) -> bool:
    """Return whether an attacker may be right nearly always."""
    return not math.isfinite(_epsilon(claim)) or accuracy_bound(_epsilon(claim), claim["delta"]) > WEAK


def _epsilon(claim: Mapping[str, Any]) -> float:
    epsilon = claim.get("epsilon_total")
    return float(epsilon) if isinstance(epsilon, int | float) else math.inf


def _listed(facts: Sequence[str]) -> str:
    return textwrap.shorten("; ".join(facts), LONGEST, placeholder=" ... (all are in done.json)")
