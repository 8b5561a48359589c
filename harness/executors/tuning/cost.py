"""The privacy of a search, were its values released."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

from datasets.federation import Federation
from harness.config.run import RunSpec
from harness.config.searches import Price, Search
from harness.config.tune import HalvingTune, TuneSpec
from harness.core.errors import Incompatible
from harness.core.settings.privacy import Privacy
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.federations import data_key
from harness.simulation.totals import DryRun
from privacy.event import Event
from privacy.individual import largest
from privacy.joint import Released, joint_epsilon
from privacy.ledger import Ledger
from privacy.selection import Selected, selection_epsilon

MOST_HISTORIES = 50  # of units whose releases are compared order by order; of more the largest epsilon counts


def cost_of(search: Search, tune: TuneSpec, releases: Releases) -> Selected | None:
    """Return the privacy cost of a search and of a run with the chosen settings; None if unknown.

    Of independent runs that choose by values alone, as those of a Latin hypercube do, were their settings drawn at
    random (`privacy.selection_epsilon`). Runs that share draws are not independent, and the runs of a surface are
    chosen by those before.
    """
    privacy = search.run.privacy
    if privacy is None or privacy.draws != "own" or not isinstance(tune, HalvingTune):
        return None
    specs = []
    for trial in search.trials:
        try:
            specs.append(search.spec(trial.settings, tune.seeds[0]))
        except Incompatible:
            continue
    events = [event for each in {_kind(spec): spec for spec in specs}.values() for event in releases.of(each)]
    if not any(events):  # nothing is released
        return None
    if any(event.noise is not None for each in events for event in each):
        return Selected(math.inf, "unknown: the cost of a search is proved for Gaussian noise only")
    return selection_epsilon(events, privacy.delta, tune.budget, len(tune.seeds), 1)


def price_of(searches: Sequence[Search]) -> Price | None:
    """Return the privacy of all runs of searches that choose together; None without privacy.

    As their runs follow from each other's values, no search of theirs is private for less: all their releases
    compose, with those of a reported run of each budget. Searches pair their runs by sharing noise, so this holds
    had each run drawn its own.
    """
    privacy = searches[0].run.privacy
    if privacy is None:
        return None
    runs = [
        (trial.released[seed], value)
        for search in searches
        for trial in search.trials
        for seed, value in zip(trial.seeds, trial.values, strict=True)
        if seed in trial.released
    ]
    chosen = [search.trials[search.best].released for search in searches if search.best is not None]
    reported = [next((events for events in each.values() if events is not None), None) for each in chosen]
    unfinished = sum(events is None and value is None for events, value in runs)
    released = [*reported, *(events for events, value in runs if events is not None or value is not None)]
    known = [Released(events) for events in released if events is not None]
    price = Price(len(runs), unfinished, None)
    if len(known) < len(released) or not known or getattr(privacy, "noise_cohort", None) is not None:
        return price
    try:
        return replace(price, epsilon=joint_epsilon(known, privacy.delta).epsilon)
    except ValueError:  # there is none, as of draws in two ways
        return price


class Releases:
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
    histories = ledger.histories(privacy.noise_multipliers, 0, privacy.user_noise)
    if len(histories.times) > MOST_HISTORIES:
        return [histories.events(largest(histories, privacy.delta, privacy.accountant)[0])]
    return [histories.events(number) for number in range(len(histories.times))]
