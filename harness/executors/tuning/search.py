"""The search for settings of all combinations of a suite, side by side."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from harness.config.run import RunSpec
from harness.config.searches import Price, Search, families
from harness.config.tune import SPLIT, HalvingTune, SurfaceTune, TuneSpec
from harness.core.errors import Incompatible, UserError
from harness.executors.tuning.attempt import Attempt
from harness.executors.tuning.cost import Releases, cost_of, price_of
from harness.executors.tuning.halving import halve
from harness.executors.tuning.rungs import climb
from harness.metrics import LOPSIDED, PREFIXES
from harness.simulation.build import identify, prepare
from harness.simulation.calibration import calibrated
from harness.simulation.simulation import Simulation
from harness.storage.store import Store
from privacy.event import Event

log = logging.getLogger(__name__)
Start = Callable[[Sequence[RunSpec]], None]


def tune_all(searches: Sequence[Search], tune: TuneSpec, store: Store, start: Start) -> None:
    """Carry out searches; their trials are then complete, and their best is known.

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
    carry_out = partial(_carry_out, tune, store, start)
    if isinstance(tune, SurfaceTune):
        together = families(searches)
        climb(together, tune, carry_out)
        groups = [family.searches for family in together]
    else:
        assert isinstance(tune, HalvingTune)
        halve(searches, tune, carry_out)
        groups = [(search,) for search in searches]
    for group in groups:
        price = price_of(group)
        for search in group:
            search.price = price


def check_measured(searches: Sequence[Search], tune: TuneSpec) -> None:
    """Raise UserError if a model at its start has no value to choose by, for the data or the protection."""
    seen: set[str] = set()
    for search in searches:
        spec = search.cells[0].spec
        assert spec is not None
        strict = spec.privacy is not None and spec.privacy.strict
        key = f"{spec.model_dump_json(include={'data', 'partition', 'problem'})} {strict}"
        if key in seen:
            continue
        seen.add(key)
        setup = calibrated(prepare(spec.model_copy(update={"seed": tune.seeds_of(search.algorithm)[0]})))
        metrics = Simulation.from_setup(setup).evaluate().metrics
        if metrics.get(tune.measure) is None:
            where = f"{spec.algorithm['name']} on {spec.data.name if spec.data else spec.problem['kind']}"
            why = (
                "strict runs record no figures of selection samples"
                if strict
                else "it does not apply to these classes or groups"
            )
            known = [name for name in PREFIXES[SPLIT] if metrics.get(f"{SPLIT}_{name}") is not None]
            among = f"; known are {', '.join(sorted(known))}" if known else ""
            raise UserError(
                f"tune.metric: {tune.metric} of the selection samples is not known for {where}: {why}{among}"
            )
        constant = setup.federation.constant_accuracy(SPLIT) if tune.metric == "accuracy" else None
        if constant is not None and constant > LOPSIDED:
            log.warning(
                "tune.metric: always predicting the most frequent class has an accuracy of %.3f on the selection "
                "samples, so accuracy hardly tells settings apart; auroc does",
                constant,
            )


def _carry_out(tune: TuneSpec, store: Store, start: Start, attempts: Sequence[Attempt]) -> None:
    """Carry out runs, and add the values of each to its trial."""
    ids: list[str | None] = []
    runs: dict[str, RunSpec] = {}
    for search, trial, seed, paired in attempts:
        try:
            spec = search.spec(trial.settings, seed, paired=paired)
        except Incompatible:
            ids.append(None)
            continue
        id = identify(spec)
        runs[id] = spec
        ids.append(id)
    start(list(runs.values()))
    ends = {id: _end_of(store, id) for id in runs}
    for attempt, known in zip(attempts, ids, strict=True):
        end = ends.get(known or "", {})
        metrics, events = end.get("metrics", {}), end.get("events")
        attempt.trial.seeds.append(attempt.seed)
        attempt.trial.values.append(metrics.get(tune.measure))
        attempt.trial.tests.append(metrics.get(tune.metric))
        if known is not None:
            released = None if events is None else tuple(Event(*event) for event in events)
            attempt.trial.released[attempt.seed] = released


def metrics_of(store: Store, id: str) -> Mapping[str, float]:
    """Return the metrics at the end of a run; none if it has not ended well."""
    found: Mapping[str, float] = _end_of(store, id).get("metrics", {})
    return found


def _end_of(store: Store, id: str) -> Mapping[str, Any]:
    """Return what a run has written at its end; nothing if it has not ended well."""
    folder = store.folder(id)
    return folder.end() if folder.status == "done" else {}


def report_of(searches: Sequence[Search], tune: TuneSpec) -> list[dict[str, Any]]:
    """Return what ``suite.json`` keeps of searches.

    ``epsilon`` is the privacy of a search and of a run with what it has chosen, were the number of settings drawn
    from ``distribution`` with mean ``budget``, and had the values that choose no need of protection. It needs
    independent runs, and is None where they share their draws. ``price`` is that of all runs of a family (`Price`).
    """
    releases, found = Releases(), []
    for search in searches:
        cost = cost_of(search, tune, releases) if search.best is not None else None
        found.append(
            {
                "paths": list(search.paths),
                "trials": [trial.stored() for trial in search.trials],
                "chosen": search.best,
                **({"finalists": [asdict(one) for one in search.finalists]} if search.finalists else {}),
                "epsilon": None if cost is None else _number(cost.epsilon),
                "distribution": None if cost is None else cost.distribution,
                **({"price": _stored(search.price)} if search.price is not None else {}),
            }
        )
    return found


def _stored(price: Price) -> dict[str, Any]:
    """Return a price as JSON holds it."""
    return {**asdict(price), "epsilon": None if price.epsilon is None else _number(price.epsilon)}


def _number(epsilon: float) -> float | str:
    """Return an epsilon as JSON holds it, which lacks infinity."""
    return "inf" if math.isinf(epsilon) else epsilon
