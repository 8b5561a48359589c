"""The conformance checks that every algorithm must pass; ``python -m harness check NAME``."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from datasets.federation import Batch, Federation, stack
from datasets.topology import Complete, mixing_matrix
from datasets.vertical import Columns
from harness import models
from harness.core import rng
from harness.core.algorithm import Algorithm
from harness.core.channel import Channel
from harness.core.clients import Clients
from harness.core.execution.batches import Batches
from harness.core.execution.client_chunks import round_in_parts
from harness.core.execution.vectorize import Rows
from harness.core.problem import Kind, Problem, cross_entropy
from harness.core.wire.cost import Cost
from harness.core.wire.message import Message
from harness.core.wire.settings import Compression
from harness.core.wire.stages import Stages
from harness.problems import PROBLEMS, Setting
from harness.problems.classify import classifier

CLIENTS, ROUNDS = 5, 3
EXACT = 1e-10  # in float64

Task = tuple[Problem, Federation]
Check = Callable[[type[Algorithm]], None]
CHECKS: list[Check] = []


class Failed(AssertionError):
    """A check that an algorithm does not pass; the message says which and how."""


def check(algorithm: type[Algorithm]) -> list[dict[str, Any]]:
    """Run all checks on an algorithm.

    Returns
    -------
    list of dict
        ``algorithm``, ``check``, ``result`` ("passed" or "failed") and ``why``.
    """
    from harness.testing.conformance_privacy import CHANNEL_CHECKS  # is made of what this module offers

    rows = []
    for one in (*CHECKS, *CHANNEL_CHECKS):
        about = (one.__doc__ or one.__name__).splitlines()[0].rstrip(".")
        row = {"algorithm": algorithm.meta.name, "check": about, "result": "passed", "why": None}
        try:
            one(algorithm)
        except Exception as error:
            name = "" if isinstance(error, Failed) else f"{type(error).__name__}: "
            row |= {"result": "failed", "why": f"{name}{error}"}
        rows.append(row)
    return rows


class SilentStages(Stages):
    """Stages that silence every client's message."""

    def book(self, message: Message) -> None:
        """Book, and let nothing of the message get any further."""
        super().book(message)
        shapes = [part.shape for part in message.parts]
        Silent.seen.append((self.clients.round, message.slot, shapes, message.scale))
        message.joint = torch.zeros_like(message.joint)


class Silent(Channel):
    """A channel through which nothing of a client's gets: all its messages arrive as zeros.

    It writes down what is visible of a message all the same: its place in the round, shapes, and scales.
    """

    stages = SilentStages
    seen: ClassVar[list[object]] = []


class Equal(Clients):
    """Clients whose own coins all show 1 and who draw alike: their number decides nothing."""

    def coin(self, p: float, name: str, *, each: bool = False) -> Tensor:
        """Return ones for each client; a common coin is tossed."""
        found = super().coin(p, name, each=each)
        return torch.ones_like(found) if each else found

    def normal(self, name: str, step: int, *shape: int) -> Tensor:
        """Return the first client's draw for everybody."""
        found = super().normal(name, step, *shape)
        return found.narrow(self.axes - 1, 0, 1).expand_as(found)


class Idle(Clients):
    """Clients that see a batch of padding after their own batches."""

    def batches(self, *arguments: Any, **options: Any) -> Batches:
        """Return the batches and one more in which every client has run out of data."""
        made = super().batches(*arguments, **options)
        padding = torch.full_like(made.positions[:1], -1)
        return replace(made, positions=torch.cat([made.positions, padding]), same=False)


def task(kind: Kind, seed: int = 0, changed: int | None = None) -> Task:
    """Return a small problem of a kind with uneven clients; ``changed``: one client has other data."""
    if kind in ("minimax", "bilevel"):
        return _quadratic(kind, changed)
    generator = rng.stream(seed, "check", "pool")
    counts = [12] * CLIENTS if kind == "vertical" else [7, 12, 3, 12, 9]
    total = sum(counts) if kind != "vertical" else 12
    x = torch.randn(total, 6, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + 0.3 * torch.randn(total, generator=generator, dtype=torch.float64) > 0).long()
    group = torch.randint(2, (total,), generator=generator)
    pool = Batch(x, y, group, torch.ones(total, dtype=torch.float64))
    module = models.build("mlp", (6,), 2, {"hidden": [4], "activation": "tanh"})
    if kind == "vertical":
        index = torch.arange(total)[None]
        whole = Federation(pool, {"train": index, "test": index}, ("0", "1"), ("a", "b"), "check", "check")
        federation = Columns()(whole, (), 3)
        problem, _ = PROBLEMS["vertical"].build(Setting(_embedding(), federation, ("logistic", {})))
        return problem, _changed(federation, changed, labels=False)
    ends = torch.tensor(counts).cumsum(0)
    rows = [torch.arange(end - n, end) for end, n in zip(ends.tolist(), counts, strict=True)]
    index = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    federation = Federation(pool, {"train": index, "test": index}, ("0", "1"), ("a", "b"), "check", "check")
    return classifier(module), _changed(federation, changed, labels=True)


