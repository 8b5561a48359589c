"""What runs would release and cost, before they run."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from harness.config.run import RunSpec
from harness.config.sweep import Combination
from harness.core.registry import Incompatible, UserError
from harness.core.wire.settings import PLAIN
from harness.simulation.build import Execution, Setup, identify, prepare
from harness.simulation.calibration import everybody, settled
from harness.simulation.dry_run import dry_run
from harness.simulation.simulation import Simulation
from harness.simulation.snapshot import claims


def plan(cells: Sequence[Combination]) -> list[dict[str, Any]]:
    """Return one row per combination.

    Releases and epsilon are exact (unit record: never exceeded, where clients differ in their local steps).
    Bytes, operations and oracle calls are exact where every round sends and computes alike; where chance
    decides (which entries are largest, who is in a Poisson cohort) ``bytes_up`` and ``bytes_down`` are expected
    values, which ``bytes_up_most`` and ``bytes_down_most`` bound. Seconds are estimated from two real rounds and
    an evaluation on this machine, for a run that is alone; runs that differ in their seed only take alike.
    """
    measured: dict[str, float] = {}
    return [_row(cell, measured) for cell in cells]


def refusal(cell: Combination) -> str | None:
    """Return why a combination cannot work, though each of its parts is valid; None if it can."""
    if cell.spec is None:
        return cell.reason
    try:
        settled(prepare(cell.spec))
    except Incompatible as error:
        return str(error)
    return None


def vetted(cells: Sequence[Combination]) -> list[Combination]:
    """Return the cells with those that cannot work turned into skipped ones.

    What cannot work fails in the same way for every seed, so one of them is tried.
    """
    known: dict[str, str | None] = {}
    found = []
    for cell in cells:
        spec = cell.spec
        if spec is None or (spec.privacy is None and spec.compression == PLAIN and spec.topology is None):
            found.append(cell)
            continue
        key = _kind(spec)
        if key not in known:
            known[key] = refusal(cell)
        found.append(Combination(cell.given, None, known[key]) if known[key] else cell)
    return found


def affordable(
    cells: Sequence[Combination],
    hours: float,
    jobs: int = 1,
    ended: Collection[str] = (),
    trim: bool = False,
    execution: Execution | None = None,
) -> list[Combination]:
    """Return the cells if they fit into so many hours, by the estimate of `plan`.

    Parameters
    ----------
    cells : Sequence[Cell]
        What is to be run, seeds and all.
    hours : float
        Of this machine.
    jobs : int
        Runs at a time.
    ended : Collection[str]
        Identities of runs that will not be made: they cost nothing, and are never left out.
    trim : bool
        Leave out seeds, the last ones first, until the others fit. What is left out stays as a skipped cell.
    execution : Execution, optional
        Device and the like.

    Raises
    ------
    UserError
        If they do not fit; with `trim`, if not even one seed does.
    """
    measured: dict[str, float] = {}

    def cost(cell: Combination) -> float:
        if cell.spec is None or identify(cell.spec) in ended:
            return 0.0
        kind = _kind(cell.spec)
        if kind not in measured:
            measured[kind] = seconds(settled(prepare(cell.spec, execution)))
        return measured[kind] / 3600

    def together(costs: Iterable[float]) -> float:
        each = list(costs)
        return max(sum(each) / jobs, max(each, default=0.0))  # more workers make no run shorter

    costs = [(cell, cost(cell)) for cell in cells]
    asked = together(each for _, each in costs)
    if asked <= hours:
        return list(cells)
    about = f"about {asked:.2g} hours with {jobs} at a time, and the limit is {hours:g}"
    if not trim:
        raise UserError(f"--limit-hours: these runs take {about}; --trim leaves out seeds until they fit")
    seeds = sorted({cell.spec.seed for cell, each in costs if cell.spec and each})
    for last in reversed(seeds[:-1]):
        if together(each for cell, each in costs if cell.spec and cell.spec.seed <= last) <= hours:
            reason = f"left out by --limit-hours {hours:g}: all seeds would take {about}"
            return [
                _left_out(cell, reason) if cell.spec and each and cell.spec.seed > last else cell
                for cell, each in costs
            ]
    raise UserError(f"--limit-hours: not even one seed fits; all would take {about}")


def _left_out(cell: Combination, reason: str) -> Combination:
    assert cell.spec is not None
    return replace(cell, given=cell.spec.model_dump(mode="json"), spec=None, reason=reason)


def seconds(setup: Setup) -> float:
    """Estimate how long a run takes alone: two rounds and an evaluation are really made.

    The first round stands for itself, as it also loads and settles.
    """
    spec, began, run = setup.spec, time.perf_counter(), Simulation.from_setup(setup)
    run.step()
    first = again = time.perf_counter() - began
    if spec.rounds > 1:
        began = time.perf_counter()
        run.step()
        again = time.perf_counter() - began
    began = time.perf_counter()
    run.evaluate(final=run.round == spec.rounds)
    evaluation = time.perf_counter() - began
    return first + (spec.rounds - 1) * again + (1 + -(-spec.rounds // spec.eval_every)) * evaluation


def _kind(spec: RunSpec) -> str:
    """Return what runs that differ in their seed alone have in common."""
    return spec.model_copy(update={"seed": 0}).model_dump_json()


def _row(cell: Combination, measured: dict[str, float]) -> dict[str, Any]:
    if cell.spec is None:
        return {"status": "skipped", "reason": cell.reason}
    try:
        setup = settled(prepare(cell.spec))
    except Incompatible as error:
        return {"status": "skipped", "reason": str(error)}
    expected, most = dry_run(setup), dry_run(setup, "largest")
    kind = _kind(cell.spec)
    if kind not in measured:
        measured[kind] = seconds(setup)
    record = setup.privacy is not None and setup.privacy.unit == "record"
    released = (dry_run(everybody(setup)) if record else expected).ledger
    privacy = claims(setup.privacy, released) if setup.privacy is not None else {}
    told = ("epsilon_release", "epsilon_total", "noise_multiplier", "releases", "accountant", "delta")
    return {
        "id": setup.id,
        "data": cell.spec.data.name if cell.spec.data else None,
        "model": cell.spec.model["name"] if cell.spec.model else None,
        "algorithm": cell.spec.algorithm["name"],
        "alpha": cell.spec.compression.alpha,
        "beta": cell.spec.compression.beta,
        "seed": cell.spec.seed,
        "clients": setup.federation.clients,
        "rounds": cell.spec.rounds,
        **{name: privacy.get(name) for name in told},
        "bytes_up": int(expected.cost["up"]),
        "bytes_up_most": int(most.cost["up"]),
        "bytes_down": int(expected.cost["down"]),
        "bytes_down_most": int(most.cost["down"]),
        "flops": int(expected.cost["flops"]),
        "oracle_calls": int(expected.cost["oracle_calls"]),
        "seconds": round(measured[kind], 3),
        "status": "planned",
        "reason": None,
    }
