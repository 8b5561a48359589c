"""Searches of a suite: which combinations share one, and the points that they try."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from harness.config.fields import SECTIONS
from harness.config.run import RunSpec, read_spec
from harness.config.sweep import Combination, assign
from harness.config.tune import MOST_STEPS, HalvingTune, SurfaceTune, TuneSpec, is_tunable
from harness.core import rng
from harness.core.algorithm import ALGORITHMS
from harness.core.errors import Incompatible, UserError, unknown
from harness.core.settings.privacy_kinds import BUDGETS
from harness.core.units import counted
from privacy.event import Event

LENGTHS = ("algorithm.local_steps", "algorithm.local_epochs")  # which some algorithms leave no choice of


@dataclass
class Trial:
    """One setting of a search.

    Attributes
    ----------
    settings : dict
        Dotted path -> value.
    seeds : list of int
        The seeds tried.
    values : list of float or None
        The measure that chooses, one for each of them; None if a run did not end or has no such value.
    tests : list of float or None
        The metric on the test samples of those runs, by which nothing is chosen.
    released : dict
        Seed of a run that was made -> what it has released about its most exposed unit; None if it did not end, or
        has no such unit.
    """

    settings: dict[str, Any]
    seeds: list[int] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    tests: list[float | None] = field(default_factory=list)
    released: dict[int, tuple[Event, ...] | None] = field(default_factory=dict)

    def stored(self) -> dict[str, Any]:
        """Return it as ``suite.json`` keeps it."""
        return {name: value for name, value in vars(self).items() if name != "released"}


@dataclass(frozen=True)
class Finalist:
    """A setting that a search could have chosen as well.

    Attributes
    ----------
    trial : int
        Its number.
    share : float
        The share of resampled searches that choose it.
    metrics : dict
        Seed of the reported runs -> their metrics at the end.
    """

    trial: int
    share: float
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Price:
    """The privacy of the runs of a search, had each drawn noise of its own.

    Attributes
    ----------
    runs, unfinished : int
        Number of private runs, and of those that did not end, which are not in `epsilon`.
    epsilon : float or None
        Of all of them and of one reported run of each budget, together; None where it is not known.
    """

    runs: int
    unfinished: int
    epsilon: float | None


@dataclass
class Search:
    """The search of one combination for its settings.

    Attributes
    ----------
    cells : list of Combination
        The combinations that take what is chosen; the first is searched.
    paths : tuple of str
        Settings that are searched.
    trials : list of Trial
        In the order tried.
    best : int or None
        The number of the trial that is chosen; None if none has a value.
    finalists : list of Finalist
        What resampled searches choose.
    price : Price or None
        The privacy of all runs of its family together; None without privacy.
    """

    cells: list[Combination]
    paths: tuple[str, ...]
    trials: list[Trial] = field(default_factory=list)
    best: int | None = None
    finalists: list[Finalist] = field(default_factory=list)
    price: Price | None = None

    @property
    def run(self) -> RunSpec:
        """The run that is searched for."""
        spec = self.cells[0].spec
        assert spec is not None
        return spec

    @property
    def algorithm(self) -> str:
        """The name of its algorithm."""
        return str(self.run.algorithm["name"])

    def spec(self, settings: Mapping[str, Any], seed: int, *, paired: bool = False) -> RunSpec:
        """Return the run of some settings, ``paired`` with the others of its seed (``privacy.draws``).

        Raises
        ------
        UserError
            If they are not valid; Incompatible if they do not fit together.
        """
        private = {"privacy.draws": "paired", "privacy.secure_rng": False}
        return with_settings(
            self.run, {**settings, "seed": seed, **(private if paired and self.run.privacy else {})}
        )

    def chosen(self, measure: str) -> Iterator[dict[str, Any]]:
        """Yield what becomes of the fields of each combination; of a search without a value they are skipped."""
        why = f"tuning: none of {counted(len(self.trials), 'setting')} has a {measure}"
        for cell in self.cells:
            assert cell.spec is not None
            if self.best is None:
                yield {"spec": None, "reason": why}
            else:
                yield {"spec": with_settings(cell.spec, self.trials[self.best].settings)}


@dataclass(frozen=True)
class Family:
    """The searches of one method on one federation, which differ in their privacy budget.

    Attributes
    ----------
    searches : tuple of Search
        One for each budget, in descending order; all try the same settings.
    budgets : tuple of float
        The budgets; infinity without privacy.
    """

    searches: tuple[Search, ...]
    budgets: tuple[float, ...]


def families(searches: Sequence[Search]) -> list[Family]:
    """Return the families of a suite's searches, in the order of their first.

    Seeds and the values of what is searched may differ between budgets, as a search replaces them. Budgets that
    have no logarithm, as a noise multiplier of 0, are in a family of their own.
    """
    groups: dict[str, list[tuple[float, int]]] = {}
    for number, search in enumerate(searches):
        privacy = search.run.privacy
        name, budget = ("", math.inf) if privacy is None else privacy.budget
        replaced = ("seed", *search.paths, *(f"privacy.{budget_name}" for budget_name in BUDGETS))
        kind = name, 0 < budget < math.inf, search.paths, key_without(search.run, replaced)
        groups.setdefault(str(kind), []).append((budget, number))
    ordered = [sorted(members, reverse=True) for members in groups.values()]
    return [
        Family(tuple(searches[number] for _, number in members), tuple(budget for budget, _ in members))
        for members in ordered
    ]


def searches(cells: Sequence[Combination], tune: TuneSpec) -> list[Search]:
    """Return the searches of a suite, without trials, in the order of the combinations.

    Raises
    ------
    UserError
        If a setting exists in no combination, a seed of the search is reported, or a combination holds out no
        selection samples.
    """
    groups: dict[str, list[Combination]] = {}
    specs = [(cell, cell.spec) for cell in cells if cell.spec is not None]
    for cell, spec in specs:
        if spec.seed in tune.seeds_of(spec.algorithm["name"]):
            raise UserError(f"tune.seeds: {spec.seed} is a seed of the reported runs; give others")
        if spec.partition is None or spec.partition.selection_seed is None:
            raise UserError(
                "tune: the runs need partition.selection, the share of samples that settings are chosen on, as "
                f"partition: {{selection: 0.2}}; {spec.algorithm['name']} on {spec.problem['kind']} has none"
            )
        groups.setdefault(key_without(spec, ("seed", *tune.once_for)), []).append(cell)
    dumps = [spec.model_dump(mode="json") for _, spec in specs]
    for path in tune.settings:
        if dumps and not _exists(path) and not any(_has(dump, path) for dump in dumps):
            raise unknown("setting to tune", path, sorted({name for dump in dumps for name in _leaves(dump)}))
    found = []
    rests: set[str] = set()
    for own in groups.values():
        assert own[0].spec is not None
        rest = key_without(own[0].spec, ("seed", *tune.once_for, *tune.settings))
        if rest in rests:
            raise UserError(
                f"tune.settings: combinations of {own[0].spec.algorithm['name']} differ in nothing but what is "
                "tuned; a setting is either swept or tuned"
            )
        rests.add(rest)
        dump = own[0].spec.model_dump(mode="json")
        name = dump["algorithm"]["name"]
        fixed = ALGORITHMS[name].meta.steps is not None
        paths = [path for path in tune.settings if _has(dump, path) and tune.takes(path, name)]
        paths = [path for path in paths if not (fixed and path in LENGTHS)]
        in_epochs = dump["algorithm"]["local_steps"] is None and LENGTHS[0] not in paths
        if isinstance(tune, SurfaceTune) and tune.most_steps and in_epochs:
            raise UserError(
                f"tune.most_steps: runs of {name} take epochs; set algorithm.local_steps, or search it"
            )
        found.append(Search(own, tuple(paths)))
    return found


def points(tune: HalvingTune, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return the distinct settings that a search tries, of ``tune.budget`` points of a Latin hypercube.

    It fills pairs of ranges evenly and is the same for all combinations. Its first coordinates are for the step
    sizes of an algorithm, in their order, whatever their names.
    """
    steps, rest = ([path for path in tune.settings if _is_step(path) == wanted] for wanted in (True, False))
    steps = [path for path in steps if path in paths]
    if len(steps) > MOST_STEPS:
        raise UserError(
            f"tune.settings: at most {MOST_STEPS} step sizes of an algorithm, given {', '.join(steps)}"
        )
    places = {path: steps.index(path) if path in steps else MOST_STEPS + rest.index(path) for path in paths}
    cube = _cube(tune.budget, MOST_STEPS + len(rest))
    found = [{path: tune.settings[path].at(point[places[path]]) for path in paths} for point in cube]
    return list({str(settings): settings for settings in found}.values())


