"""Model selection after a grid search: each seed chooses a setting of every algorithm on selection samples.

The runs of one table share data, partition, model and protection; algorithms may differ in problem and rounds. A
seed chooses among its own finished runs on its own selection samples, so its test samples have no influence. It
takes the best setting by a measure among those whose guard (a second measure, like accuracy) is near the best one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from harness.config.report import Choice, Published
from harness.core.units import counted
from harness.metrics import better_is_higher
from harness.report.data.leaderboard import half_width
from harness.report.data.results import Results, Run, grouped
from harness.report.data.specs import digest, flatten, part_name
from harness.report.data.tested import paired_values
from harness.report.tables.pivot import Grid, Place, value_text, with_spread
from harness.report.tables.text import in_sentence, words

OWN = ("algorithm", "problem", "rounds", "eval_every", "seed")  # settings that may differ within a table


def choose(rivals: Iterable[Run], choice: Choice) -> Run | None:
    """Return the best of one seed's runs of an algorithm; None if none has the values that it takes."""
    runs = [run for run in rivals if run.done]

    def rank(run: Run, measure: str) -> float | None:
        value = run.value(measure)
        return None if value is None else -value if better_is_higher(measure) else value

    if choice.near is not None:
        guard, off = choice.near
        guarded = [(at, run) for run in runs if (at := rank(run, guard)) is not None]
        best = min((at for at, _ in guarded), default=0.0)
        runs = [run for at, run in guarded if at <= best + off]
    scored = [(at, digest(run.record.spec), run) for run in runs if (at := rank(run, choice.by)) is not None]
    return min(scored, key=lambda entry: entry[:2])[2] if scored else None


def chosen_tables(results: Results, choice: Choice, baseline: str | None = None) -> list[Grid]:
    """Return, for every task, the table of the chosen settings and that of the sensitive groups under them.

    Tasks come in the order of their first records, which is that of the suite.

    Parameters
    ----------
    results : Results
        Of one suite or several.
    choice : Choice
        How settings are chosen.
    baseline : str, optional
        Algorithm that others are compared with, seed by seed, each at its own choice.
    """
    variants = {run.number: dict(cell.variant) for cell in results.cells for run in cell.runs}
    tasks = grouped(results.runs, lambda run: digest([run.identity.shared_key(OWN), variants[run.number]]))
    flats: dict[str, dict[str, str]] = {}
    for key, (first, *_) in tasks.items():
        shared = {name: part for name, part in first.record.spec.items() if name not in OWN}
        flats[key] = flatten(shared) | variants[first.number]
    common = set.intersection(*(set(flat.items()) for flat in flats.values())) if flats else set()
    published = [(flatten(entry.where), entry) for entry in choice.published]
    grids = []
    for key in tasks:  # in the suite's order
        telling = [item for item in flats[key].items() if item not in common or item[0] == "data.name"]
        where = ", ".join(v if k.endswith((".name", ".kind")) else f"{k}={v}" for k, v in telling)
        by_algorithm = grouped(tasks[key], lambda run: part_name(run.record.spec.get("algorithm")) or "")
        runs = {name: grouped(rivals, lambda run: run.seed) for name, rivals in by_algorithm.items()}
        picked = {
            name: {seed: best for seed, rivals in sorted(seeds.items()) if (best := choose(rivals, choice))}
            for name, seeds in runs.items()
        }
        paper = [
            entry for beside, entry in published if all(flats[key].get(k) == v for k, v in beside.items())
        ]
        grids.append(_measures_grid(where, runs, picked, choice, baseline, paper[:1]))
        grids += _groups(where, picked)
    return grids


def _measures_grid(
    where: str,
    runs: Mapping[str, Mapping[int, Sequence[Run]]],
    picked: Mapping[str, Mapping[int, Run]],
    choice: Choice,
    baseline: str | None,
    paper: Sequence[Published],
) -> Grid:
    """Return the table of measures, differences to the baseline, a paper's values, and settings."""
    places: dict[tuple[str, str], Place] = {}
    columns: list[str] = []
    others: list[str] = []
    values = {
        measure: {name: _values(seeds, measure) for name, seeds in picked.items()} for measure in choice.show
    }
    for number, measure in enumerate(choice.show):
        heading = words(measure)
        columns.append(heading)
        reference = values[measure].get(baseline or "", {})
        for name, seed_values in values[measure].items():
            places[name, heading] = Place(with_spread(seed_values, measure), seed_values)
            both, apart = paired_values(seed_values, reference, picked[name], picked.get(baseline or "", {}))
            others += [f"{name} ({counted(apart, 'seed')})"] if apart and name != baseline else []
            if name != baseline and both:
                places[name, f"Δ {heading}"] = Place(_difference(list(both.values()), measure), both)
        for entry in paper:
            for name, printed in entry.values.items():
                places[name, f"{heading}, paper"] = Place(printed[number])
        columns += [
            extra for extra in (f"Δ {heading}", f"{heading}, paper") if any(c == extra for _, c in places)
        ]
    for name, seeds in picked.items():
        places[name, "Chosen"] = Place(_settings(runs[name], seeds))
        places[name, "Seeds"] = Place(f"{len(seeds)}/{len(runs[name])}")
    order = [name for name in (baseline, *sorted(picked)) if name in picked]
    return Grid(
        title=f"Chosen settings: {where}" if where else "Chosen settings",
        corner="algorithm",
        note=_note(choice, baseline if baseline in picked else None, others, bool(paper)),
        rows=tuple(dict.fromkeys(str(name) for name in order)),
        columns=(*columns, "Chosen", "Seeds"),
        places=places,
    )