def run(
    algorithm: Algorithm,
    task: Task,
    *,
    seeds: Sequence[int] = (0,),
    rounds: int = ROUNDS,
    mode: Rows | None = None,
    clients: type[Clients] = Clients,
    channel: type[Channel] = Channel,
    parts: bool = False,
    state: Any = None,
    first: int = 0,
    cohort: Sequence[int] | None = None,
) -> Any:
    """Run an algorithm in float64 on a small problem and return its state."""
    (problem, federation), rows = task, mode or Rows("vmap")
    problem = algorithm.view(problem)
    stacked = len(seeds) > 1
    ids = torch.arange(federation.clients)
    ids = ids.expand(len(seeds), -1) if stacked else ids
    cost = Cost(tuple(ids.shape[:-1]))
    mixing = mixing_matrix(Complete(), federation.clients) if algorithm.meta.gossip else None

    def sides(round: int) -> tuple[Clients, Channel]:
        here = ids if cohort is None or round < 0 else torch.tensor(cohort)
        made = clients(federation, problem, rows, seeds=tuple(seeds), round=round, ids=here, cost=cost)
        return made, channel(made, mixing=mixing, compression=Compression(codec="float64"))

    if state is None:
        drawn = [problem.init(rng.stream(seed, "start")) for seed in seeds]
        start = {name: torch.stack([d[name].double() for d in drawn]) for name in drawn[0]}
        start = start if stacked else {name: value[0] for name, value in start.items()}
        state = algorithm.init(start, *sides(-1))
    for round in range(first, first + rounds):
        if parts:
            state = round_in_parts(algorithm, state, *sides(round), rows)
        else:
            state = algorithm.round(state, *sides(round))
    return state


def _check(fn: Check) -> Check:
    CHECKS.append(fn)
    return fn


@_check
def _constructible(cls: type[Algorithm]) -> None:
    """Make from default settings an algorithm equal to itself that survives pickling."""
    made = cls()
    if made != cls() or hash(made) != hash(cls()) or pickle.loads(pickle.dumps(made)) != made:
        raise Failed("two instances with default settings differ")


@_check
def _pure(cls: type[Algorithm]) -> None:
    """Change nothing that a round is given, and give the same state twice."""
    algorithm, small = _small(cls), _task(cls)
    before = run(algorithm, small, rounds=1)
    kept = [part.clone() for part in before]
    once, twice = (run(algorithm, small, rounds=1, state=before, first=1) for _ in range(2))
    _same("its argument after the round", before, type(before)(*kept), exactly=True)
    _same("the state of the second call", once, twice, exactly=True)


@_check
def _modes(cls: type[Algorithm]) -> None:
    """Give the same vectorized, looped, threaded and, where allowed, in parts."""
    algorithm, small = _small(cls), _task(cls)
    expected = run(algorithm, small)
    _same("the state of the loop", run(algorithm, small, mode=Rows("loop")), expected)
    _same("the state of the loop on threads", run(algorithm, small, mode=Rows("loop", 2)), expected)
    if cls.meta.parts:
        _same("the state in parts", run(algorithm, small, mode=Rows("loop", 2), parts=True), expected)


@_check
def _stacked(cls: type[Algorithm]) -> None:
    """Give in runs stacked in front of the client axis what runs apart give."""
    if not cls.meta.stackable:
        return
    algorithm, seeds = _small(cls), (0, 1, 2)
    problem = _task(cls)[0]
    apart = [run(algorithm, (problem, _task(cls, seed)[1]), seeds=(seed,)) for seed in seeds]
    together = run(algorithm, (problem, stack([_task(cls, seed)[1] for seed in seeds])), seeds=seeds)
    for number, seed in enumerate(seeds):
        _same(
            f"the stacked state of seed {seed}",
            type(together)(*(part[number] for part in together)),
            apart[number],
        )