@cache
def _cube(count: int, coordinates: int) -> list[list[float]]:
    """Return the points of a Latin hypercube of small centered discrepancy."""
    from scipy.stats import qmc  # slow to import

    even = "random-cd" if count > 2 else None  # it exchanges coordinates of points
    sampler = qmc.LatinHypercube(coordinates, optimization=even, rng=rng.numpy_stream(0, "tune"))
    drawn: list[list[float]] = sampler.random(count).tolist()
    return drawn


def hold_out(cell: dict[str, Any]) -> None:
    """Give a run of a tuned suite the same selection samples under every seed."""
    part = cell.get("partition")
    if isinstance(part, Mapping) and part.get("selection"):
        cell["partition"] = {"selection_seed": 0, **part}


def step_sizes(spec: RunSpec) -> list[str]:
    """Return the settings of a run's algorithm that are step sizes."""
    return [
        f"algorithm.{name}"
        for name in ALGORITHMS[spec.algorithm["name"]].step_sizes()
        if name in spec.algorithm
    ]


def _is_step(path: str) -> bool:
    """Whether a setting is a step size of any algorithm, so that it has the same points for all."""
    section, _, name = path.partition(".")
    return section == "algorithm" and any(name in ALGORITHMS[one].step_sizes() for one in ALGORITHMS)


