"""Conformance checks of what an algorithm releases: noise fades from what the server keeps, or adds up.

All gradients are zero and messages are clipped to almost nothing, so runs consist of noise alone. The variance of a
state after T rounds then grows as a power of T: 0 where old noise fades, 1 for a sum of all noise (a random walk),
3 for a sum of such sums. A model is the sum of its steps and has 1 in any method, as nothing pulls it back here;
estimates, control variates and trackers should have 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datasets.federation import stack
from harness.core.algorithm import Algorithm, Release
from harness.core.errors import Incompatible
from harness.core.settings.privacy import Privacy
from harness.simulation.dry_run import DryClients
from harness.simulation.simulation import Simulation
from harness.testing.small_tasks import (
    Check,
    Warned,
    run,
    same_state,
    simulate,
    small,
    task_of,
    wide_task,
)

EARLY, LATE = 8, 32
RUNS, ALONE = 32, 8  # from which a variance is estimated; of algorithms that cannot be stacked
# The noise is small, so that no projection cuts it off, and yet far above the clip norm.
CLIP, NOISE = 1e-12, 1e9
# Exponents above these are those of sums, and of sums of sums. (A sum with momentum begins with 2.0.)
FADES, WALKS = 0.75, 2.25


LOCAL: dict[str, Any] = {"placement": "local", "unit": "client", "delta": 1e-5, "clip": 1.0}

RELEASE_CHECKS: list[Check] = []


class Still(DryClients):
    """Clients that compute nothing; functions of one client give zeros of the right shape.

    Parameters
    ----------
    shapes : dict
        Results of functions, which the clients of one run share.
    """

    def __init__(self, *arguments: Any, shapes: dict[Any, Any], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._shapes = shapes

    def each(self, fn: Callable[..., Any], *arguments: Any) -> Any:
        """Return zeros."""
        if fn not in self._shapes:
            self._shapes[fn] = super().each(fn, *arguments)
        shape = self._shapes[fn]
        return (
            torch.zeros_like(shape)
            if isinstance(shape, Tensor)
            else [torch.zeros_like(part) for part in shape]
        )


class Growth(NamedTuple):
    """Growth of the noise in a part of the state.

    Attributes
    ----------
    field : str
        Name in the algorithm's state.
    model : bool
        Whether it is a variable, which starts from a point of the problem, and not from zero.
    exponent : float
        Of its variance as a power of the number of rounds.
    """

    field: str
    model: bool
    exponent: float

    @property
    def adds_up(self) -> bool:
        """Whether old noise stays, where it need not."""
        return self.exponent > (WALKS if self.model else FADES)


def noise_growth(cls: type[Algorithm], **settings: Any) -> list[Growth]:
    """Measure how the noise of messages grows in an algorithm's state.

    Parameters
    ----------
    cls : type[Algorithm]
        The algorithm, with its default settings but for two local steps on small batches.
    **settings
        Further settings.

    Returns
    -------
    list of Growth
        One for every part of the state into which noise gets; empty if the algorithm releases nothing or refuses
        client-level privacy.
    """
    problem, federation = wide_task(cls)
    moved = replace(problem, init=lambda draw: {n: part + 1 for n, part in problem.init(draw).items()})
    algorithm = small(cls, **settings)
    local = {**LOCAL, "clip": CLIP}

    def begin(noise: float, runs: Sequence[int]) -> Simulation:
        data = stack([federation] * len(runs)) if len(runs) > 1 else federation
        keys, seeds = tuple(f"run {number}" for number in runs), (0,) * len(runs)
        privacy = Privacy.of(noise, **local)
        return simulate(
            algorithm,
            (moved, data),
            rounds=0,
            privacy=privacy,
            noise_keys=keys,
            seeds=seeds,
            clients=partial(Still, shapes={}),
        )

    apart_by_field: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
    try:
        quiet = begin(0.0, [0]).state
        for runs in [range(RUNS)] if cls.meta.stackable else [[number] for number in range(ALONE)]:
            noisy = begin(NOISE, runs)
            for length, where in ((EARLY, 0), (LATE - EARLY, 1)):
                for _ in range(length):
                    noisy.step()
                for name, part in zip(noisy.state._fields, noisy.state, strict=True):
                    apart = part.double().clone().unbind() if len(noisy.each) > 1 else [part.double().clone()]
                    apart_by_field.setdefault(name, ([], []))[where].extend(apart)
    except Incompatible:
        return []
    return [
        Growth(name, bool(part.any()), _exponent(*apart_by_field[name]))
        for name, part in zip(quiet._fields, quiet, strict=True)
        if (part.ndim == 1 or cls.meta.gossip) and _spread(apart_by_field[name][1]) > 0
    ]


def _exponent(early: list[Tensor], late: list[Tensor]) -> float:
    before, after = _spread(early), _spread(late)
    return math.log(after / before, LATE / EARLY) if before > 0 else math.inf


def _spread(states: list[Tensor]) -> float:
    """Return the variance over runs, averaged over entries."""
    return float(torch.stack(states).var(0).mean()) if states[0].numel() else 0.0


def _check(fn: Check) -> Check:
    RELEASE_CHECKS.append(fn)
    return fn


@_check
def _noise_fades(cls: type[Algorithm]) -> None:
    """Keep no noise that adds up in the state of the server."""
    if growing := [growth for growth in noise_growth(cls) if growth.adds_up]:
        text = ", ".join(
            f"{growth.field} (variance grows with T^{growth.exponent:.1f})" for growth in growing
        )
        raise Warned(
            f"the noise of all rounds adds up in {text}; release values, not changes: docs/releases.md"
        )


@_check
def _released(cls: type[Algorithm]) -> None:
    """Do without privacy the same whatever is released, in partial cohorts too."""
    if not issubclass(cls, Release):
        return
    for ids in (None, (1, 3)):
        if ids and cls.meta.gossip:
            continue
        states = [run(small(cls, release=release), task_of(cls), ids=ids) for release in ("value", "change")]
        same_state("the state", *states)
