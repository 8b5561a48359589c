"""The second page of a statement: an evaluator's questions in the order of NIST SP 800-226, and their answers.

Guidelines for Evaluating Differential Privacy Guarantees, https://doi.org/10.6028/NIST.SP.800-226: the guarantee,
the algorithms, the deployment. What no record answers is not addressed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from harness.core.units import counted
from harness.report.data.clients import client_names
from harness.report.data.exposed import most_exposed
from harness.report.statement.costs import bias
from harness.report.statement.subject import Subject, joined
from harness.report.tables.costs import data_of
from harness.report.tables.privacy import (
    SAMPLINGS,
    describe_draws,
    is_uneven,
    of_user,
    public_and_private,
    ties_to_others,
    uncovered_by,
)
from harness.report.tables.text import quantity
from harness.report.tables.together import together, upward
from privacy.event import SECRET
from privacy.trade_off import accuracy_bound

INSIDE = ("record", "user")  # units of which a client has several
ALTERNATIVES = {  # what the data are compared with, by adjacency
    "replace": "with any others in place of those of that {unit}",
    "add-remove": "without those of that {unit}",
    "zero-out": "with those of that {unit} counting as nothing; how many {unit}s there are is public",
}
NOT_ADDRESSED = "Not addressed by this report."
WEAK = 0.95  # chance of a right guess above which a guarantee excludes next to nothing
LONGEST = 330  # letters of a list of facts
SENT = {  # what ε is about, by placement
    "central": "what the server sends",
    "local": "all that is sent",
    "distributed": "the sums that the server learns",
}
TRUST = {
    "central": "The server, which sees what each {site} sends and adds the noise to their average. What it sends "
    "then is protected, from the other {site}s too.",
    "local": "Nobody else: each {site} adds its noise before a message leaves it.",
    "distributed": "The protocol that adds messages up, so that the server learns the sum alone, the server to "
    "follow it, and {others} to add their share of the noise.",
}


Answers = dict[str, str]  # by their questions


def questions(subject: Subject) -> dict[str, Answers]:
    """Return the answered questions by chapter."""
    return {
        "The guarantee": _guarantee(subject),
        "The algorithms": _algorithms(subject),
        "The deployment": _deployment(subject),
    }


def annex(subject: Subject) -> Answers:
    """Return terms and formulas, the draws and the settings."""
    draws = [
        f"{budget}: {text}"
        for claim, budget in zip(subject.claims, subject.budgets, strict=True)
        if (text := describe_draws(claim))
    ]
    return {
        "AUROC": "The chance that a case has a higher score than another person: 0.5 is blind, 1 perfect; a "
        "point is 0.01.",
        "Missed": "100 (1 - s); s: share of cases above the lowest threshold that 95 % of the others do not "
        "exceed.",
        "ε and δ": "For neighbors D, D' and every set S of messages, P[M(D) ∈ S] ≤ exp(ε) P[M(D') ∈ S] + δ.",
        "Guessing right": "At most (1 + δ exp(-ε)) / (1 + exp(-ε)), both data sets being equally likely.",
        "Draws": "; ".join(draws) or "Not recorded.",
        "Settings": _settings(subject),
    }


def _guarantee(subject: Subject) -> Answers:
    """Answer what is promised, to whom, and what several releases reveal."""
    claims, first = subject.claims, subject.claims[0]
    warnings = dict.fromkeys(str(claim["warning"]) for claim in claims if claim.get("warning"))
    told = [
        f"{quantity(upward(_epsilon(claim)), 3)}{' (extrapolated: no guarantee here)' * ('noise_cohort' in claim)}"
        for claim in claims
    ]
    joint = " ".join(together(subject.frame)) or f"{data_of(subject.plain)}: one private training."
    return {
        "What is promised?": _promise(subject),
        "How large are ε and δ?": f"ε = {joined(told)} for {_sent(first)} in a training, at "
        f"δ = {joined(quantity(claim.get('delta'), 3) for claim in claims)}. "
        + (f"Warning: {'; '.join(warnings)}." if warnings else "No warning applies to δ."),
        "Whom does it protect?": _protected(subject),
        "Can these ε be compared?": "Yes: unit, neighbors, δ and who adds the noise are the same in all of them."
        + " Not with those of the other statements on these data." * bool(subject.apart),
        "What do all releases together reveal?": f"In this study, {joint} {_price(subject)} A federation that "
        "trains once, with settings fixed before, pays the ε of one training.",
        "Does it hold for all alike?": _exposed(subject),
    }


def _algorithms(subject: Subject) -> Answers:
    """Answer how the guarantee is reached, what it costs and whom."""
    claims, first = subject.claims, subject.claims[0]
    sampling, inside = str(first.get("sampling")), first.get("unit") in INSIDE
    drawn = f"{subject.unit.capitalize()}s of a batch" if inside else "Participants"
    clips = [quantity(clip, 3) if isinstance(clip := own.get("clip"), float) else str(clip) for own in claims]
    noise = [quantity(claim.get("noise_multiplier"), 3) for claim in claims]
    search = subject.plain.records[0].search
    tuned = f", each budget with the best of {counted(len(search['trials']), 'setting')}" if search else ""
    return {
        "How is it reached?": f"What one {subject.unit} adds to a message is shortened to a norm of at most "
        f"{joined(clips)}; {of_user(first) or 'Gaussian noise is added: '}its "
        f"{'scale' if of_user(first) else 'standard deviation'} is {subject.by_budget(noise)} times what one "
        f"{subject.unit} can change. {drawn}: "
        f"{'known to all' if 'protects' in first else SAMPLINGS.get(sampling, sampling)}. Accountant: "
        f"{joined(str(own.get('accountant')) for own in claims)}.",
        "Which method learns?": f"{subject.plain.algorithm}{tuned}."
        + " The table before these questions has the others that were run." * (subject.methods is not None),
        "What does it cost in accuracy?": "The first sentences and the first table say it.",
        "Who bears the cost?": bias(subject) or NOT_ADDRESSED,
    }


def _deployment(subject: Subject) -> Answers:
    """Answer whom one must trust, what the implementation leaves open, and what ε does not cover."""
    first = subject.claims[0]
    public = {
        fact
        for cell in subject.private
        for run in cell.done[:1]
        for fact in public_and_private(run.record.final.get("public", ()))[0]
    }
    made = [str(first[name]) for name in ("generator", "arithmetic") if first.get(name)]
    attacked = any(cell.spec.get("attacks") for cell in subject.private)
    uncovered = "; ".join(uncovered_by(subject.private)).replace("(listed under public)", "(named next)")
    uncovered = uncovered or "not recorded"
    return {
        "Who may ask what?": "A training sends a fixed number of messages, all counted in ε. What is computed from "
        "them alone, such as the model of all, may be used without limit. Further trainings on the same data add "
        f"up; a model that a {subject.site} keeps to itself is outside of the promise, whatever ε stands beside it."
        + f" Predictions need new messages of the {subject.site}s, which are not counted."
        * ("protects" in first),
        "Whom must one trust?": _trusted(subject),
        "Is it implemented safely?": "These runs are a simulation. Generator and numbers: "
        f"{'; '.join(made) or 'not recorded'}. Timing was not examined.",
        "What does ε not cover?": f"{uncovered[:1].upper()}{uncovered[1:]}. Taken as known to everybody: "
        f"{_listed(sorted(public)) or 'not recorded'}.",
        "Was it attacked?": "Yes, by the attacks that the runs name; the report has their success."
        if attacked
        else f"{NOT_ADDRESSED} The commands audit and check test the mechanism.",
        "Who has access, and how are data secured?": NOT_ADDRESSED,
        "How were the data collected, and with what consent?": NOT_ADDRESSED,
    }


def _beyond(unit: str, site: str) -> str:
    """Name who is protected less than the unit, or more."""
    return {
        "client": f"So also each of its patients or persons, unless they have data at another {site}.",
        "record": "A person with several records is protected less: ε grows with their number.",
        "user": f"With all records at one {site}; a person with data at two is protected less.",
    }.get(unit, "")


def _sent(claim: Mapping[str, Any]) -> str:
    """Name what ε is about."""
    return SENT.get(str(claim.get("placement")), "all that is sent")


def _promise(subject: Subject) -> str:
    """Return what ε and δ promise; nothing where they bound nothing."""
    first = subject.claims[0]
    if "noise_cohort" in first:
        return (
            f"Nothing to these {subject.site}s: the noise is that of cohorts of "
            f"{counted(first['noise_cohort'], subject.site)}, in which alone ε would hold."
        )
    chances = {
        budget: f"{_upward_percent(accuracy_bound(_epsilon(claim), claim['delta'])):.4g} % ({budget})"
        for claim, budget in zip(subject.claims, subject.budgets, strict=True)
        if math.isfinite(_epsilon(claim))
    }
    endless = [budget for budget in subject.budgets if budget not in chances]
    nothing = f"Nothing is promised without a finite ε ({joined(endless)})." if endless else ""
    if not chances:
        return nothing
    about = f"any one {subject.unit}"
    if "protects" in first:
        about = f"the features that one {subject.site} holds of any one person"
    secret = " but who took part in which round" * _is_secret(first)
    sentences = [
        f"A limit to what anybody learns about {about} from {_sent(first)}, whatever else they know{secret}. "
        "Guessing between two data sets that differ in one, they are right at most "
        f"{joined(chances.values())} of the time; a blind guess is right 50 %.",
        "Near 100 % next to nothing is excluded." if any(map(_is_weak, subject.claims)) else "",
        nothing,
    ]
    return " ".join(filter(None, sentences))


def _protected(subject: Subject) -> str:
    """Name the unit, the neighbors, and who is protected less than the unit, or more."""
    first, site = subject.claims[0], subject.site
    if "protects" in first:
        text = str(first["protects"])
        return (
            f"{text[0].upper()}{text[1:]}. What several {site}s hold of one person is protected less: ε grows with "
            "their number."
        )
    unit, change = str(first.get("unit")), str(first.get("adjacency"))
    whole = {"client": ", with all its data", "user": f", with all records that a {site} trains on"}.get(
        unit, ""
    )
    return (
        f"One {subject.unit}{whole}. Compared are the data as they are and "
        f"{ALTERNATIVES.get(change, change).format(unit=subject.unit)}. {_beyond(unit, site)}"
    )


def _trusted(subject: Subject) -> str:
    """Name whom one must trust, and with what."""
    first, site = subject.claims[0], subject.site
    lost = first.get("dropouts")
    others = f"all but {lost:.0%} of the {site}s of a round" if lost else f"all other {site}s of a round"
    placement = str(first.get("placement"))
    texts = [TRUST.get(placement, placement).format(site=site, others=others)]
    if _is_secret(first):
        texts.append(f"Neither the server nor a {site} may tell who took part in which round.")
    if first.get("unit") != "client":
        texts.append(f"A {subject.unit}'s own {site} has the data as they are.")
        if first.get("sampling") in SECRET and "protects" not in first:
            texts.append("It may not tell which were in a batch.")
    if "protects" in first:
        texts.append("Labels are taken as known to everybody.")
    texts.append("What ε does not cover (below) is protected from nobody.")
    return " ".join(texts) + "".join(dict.fromkeys(map(ties_to_others, subject.claims)))


def _is_secret(claim: Mapping[str, Any]) -> bool:
    """Return whether an epsilon holds only while nobody tells which clients took part."""
    return claim.get("unit") == "client" and claim.get("sampling") in SECRET


def _exposed(subject: Subject) -> str:
    """Name whose the epsilons are, where clients differ most."""
    finite = [claim for claim in subject.claims if math.isfinite(_epsilon(claim))]
    if not finite:
        return "No ε is finite."
    claim, end = min(finite, key=_evenness), subject.private[0].records[0].final
    who, middle = most_exposed(claim, end.get("clients")), claim.get("epsilon_median")
    medians = [
        f"{quantity(own.get('epsilon_median'), 3)} ({budget})"
        for own, budget in zip(subject.claims, subject.budgets, strict=True)
        if own.get("epsilon_median") is not None
    ]
    if who is None:
        return "Not recorded."
    if who.number is None:
        return f"Yes: ε is that of every {subject.site}."
    name = who.text(client_names(end))
    if middle is None:
        return f"The largest ε is that of {name}; the others' are not recorded."
    even = not is_uneven(_epsilon(claim), float(middle))
    return f"{'Nearly' if even else 'No'}: the largest ε is that of {name}; the median is {joined(medians)}."


def _price(subject: Subject) -> str:
    """Return what choosing the settings has released."""
    searches = [cell.records[0].search for cell in subject.private]
    prices = [search["price"] for search in searches if search and search.get("price")]
    if prices:
        own = {json.dumps(price, sort_keys=True, default=str): price for price in prices}.values()
        told = [
            f"{counted(price['runs'], 'private run')} on top: {_searched_epsilon(price['epsilon'])}"
            for price in own
        ]
        one = len(own) == 1
        return (
            f"The {'search' if one else 'searches'} for settings made {joined(told)}, had each noise of its own."
            + " All searches together reveal more." * (not one)
            + " What searches of other methods reveal is not in it." * (subject.methods is not None)
        )
    if any(searches):
        return "What the search for settings released on top is not recorded."
    return "How settings were chosen is not recorded; choosing them by results on the data reveals more."


def _searched_epsilon(epsilon: float | str | None) -> str:
    if epsilon is None:
        return "an ε that is not known"
    return f"ε = {quantity(upward(float(epsilon)), 3)} together"


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


def _evenness(claim: Mapping[str, Any]) -> float:
    """Return the median epsilon by the largest; 1 if it is not known."""
    middle = claim.get("epsilon_median")
    return 1.0 if middle is None or not _epsilon(claim) else float(middle) / _epsilon(claim)


def _upward_percent(share: float) -> float:
    """Return a share in percent, rounded up to two decimals, as it is a bound."""
    return math.ceil(1e4 * share - 1e-9) / 100


def _epsilon(claim: Mapping[str, Any]) -> float:
    epsilon = claim.get("epsilon_total")
    return float(epsilon) if isinstance(epsilon, int | float) else math.inf


def _listed(facts: Sequence[str]) -> str:
    """Return whole facts up to about `LONGEST` letters, and how many more there are."""
    lengths = accumulate(len(fact) + 2 for fact in facts)
    shown = max(1, sum(length <= LONGEST for length in lengths))
    more = f"; and {len(facts) - shown} more, in done.json of each run" if len(facts) > shown else ""
    return "; ".join(facts[:shown]) + more
