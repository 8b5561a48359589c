"""Conformance checks that every algorithm must pass; ``python -m harness check NAME``."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import field, make_dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.core import rng
from harness.core.algorithm import Algorithm
from harness.core.clients.batches import Batches, BatchPlan
from harness.core.clients.clients import Clients
from harness.core.execution.vectorize import ClientExecutor
from harness.core.methods.descent import Descent
from harness.core.methods.server_update import ServerUpdate
from harness.core.public import Public
from harness.core.wire.channel import Channel
from harness.core.wire.known_terms import refuse_private
from harness.core.wire.message import Known, Message
from harness.simulation.simulation import Simulation
from harness.testing.conformance_printed import PRINTED_CHECKS
from harness.testing.conformance_privacy import CHANNEL_CHECKS
from harness.testing.conformance_releases import RELEASE_CHECKS
from harness.testing.conformance_settings import settings_side_by_side
from harness.testing.small_tasks import (
    CLIENTS,
    ROUNDS,
    Check,
    Failed,
    NotedStages,
    Task,
    checked,
    run,
    same_state,
    simulate,
    small,
    task_of,
)

CHECKS: list[Check] = [settings_side_by_side]


def check(algorithm: type[Algorithm], checks: Sequence[Check] = ()) -> list[dict[str, Any]]:
    """Run conformance checks on an algorithm.

    Parameters
    ----------
    algorithm : type[Algorithm]
        The algorithm.
    checks : sequence of Check
        The checks to run; all if empty.

    Returns
    -------
    list of dict
        ``algorithm``, ``check``, ``result`` ("passed", "warned" or "failed") and ``why``.
    """
    rows = []
    for check_of_list in checks or (*CHECKS, *CHANNEL_CHECKS, *PRINTED_CHECKS, *RELEASE_CHECKS):
        found = checked(check_of_list, partial(check_of_list, algorithm), algorithm)
        rows.append({"algorithm": algorithm.meta.name, **found})
    return rows


class Seen(NamedTuple):
    """Public side of a message: its round and slot, and the shapes, scales and known terms of its parts."""

    round: int
    slot: int
    shapes: list[torch.Size]
    scales: list[Public | None]
    known_terms: list[Any]


class StandInStages(NotedStages):
    """Stages that replace every client's message by numbers that depend on no data; they note what is `Seen`."""

    def add_known(self, message: Message, row: Tensor) -> Tensor:
        """Note what is seen of a message, then replace it.

        The numbers are positive, as sums and weights are, and not zero, which would hide a private factor.
        """
        shapes = [part.shape for part in message.parts]
        scales = [part.scale for part in message.parts]
        if message.known is not None:
            refuse_private(message.known, message.parts)
        terms = [] if message.known is None else [*message.known.rows, *(message.known.mean or ())]
        seen_terms = [term.tolist() for term in terms]
        self.log.append(Seen(self.clients.round, message.slot, shapes, scales, seen_terms))
        generator = rng.stream(0, "check", "stand-in", self.clients.round, message.slot)
        return 0.05 + 0.1 * torch.rand(row.shape, generator=generator, dtype=row.dtype)


class StandIn(Channel):
    """A channel whose stages see known terms without a mechanism, too."""

    def known(self, method: str) -> Known | None:
        """Return the known terms without a mechanism, too, and their mean."""
        averages = self._mixing is None and method == "mean_and_sent"
        return None if self._again is None else self._known(self._again, method, averages=averages)


class Equal(Clients):
    """Clients with equal random draws, so that their numbers have no effect."""

    def coin(self, p: float, name: str, *, each: bool = False) -> Tensor:
        """Return ones for per-client coins; a common coin is drawn as usual."""
        coins = super().coin(p, name, each=each)
        return torch.ones_like(coins) if each else coins

    def normal(self, name: str, step: int, *shape: int) -> Tensor:
        """Return the first client's draw for all clients."""
        draws = super().normal(name, step, *shape)
        return draws.narrow(self.axes - 1, 0, 1).expand_as(draws)


