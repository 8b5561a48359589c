"""Tiny problems and federations, and runs with a wire in double precision.

Most of a short run is spent on what its executor does at the first calls of a function, so runs share one, and
problems are made once. No run changes either; a test of the executor itself brings its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import algorithms
from datasets.federation import Batch, Federation
from datasets.topology import Ring, mixing_matrix
from harness import models
from harness.core import ALGORITHMS, Algorithm, Problem
from harness.core.cost import Cost
from harness.core.execution.vectorize import ClientExecutor
from harness.core.losses import weighted_mean
from harness.core.settings.compression import Compression
from harness.core.settings.privacy import Privacy
from harness.problems import PROBLEMS, Setting
from harness.problems.classify import classifier
from harness.problems.quadratic import Bilevel, Minimax
from harness.simulation.simulation import Simulation
from harness.testing.small_tasks import suited
from privacy.ledger import Ledger

algorithms.load()

COUNTS = (4, 8, 2, 6)  # samples of each client of `iid_federation`
EXACT = Compression(codec="float64")
MM4 = Minimax(P=[1, -0.5, 0.5, 1], B=[1, 2, 1, 0], Q=[1, 2, 1, 4], c=[2, -2, 1, 3], d=[0, 4, -2, 2])
VECTORIZED = ClientExecutor("vmap")  # of all runs that name no other
BL2 = Bilevel(A=[2, 4], B=[2, 4], b=[0, 4], t=[3, 1], rho=1.0)


class Outcome(NamedTuple):
    """The state after the last round, what the run cost, and what it released."""

    state: Any
    cost: Cost
    ledger: Ledger


def make_algorithm(name: str | Algorithm, **settings: Any) -> Algorithm:
    """Return the algorithm of that name; an instance is returned as it is."""
    return name if isinstance(name, Algorithm) else ALGORITHMS[name](**settings)


def run_algorithm(
    name: str | Algorithm,
    problem: Problem,
    federation: Federation,
    rounds: int,
    *,
    seeds: tuple[int, ...] = (0,),
    start: dict[str, Tensor] | None = None,
    cohort: int | None = None,
    mixing: Tensor | None = None,
    executor: ClientExecutor | None = None,
    chunks: bool = False,
    compression: Compression = EXACT,
    privacy: Privacy | None = None,
    watch: Callable[[Any], None] = lambda state: None,
    **settings: Any,
) -> Outcome:
    """Run an algorithm; several seeds are stacked, and then the federation must be as well.

    Parameters
    ----------
    name : str or Algorithm
        Registry name with ``settings``, or an instance.
    problem, federation : Problem, Federation
        What to solve. Computation is in the dtype of the federation's features.
    rounds : int
        How many.
    seeds : tuple of int
        One a run.
    start : dict, optional
        Start values in place of the problem's.
    cohort : int, optional
        Clients a round.
    mixing : Tensor, optional
        Mixing matrix; of a ring unless given, for an algorithm that gossips.
    executor : ClientExecutor, optional
        How clients are run; vectorized unless given.
    chunks : bool
        Process the cohort client by client.
    compression, privacy : Compression, Privacy
        What the channel does to messages; nothing, in double precision, unless given.
    watch : Callable
        Called with the state before the first round and after every round.
    """
    algorithm = make_algorithm(name, **settings)
    if mixing is None and algorithm.meta.gossip:
        mixing = mixing_matrix(Ring(), federation.clients)
    options = {
        "cohort": cohort,
        "mixing": mixing,
        "start": start,
        "executor": executor or VECTORIZED,
        "in_chunks": chunks,
        "noise_keys": list(map(str, seeds)),
    }
    run = Simulation(problem, federation, algorithm, privacy, compression, seeds, **options)
    watch(run.state)
    for _ in range(rounds):
        run.step()
        watch(run.state)
    return Outcome(run.state, run.cost, run.ledger)


def settled(
    name: str | Algorithm,
    problem: Problem,
    federation: Federation,
    start: dict[str, Tensor] | None = None,
    mixing: Tensor | None = None,
    period: int = 1,
    **settings: Any,
) -> Any:
    """Return the state in which a method comes to rest on a quadratic problem, from its start values.

    A round with full batches is an affine map of the state, z -> M z + m. Arnoldi's method finds M on the
    directions in which the state moves, in as many rounds as there are such directions, and with it the fixed
    point. Its eigenvalues there must lie inside the unit circle, so that rounds converge, except 1 for what rounds
    do not move at all. One round must leave the fixed point as it is, which it would not if the map were not
    affine. With a period, so many rounds are the map.
    """
    options: dict[str, Any] = {"mixing": mixing, "start": start, "executor": VECTORIZED}
    run = Simulation(problem, federation, make_algorithm(name, **settings), None, EXACT, (0,), **options)
    kind, shapes = type(run.state), [part.shape for part in run.state]

    def flat() -> Tensor:
        return torch.cat([part.reshape(-1) for part in run.state])

    def after_a_round(point: Tensor) -> Tensor:
        parts = point.split([shape.numel() for shape in shapes])
        run.state = kind(*(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)))
        for _ in range(period):
            run.step()
        return flat()

    run.step()  # the first round of a method may be special
    point = flat()
    moved = after_a_round(point) - point
    basis, columns = moved[None] / moved.norm(), []
    while len(columns) < len(basis):
        image = after_a_round(point + basis[-1]) - point - moved
        column = basis @ image
        image = image - column @ basis
        again = basis @ image  # or the basis would not be orthogonal
        image, column = image - again @ basis, column + again
        if (rest := image.norm()) > 1e-5:  # else it is rounding
            basis, column = torch.cat([basis, image[None] / rest]), torch.cat([column, rest[None]])
        columns.append(column)
    turn = point.new_zeros(len(basis), len(basis))
    for place, column in enumerate(columns):
        turn[: len(column), place] = column
    values, vectors = torch.linalg.eig(turn)
    kept = (values - 1).abs() < 1e-6  # a sum that rounds keep, which is in the basis by rounding
    assert values[~kept].abs().max() < 1, "rounds do not converge"
    for _ in range(5):  # once, but for rounding
        inside = basis @ moved
        along = torch.linalg.solve(vectors, inside.to(vectors))
        assert along[kept].abs().sum() < 1e-6, "rounds move what they should keep"
        limit = (vectors @ torch.where(kept, 0, along / (1 - values))).real
        point = point + moved + (limit - inside) @ basis
        moved = after_a_round(point) - point
    assert moved.abs().max() < 1e-10, "a round is not affine"
    return run.state


def federation_of(
    features: Sequence[Tensor],
    labels: Sequence[Tensor] | None = None,
    test: Sequence[Tensor] | None = None,
    classes: int = 2,
) -> Federation:
    """Return the federation whose clients hold these samples, ``(n_i, ...)`` each.

    Parameters
    ----------
    features : sequence of Tensor
        Per client.
    labels : sequence of Tensor, optional
        Per client, ``(n_i,)``; zeros unless given.
    test : sequence of Tensor, optional
        Positions in the pool; the training samples unless given.
    classes : int
        How many labels there are.
    """
    sizes = [len(x) for x in features]
    x = torch.cat(list(features))
    y = torch.cat(list(labels)) if labels is not None else torch.zeros(len(x), dtype=torch.int64)
    index = torch.full((len(sizes), max(sizes)), -1)
    first = 0
    for row, size in zip(index, sizes, strict=True):
        row[:size] = torch.arange(first, first + size)
        first += size
    held = index if test is None else torch.stack(list(test))
    pool = Batch(x, y, torch.zeros_like(y), torch.ones(len(x), dtype=x.dtype))
    names = tuple(str(label) for label in range(classes))
    splits = {"train": index, "validation": held, "test": held}
    return Federation(pool, splits, names, (), "made in a test", "0" * 64)


def iid_federation(sizes: Sequence[int] = COUNTS, features: int = 3) -> Federation:
    """Return clients with ``sizes`` samples each from one cloud, in two classes that a plane separates."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(sum(sizes), features, generator=generator, dtype=torch.float64)
    y = (x.sum(-1) > 0).long()
    return federation_of(x.split(list(sizes)), y.split(list(sizes)))


