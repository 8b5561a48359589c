"""Memory of runs: what they take, by the sizes of models and batches, and whether it is there before they begin."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from harness.core.execution.memory import Room, resident, room
from harness.core.registry import UserError
from harness.core.units import size
from harness.simulation.setup import Execution, Prepared
from harness.simulation.simulation import divisible
from harness.simulation.stacking import sizes

BASELINE = 300 * 10**6  # bytes of the interpreter with torch and this package
# Copies of a client's model and batch that a round has at once: 4 (FedAvg) to 18 (Ditto) in eighteen kinds of runs.
LEAST, USUAL = 3, 12
BY_SAMPLE = 3  # copies of the clipped gradients of single samples, beside these
MENTIONED = 0.1  # share of the memory that is left from which a run's need is told


class Need(NamedTuple):
    """Bytes that a run takes.

    Attributes
    ----------
    data : int
        Samples, who holds them, and the frozen part of the model: one copy for all clients and runs.
    least, usual : int
        What it takes beside them and the interpreter: hardly any run less than ``least``, and most runs up to three
        times more or less than ``usual``. Rows that clients keep, attacks and callbacks are not counted.
    """

    data: int
    least: int
    usual: int

    def peak(self, runs: int = 1) -> int:
        """Return the bytes of a process at its peak that makes so many such runs side by side."""
        return BASELINE + self.data + runs * self.usual


class Fit(NamedTuple):
    """Fit of a run into memory.

    Attributes
    ----------
    setup : Prepared
        The run, with its cohort in parts if it may only fit so.
    most : int
        How many such runs fit side by side.
    note : str
        What the run takes and what there is; empty if that is far more, or unknown.
    """

    setup: Prepared
    most: int
    note: str = ""


def needed(setup: Prepared) -> Need:
    """Estimate the memory of a run from the number of clients that compute at once, their models and batches."""
    clients, model, batch = sizes(setup)
    in_parts = setup.in_parts or (setup.in_parts is None and setup.rows.mode == "loop" and _divisible(setup))
    at_once = min(clients, setup.rows.threads) + 1 if in_parts else clients  # and the server's
    entries, privacy, by_sample = at_once * (model + batch), setup.privacy, 0
    if privacy is not None and privacy.by_gradient and not privacy.ghost:
        width = batch // max(1, setup.federation.pool.x[0].numel())
        by_sample = width * model * (at_once if setup.rows.mode == "vmap" else setup.rows.threads)
    size_of_entry = setup.federation.pool.x.element_size()
    least = size_of_entry * (LEAST * entries + by_sample)
    usual = size_of_entry * (USUAL * entries + BY_SAMPLE * by_sample)
    return Need(_data(setup), least, usual)


def fit(setup: Prepared, execution: Execution, runs: int = 1) -> Fit:
    """Return how a run fits into the memory that is left, beside up to so many others like it.

    Raises
    ------
    UserError
        If it takes more in any case.
    """
    there = _left(execution)
    if there is None or setup.federation.pool.x.device.type != "cpu":
        return Fit(setup, runs)
    need = needed(setup)
    if need.usual > there.bytes and _divisible(setup):
        setup = replace(setup, in_parts=True)
        need = needed(setup)
    if need.least > there.bytes:
        raise UserError(_refusal(setup, need, there, execution))
    most = 1 if setup.in_parts else max(1, there.bytes // max(1, need.usual))
    note = ""
    if setup.in_parts or need.usual > MENTIONED * there.bytes:
        parts = "; to save memory, its clients are computed one after another" if setup.in_parts else ""
        note = f"the run takes roughly {size(need.usual)} more memory, and {_described(there)}{parts}"
    return Fit(setup, most, note)


def _divisible(setup: Prepared) -> bool:
    return divisible(setup.algorithm, setup.privacy, setup.compression)


def _data(setup: Prepared) -> int:
    held = {part.untyped_storage().data_ptr(): part for run in setup.each for part in run.federation.pool}
    splits = [part for run in setup.each for part in run.federation.splits.values()]
    frozen = () if setup.problem.module is None else setup.problem.module.buffers()
    return sum(part.nbytes for part in (*held.values(), *splits, *frozen))


def _left(execution: Execution) -> Room | None:
    """Return the memory that is left, for one of several workers its share."""
    there = room()
    if there is None or execution.memory is None:
        return there
    return min(there, Room(max(0, execution.memory - resident()), "the share of one of several workers"))


def _described(there: Room) -> str:
    return f"{size(there.bytes)} are left ({there.limit})"


def _refusal(setup: Prepared, need: Need, there: Room, execution: Execution) -> str:
    clients, model, batch = sizes(setup)
    ways = {
        "fewer clients per round (cohort.size)": clients > 1,
        "smaller batches (algorithm.batch_size)": batch > model / 4,
        "--vectorize loop": setup.rows.mode == "vmap",
        "fewer --jobs": execution.memory is not None,
        "a smaller model": setup.spec.model is not None,
        "another machine": True,
    }
    use = [way for way, helps in ways.items() if helps]
    return (
        f"memory: the run takes at least {size(need.least)}, and {_described(there)}; use {' or '.join(use)}"
    )
