"""Conformance checks of what a run prints under privacy: its figures must tell no more than its messages."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.core.algorithm import Algorithm
from harness.core.errors import Incompatible
from harness.core.settings.privacy import Privacy
from harness.simulation.snapshot import Diverged
from harness.testing.conformance_privacy import CENTRAL, LOCAL, TINY
from harness.testing.small_tasks import Check, Failed, Task, simulate, small, task_of

PRINTED_CHECKS: list[Check] = []


def _check(fn: Check) -> Check:
    PRINTED_CHECKS.append(fn)
    return fn


@_check
def _undisturbed(cls: type[Algorithm]) -> None:
    """Stay finite, at equal cost, when one client's features are infinite."""
    if cls.meta.pooled:
        return  # no mechanism applies to pooled data
    algorithm, task, odd = small(cls), task_of(cls), 1
    for name, mechanism in (("local", LOCAL), ("central", CENTRAL)):
        privacy = Privacy.of(0.0, clip=TINY, **mechanism)
        try:
            usual = simulate(algorithm, task, privacy=privacy)
        except Incompatible:
            continue
        try:
            run = simulate(algorithm, _infinite(task, odd), privacy=privacy)
        except Diverged:
            raise Failed(f"infinite features of client {odd} end a run under {name} privacy") from None
        bad = [field for field, part in run.state._asdict().items() if not bool(part.isfinite().all())]
        if bad:
            raise Failed(f"with infinite features of client {odd} {bad} are not finite under {name} privacy")
        if usual.snapshot().cost != run.snapshot().cost or usual.statement() != run.statement():
            raise Failed(f"infinite features of client {odd} change costs or claim under {name} privacy")


def _infinite(task: Task, client: int) -> Task:
    """Return the task with infinite features of one client."""
    problem, federation = task
    mine = federation.splits["train"][client]
    x = federation.pool.x.clone()
    x[mine[mine >= 0]] = torch.inf
    return problem, replace(federation, pool=federation.pool._replace(x=x))
