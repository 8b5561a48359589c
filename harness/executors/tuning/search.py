"""The search for settings: successive halving over seeds, all searches of a suite side by side.

With the first seed every setting is tried, with each further one the best share of those left (Jamieson and
Talwalkar 2016, https://arxiv.org/abs/1502.07943, with seeds in place of training time).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.config.run import RunSpec
from harness.config.searches import Search, Trial
from harness.config.tune import LATIN, TuneSpec
from harness.core.registry import Incompatible, UserError
from harness.executors.tuning.cost import Releases, cost_of
from harness.executors.tuning.samplers import sampler_of
from harness.simulation.build import identify, prepare
from harness.simulation.calibration import calibrated
from harness.simulation.simulation import Simulation
from harness.storage.store import Store

Start = Callable[[Sequence[RunSpec]], None]


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
    samplers = [sampler_of(search, tune, number) for number, search in enumerate(searches)]
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


def report_of(searches: Sequence[Search], tune: TuneSpec) -> list[dict[str, Any]]:
    """Return what ``suite.json`` keeps of searches.

    ``epsilon`` is the privacy of a search and of a run with what it has chosen, were the number of settings drawn
    from ``distribution`` with mean ``budget``, and had the figures that choose no need of protection. It needs
    independent runs, and is None where they share their draws.
    """
    releases, found = Releases(), []
    for search in searches:
        order = search.order(tune.measure)
        cost = cost_of(search, tune, releases) if order else None
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
