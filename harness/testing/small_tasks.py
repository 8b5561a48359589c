"""Small problems with clients of different sizes, and runs on them, for the conformance checks.

Most of a short run is spent on what its executor does at the first calls of a function: it vectorizes the function,
counts its operations, and after some calls records it. So all runs share one executor, and all algorithms of a kind
share the functions of one problem. No run changes either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import nn

from datasets.federation import Batch, Federation
from datasets.topology import Complete, mixing_matrix
from datasets.vertical import Columns
from harness import models
from harness.config.plugins import authors_line
from harness.core import rng
from harness.core.algorithm import Algorithm
from harness.core.errors import Incompatible
from harness.core.execution.vectorize import ClientExecutor
from harness.core.problem import Kind, Problem
from harness.core.settings.compression import Compression
from harness.core.wire.stages import Stages
from harness.problems import PROBLEMS, Setting
from harness.problems.classify import classifier
from harness.simulation.simulation import Simulation

CLIENTS, ROUNDS = 5, 3
WIDE = 20  # length of x in `wide_task`
EXACT = 1e-10  # in float64
RAW = Compression(codec="float64")
VECTORIZED = ClientExecutor("vmap")  # of all runs that name no other

Task = tuple[Problem, Federation]
Check = Callable[[type[Algorithm]], None]


class NotedStages(Stages):
    """Stages that write down something of messages.

    Parameters
    ----------
    log : list
        Where they do; the stages of all rounds share it.
    """

    def __init__(self, *arguments: Any, log: list[Any], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.log = log


class Failed(AssertionError):
    """A failed conformance check."""


class Warned(AssertionError):
    """Finding of a conformance check that is not an error, but costs accuracy."""


def checked(
    described: Callable[..., None], go: Callable[[], None], algorithm: type[Algorithm] = Algorithm
) -> dict[str, Any]:
    """Carry out a check and return ``check``, its description; ``result``; and ``why``, if it has not passed.

    Of an error in an algorithm's code, ``why`` names the line.
    """
    summary = (described.__doc__ or described.__name__).splitlines()[0].rstrip(".")
    row = {"check": summary, "result": "passed", "why": None}
    try:
        go()
    except Warned as error:
        return row | {"result": "warned", "why": str(error)}
    except Exception as error:  # an algorithm or a model may raise anything
        why = str(error)
        if not isinstance(error, Failed):
            why = f"{type(error).__name__}: {why}{authors_line(error, algorithm)}"
        return row | {"result": "failed", "why": why}
    return row


@cache
def task(kind: Kind, seed: int = 0, changed: int | None = None) -> Task:
    """Return a small problem with clients of different sizes; client ``changed`` gets other data."""
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
        merged = Federation(pool, {"train": index, "test": index}, ("0", "1"), ("a", "b"), "check", "check")
        federation = Columns()(merged, (), 3)
        problem, _ = PROBLEMS["vertical"].build(
            Setting(PROBLEMS["vertical"].settings(embedding=4), federation, ("logistic", {}))
        )
        return problem, _changed(federation, changed, labels=False)
    ends = torch.tensor(counts).cumsum(0)
    rows = [torch.arange(end - n, end) for end, n in zip(ends.tolist(), counts, strict=True)]
    index = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    federation = Federation(pool, {"train": index, "test": index}, ("0", "1"), ("a", "b"), "check", "check")
    return classifier(module), _changed(federation, changed, labels=True)


def simulate(
    algorithm: Algorithm | Sequence[Algorithm],
    task: Task,
    *,
    rounds: int = ROUNDS,
    seeds: Sequence[int] = (0,),
    state: Any = None,
    first: int = 0,
    ids: Sequence[int] | None = None,
    **options: Any,
) -> Simulation:
    """Run an algorithm in float64 on a small problem.

    Parameters
    ----------
    algorithm, task : Algorithm or sequence of Algorithm, Task
        The algorithm, or one per stacked run, and the problem with its federation.
    rounds : int
        Number of rounds.
    seeds : sequence of int
        One per run; several need a stacked federation.
    state, first : NamedTuple of tensors, int
        Initial state in place of the start, and the number of the next round.
    ids : sequence of int, optional
        The cohort of these rounds; default: all clients.
    **options
        As for `Simulation`.
    """
    problem, federation = task
    gossip = (algorithm if isinstance(algorithm, Algorithm) else algorithm[0]).meta.gossip
    mixing = mixing_matrix(Complete(), federation.clients) if gossip else None
    arguments = {"executor": VECTORIZED, "compression": RAW, "mixing": mixing, "in_chunks": False, **options}
    run = Simulation(problem, federation, algorithm, seeds=seeds, **arguments)
    if state is not None:
        run.state, run.round = state, first
    for _ in range(rounds):
        run.step(None if ids is None else torch.tensor(ids))
    return run


def run(algorithm: Algorithm, task: Task, **options: Any) -> Any:
    """Return the state after a run, see `simulate`."""
    return simulate(algorithm, task, **options).state


def small(cls: type[Algorithm], **settings: Any) -> Algorithm:
    """Return the algorithm with two local steps, or its fixed number, on batches of four."""
    return cls(local_steps=cls.meta.steps or 2, batch_size=4, **settings)


def task_of(cls: type[Algorithm], seed: int = 0, changed: int | None = None) -> Task:
    """Return a small problem that the algorithm solves."""
    problem, federation = task(cls.meta.solves[0], seed, changed)
    return suited(cls, problem), federation.merged() if cls.meta.pooled else federation


def suited(cls: type[Algorithm], problem: Problem) -> Problem:
    """Return the problem; if the algorithm refuses its network, that of a small one with norm layers."""
    try:
        small(cls).view(problem)
    except Incompatible:
        layers = [] if problem.module is None else problem.module.modules()
        if dense := [layer for layer in layers if isinstance(layer, nn.Linear)]:
            extractor = nn.Sequential(nn.Linear(dense[0].in_features, 4), nn.GroupNorm(2, 4), nn.Tanh())
            return classifier(models.Net(extractor, 4, dense[-1].out_features))
    return problem


def wide_task(cls: type[Algorithm]) -> Task:
    """Return a problem that the algorithm solves, with variables long enough to measure noise."""
    kind = cls.meta.solves[0]
    return _wide(kind) if kind in ("minimax", "bilevel") else task_of(cls)


@cache
def _wide(kind: Kind) -> Task:
    """Return a quadratic problem with long variables."""
    settings: dict[str, Any] = {"clients": CLIENTS, "dims": (WIDE, 6), "samples": 12, "noise": 1.0}
    if kind == "bilevel":
        generator = rng.stream(0, "check", "wide")
        b = torch.randn(CLIENTS, 6, WIDE, generator=generator, dtype=torch.float64).tolist()
        ones = [[1.0] * 6] * CLIENTS
        settings = {"A": [torch.eye(6).tolist()] * CLIENTS, "B": b, "b": ones, "t": ones, "rho": 1.0}
    problem = PROBLEMS["random_quadratic" if kind == "minimax" else "quadratic_bilevel"]
    return problem.build(Setting(problem.settings(**settings), None, None))


def same_state(what: str, state: Any, expected: Any, exactly: bool = False) -> None:
    """Raise `Failed` unless two states agree."""
    for name, one, other in zip(expected._fields, state, expected, strict=True):
        if one.shape != other.shape:
            raise Failed(f"{what}: {name} has shape {tuple(one.shape)}, expected {tuple(other.shape)}")
        gap = float((one - other).abs().max()) if one.numel() else 0.0
        if not gap <= (0.0 if exactly else EXACT):
            raise Failed(f"{what}: {name} is off by {gap:.3g}")


def _changed(federation: Federation, client: int | None, *, labels: bool) -> Federation:
    """Replace the samples of one client."""
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
    """Return a quadratic problem."""
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
    problem = PROBLEMS[f"quadratic_{kind}"]
    rho = {"rho": 1.0} if kind == "bilevel" else {}
    return problem.build(Setting(problem.settings(**entries, **rho), None, None))
