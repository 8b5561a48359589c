"""Plans: releases, bytes and time of runs before they are run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datasets.federation import Federation
from datasets.stand_in import DIGEST
from harness.config.recorded import identity
from harness.config.run import RunSpec
from harness.config.sweep import Combination
from harness.core.errors import Incompatible, UserError
from harness.core.units import size
from harness.simulation.build import frozen_part, identify, named_digest, prepare
from harness.simulation.calibration import calibrated
from harness.simulation.dry_run import of_cohorts
from harness.simulation.federations import data_key, make_federation, stand_in_federation
from harness.simulation.room import Need, fit, needed
from harness.simulation.setup import Execution, Setup
from harness.simulation.simulation import Simulation
from harness.simulation.stacking import largest_stack, sizes, stack_key, stack_setups
from harness.simulation.statement import statement

TRIAL_BYTES = 2**29  # that trial rounds may take
TRIAL_RUNS = 8  # that are stacked in a trial
SEEDS = 100  # of runs that differ in nothing else, which are planned one by one
FEDERATIONS = 4  # kept while combinations are tried, which mostly follow one another with the same data


def plan(
    cells: Sequence[Combination],
    timed: bool = True,
    done: Callable[[int], object] = lambda runs: None,
    identified: bool = True,
) -> list[dict[str, Any]]:
    """Return one row per combination.

    Releases and epsilon are exact (for unit record: upper bounds if clients differ in their local steps). Bytes,
    operations and oracle calls are exact if they do not depend on chance, and expected values if they do (largest
    entries, Poisson cohorts). Seconds are estimated for a single run from two real rounds and an evaluation on this
    machine, and the ratio of noise to signal is that of the second; ``seconds_stacked`` is the share of a run in a
    stack, as sweeps and suites make it, where runs like it are stacked. Runs that differ in their seed only share
    these estimates.
    ``attacks`` names the attacks on a run, whose time is not among the seconds.
    ``memory`` is roughly the number of bytes that a run takes at its peak in a process of its own, by
    `harness.simulation.room.needed`, and ``memory_stack`` that of as many such runs as are stacked. ``squeezed``
    says where this machine has so little that the run is refused, or that its clients are computed one after
    another. Where a run takes more than `TRIAL_BYTES`, its seconds are those of rounds with fewer clients, in
    proportion; in gossip there are none.
    Without ``timed`` neither is estimated, and images that are not here are planned by their declared number and
    shape, with equal classes; such a row has no id. What an encoder makes of data is not computed then.
    Of runs that differ in their seed only, the first `SEEDS` are planned. Others take over their values in turn;
    ``seed_planned`` names the seed whose values a row has, if it is another.
    Without ``identified`` these have an empty id, as ids of 100,000 runs take most of the time of their plan.
    ``done`` is called with the number of rows that are made.
    """
    memo = Memo(timed)
    kinds: dict[str | Combination, list[Combination]] = {}
    for cell in dict.fromkeys(cells):  # a search repeats its combination
        kinds.setdefault(without_seed(cell.spec) if cell.spec else cell, []).append(cell)
    first = [cell for some in kinds.values() for cell in some[:SEEDS]]
    planned: dict[Combination, dict[str, Any]] = {}
    for cell in sorted(first, key=lambda cell: "" if cell.spec is None else data_key(cell.spec)):
        planned[cell] = _row(cell, memo)
        done(len(planned))
    for some in kinds.values():
        for number, cell in enumerate(some[SEEDS:]):
            planned[cell] = _taken_over(planned[some[number % SEEDS]], cell, identified)
            done(len(planned))
    return [planned[cell] for cell in cells]


def _taken_over(row: dict[str, Any], cell: Combination, identified: bool) -> dict[str, Any]:
    """Return the row of a run that differs in its seed only."""
    spec = cell.spec
    assert spec is not None
    if row["status"] != "planned":
        return row
    id_of_cell = None if row["id"] is None else identify(spec) if identified else ""
    return {**row, "id": id_of_cell, "seed": spec.seed, "seed_planned": row["seed"]}


class Counts(NamedTuple):
    """The findings of dry runs: costs, a privacy statement, memory, and the most such runs in a stack.

    ``squeezed`` says how little memory there is here, if the run is refused for it or goes client by client.
    """

    cost: dict[str, Tensor]
    privacy: dict[str, Any]
    memory: Need
    squeezed: str
    stack: int


def refusal(cell: Combination, cache: dict[str, Federation] | None = None) -> str | None:
    """Return why the valid parts of a combination are incompatible, or None; ``cache`` as in `prepare`."""
    if cell.spec is None:
        return cell.reason
    try:
        calibrated(prepare(cell.spec, cache=cache))
    except Incompatible as error:
        return str(error)
    return None


def vetted(cells: Sequence[Combination]) -> list[Combination]:
    """Return the combinations with incompatible ones marked as skipped.

    One combination is tried for all that share a key of `_refused_alike`.
    """
    reasons: dict[Hashable, str | None] = {}
    cache: dict[str, Federation] = {}
    checked = []
    for cell in cells:
        spec = cell.spec
        if spec is None:
            checked.append(cell)
            continue
        key = _refused_alike(spec)
        if key not in reasons:
            while len(cache) >= FEDERATIONS:
                cache.pop(next(iter(cache)))
            reasons[key] = refusal(cell, cache)
        checked.append(Combination(cell.given, None, reasons[key]) if reasons[key] else cell)
    return checked


def _refused_alike(spec: RunSpec) -> Hashable:
    """Return a key shared by runs that are all compatible or all incompatible.

    That depends neither on the seed nor on the size of numbers that enter by arithmetic, with one exception:
    whether integers can hold a sum depends on its noise. If that follows from a budget, it depends on the seed, by
    who is in which cohort.
    """
    key, privacy = stack_key(spec), spec.privacy
    if privacy is None or privacy.placement != "distributed":
        return key
    return key, privacy.budget, spec.seed if privacy.noise_multiplier is None else None


def affordable(
    cells: Sequence[Combination],
    hours: float,
    jobs: int = 1,
    ended: Collection[str] = (),
    trim: bool = False,
    execution: Execution | None = None,
    before: Sequence[Combination] = (),
) -> list[Combination]:
    """Return the combinations if their estimated time is within a limit.

    Parameters
    ----------
    cells : Sequence[Combination]
        All combinations, with their seeds.
    hours : float
        Limit on this machine.
    jobs : int
        Number of workers.
    ended : Collection[str]
        Identities of runs that are not run again: they take no time and are never left out.
    trim : bool
        Leave out the last seeds until the rest fits. Left-out combinations are marked as skipped.
    execution : Execution, optional
        Device and the like.
    before : Sequence[Combination]
        Runs that come first and are never left out: those of a search.

    Raises
    ------
    UserError
        If they do not fit; with `trim`, if not even one seed fits.
    """
    measured: dict[str, float] = {}
    first = [_hours(cell, ended, execution, measured) for cell in before]

    def total(costs: Iterable[float]) -> float:
        each = [*first, *costs]
        return max(sum(each) / jobs, max(each, default=0.0))  # workers do not share a run

    costs = [(cell, _hours(cell, ended, execution, measured)) for cell in cells]
    needed = total(each for _, each in costs)
    if needed <= hours:
        return list(cells)
    about = f"about {needed:.2g} hours with {jobs} at a time, and the limit is {hours:g}"
    if any(cell.spec and cell.spec.attacks for cell in (*before, *cells)):
        about += ", not counting attacks"
    if not trim:
        raise UserError(f"--limit-hours: these runs take {about}; --trim leaves out seeds until they fit")
    seeds = sorted({cell.spec.seed for cell, each in costs if cell.spec and each})
    for last in reversed(seeds[:-1]):
        if total(each for cell, each in costs if cell.spec and cell.spec.seed <= last) <= hours:
            reason = f"left out by --limit-hours {hours:g}: all seeds would take {about}"
            return [
                Combination(cell.spec.model_dump(mode="json"), None, reason)
                if cell.spec and each and cell.spec.seed > last
                else cell
                for cell, each in costs
            ]
    raise UserError(f"--limit-hours: not even one seed fits; all would take {about}")


def _hours(
    cell: Combination, ended: Collection[str], execution: Execution | None, measured: dict[str, float]
) -> float:
    """Return the time of a run, by one trial for those of all seeds; none if it has ended."""
    if cell.spec is None or identify(cell.spec) in ended:
        return 0.0
    kind = without_seed(cell.spec)
    if kind not in measured:
        measured[kind] = _seconds(cell.spec, execution)
    return measured[kind] / 3600


def _seconds(spec: RunSpec, execution: Execution | None) -> float:
    setup = calibrated(prepare(spec, execution))
    tried = trial(setup)
    if tried is None:
        memory = size(needed(setup).peak())
        raise UserError(
            f"--limit-hours: a run of {spec.algorithm['name']} takes roughly {memory} of memory, too much for a "
            "trial that estimates its time"
        )
    return tried.seconds


class Trial(NamedTuple):
    """Estimates for a run: its seconds alone and in a stack, and the ratio of noise to signal; None if unknown."""

    seconds: float
    stacked: float | None
    noise_to_signal: float | None


def trial(setup: Setup) -> Trial | None:
    """Make two real rounds and an evaluation of a run; None if even those of one client take too much memory."""
    ids, share, need = None, 1.0, needed(setup)
    if need.usual > TRIAL_BYTES:
        clients = sizes(setup)[0]
        few = clients * TRIAL_BYTES // need.usual
        if not few or setup.algorithm.meta.gossip or setup.problem.kind == "vertical":
            return None
        ids, share = torch.arange(few), few / clients
    run = Simulation.from_setup(setup)
    alone = _measured(run, setup.spec, ids, share)
    ratio = None if ids is not None else run.diagnostics.get("noise_to_signal")
    runs = min(largest_stack(setup), TRIAL_BYTES // max(1, need.usual), TRIAL_RUNS)
    stacked = None
    if runs > 1:
        whole = Simulation.from_setup(stack_setups([setup] * runs))
        stacked = _measured(whole, setup.spec, diagnose=False) / runs
    return Trial(alone, stacked, None if ratio is None else float(ratio))


def _measured(
    run: Simulation, spec: RunSpec, ids: Tensor | None = None, share: float = 1.0, diagnose: bool = True
) -> float:
    """Return the seconds of a run, or a stack, by two rounds with a share of the clients and an evaluation.

    Those of the first round count once, because it includes warm-up.
    """
    began = time.perf_counter()
    run.step(ids, diagnose=diagnose, drawn=True)
    first = again = (time.perf_counter() - began) / share
    if spec.rounds > 1:
        began = time.perf_counter()
        run.step(ids, diagnose=diagnose, drawn=True)
        again = (time.perf_counter() - began) / share
    began = time.perf_counter()
    run.evaluate(final=run.round == spec.rounds)
    evaluation = time.perf_counter() - began
    return first + (spec.rounds - 1) * again + (1 + -(-spec.rounds // spec.eval_every)) * evaluation


def without_seed(spec: RunSpec) -> str:
    """Return a key shared by runs that differ in their seed only."""
    return spec.model_copy(update={"seed": 0}).model_dump_json()


class Planned(NamedTuple):
    """All that a plan tells of a run: the digest that names its data, and what was counted and measured."""

    clients: int
    digest: str
    counts: Counts
    trial: Trial | None


class Memo:
    """Values of planned runs, found once for runs that differ in nothing that they depend on.

    Only data are made for every seed, and only those of the last are kept. Trials are made once for runs that
    differ in their seed only, dry runs for those whose clients have equally many samples too. A drawn cohort, a
    topology and the start of a pruned model depend on the seed.

    Parameters
    ----------
    timed : bool
        Whether trials are made.
    """

    def __init__(self, timed: bool) -> None:
        self._timed = timed
        self._federations: dict[str, Federation] = {}
        self._trials: dict[str, Trial | None] = {}
        self._counts: dict[Hashable, Counts] = {}

    def planned(self, spec: RunSpec) -> Planned:
        """Return what the plan tells of a run.

        Raises
        ------
        Incompatible
            If parts of the run are incompatible.
        """
        if data_key(spec) not in self._federations:
            self._federations.clear()
            if not self._timed and (absent := stand_in_federation(spec)) is not None:
                self._federations[data_key(spec)] = absent
        dealt = make_federation(spec, self._federations, encoded=self._timed)
        trial_key = without_seed(spec)
        counts = None if dealt is None else self._counts.get(self._key(spec, dealt, True))
        if dealt is not None and counts is not None:
            return Planned(dealt.clients, _named(spec, dealt), counts, self._trials.get(trial_key))
        setup = prepare(spec, cache=self._federations)
        key = self._key(spec, setup.federation, dealt is not None and setup.federation.splits is dealt.splits)
        counts = self._counts.get(key)
        if counts is None:
            ready = calibrated(setup)
            counts, tossed = _counts(ready)
            if not tossed:
                self._counts[key] = counts
            if self._timed and trial_key not in self._trials:
                self._trials[trial_key] = trial(ready)
        digest = setup.federation.digest if dealt is None else _named(spec, dealt)
        return Planned(setup.federation.clients, digest, counts, self._trials.get(trial_key))

    def frozen_part(self, spec: RunSpec, digest: str) -> str:
        """Return the digest of the frozen part of the model of the run that was planned last."""
        return frozen_part(spec, digest, self._federations)

    @staticmethod
    def _key(spec: RunSpec, federation: Federation, as_dealt: bool) -> Hashable:
        """Return the key of dry runs; ``as_dealt`` tells data of a partition from those split anew by a problem."""
        drawn = spec.cohort is not None or spec.topology is not None or spec.compression.alpha != 0
        training = federation.merged() if spec.algorithm.made.meta.pooled else federation
        counts = tuple((name, tuple(training.counts(name).tolist())) for name in sorted(training.splits))
        return without_seed(spec), spec.seed if drawn else None, counts, as_dealt


def _counts(setup: Setup) -> tuple[Counts, bool]:
    """Return what dry runs tell, also that of its calibration, and whether another seed may change it."""
    expected = of_cohorts(setup)
    privacy = {} if setup.privacy is None else statement(setup.privacy, (setup.dry or expected).ledger)
    return Counts(expected.cost, privacy, *_memory(setup), largest_stack(setup)), expected.tossed


def _memory(setup: Setup) -> tuple[Need, str]:
    """Return the memory that a run takes on this machine, and what is said of it if there is little."""
    try:
        fitted = fit(setup, Execution())
    except UserError as error:
        return needed(setup), str(error)
    return needed(fitted.setup), fitted.note if fitted.setup.in_chunks else ""


def _named(spec: RunSpec, dealt: Federation) -> str:
    """Return the digest by which a run names its data; stand-ins keep theirs under strict privacy."""
    return dealt.digest if dealt.digest == DIGEST else named_digest(spec, dealt.digest)


def _row(cell: Combination, memo: Memo) -> dict[str, Any]:
    if cell.spec is None:
        return {"status": "skipped", "reason": cell.reason}
    try:
        clients, digest, counts, measured = memo.planned(cell.spec)
    except Incompatible as error:
        return {"status": "skipped", "reason": str(error)}
    privacy = counts.privacy
    columns = (
        *(
            "unit",
            "placement",
            "mechanism",
            "adjacency",
            "sampling",
            "epsilon_release",
            "epsilon_total",
            "epsilon_median",
        ),
        *("noise_multiplier", "releases", "accountant", "delta", "noise_cohort"),
    )
    return {
        "id": None if digest == DIGEST else identity(cell.spec, digest, memo.frozen_part(cell.spec, digest)),
        "data": cell.spec.data.short_name if cell.spec.data else None,
        "model": cell.spec.model["name"] if cell.spec.model else None,
        "algorithm": cell.spec.algorithm["name"],
        "alpha": cell.spec.compression.alpha,
        "beta": cell.spec.compression.beta,
        "seed": cell.spec.seed,
        "clients": clients,
        "rounds": cell.spec.rounds,
        **{name: privacy.get(name) for name in columns},
        # 1 where nothing is drawn in secret; of records that of the most exposed client
        "sampling_rate": rate if (rate := privacy.get("sampling_rate", 1.0)) < 1 else None,
        "bytes_up": int(counts.cost["up"]),
        "bytes_down": int(counts.cost["down"]),
        "flops": int(counts.cost["flops"]),
        "oracle_calls": int(counts.cost["oracle_calls"]),
        "noise_to_signal": measured and measured.noise_to_signal,
        "seconds": measured and round(measured.seconds, 3),
        "seconds_stacked": measured and measured.stacked and round(measured.stacked, 3),
        "memory": counts.memory.peak(),
        "memory_stack": counts.memory.peak(counts.stack),
        "squeezed": counts.squeezed or None,
        "attacks": None if cell.spec.attacks is None else ", ".join(cell.spec.attacks.kinds),
        "status": "planned",
        "reason": None,
    }