def with_settings(run: RunSpec, settings: Mapping[str, Any]) -> RunSpec:
    """Return a run with other settings, given by their dotted paths.

    Raises
    ------
    UserError
        If they are not valid; Incompatible if they do not fit together.
    """
    given = run.model_dump(mode="json")
    for path, value in settings.items():
        assign(given, path, value)
    try:
        return read_spec(given)
    except Incompatible:
        raise
    except UserError as error:
        raise UserError(f"tune.settings: {error}") from None


def key_without(spec: RunSpec, fields: Sequence[str]) -> str:
    """Return a key of all of a run but some fields."""
    dump = spec.model_dump(mode="json")
    for path in fields:
        *sections, last = path.split(".")
        part: Any = dump
        for section in sections:
            part = part.get(section) if isinstance(part, dict) else None
        if isinstance(part, dict):
            part.pop(last, None)
    return str(dump)


def _exists(path: str) -> bool:
    """Return whether some algorithm, or the section of a run, has a setting."""
    section, _, name = path.partition(".")
    if section == "algorithm":
        return any(name in cls.__dataclass_fields__ for cls in map(ALGORITHMS.__getitem__, ALGORITHMS))
    return section in SECTIONS and name in SECTIONS[section].model_fields


def _has(dump: Mapping[str, Any], path: str) -> bool:
    part: Any = dump
    for name in path.split("."):
        if not isinstance(part, Mapping) or name not in part:
            return False
        part = part[name]
    return True


def _leaves(dump: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, part in dump.items():
        path = f"{prefix}{name}"
        if isinstance(part, Mapping):
            yield from _leaves(part, f"{path}.")
        elif is_tunable(path):
            yield path