@_check
def _resumed(cls: type[Algorithm]) -> None:
    """Stop between rounds and go on without a changed bit."""
    algorithm, small = _small(cls), _task(cls)
    half = run(algorithm, small, rounds=2)
    _same(
        "the resumed state",
        run(algorithm, small, rounds=2, state=half, first=2),
        run(algorithm, small, rounds=4),
        exactly=True,
    )


@_check
def _silent(cls: type[Algorithm]) -> None:
    """Let nothing of a client reach anybody through a silenced channel."""
    if cls.meta.pooled:
        return  # it is the reference without protection, and says so
    for algorithm in _both(cls):
        plain, seen = _silenced(algorithm, _task(cls))
        for secret in range(_task(cls)[1].clients):
            state, seen_now = _silenced(algorithm, _task(cls, changed=secret))
            if seen_now != seen:
                raise Failed(
                    f"how many messages there are, or their shapes or scales, show client {secret}'s data"
                )
            # What the house takes as the server's model is read from the state by the algorithm itself.
            models = [algorithm.model(made) for made in (plain, state)]
            shown = [(m,) if isinstance(m, torch.Tensor) else tuple(m) for m in models]
            views = [(*made, *read) for made, read in zip((plain, state), shown, strict=True)]
            for name, one, other in zip(
                (*plain._fields, *["the model"] * len(shown[0])), *views, strict=True
            ):
                if one.ndim > 1:
                    others = torch.arange(len(one)) != secret
                    one, other = one[others], other[others]
                if not torch.equal(one, other):
                    raise Failed(f"{name} shows client {secret}'s data although no message got through")


@_check
def _partial(cls: type[Algorithm]) -> None:
    """Leave what clients keep alone while they are not in the cohort."""
    if cls.meta.pooled or cls.meta.gossip or cls.meta.solves[0] == "vertical":
        return  # everybody takes part in every round
    algorithm, small = _small(cls), _task(cls)
    before = run(algorithm, small, rounds=1)
    after = run(algorithm, small, rounds=1, state=before, first=1, cohort=(1, 3))
    for name, one, other in zip(before._fields, before, after, strict=True):
        if one.shape != other.shape:
            raise Failed(f"{name} has shape {tuple(other.shape)} after a round of two of {CLIENTS} clients")
        if one.ndim > 1 and not torch.equal(one[[0, 2, 4]], other[[0, 2, 4]]):
            raise Failed(f"{name} of a client changed in a round without it")


@_check
def _heard(cls: type[Algorithm]) -> None:
    """Let a client's data have an effect through the open channel."""
    if cls.meta.pooled:
        return
    states = [run(_small(cls), _task(cls, changed=who)) for who in (None, 1)]
    if all(torch.equal(one, other) for one, other in zip(*states, strict=True)):
        raise Failed("another client's data change nothing at all")


@_check
def _relabeled(cls: type[Algorithm]) -> None:
    """Permute the rows, and change nothing else, when clients get other numbers."""
    if cls.meta.pooled or cls.meta.solves[0] == "vertical":
        return  # one client; or parties, which are not exchangeable
    algorithm = cls(local_steps=cls.meta.steps or 2, batch_size=None)
    problem, federation = _task(cls)
    order = torch.tensor([3, 0, 4, 1, 2])
    splits = {name: index[order] for name, index in federation.splits.items()}
    plain = run(algorithm, (problem, federation), clients=Equal)
    other = run(algorithm, (problem, replace(federation, splits=splits)), clients=Equal)
    _same(
        "the relabeled state", other, type(plain)(*(part[order] if part.ndim > 1 else part for part in plain))
    )


@_check
def _idle(cls: type[Algorithm]) -> None:
    """Let a client that has run out of batches stand still."""
    if not cls.meta.epochs or cls.meta.solves[0] == "vertical":
        return  # everybody takes as many steps
    algorithm, small = cls(local_epochs=1, batch_size=4), _task(cls)
    _same(
        "the state after idle steps",
        run(algorithm, small, clients=Idle, rounds=1),
        run(algorithm, small, rounds=1),
    )