class Idle(Clients):
    """Clients with an additional batch of padding."""

    def _drawn(self, plan: BatchPlan) -> Batches:
        """Return the batches and one of padding only."""
        batches = super()._drawn(plan)
        padding = torch.full_like(batches.positions[:1], -1)
        return replace(batches, positions=torch.cat([batches.positions, padding]), same=False)


class Read(Clients):
    """Clients that note the tables of which they take rows."""

    def __init__(self, *arguments: Any, log: list[Tensor], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.log = log

    def take(self, full: Tensor, mean: Tensor | None = None) -> Tensor:
        """Note the table, and take its rows."""
        self.log.append(full)
        return super().take(full, mean)


class DrawnOnce(Clients):
    """Clients that draw a stream of batches once in a round."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.drawn: set[tuple[str, str]] = set()

    def _drawn(self, plan: BatchPlan) -> Batches:
        """Return the batches; raise `Failed` if their stream has been drawn."""
        if (plan.split, plan.stream) in self.drawn:
            raise Failed(
                f"a round draws batches twice from the stream {plan.stream!r} of {plan.split}, and they are the "
                "same; name another stream, or go through the first ones again"
            )
        self.drawn.add((plan.split, plan.stream))
        return super()._drawn(plan)


def _check(fn: Check) -> Check:
    CHECKS.append(fn)
    return fn


@_check
def _constructible(cls: type[Algorithm]) -> None:
    """Make from default settings an algorithm equal to itself that survives pickling."""
    algorithm = cls()
    if (
        algorithm != cls()
        or hash(algorithm) != hash(cls())
        or pickle.loads(pickle.dumps(algorithm)) != algorithm
    ):
        raise Failed("two instances with default settings differ")


@_check
def _pure(cls: type[Algorithm]) -> None:
    """Change nothing that a round is given, and give the same state twice."""
    algorithm, task = small(cls), task_of(cls)
    before = run(algorithm, task, rounds=1)
    kept = [part.clone() for part in before]
    once, twice = (run(algorithm, task, rounds=1, state=before, first=1) for _ in range(2))
    same_state("its argument after the round", before, type(before)(*kept), exactly=True)
    same_state("the state of the second call", once, twice, exactly=True)


@_check
def _modes(cls: type[Algorithm]) -> None:
    """Give the same vectorized, looped, threaded and, where allowed, in chunks."""
    algorithm, task = small(cls), task_of(cls)
    expected = run(algorithm, task)
    same_state("the state of the loop", run(algorithm, task, executor=ClientExecutor("loop")), expected)
    same_state(
        "the state of the loop on threads", run(algorithm, task, executor=ClientExecutor("loop", 2)), expected
    )
    if cls.meta.chunks:
        same_state(
            "the state in chunks",
            run(algorithm, task, executor=ClientExecutor("loop", 2), in_chunks=True),
            expected,
        )


@_check
def _resumed(cls: type[Algorithm]) -> None:
    """Stop between rounds and go on without a changed bit."""
    algorithm, task = small(cls), task_of(cls)
    half = run(algorithm, task, rounds=2)
    same_state(
        "the resumed state",
        run(algorithm, task, rounds=2, state=half, first=2),
        run(algorithm, task, rounds=4),
        exactly=True,
    )


@_check
def _replaced(cls: type[Algorithm]) -> None:
    """Show nothing of client data where other numbers take the place of every message."""
    if cls.meta.pooled:
        return  # it is the reference without protection, and says so
    everybody = tuple(range(task_of(cls)[1].clients))
    tasks = {who: task_of(cls, changed=who) for who in (None, *everybody)}
    apart = cls.meta.gossip or cls.meta.solves[0] == "vertical"  # there everybody takes part
    both = (small(cls), cls(local_epochs=1, batch_size=4)) if cls.meta.epochs else (small(cls),)
    for algorithm, ids in product(both, [None] if apart else [None, (1, 3)]):
        plain, seen = _with_stand_ins(algorithm, tasks[None], ids)
        for secret in ids or everybody:
            state, seen_now = _with_stand_ins(algorithm, tasks[secret], ids)
            if (what := _seen_to_change(seen, seen_now)) is not None:
                raise Failed(f"possible leak: the data of client {secret} change {what}")
            # What the house takes as the server's model is read from the state by the algorithm itself.
            models = [algorithm.model(end) for end in (plain, state)]
            shown = [(m,) if isinstance(m, torch.Tensor) else tuple(m) for m in models]
            views = [(*end, *read) for end, read in zip((plain, state), shown, strict=True)]
            for name, one, other in zip(
                (*plain._fields, *["the model"] * len(shown[0])), *views, strict=True
            ):
                if one.ndim > 1:
                    others = torch.arange(len(one)) != secret
                    one, other = one[others], other[others]
                if not torch.equal(one, other):
                    raise Failed(
                        f"possible leak: {name} depends on the data of client {secret} by another way than a "
                        "message; what the server or another client uses must come from a method of the channel, "
                        "factors and norms too"
                    )


@_check
def _partial(cls: type[Algorithm]) -> None:
    """Leave what clients keep alone while they are not in the cohort."""
    if cls.meta.pooled or cls.meta.gossip or cls.meta.solves[0] == "vertical":
        return  # everybody takes part in every round
    algorithm, task = small(cls), task_of(cls)
    before = run(algorithm, task, rounds=1)
    after = run(algorithm, task, rounds=1, state=before, first=1, ids=(1, 3))
    for name, one, other in zip(before._fields, before, after, strict=True):
        if one.shape != other.shape:
            raise Failed(
                f"{name} has shape {tuple(other.shape)} after a round of two of {CLIENTS} clients; return "
                f"{name}=clients.put(state.{name}, rows)"
            )
        if one.ndim > 1 and not torch.equal(one[[0, 2, 4]], other[[0, 2, 4]]):
            raise Failed(f"{name} of a client changed in a round without it")


@_check
def _written(cls: type[Algorithm]) -> None:
    """Write what clients keep and read."""
    log: list[Tensor] = []
    simulation = simulate(small(cls), task_of(cls), rounds=0, clients=partial(Read, log=log))
    read, written = set(), set()
    for _ in range(ROUNDS):
        before = simulation.state._asdict()
        simulation.step()
        read |= {name for name, table in before.items() if any(table is taken for taken in log)}
        after = simulation.state._asdict()
        written |= {name for name in before if not torch.equal(before[name], after[name])}
    for name in sorted(read - written):
        raise Failed(
            f"state was read and never written: rounds take rows of {name} and return all of it as it was; "
            f"return {name}=clients.put(state.{name}, rows), or keep in settings what never changes"
        )


@_check
def _heard(cls: type[Algorithm]) -> None:
    """Send what depends on client data through an open channel."""
    if cls.meta.pooled:
        return
    states = [run(small(cls), task_of(cls, changed=who)) for who in (None, 1)]
    if all(torch.equal(one, other) for one, other in zip(*states, strict=True)):
        raise Failed("another client's data change nothing at all")


@_check
def _independent(cls: type[Algorithm]) -> None:
    """Draw the batches of a round from streams of their own."""
    run(small(cls), task_of(cls), clients=DrawnOnce)


@_check
def _groups_declared(cls: type[Algorithm]) -> None:
    """Depend on sensitive groups only as declared."""
    if cls.meta.groups:
        return
    algorithm, (problem, federation) = small(cls), task_of(cls)
    alike = federation.pool._replace(group=torch.zeros_like(federation.pool.group))
    one_group = run(algorithm, (problem, replace(federation, pool=alike)))
    if any(
        not torch.equal(*both) for both in zip(one_group, run(algorithm, (problem, federation)), strict=True)
    ):
        raise Failed("the result depends on sensitive groups; declare it with Meta(..., groups=True)")


@_check
def _relabeled(cls: type[Algorithm]) -> None:
    """Permute the rows, and change nothing else, when clients get other numbers."""
    if cls.meta.pooled or cls.meta.solves[0] == "vertical":
        return  # one client; or parties, which are not exchangeable
    algorithm = cls(local_steps=cls.meta.steps or 2, batch_size=None)
    problem, federation = task_of(cls)
    order = torch.tensor([3, 0, 4, 1, 2])
    splits = {name: index[order] for name, index in federation.splits.items()}
    plain = run(algorithm, (problem, federation), clients=Equal)
    other = run(algorithm, (problem, replace(federation, splits=splits)), clients=Equal)
    same_state(
        "the relabeled state", other, type(plain)(*(part[order] if part.ndim > 1 else part for part in plain))
    )


@_check
def _idle(cls: type[Algorithm]) -> None:
    """Stand still at a client that has no batches left."""
    if not cls.meta.epochs or cls.meta.solves[0] == "vertical":
        return  # everybody takes as many steps
    algorithm, task = cls(local_epochs=1, batch_size=4), task_of(cls)
    same_state(
        "the state after idle steps",
        run(algorithm, task, clients=Idle, rounds=1),
        run(algorithm, task, rounds=1),
    )


@_check
def _optimizers(cls: type[Algorithm]) -> None:
    """Pass the same with momentum, weight decay, clipping and an adaptive server, where these are offered."""
    on: dict[str, Any] = {}
    if issubclass(cls, Descent):
        on |= {"weight_decay": 0.1, "grad_clip": 0.5, "momentum": 0.0 if cls.meta.steps == 1 else 0.5}
    if issubclass(cls, ServerUpdate):
        on |= {"server_optimizer": "yogi", "server_lr": 0.1}
    if not on:
        return
    defaults = [(name, Any, field(default=value)) for name, value in on.items()]
    changed: Any = make_dataclass(cls.__name__, defaults, bases=(cls,), frozen=True, kw_only=True)
    for passed in (settings_side_by_side, _resumed, _partial, _idle):
        passed(changed)
    if all(
        torch.equal(one, other)
        for one, other in zip(
            run(small(cls), task_of(cls), rounds=1), run(small(changed), task_of(cls), rounds=1), strict=False
        )
    ):
        raise Failed("the settings change nothing")


@_check
def _learns(cls: type[Algorithm]) -> None:
    """Bring the objective down, or the saddle nearer."""
    algorithm = cls(local_steps=cls.meta.steps or 2, batch_size=None)
    before, after = (_objective(simulate(algorithm, task_of(cls), rounds=n)) for n in (0, 30))
    if not after < before:
        raise Failed(f"after 30 rounds the objective is {after:.4g}, at the start it was {before:.4g}")


def _with_stand_ins(algorithm: Algorithm, task: Task, ids: Sequence[int] | None) -> tuple[Any, list[Seen]]:
    """Return the state after a run in which nothing of the clients arrives, and what was seen of messages."""
    seen: list[Seen] = []
    stand_in = partial(StandIn, stages=partial(StandInStages, log=seen))
    return run(algorithm, task, channel=stand_in, ids=ids), seen


def _seen_to_change(seen: Sequence[Seen], seen_now: Sequence[Seen]) -> str | None:
    """Return in words what is seen first that differs between the messages of two runs; None if nothing does."""
    if len(seen) != len(seen_now):
        return f"the number of messages: {len(seen)} and {len(seen_now)}"
    for one, other in zip(seen, seen_now, strict=True):
        for name, value, value_now in zip(Seen._fields, one, other, strict=True):
            if value != value_now:
                return f"the {name.replace('_', ' ')} of message {one.slot} in round {one.round}"
    return None


def _objective(run: Simulation) -> float:
    """Return how far from solved the problem is, on training samples, which small problems also test on."""
    name = "loss" if run.problem.measure is None else "stationarity"
    return float(run.evaluate().metrics[name] or 0.0)