def _note(choice: Choice, baseline: str | None, others: Sequence[str], paper: bool) -> str:
    """Return how settings were chosen, what differences are to, and which seeds are not paired."""
    near = "" if choice.near is None else (
        f", among those whose {in_sentence(choice.near[0])} is within {choice.near[1]:g} of the best"
    )  # fmt: skip
    notes = [f"Each seed chose its own setting of every algorithm by {in_sentence(choice.by)}{near}."]
    notes.append(
        "Mean ± sample standard deviation over seeds; chosen settings with the number of seeds that chose them."
    )
    if baseline is not None:
        notes.append(f"Δ: to {baseline}, paired over seeds, ± the half width of a 95 % interval.")
    if others:
        notes.append(
            f"Not paired, as other samples were tested: {', '.join(dict.fromkeys(others))}; see data.user."
        )
    if paper:
        notes.append("Figures of the paper are as printed there.")
    return " ".join(notes)


def _groups(where: str, picked: Mapping[str, Mapping[int, Run]]) -> list[Grid]:
    """Return the table of true positive rates on the test samples of every sensitive group, if there are any."""
    rows = [
        row | {"algorithm": name, "seed": seed}
        for name, seeds in picked.items()
        for seed, run in seeds.items()
        for row in run.record.final.get("groups") or []
    ]
    if not rows:
        return []
    places: dict[tuple[str, str], Place] = {}
    columns: dict[str, str] = {}
    for (name, group), members in pd.DataFrame(rows).groupby(["algorithm", "group"], sort=False):
        n, positive = members[["n", "positives"]].fillna(0).mean()
        column = columns.setdefault(str(group), f"{group} ({n:.0f}, {positive:.0f} positive)")
        rates: dict[Any, float] = members.set_index("seed")["tpr"].dropna().to_dict()
        places[str(name), column] = Place(with_spread(rates, "eqopp"), rates)
    return [
        Grid(
            title=f"True positive rates of groups: {where}" if where else "True positive rates of groups",
            corner="algorithm",
            note="Of the chosen settings, on test samples; in brackets a group's test samples, mean over seeds. "
            "The rate of a small group is noisy, and so is a gap that it makes.",
            rows=tuple(sorted(picked)),
            columns=tuple(columns.values()),
            places=places,
        )
    ]


def _values(seeds: Mapping[int, Run], measure: str) -> dict[int, float]:
    values = {seed: run.value(measure) for seed, run in seeds.items()}
    return {seed: value for seed, value in values.items() if value is not None}


def _difference(values: Sequence[float], measure: str) -> str:
    mean, half = fmean(values), half_width(values)
    size = value_text(abs(mean), measure)
    sign = "" if size == value_text(0.0, measure) else "+" if mean > 0 else "-"
    return f"{sign}{size}" + ("" if half is None else f" ± {value_text(half, measure)}")


def _settings(seeds: Mapping[int, Sequence[Run]], picked: Mapping[int, Run]) -> str:
    """Return the chosen values of settings that differ, with numbers of seeds, the most frequent first."""
    tried = [flatten({"algorithm": r.record.spec["algorithm"]}) for rivals in seeds.values() for r in rivals]
    telling = [
        name for name in dict.fromkeys(k for t in tried for k in t) if len({t.get(name) for t in tried}) > 1
    ]
    if not telling:
        return "the only one"
    texts: Counter[str] = Counter()
    for run in picked.values():
        settings = flatten({"algorithm": run.record.spec["algorithm"]})
        texts[" ".join(f"{name.partition('.')[2]}={settings.get(name, 'null')}" for name in telling)] += 1
    return "; ".join(
        f"{text} ({n})" for text, n in sorted(texts.items(), key=lambda item: (-item[1], item[0]))
    )
