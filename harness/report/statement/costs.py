"""The first page of a statement: what privacy costs all clients together, and each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from harness.config.recorded import model_meta
from harness.core.units import counted
from harness.report.data.clients import ALONE, client_rows
from harness.report.data.protection_change import change_from
from harness.report.data.results import Cell
from harness.report.data.statistics import t_half
from harness.report.data.tested import seed_pairs
from harness.report.statement.subject import MISSED, Subject, by_seed, client_means, joined
from harness.report.tables.costs import headline
from harness.report.tables.pivot import Grid
from harness.report.tables.text import change_text, in_points, in_sentence

MOST_CLIENTS = 12  # rows; those with the most cases
FEW = 10  # cases, below which what a client misses is mostly chance


class ClientCosts(NamedTuple):
    """A row of the table: a client's name, its test samples with the cases among them, a text for each column."""

    name: str
    tested: str
    texts: list[str]


def answers(subject: Subject) -> list[str]:
    """Return what privacy costs, in sentences."""
    answer = headline(subject.comparison, subject.resolution)
    if not subject.has(MISSED):
        return [
            *filter(None, [subject.task, answer]),
            "How many cases are missed does not apply: that needs two classes and scores.",
        ]
    shares = [f"{_missed(cell):.0f}" for cell in (subject.plain, *subject.private)]
    at = joined(f"{share} at {budget}" for share, budget in zip(shares[1:], subject.budgets, strict=True))
    return [
        *filter(None, [subject.task, answer]),
        f"If 5 of 100 others may be flagged by mistake, {shares[0]} of 100 {subject.cases} are missed without "
        "privacy, "
        f"{at}.",
    ]


def heads(subject: Subject) -> list[str]:
    """Return the headings of the groups of columns, each of which has a column for every budget."""
    name = subject.measure.upper() if subject.measure == "auroc" else subject.measure.replace("_", " ")
    change = f"{name}, then its change{' in points' * in_points(subject.measure)}"
    return [change, f"of 100 {subject.cases}, missed"] if subject.has(MISSED) else [change]


def cost_rows(subject: Subject) -> list[ClientCosts]:
    """Return the row of all clients together, and of those with the most cases."""
    cells, measure = (subject.plain, *subject.private), subject.measure
    missed = subject.has(MISSED)
    texts = [f"{subject.plain.mean(measure):z.3f}"]
    pairs = [seed_pairs(cell, subject.plain, measure).differences for cell in subject.private]
    total = [change_from(subject.plain, cell, subject.resolution) for cell in subject.private]
    texts += [change_text(change.mean, measure) if change else "" for change in total]
    texts += [f"{_missed(cell):.0f}" for cell in cells] if missed else []
    runs = client_rows(subject.plain.done)
    if runs.empty or measure not in runs:
        return [ClientCosts(f"All {subject.site}s", "", texts)]
    before, after = by_seed(subject.plain, measure), (by_seed(cell, measure) for cell in subject.private)
    plain = client_means(before)
    changes = [client_means((own - before)[list(same)]) for own, same in zip(after, pairs, strict=True)]
    found = [client_means(by_seed(cell, MISSED)) for cell in cells] if missed else []
    counts = (
        runs.astype({"n": float, "positives": float}).groupby("client", sort=False)[["n", "positives"]].mean()
    )
    rows = [ClientCosts(f"All {subject.site}s", _tested(*counts.sum(min_count=1)), texts)]
    order = counts.sort_values(["positives", "n"], ascending=False, kind="stable")
    for client, number, cases in list(order.itertuples())[:MOST_CLIENTS]:
        own = [f"{plain[client]:z.3f}" if client in plain else ""]
        own += [change_text(change[client], measure) if client in change else "" for change in changes]
        own += [f"{100 * (1 - share[client]):.0f}" if client in share else "" for share in found]
        rows.append(ClientCosts(f"{client}{' *' * (cases < FEW)}", _tested(number, cases), own))
    return rows


