"""Evidence for the claims of papers: which runs of a results folder count, and what is read from each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from harness.config.recorded import completed, named_parts
from harness.config.report import COSTS
from harness.core.errors import UserError, unknown
from harness.report.data.identity import origin, plugged
from harness.report.data.resolution import Resolution
from harness.report.data.results import Cell, Results, Run
from harness.report.data.tidy import COUNTS, flat_spec
from studies.papers.claims import REACHED, Choice, Measure, PaperClaim, PaperClaims, settings_text
from studies.papers.observations import DIGITS, Observation, versions_text

ENDED = ("done", "failed", "stopped")  # runs that had the rounds they had
PLACES = 4  # values named in a message


class Candidate(NamedTuple):
    """A run of the suite, and all its settings by dotted name."""

    run: Run
    settings: Mapping[str, Any]


def gather(claims: PaperClaims, results: Results) -> list[Observation]:
    """Read the observations of all claims from the runs of their suite.

    Raises
    ------
    UserError
        If a claim names a setting, a value or a measure that no run has, or if settings are left open that
        nothing chooses.
    """
    runs = _runs_of(claims.suite, results)
    if not runs:
        raise UserError(f"there are no runs of suite {claims.suite}, which {claims.folder} needs")
    cells = [cell for cell in results.cells if cell.suite == claims.suite]
    observations = []
    for claim in claims.claims:
        if claim.table:
            continue
        found = [
            observation
            for arm, where in claim.arms.items()
            for observation in _arm(claim, arm, _matching(claim.id, {**claim.at, **where}, runs))
        ]
        observations += found if claim.measure.how != "last" else _of_searches(claim, found, cells)
    return observations


def runs_with(what: str, where: Mapping[str, Any], suite: str, results: Results) -> list[Run]:
    """Return the runs of a suite with the given settings; raise UserError if there are none.

    ``what`` says who asks.
    """
    return [candidate.run for candidate in _matching(what, where, _runs_of(suite, results))]


def _runs_of(suite: str, results: Results) -> list[Candidate]:
    runs = [run for run in results.runs if run.record.id is not None and run.record.suite == suite]
    return [Candidate(run, _settings_of(run)) for run in runs]


def _of_searches(
    claim: PaperClaim, observations: Sequence[Observation], cells: Sequence[Cell]
) -> list[Observation]:
    """Add what searches could have chosen as well, and what their table cannot tell apart.

    Other choices have the last evaluation only. The difference of namesakes is one of means, so it says nothing of
    slopes and ratios.
    """
    measure = claim.measure
    if measure.number != 1:
        return list(observations)
    differences = claim.scale == "linear" and claim.along is None and any(c.records[0].same for c in cells)
    resolution = Resolution(cells, measure.name) if differences else None
    by_run = {str(run.record.id): (cell, run) for cell in cells for run in cell.runs}
    found = []
    for observation in observations:
        cell, run = by_run[observation.run]
        least = (resolution.of(cell) if resolution and cell.values(measure.name) else 0.0) or None
        found.append(observation._replace(others=_other_choices(run, measure.name), resolution=least))
    return found


def _other_choices(run: Run, measure: str) -> str:
    """Return share and value of all other settings that a search could have chosen; empty if one is missing."""
    search = run.record.search
    others = [each for each in search.get("finalists", ()) if each["trial"] != search["chosen"]]
    values = [each["metrics"].get(str(run.seed), {}).get(measure) for each in others]
    if None in values:
        return ""
    return " ".join(
        f"{each['share']:.{DIGITS}g}={value:.{DIGITS}g}" for each, value in zip(others, values, strict=True)
    )


def _settings_of(run: Run) -> dict[str, Any]:
    record = run.record
    return {**flat_spec(completed(record.spec, plugged(record))), "profile": record.profile}


def _matching(what: str, where: Mapping[str, Any], runs: Sequence[Candidate]) -> list[Candidate]:
    """Return the runs with the given settings; raise UserError if there are none."""
    remaining = list(runs)
    for name, wanted in where.items():
        matching = [candidate for candidate in remaining if _has(candidate.settings, name, wanted)]
        if not matching:
            names = {key for candidate in remaining for key in candidate.settings}
            if name not in names and wanted is not None:
                raise unknown(f"setting of {what}", name, names)
            values = sorted({str(candidate.settings.get(name, "none")) for candidate in remaining})
            raise UserError(
                f"{what}: no run has {settings_text({name: wanted})} among those with the settings before it; "
                f"there is {name} {', '.join(values)}"
            )
        remaining = matching
    return remaining


def _has(settings: Mapping[str, Any], name: str, wanted: Any) -> bool:
    """Return whether a run has a setting; a list means any of its values, null none at all."""
    value = settings.get(name)
    if wanted is None:
        return value is None and not any(key.startswith(f"{name}.") for key in settings)
    if isinstance(wanted, list):
        return value == json.dumps(wanted) or any(
            value == json.dumps(item) if isinstance(item, list) else _has(settings, name, item)
            for item in wanted
        )
    return isinstance(value, bool) == isinstance(wanted, bool) and value == wanted


def _arm(claim: PaperClaim, arm: str, runs: Sequence[Candidate]) -> list[Observation]:
    """Return the observations of one side of a claim."""
    points: dict[float | None, list[Candidate]] = {}
    for candidate in runs:
        points.setdefault(_point(claim, candidate.settings), []).append(candidate)
    if claim.along and len(points) < 2:
        raise UserError(
            f"{claim.id}: a slope along {claim.along} needs two of its values, given {list(points)}"
        )
    observations = []
    for point in sorted(points, key=lambda value: value or 0.0):
        settings, numbers_tried, candidates = _choose_settings(claim, points[point])
        repetitions: set[str] = set()
        for candidate in sorted(candidates, key=lambda each: _repetition(claim, each)[0]):
            _, repetition = _repetition(claim, candidate)
            if repetition in repetitions:
                raise UserError(
                    f"{claim.id}: two runs of {arm} have {claim.over} {repetition} and the same rest"
                )
            repetitions.add(repetition)
            value, bound = measure_run(claim.measure, candidate.run)
            if claim.scale == "log" and value is not None and value <= 0:
                raise UserError(
                    f"{claim.id}: scale log needs values above 0, run {candidate.run.record.id} has {value:g}"
                )
            observations.append(
                Observation(claim.id, claim.question, arm, point, settings, repetition, value, bound,
                       str(candidate.run.record.id), _versions_of(candidate.run), numbers_tried)
            )  # fmt: skip
    return observations


def _point(claim: PaperClaim, settings: Mapping[str, Any]) -> float | None:
    if claim.along is None:
        return None
    value = settings.get(claim.along)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UserError(f"{claim.id}: along needs numbers above 0, a run has {claim.along} {value}")
    return float(value)


def _repetition(claim: PaperClaim, candidate: Candidate) -> tuple[float, str]:
    """Return the value of the setting that repeats, as a key of its order and as text."""
    value = candidate.settings.get(claim.over)
    if value is None:
        raise unknown(f"setting that repeats {claim.id}", claim.over, candidate.settings)
    return (float(value) if isinstance(value, int | float) else math.inf), str(value)


def _choose_settings(claim: PaperClaim, runs: Sequence[Candidate]) -> tuple[str, str, list[Candidate]]:
    """Return the settings chosen where several are open, the numbers tried, and the runs to report."""
    ignored = {"seed", claim.over, claim.along}
    groups: dict[str, list[Candidate]] = {}
    for candidate in runs:
        fixed = {name: value for name, value in candidate.settings.items() if name not in ignored}
        groups.setdefault(json.dumps(fixed, sort_keys=True, default=str), []).append(candidate)
    for members in groups.values():
        _same_origin(claim, members)
    names = {name for candidate in runs for name in candidate.settings} - ignored
    first: dict[str, Mapping[str, Any]] = {key: members[0].settings for key, members in groups.items()}
    open_names = sorted(
        name for name in names if len({str(settings.get(name)) for settings in first.values()}) > 1
    )
    if claim.choose is None:
        if len(groups) > 1:
            open_values = [f"{name} ({_values(first.values(), name)})" for name in open_names[:PLACES]]
            raise UserError(
                f"{claim.id}: runs differ in {', '.join(open_values)}; set it under at, of or than, or add a "
                "choose section"
            )
        return "", "", list(runs)
    choosing = {str(seed) for seed in claim.choose.seeds}
    key = next(iter(groups)) if len(groups) == 1 else _best(claim, claim.choose, groups, choosing)
    reported = [candidate for candidate in groups[key] if _repetition(claim, candidate)[1] not in choosing]
    if not reported:
        raise UserError(
            f"{claim.id}: no run is left beside those of the seeds that choose, {sorted(choosing)}"
        )
    best = first[key]
    chosen = " ".join(f"{name}={best.get(name, 'none')}" for name in open_names)
    numbers = {name: _numbers(settings.get(name) for settings in first.values()) for name in open_names}
    tried = [f"{name}={'/'.join(map(str, values))}" for name, values in numbers.items() if len(values) > 1]
    return chosen, " ".join(tried), reported


def _numbers(values: Iterable[Any]) -> list[float]:
    """Return the different numbers among values of a setting, in order."""
    return sorted({n for n in values if isinstance(n, int | float) and not isinstance(n, bool)})


def _same_origin(claim: PaperClaim, runs: Sequence[Candidate]) -> None:
    """Raise UserError if runs that differ in what repeats were made with other data or code.

    Runs that have not begun have no versions. A setting that repeats, other than the seed, may decide the data.
    """
    free = set() if claim.over == "seed" else {"data.digest"}
    origins = [origin(candidate.run.record) for candidate in runs if candidate.run.record.versions]
    for name in sorted({name for each in origins for name in each} - free):
        if len({str(each.get(name)) for each in origins}) > 1:
            raise UserError(
                f"{claim.id}: its runs differ in {name} ({_values(origins, name)}); make them again"
            )


def _best(
    claim: PaperClaim, choice: Choice, groups: Mapping[str, Sequence[Candidate]], choosing: set[str]
) -> str:
    """Return the group with the best mean on the seeds that choose; one that misses a target there comes later."""
    sign = -1 if choice.by.better_is_higher else 1
    scores: dict[str, tuple[int, float]] = {}
    for key, members in groups.items():
        runs = [candidate.run for candidate in members if _repetition(claim, candidate)[1] in choosing]
        measurements = [measure_run(choice.by, run) for run in runs]
        values = [value for value, _ in measurements if value is not None]
        if len(values) == len(choosing):
            scores[key] = sum(bound for _, bound in measurements), sign * fmean(values)
    if not scores:
        raise UserError(
            f"{claim.id}: no setting has {choice.by} on all seeds that choose, {sorted(choosing)}"
        )
    return min(scores, key=lambda key: (*scores[key], key))


def _values(settings: Iterable[Mapping[str, Any]], name: str) -> str:
    values = sorted({str(settings_of_run.get(name, "none")) for settings_of_run in settings})
    return ", ".join(values[:PLACES]) + (", ..." if len(values) > PLACES else "")


def measure_run(measure: Measure, run: Run) -> tuple[float | None, bool]:
    """Return a measure of one run, and whether it is only a lower bound.

    A run that does not reach a target counts with what it had spent, also if it diverged. Other measures need a
    finished run.
    """
    if measure.target is not None:
        if run.record.status not in ENDED or not run.record.rounds:
            return None, False
        _check(run, measure.name)
        cost = REACHED[measure.how]
        cost_spent = run.at_target(measure.target, run.curve(cost))
        return (run.value(cost), True) if cost_spent is None else (cost_spent, False)
    if not run.done:
        return None, False
    curve = _curve(run, measure.name)
    if measure.how == "at":
        rounds = run.curve("round")
        if measure.number not in rounds:
            evaluated = ", ".join(map(str, rounds[:PLACES]))
            raise UserError(
                f"run {run.record.id} has no evaluation at round {measure.number:g}; there are {evaluated}, "
                f"..., {rounds[-1]}"
            )
        curve = [curve[rounds.index(measure.number)]]
    if measure.how == "last":
        if len(curve) < measure.number:
            raise UserError(
                f"run {run.record.id} has {len(curve)} evaluations, fewer than the last {measure.number:g}"
            )
        curve = curve[-int(measure.number) :]
        return (None if None in curve else fmean(curve)), False
    values = [value for value in curve if value is not None]
    if not values:
        return None, False
    return float(min(values) if measure.how == "min" else max(values)), False


def _check(run: Run, name: str) -> None:
    """Raise UserError with the nearest name unless some run of the results has a measure."""
    results = run.results
    names = {*results.metrics, *results.diagnostics, *COUNTS, "bytes", "seconds", "epsilon"}
    if name not in names and not (name in results.frame and results.frame[name].dtype.kind in "ifb"):
        raise unknown("measure", name, {*names, *COSTS})


def _curve(run: Run, name: str) -> list[Any]:
    """Return a measure, or another column of the tidy table that holds numbers, at every evaluation."""
    _check(run, name)
    curve = run.curve(name)
    if any(value is not None for value in curve) or name not in run.results.frame:
        return curve
    column = run.results.frame[name].iloc[run.rows]
    return [None if gone else value for value, gone in zip(column.tolist(), column.isna(), strict=True)]


def _versions_of(run: Run) -> str:
    return versions_text(named_parts(run.record.spec), run.record.versions)