@_check
def _learns(cls: type[Algorithm]) -> None:
    """Bring the objective down, or the saddle nearer."""
    problem, federation = _task(cls)
    algorithm = cls(local_steps=cls.meta.steps or 2, batch_size=None)
    before, after = (
        _objective(cls, problem, federation, run(algorithm, (problem, federation), rounds=n)) for n in (0, 30)
    )
    if not after < before:
        raise Failed(f"after 30 rounds the objective is {after:.4g}, at the start it was {before:.4g}")


def _silenced(algorithm: Algorithm, task: Task) -> tuple[Any, list[object]]:
    Silent.seen.clear()
    return run(algorithm, task, channel=Silent), list(Silent.seen)


def _small(cls: type[Algorithm]) -> Algorithm:
    return cls(local_steps=cls.meta.steps or 2, batch_size=4)


def _both(cls: type[Algorithm]) -> tuple[Algorithm, ...]:
    return (_small(cls), cls(local_epochs=1, batch_size=4)) if cls.meta.epochs else (_small(cls),)


def _task(cls: type[Algorithm], seed: int = 0, changed: int | None = None) -> Task:
    problem, federation = task(cls.meta.solves[0], seed, changed)
    return problem, federation.merged() if cls.meta.pooled else federation


def _objective(cls: type[Algorithm], problem: Problem, federation: Federation, state: Any) -> float:
    data = federation.pool.at(federation.splits["train"])
    if problem.measure is not None:
        point = {name: getattr(state, name) for name in ("x", "y")}
        mean = {name: value if value.ndim == 1 else value.mean(0) for name, value in point.items()}
        return float(problem.measure(mean, data)["stationarity"])
    if problem.kind == "vertical":
        assert problem.embed is not None
        h = Rows("loop").map(problem.embed, 1, state.y, data)
        return float(problem.loss(state.x, h, Batch(*(part[0] for part in data))))
    algorithm = cls()
    viewed, everybody = algorithm.view(problem), torch.arange(federation.clients)
    rows = Rows("loop")
    home = Clients(federation, viewed, rows, seeds=(0,), round=ROUNDS, ids=everybody, cost=Cost())
    model = algorithm.personal(state, home)
    model = model if model.ndim > 1 else model.expand(federation.clients, -1)
    assert viewed.predict is not None
    scores = rows.map(viewed.predict, 1, model, data.x)
    return float((cross_entropy(scores, data.y) * data.weight).sum() / data.weight.sum())


def _same(what: str, found: Any, expected: Any, exactly: bool = False) -> None:
    for name, one, other in zip(expected._fields, found, expected, strict=True):
        if one.shape != other.shape:
            raise Failed(f"{what}: {name} has shape {tuple(one.shape)}, expected {tuple(other.shape)}")
        gap = float((one - other).abs().max()) if one.numel() else 0.0
        if not gap <= (0.0 if exactly else EXACT):
            raise Failed(f"{what}: {name} is off by {gap:.3g}")


def _changed(federation: Federation, client: int | None, *, labels: bool) -> Federation:
    """Give one client other samples."""
    if client is None:
        return federation
    mine = federation.splits["train"][client]
    mine = mine[mine >= 0]
    x, y, group = (part.clone() for part in federation.pool[:3])
    x[mine] = -2.0 * x[mine] + 1.0
    if labels:
        y[mine], group[mine] = 1 - y[mine], 1 - group[mine]
    return replace(federation, pool=federation.pool._replace(x=x, y=y, group=group))


def _quadratic(kind: Kind, changed: int | None) -> Task:
    """Return the quadratic problem of the hand-computed tests with further clients."""
    if kind == "minimax":
        entries: dict[str, list[float]] = {
            "P": [1, -0.5, 0.5, 1, 0.5],
            "B": [1, 2, 1, 0, 1],
            "Q": [1, 2, 1, 4, 2],
        }
        entries |= {"c": [2, -2, 1, 3, 1], "d": [0, 4, -2, 2, 1]}
    else:
        entries = {"A": [2, 4, 3, 2, 1], "B": [2, 4, 1, 1, 1], "b": [0, 4, 1, 2, 0], "t": [3, 1, 0, 2, 1]}
    if changed is not None:
        last = "c" if kind == "minimax" else "b"
        entries[last] = [value + 5 * (n == changed) for n, value in enumerate(entries[last])]
    found = PROBLEMS[f"quadratic_{kind}"]
    rho = {"rho": 1.0} if kind == "bilevel" else {}
    return found.build(Setting(found.settings(**entries, **rho), None, None))


def _embedding() -> Any:
    return PROBLEMS["vertical"].settings(embedding=4)
