"""The table of chosen settings of a tuned suite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from harness.core.units import counted
from harness.metrics import better_is_higher
from harness.report.data.budgets import budget_of
from harness.report.data.inversions import inversions
from harness.report.data.procedure import Procedures
from harness.report.data.results import Cell, Results, grouped
from harness.report.data.tuning import Searched, searched
from harness.report.tables.pivot import Grid, Place, value_text
from harness.report.tables.text import (
    change_text,
    distinguishing,
    in_points,
    in_sentence,
    quantity,
    without_section,
    words,
)
from harness.report.tables.together import upward

SIZES = (1, 5, 25, 125)  # of searches, whose expected results are told
COST = "ε with the search"
RUNS, PRICE = "Private runs", "ε of all runs"
REPORTED, CURSE, ALSO = "Reported", "Curse", "Other choice"
UNCOUNTED = "The search is not counted in ε: its choice, and the samples that choose, are taken for public."
MOST_ANSWERS = 12  # searches whose results are told in sentences; of more the leaderboard has them
UNTOLD = ("seed", "eval_every", "privacy", "data")  # sections that name no search; budget and data set do


def tuning_tables(results: Results) -> list[Grid]:
    """Return a table for every tuned suite: what each search chose, what it was worth, and what it would cost."""
    suites = grouped(searched(results), lambda search: search.cells[0].suite)
    return [_table(suite if len(suites) > 1 else "", found) for suite, found in suites.items()]


def _table(suite: str, found: Sequence[Searched]) -> Grid:
    tune = found[0].tune
    measure, metric = f"selection_{tune['metric']}", tune["metric"]
    by_surface = found[0].by_surface
    sizes = [] if by_surface else sorted({size for size in SIZES if size < tune["budget"]} | {tune["budget"]})
    private = any(search.found["epsilon"] is not None for search in found)
    priced = any(search.price is not None for search in found)
    names = names_of(found)
    places: dict[tuple[str, str], Place] = {}
    for name, search in zip(names, found, strict=True):
        places[name, "Chosen"] = Place(chosen_text(search))
        if (sought := search.mean) is not None:
            places[name, words(measure)] = Place(value_text(sought, measure), search.by_seed)
        # Rows that share a search differ in what they compress, and it is not recorded which of them searched.
        reported = search.cells[0].values(measure) if len(search.cells) == 1 else {}
        if sought is not None and reported:
            places[name, REPORTED] = Place(value_text(fmean(reported.values()), measure), reported)
            places[name, CURSE] = Place(_curse(sought, fmean(reported.values()), metric))
        for size in sizes:
            best = search.best_of(size)
            places[name, f"Best of {size}"] = Place("" if best is None else value_text(best, metric))
        places[name, ALSO] = Place(_also(search))
        places[name, "Failed"] = Place(str(search.failed or ""))
        if (price := search.price) is not None:
            places[name, RUNS] = Place(_runs(price), value=price["runs"])
            places[name, PRICE] = _price(price["epsilon"])
        places[name, COST] = Place(_epsilon(search.found["epsilon"]))
    columns = (
        *("Chosen", words(measure), REPORTED, CURSE),
        *(f"Best of {size}" for size in sizes),
        *([ALSO] * by_surface),
        "Failed",
        *([RUNS, PRICE] * priced),
        *([COST] * private),
    )
    title = f"What tuning chose: {suite}" if suite else "What tuning chose"
    notes = (_of_surface if by_surface else _of_halving)(tune, in_sentence(measure))
    notes += [
        f"{REPORTED}: {in_sentence(measure)} of what was chosen, over the reported seeds. {CURSE}: how much better "
        f"it looked in the search{', in points' if in_points(metric) else ''}; what is far above 0 was chosen by "
        "luck. Both are left out where several rows share a search.",
        *_of_ends(found),
        UNCOUNTED,
        *([_of_price(found, by_surface)] if priced else []),
        *([_of_cost(tune["budget"])] if private else []),
    ]
    answers, repeat = _answers(found, metric), _to_repeat(found, names)
    if repeat:
        answers.append(f"Searches to repeat, as a smaller budget had better results: {'; '.join(repeat)}.")
    elif repeat is not None:
        notes.append("No search has to be repeated: none had better results at a smaller budget.")
    if any("[" in answer for answer in answers):
        notes.insert(0, "In brackets: 95 % intervals over searches and seeds.")
    return Grid(title, "search", " ".join(notes), tuple(names), columns, places, tuple(answers))


def _answers(found: Sequence[Searched], metric: str) -> list[str]:
    """Return a sentence for every cell of a few: what its settings reach on test samples, and which they are."""
    if len(found) > MOST_ANSWERS:
        return []
    cells = [Searched((cell,), search.found) for search in found for cell in search.cells]
    procedures = Procedures(metric)
    return [_answer(name, search, procedures) for name, search in zip(names_of(cells), cells, strict=True)]


def _answer(name: str, search: Searched, procedures: Procedures) -> str:
    """Return a sentence such as ``fedavg, ε = 8: AUROC 0.61 [0.58, 0.63] on test samples, with lr 5.5``."""
    cell, metric = search.cells[0], search.tune["metric"]
    if search.chosen is None:
        return f"{name}: no setting had figures."
    settings = ", ".join(f"{name} {text}" for name, text in _chosen(search))
    values = cell.values(metric).values()
    if not values:
        return f"{name}: no reported run has {in_sentence(metric)}, with {settings}."
    interval = procedures.mean(cell)
    ends = "" if interval is None else f" [{', '.join(value_text(end, metric) for end in interval)}]"
    mean = f"{in_sentence(metric)} {value_text(fmean(values), metric)}{ends}"
    return f"{name}: {mean} on test samples, with {settings}."


def _to_repeat(found: Sequence[Searched], names: Sequence[str]) -> list[str] | None:
    """Return the searches that found worse settings than are known from smaller budgets; None without budgets."""
    inverted = inversions(cell for search in found for cell in search.cells)
    if inverted is None:
        return None
    keys = {inversion.cell.key for inversion in inverted}
    return [
        name
        for name, search in zip(names, found, strict=True)
        if any(cell.key in keys for cell in search.cells)
    ]


def _of_surface(tune: Mapping[str, Any], measure: str) -> list[str]:
    """Return what a search by a surface was."""
    first, second, third = tune["repeats"]
    return [
        f"Each method searched all budgets of a kind of privacy together, by a surface of {measure} on samples "
        f"that no run trains or tests on: {counted(tune['budget'], 'setting')} with {counted(first, 'seed')}, "
        f"the best of each budget with {second}, its {counted(tune['finalists'], 'finalist')} with {third}; "
        "ranges that bind were widened.",
        f"{ALSO}: how often resampled searches choose another setting, and how many others they choose.",
    ]


def _of_halving(tune: Mapping[str, Any], measure: str) -> list[str]:
    """Return what a search by successive halving was."""
    halved = f"; one setting in {tune['halving']} went on to the next seed" if len(tune["seeds"]) > 1 else ""
    return [
        f"Each row chose among {counted(tune['budget'], 'setting')} by {measure}, on samples that no run trains or "
        f"tests on, with seeds {', '.join(map(str, tune['seeds']))}{halved}.",
        f"Best of n: {words(tune['metric'])} that a search of n settings finds on average, on test samples, first "
        "seed; searches of which all settings fail are left out.",
    ]


def _of_ends(found: Sequence[Searched]) -> list[str]:
    """Return which values were chosen at an end beyond which the searches could not look."""
    often = Counter(end for search in found for end in search.at_ends.items())
    if not often:
        return []
    ends = (
        f"{path.rpartition('.')[2]} {_text(value)} in {count}" for (path, value), count in often.most_common()
    )
    return [
        f"At an end of its list, of {counted(len(found), 'search')}: {', '.join(ends)}. Lists are not "
        "widened: better settings may lie beyond, and no interval covers them."
    ]


def _of_price(found: Sequence[Searched], by_surface: bool) -> str:
    """Return what the price of a search means."""
    whose = "at all budgets of the method" if by_surface else "of the row"
    unfinished = any(search.price is not None and search.price["unfinished"] for search in found)
    return (
        f"{RUNS}: those of the search {whose}"
        f"{', with those that did not finish, which the next column lacks' if unfinished else ''}. {PRICE}: what "
        "they and a reported run of each budget would release together, were all of them published, about a unit "
        "as exposed in each as its most exposed one"
        f"{', and had each drawn noise of its own; to be compared in pairs they share it' if by_surface else ''}."
    )


def _runs(price: Mapping[str, Any]) -> str:
    """Return how many private runs a search took."""
    unfinished = f" ({price['unfinished']:,} unfinished)" if price["unfinished"] else ""
    return f"{price['runs']:,}{unfinished}"


def _price(epsilon: float | str | None) -> Place:
    """Return the epsilon of all runs of a search, rounded up, as it is a bound."""
    if epsilon is None:
        return Place("not known")
    value = float(epsilon)
    return Place(quantity(upward(value), 3), value=value)


def _of_cost(budget: int) -> str:
    """Return what the cost of a search means."""
    return (
        f"{COST}: were settings drawn independently at random, their number from "
        f"a logarithmic, geometric or Poisson distribution of mean {budget}, each run with all seeds, and the "
        "figures that choose public (Papernot and Steinke 2022)."
    )


def _curse(sought: float, reported: float, metric: str) -> str:
    """Return how much better a setting looked in the search than in the reported runs."""
    better = sought - reported if better_is_higher(metric) else reported - sought
    return change_text(better, metric)


def _also(search: Searched) -> str:
    """Return the share of resampled searches that choose another setting than the one chosen."""
    finalists = search.found.get("finalists", ())
    others = [finalist["share"] for finalist in finalists if finalist["trial"] != search.found["chosen"]]
    return f"{sum(others):.0%} ({len(others)})" if others else ""


def names_of(found: Sequence[Searched]) -> list[str]:
    """Return a name for every search, as ``fedavg, stops, ε = 8``: algorithm and what tells its searches apart."""
    members: dict[int, tuple[str, list[str]]] = {}
    data_sets = _data_sets([search.cells[0] for search in found])
    mechanisms = {_mechanism(search.cells[0]) for search in found} - {""}
    for number, search in enumerate(found):
        cell = search.cells[0]
        shared = set.intersection(*(set(own.given.items()) for own in search.cells))
        texts = [data_sets[number]]
        texts += [_trait(*setting) for setting in sorted(shared) if setting[0].split(".")[0] not in UNTOLD]
        budget = budget_of(cell)
        texts.append(f"ε = {budget.epsilon:g}" if budget.kind else _mechanism(cell) or "no privacy")
        texts.append(_mechanism(cell) if len(mechanisms) > 1 else "")
        members[number] = cell.algorithm, [text for text in texts if text]
    own = distinguishing(members)
    names = [", ".join([members[n][0], *own[n]]) for n in range(len(found))]
    again = [names[:n].count(name) for n, name in enumerate(names)]
    return [
        name if not earlier else f"{name} ({earlier + 1})" for name, earlier in zip(names, again, strict=True)
    ]


def _data_sets(cells: Sequence[Cell]) -> list[str]:
    """Return the data sets of cells, with options where those of one name differ: ``adult(sensitive=sex)``."""
    options = {
        number: (
            cell.data,
            [f"{name}={value}" for name, value in sorted(cell.given.items()) if name.startswith("data.")],
        )
        for number, cell in enumerate(cells)
    }
    differing = distinguishing(options)
    return [
        name + (f"({', '.join(map(without_section, differing[number]))})" if differing[number] else "")
        for number, (name, _) in options.items()
    ]


def _trait(path: str, value: Any) -> str:
    """Return a setting as ``mu=0.1``; of what names a part only the name."""
    field = path.rpartition(".")[2]
    return str(value) if field in ("name", "kind") else f"{field}={value}"


def _mechanism(cell: Cell) -> str:
    """Return unit, placement and kind of noise of a cell's privacy; empty without privacy."""
    asked = cell.spec.get("privacy")
    if not asked:
        return ""
    kind = asked.get("mechanism", "independent")
    parts = (asked.get("unit"), asked.get("placement"), kind if kind != "independent" else None)
    return "/".join(filter(None, parts))


def chosen_text(search: Searched) -> str:
    """Return the settings that a search chose, in one line."""
    if search.chosen is None:
        return "none had figures"
    return " ".join(f"{name}={text}" for name, text in _chosen(search))


def _chosen(search: Searched) -> list[tuple[str, str]]:
    """Return the names and values of the settings that a search chose."""
    settings = {} if search.chosen is None else search.chosen["settings"]
    return [(path.rpartition(".")[2], _text(value)) for path, value in settings.items()]


def _text(value: Any) -> str:
    return quantity(value) if isinstance(value, float) else str(value)


def _epsilon(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else quantity(value, 3)
