"""The search for settings: successive halving over seeds, all searches of a suite side by side.

With the first seed every setting is tried, with each further one the best share of those left (Jamieson and
Talwalkar 2016, https://arxiv.org/abs/1502.07943, with seeds in place of training time).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from datasets.federation import Federation
from harness.config.ranges import Range
from harness.config.run import RunSpec
from harness.config.tune import LATIN, Search, Trial, TuneSpec, points
from harness.core import rng
from harness.core.registry import Incompatible, UserError, unknown
from harness.core.settings.privacy import Privacy
from harness.metrics import better_is_higher
from harness.simulation.build import data_key, identify, prepare
from harness.simulation.calibration import calibrated
from harness.simulation.simulation import Simulation
from harness.simulation.totals import DryRun
from harness.storage.store import Store
from privacy.event import Event
from privacy.individual import largest
from privacy.ledger import Ledger
from privacy.selection import Selected, selection_epsilon

MOST_HISTORIES = 50  # of units whose releases are compared order by order; of more the largest epsilon counts

Start = Callable[[Sequence[RunSpec]], None]


class Sampler(Protocol):
    """A source of the settings of one search."""

    def ask(self, number: int) -> list[dict[str, Any]]:
        """Return the next settings."""

    def tell(self, trials: Sequence[Trial]) -> None:
        """Learn the figures of what was asked last."""


def tune_all(searches: Sequence[Search], tune: TuneSpec, store: Store, start: Start) -> None:
    """Carry out searches; their trials are then complete.

    Parameters
    ----------
    searches : sequence of Search
        Without trials.
    tune : TuneSpec
        How they are made.
    store : Store
        Where the runs are.
    start : Callable
        Carries out runs, those that are done already excepted.
    """
    check_measured(searches, tune)
    samplers = [_sampler(search, tune, number) for number, search in enumerate(searches)]
    batch = tune.budget if tune.sampler == LATIN else tune.batch
    for begun in range(0, tune.budget, batch):
        asked = []
        for search, sampler in zip(searches, samplers, strict=True):
            own = [Trial(settings) for settings in sampler.ask(min(batch, tune.budget - begun))]
            search.trials += own
            asked.append((search, own))
        _carry_out(asked, tune, tune.seeds[0], store, start)
        for sampler, (_, own) in zip(samplers, asked, strict=True):
            sampler.tell(own)
    for seed, size in zip(tune.seeds[1:], tune.sizes()[1:], strict=True):
        left = [(search, search.order(tune.measure)[:size]) for search in searches]
        _carry_out(left, tune, seed, store, start)


def check_measured(searches: Sequence[Search], tune: TuneSpec) -> None:
    """Raise UserError if a model at its start has no figure to choose by, for the data or the protection."""
    seen: set[str] = set()
    for search in searches:
        spec = search.cells[0].spec
        assert spec is not None
        strict = spec.privacy is not None and spec.privacy.strict
        key = f"{spec.model_dump_json(include={'data', 'partition', 'problem'})} {strict}"
        if key in seen:
            continue
        seen.add(key)
        run = Simulation.from_setup(calibrated(prepare(spec.model_copy(update={"seed": tune.seeds[0]}))))
        if run.evaluate().metrics.get(tune.measure) is None:
            where = f"{spec.algorithm['name']} on {spec.data.name if spec.data else spec.problem['kind']}"
            why = (
                "strict runs record no figures of selection samples"
                if strict
                else "it does not apply to these classes or groups"
            )
            raise UserError(
                f"tune.metric: {tune.metric} of the selection samples is not known for {where}: {why}"
            )


def _carry_out(
    trials: Sequence[tuple[Search, Sequence[Trial]]], tune: TuneSpec, seed: int, store: Store, start: Start
) -> None:
    """Run trials with a seed, and add its figure to each."""
    wanted: list[tuple[Trial, str | None]] = []
    runs: dict[str, RunSpec] = {}
    for search, own in trials:
        for trial in own:
            try:
                spec = search.spec(trial.settings, seed)
            except Incompatible:
                wanted.append((trial, None))
                continue
            id = identify(spec)
            runs[id] = spec
            wanted.append((trial, id))
    start(list(runs.values()))
    ends = {id: _metrics(store, id) for id in runs}
    for trial, known in wanted:
        metrics = ends.get(known or "", {})
        trial.values.append(metrics.get(tune.measure))
        trial.tests.append(metrics.get(tune.metric))


def _metrics(store: Store, id: str) -> Mapping[str, float]:
    """Return the metrics at the end of a run; none if it has not ended well."""
    folder = store.folder(id)
    found: Mapping[str, float] = folder.end()["metrics"] if folder.status == "done" else {}
    return found


class _Latin:
    """The points that all combinations try."""

    def __init__(self, search: Search, tune: TuneSpec) -> None:
        self._left = points(tune, search.paths)

    def ask(self, number: int) -> list[dict[str, Any]]:
        own, self._left = self._left[:number], self._left[number:]
        return own

    def tell(self, trials: Sequence[Trial]) -> None:
        """Nothing is learned."""


class _Optuna:
    """A sampler of Optuna, which learns from the figures of the first seed."""

    def __init__(self, search: Search, tune: TuneSpec, number: int) -> None:
        try:
            import optuna
        except ImportError:
            raise UserError(
                f"tune.sampler: {tune.sampler} needs Optuna: pip install 'fedfrontier[tune]'; or use {LATIN}"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        names = [
            name for name in optuna.samplers.__all__ if name.endswith("Sampler") and name != "BaseSampler"
        ]
        if tune.sampler not in names:
            raise unknown("sampler", tune.sampler, [LATIN, *names])
        made = getattr(optuna.samplers, tune.sampler)
        try:
            sampler = made(seed=rng.key(0, "tune", tune.sampler, number) % 2**32)
        except TypeError:
            raise UserError(
                f"tune.sampler: {tune.sampler} needs settings of its own or has no seed; use TPESampler"
            ) from None
        direction: Any = "maximize" if better_is_higher(tune.measure) else "minimize"
        self._study = optuna.create_study(sampler=sampler, direction=direction)
        self._over = {path: _distribution(tune.settings[path]) for path in search.paths}
        self._ranges = tune.settings
        self._asked: list[Any] = []

    def ask(self, number: int) -> list[dict[str, Any]]:
        self._asked = [self._study.ask(self._over) for _ in range(number)]
        return [
            {path: _value(self._ranges[path], value) for path, value in trial.params.items()}
            for trial in self._asked
        ]

    def tell(self, trials: Sequence[Trial]) -> None:
        import optuna

        for asked, trial in zip(self._asked, trials, strict=True):
            if trial.values[0] is None:
                self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
            else:
                self._study.tell(asked, trial.values[0])


def _distribution(over: Range) -> Any:
    """Return a range as Optuna has it; choices by their numbers, as it takes no lists."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if over.kind == "choice":
        return CategoricalDistribution(range(len(over.bounds)))
    low, high = over.bounds
    log = over.kind.startswith("log")
    return (IntDistribution if over.kind.endswith("integer") else FloatDistribution)(low, high, log=log)