def note(subject: Subject, rows: Sequence[ClientCosts]) -> str:
    """Describe how the table was measured."""
    number = subject.plain.records[0].final.get("clients", 0)
    several = len(rows) > 1
    lacking = subject.has(MISSED) and several and not any(client_means(by_seed(subject.plain, MISSED)))
    sentences = [
        f"Means over {counted(len(subject.plain.done), 'repetition')} with other splits and other noise, on "
        "records held out. In brackets of the sentences: 95 % intervals.",
        f"Single {subject.site}s have no results of their own here." if not several else "",
        f"Tested: their number, in brackets the cases. The first row has one threshold for all records, each "
        f"{subject.site} one of its own, chosen on the same records. *: fewer than {FEW} cases, so mostly chance. "
        "Empty: not both cases and others were tested."
        if several and subject.has(MISSED)
        else "",
        f"{counted(subject.more, 'more budget')} in the report." if subject.more else "",
        f"The {MOST_CLIENTS} {subject.site}s with the most cases are shown."
        if number > MOST_CLIENTS < len(rows)
        else "",
        f"Missed cases of each {subject.site} were not recorded by the version that made these runs."
        if lacking
        else "",
    ]
    return " ".join(filter(None, sentences))


def method_note(subject: Subject, methods: Grid) -> str:
    """Explain the table of methods, with those that are no federation."""
    algorithms = {cell.algorithm for cell in subject.results.cells if cell.task == subject.plain.task}
    pooled = sorted(name for name in algorithms if model_meta(name).get("pooled"))
    notes = [f"{', '.join(pooled)}: all data in one place."] if pooled else []
    if ALONE in algorithms:
        notes.append(f"{ALONE}: each {subject.site} with its own data alone; it sends nothing.")
    of_clients = subject.frame["model_for"].str.startswith("each client", na=False)
    if of_clients.any() and not of_clients.all():
        personal = sorted(subject.frame.loc[of_clients, "algorithm"].unique())
        gain = (
            f" Over all {subject.site}s its AUROC gains from knowing the {subject.site}'s share of cases."
            if subject.measure == "auroc"
            else ""
        )
        notes.append(
            f"Not comparable with the others: {', '.join(personal)}, with a model for each {subject.site} that is "
            f"tested there alone.{gain}"
        )
    return " ".join([methods.note, *notes])


def bias(subject: Subject) -> str:
    """Name who loses most under the smallest budget, and the gap between groups; empty if neither is known."""
    plain, cell, budget = subject.plain, subject.private[-1], subject.budgets[-1]
    texts = [_extremes(subject)]
    gaps = [list(one.values("eqopp").values()) for one in (plain, cell)]
    groups = [str(group["group"]) for group in plain.records[0].final.get("groups") or ()]
    if all(gaps):
        of = subject.sensitive or joined(groups)
        texts.append(
            f"The largest gap between groups ({of}) in the share of cases found is "
            f"{100 * fmean(gaps[0]):.1f} points without privacy and {100 * fmean(gaps[1]):.1f} at {budget}."
        )
    elif texts[0] and not groups:
        texts.append("Groups of people were not compared: no column names them (data.sensitive).")
    return " ".join(filter(None, texts))


def _extremes(subject: Subject) -> str:
    """Name the clients that lose most and least under the smallest budget, of those that are large enough."""
    plain, cell, measure = subject.plain, subject.private[-1], subject.measure
    runs = client_rows(plain.done)
    if measure not in client_rows(()) or runs.empty:
        return ""
    changes = by_seed(cell, measure) - by_seed(plain, measure)
    cases = runs.astype({"positives": float}).groupby("client")["positives"].mean()
    enough = {str(client) for client, number in cases.items() if not number < FEW}
    means = {client: mean for client, mean in client_means(changes).items() if client in enough}
    if len(means) < 2:
        return ""
    of = "points of" if in_points(measure) else "in"
    worst, best = (
        f"{_named(subject, client)} changes by {_with_interval(changes.T[client].dropna(), measure)}"
        for client in (end(means, key=means.__getitem__) for end in (min, max))
    )
    return (
        f"At {subject.budgets[-1]}, {worst} {of} {in_sentence(measure)}, {best}: the lowest and the highest of "
        f"{counted(len(means), subject.site)} with at least {FEW} tested cases, so partly chance."
    )


def _named(subject: Subject, client: str) -> str:
    """Return a client's name; one that is a number with the word for it."""
    return f"{subject.site} {client}" if client.isdigit() else client


def _with_interval(changes: pd.Series, measure: str) -> str:
    """Return the mean of some changes with its 95 % interval over seeds."""
    mean, spread = changes.mean(), changes.std()
    if math.isnan(spread):
        return change_text(mean, measure)
    half = t_half(spread, len(changes))
    low, middle, high = (change_text(value, measure) for value in (mean - half, mean, mean + half))
    return f"{middle} [{low}, {high}]"


def _missed(cell: Cell) -> float:
    return 100 * (1 - cell.mean(MISSED))


def _tested(number: float, cases: float) -> str:
    return f"{number:.0f}" + ("" if math.isnan(cases) else f" ({cases:.0f})")