def random_federation(
    sizes: Sequence[int],
    features: int = 4,
    classes: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    groups: int = 0,
) -> Federation:
    """Return classification data, a shifted cloud a client, ``sizes`` samples each, in so many random groups."""
    rngs = [np.random.default_rng((seed, number)) for number in range(len(sizes))]
    pairs = list(zip(rngs, sizes, strict=True))
    x = [torch.tensor(rng.normal(rng.normal(), 1.0, (n, features))).to(dtype) for rng, n in pairs]
    y = [torch.tensor(rng.integers(classes, size=n)) for rng, n in pairs]
    made = federation_of(x, y, classes=classes)
    if not groups:
        return made
    group = torch.tensor(np.random.default_rng((seed, len(sizes))).integers(groups, size=sum(sizes)))
    return replace(made, pool=made.pool._replace(group=group), groups=tuple(map(str, range(groups))))


def small_task(name: str, sizes: Sequence[int], seed: int = 0) -> tuple[Problem, Federation]:
    """Return classification for an algorithm; of two classes and two groups for one that compares groups."""
    compares = ALGORITHMS[name].meta.groups
    classes, groups = (2, 2) if compares else (3, 0)
    problem = suited(ALGORITHMS[name], network(classes=classes))
    return problem, random_federation(sizes, classes=classes, seed=seed, groups=groups)