def _value(over: Range, value: Any) -> Any:
    return over.value(value) if over.kind == "choice" else value


def _sampler(search: Search, tune: TuneSpec, number: int) -> Sampler:
    return _Latin(search, tune) if tune.sampler == LATIN else _Optuna(search, tune, number)


def report_of(searches: Sequence[Search], tune: TuneSpec) -> list[dict[str, Any]]:
    """Return what ``suite.json`` keeps of searches.

    ``epsilon`` is the privacy of a search and of a run with what it has chosen, were the number of settings drawn
    from ``distribution`` with mean ``budget``, and had the figures that choose no need of protection. It needs
    independent runs, and is None where they share their draws.
    """
    releases, found = _Releases(), []
    for search in searches:
        order = search.order(tune.measure)
        cost = _cost(search, tune, releases) if order else None
        found.append(
            {
                "paths": list(search.paths),
                "trials": [asdict(trial) for trial in search.trials],
                "chosen": search.trials.index(order[0]) if order else None,
                "epsilon": None if cost is None else "inf" if math.isinf(cost.epsilon) else cost.epsilon,
                "distribution": None if cost is None else cost.distribution,
            }
        )
    return found


def _cost(search: Search, tune: TuneSpec, releases: _Releases) -> Selected | None:
    """Return the cost of a search and of a run with what it has chosen; None without privacy."""
    specs = []
    for trial in search.trials:
        try:
            specs.append(search.spec(trial.settings, tune.seeds[0]))
        except Incompatible:
            continue
    privacy = specs[0].privacy
    if privacy is None or privacy.draws == "shared":  # only runs with draws of their own are independent
        return None
    events = [event for each in {_kind(spec): spec for spec in specs}.values() for event in releases.of(each)]
    if not any(events):  # nothing is released
        return None
    if any(event.noise is not None for each in events for event in each):
        return Selected(math.inf, "unknown: the cost of a search is proved for Gaussian noise only")
    return selection_epsilon(events, privacy.delta, tune.budget, len(tune.seeds), 1)


class _Releases:
    """The releases of runs about their units; runs that differ only in their budget share a dry run."""

    def __init__(self) -> None:
        self._events: dict[str, list[tuple[Event, ...]]] = {}
        self._dry: dict[str, DryRun | None] = {}
        self._federations: dict[str, Federation] = {}

    def of(self, spec: RunSpec) -> list[tuple[Event, ...]]:
        """Return the releases of a private run, once for each history; none if it is incompatible."""
        kind, without_budget = _kind(spec), _kind(spec, budget=False)
        if kind not in self._events:
            if data_key(spec) not in self._federations:
                self._federations.clear()  # searches with the same data mostly follow one another
            try:
                setup = calibrated(prepare(spec, cache=self._federations), self._dry.get(without_budget))
            except Incompatible:  # not remembered: its model, which is not in the key, may be why
                return []
            assert setup.privacy is not None and setup.dry is not None
            self._dry[without_budget] = setup.dry
            self._events[kind] = _released(setup.privacy, setup.dry.ledger)
        return self._events[kind]


def _kind(spec: RunSpec, *, budget: bool = True) -> str:
    """Return a key shared by runs that release the same about a client, or a record, whatever they compute.

    Without their budget: the same but for the size of the noise.
    """
    dump = spec.model_dump(mode="json", exclude={"model", "compression", "eval_every"})
    privacy = dump["privacy"] or {}
    privacy.pop("clip", None)
    if not budget:
        privacy.pop("epsilon", None)
    if privacy.get("unit") == "client":
        # Step sizes and the like; further settings may decide how often a message is sent.
        dump["algorithm"] = {
            name: own for name, own in dump["algorithm"].items() if not isinstance(own, float)
        }
        dump["algorithm"].pop("local_steps", None)
    return json.dumps(dump)


def _released(privacy: Privacy, ledger: Ledger) -> list[tuple[Event, ...]]:
    """Return the releases of a ledger under calibrated noise, once for each history."""
    histories = ledger.histories(privacy.noise, 0, privacy.own)
    if len(histories.times) > MOST_HISTORIES:
        return [histories.events(largest(histories, privacy.delta, privacy.accountant)[0])]
    return [histories.events(number) for number in range(len(histories.times))]
