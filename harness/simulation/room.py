"""Whether runs fit into memory: before they begin, what they need is compared with what there is."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from harness.core.execution.memory import Room, resident, room
from harness.core.registry import UserError
from harness.core.units import size
from harness.simulation.build import Execution, Prepared
from harness.simulation.footprint import Footprint, footprint
from harness.simulation.simulation import divisible
from harness.simulation.stacking import sizes

EACH = 64  # times a model and a batch: what clients take at most, but for activations of many layers
SMALL = 0.1  # of the room: runs that take less of it are not measured


class Fit(NamedTuple):
    """Fit of a run into memory.

    Attributes
    ----------
    setup : Prepared
        The run, with its cohort in parts if it only fits so.
    most : int
        How many such runs fit side by side.
    needed : Footprint or None
        What it takes; None if that is so little that it was not measured.
    there : Room or None
        What is left; None if unknown.
    """

    setup: Prepared
    most: int
    needed: Footprint | None
    there: Room | None

    def __str__(self) -> str:
        """Return the memory that is needed and what is available, in words; empty if unknown."""
        if self.needed is None or self.there is None:
            return ""
        parts = "; to save memory, its clients are computed one after another" if self.setup.in_parts else ""
        return (
            f"the run takes about {size(self.needed.to_come)} more memory, and {size(self.there.bytes)} are "
            f"left ({self.there.limit}){parts}"
        )


def fit(setup: Prepared, execution: Execution, runs: int = 1) -> Fit:
    """Return how a run fits into the memory that is left, beside up to so many others like it.

    Raises
    ------
    UserError
        If it does not.
    """
    there = _left(execution)
    if there is None or setup.federation.pool.x.device.type != "cpu":
        return Fit(setup, runs, None, None)
    clients, model, batch = sizes(setup)
    if runs * clients * (model + batch) * setup.federation.pool.x.element_size() * EACH < SMALL * there.bytes:
        return Fit(setup, runs, None, there)
    needed = footprint(setup)
    if needed.to_come > there.bytes and divisible(setup.algorithm, setup.privacy, setup.compression):
        in_parts = replace(setup, in_parts=True)
        if (less := footprint(in_parts)).to_come < needed.to_come:
            setup, needed = in_parts, less
    if needed.to_come > there.bytes:
        raise UserError(_refusal(setup, needed, there, execution))
    most = 1 if setup.in_parts else max(1, there.bytes // max(1, needed.to_come))
    return Fit(setup, most, needed, there)


def _left(execution: Execution) -> Room | None:
    """Return the memory that is left, for one of several workers its share."""
    there = room()
    if there is None or execution.memory is None:
        return there
    return min(there, Room(max(0, execution.memory - resident()), "the share of one of several workers"))


def _refusal(setup: Prepared, needed: Footprint, there: Room, execution: Execution) -> str:
    computed = needed.gradients + needed.batches > needed.to_come / 4
    ways = {
        "fewer clients per round (cohort.size)": sizes(setup)[0] > 1,
        "smaller batches (algorithm.batch_size)": computed,
        "--vectorize loop": computed and setup.rows.mode == "vmap",
        "fewer --jobs": execution.memory is not None,
        "a smaller model": setup.spec.model is not None,
        "another machine": True,
    }
    use = [way for way, helps in ways.items() if helps]
    return (
        f"memory: the run takes about {size(needed.total)} at its peak ({needed}), and {size(there.bytes)} are "
        f"left ({there.limit}); use {' or '.join(use)}"
    )