@cache
def logistic(features: int = 4, classes: int = 3) -> Problem:
    """Return softmax regression."""
    return classifier(models.build("logistic", (features,), classes))


@cache
def network(features: int = 4, classes: int = 3, hidden: tuple[int, ...] = (5,)) -> Problem:
    """Return classification by a small smooth network, which has an extractor and a head."""
    settings = {"hidden": list(hidden), "activation": "tanh"}
    return classifier(models.build("mlp", (features,), classes, settings))


def scalar_quadratic(
    a: Sequence[float], o: Sequence[float], copies: Sequence[int] | None = None
) -> tuple[Problem, Federation]:
    """Return ``f_i(w) = a_i / 2 (w - o_i)^2``; a client holds its sample (a_i, o_i) ``copies`` times."""

    def loss(w: Tensor, batch: Batch) -> Tensor:
        curvature, optimum = batch.x.unbind(-1)
        return weighted_mean(0.5 * curvature * (w - optimum) ** 2, batch.weight)

    clients = [
        torch.tensor([[ai, oi]], dtype=torch.float64).repeat(n, 1)
        for ai, oi, n in zip(a, o, copies or [1] * len(a), strict=True)
    ]
    problem = Problem(
        "scalar quadratic", "erm", lambda generator: {"x": torch.zeros(1, dtype=torch.float64)}, loss
    )
    return problem, federation_of(clients)


def quadratic_minimax(settings: Minimax | None = None) -> tuple[Problem, Federation]:
    """Return a quadratic minimax problem, the four-client MM4 unless given."""
    return _mm4() if settings is None else PROBLEMS["quadratic_minimax"].build(Setting(settings, None, None))


def quadratic_bilevel(settings: Bilevel | None = None) -> tuple[Problem, Federation]:
    """Return a quadratic bilevel problem, the two-client BL2 unless given."""
    return _bl2() if settings is None else PROBLEMS["quadratic_bilevel"].build(Setting(settings, None, None))


@cache
def _mm4() -> tuple[Problem, Federation]:
    return quadratic_minimax(MM4)


@cache
def _bl2() -> tuple[Problem, Federation]:
    return quadratic_bilevel(BL2)


def weighed_logistic(sizes: Sequence[int] = (8, 8, 8)) -> tuple[Problem, Federation]:
    """Return softmax regression whose loss an adversary scales, at the price of a square; y is free."""
    plain = logistic()

    def loss(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        price = weighted_mean(y.square().sum().expand_as(batch.weight), batch.weight)  # nothing on padding
        return (1 + y.sum()) * plain.loss(x, batch) - price

    problem = replace(
        plain,
        kind="minimax",
        init=lambda generator: {**plain.init(generator), "y": torch.zeros(2)},
        loss=loss,
    )
    return problem, random_federation(sizes)


def vertical_data(parties: Sequence[Tensor], labels: Tensor, classes: int = 2) -> Federation:
    """Return a vertical federation: the parties' columns ``(n, d)`` of the same n people."""
    return federation_of(parties, [labels] * len(parties), classes=classes)


def widened(federation: Federation, columns: int) -> Federation:
    """Return the federation with padding at the end of every row."""
    pad = {
        name: torch.cat([index, index.new_full((*index.shape[:-1], columns), -1)], -1)
        for name, index in federation.splits.items()
    }
    return replace(federation, splits=pad)


def close(found: Tensor, expected: Any, tolerance: float = 1e-6) -> bool:
    """Tell whether two tensors agree to an absolute tolerance."""
    expected = torch.as_tensor(expected, dtype=found.dtype).reshape(found.shape)
    return bool((found - expected).abs().max() <= tolerance)


def largest_difference(one: Any, other: Any) -> float:
    """Return the largest difference between two states (NamedTuples of tensors)."""
    assert one._fields == other._fields
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))
