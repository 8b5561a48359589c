"""Messages as factors of low rank: which tensors they hold, and the exchange that finds the factors.

Where only the average M of messages is used, the cohort takes one step of subspace iteration on it (PowerSGD:
Vogels, Karimireddy, Jaggi 2019, https://arxiv.org/abs/1905.13727): the server sends Q, client i sends ``M_i Q``,
the server sends their mean, whose orthonormal basis P everybody computes, and client i sends ``M_i^T P``. So the
messages ``P P^T M_i`` arrive, and their average is ``P P^T M``. The mean of the last factors is the next Q.

Otherwise each sender takes the same step by itself, sends both factors, and keeps its own Q. So it is under central
privacy: P of the cohort depends on every client, and with it the message of each; one client would move the sum by
more than its own clipped message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from compression.codec import Coded
from compression.low_rank import Factors
from harness.core import rng
from harness.core.clients.clients import Clients
from harness.core.clients.pruning import NoVariable, Shaped
from harness.core.errors import Incompatible
from harness.core.problem import Problem, names_by_length
from harness.core.settings.compression import Compression

Shapes = tuple[tuple[int, ...], ...]
Encode = Callable[[Tensor], Coded]


class Server(NamedTuple):
    """The server of a cohort that finds its factors together.

    Attributes
    ----------
    mean : Callable
        Average of rows ``(..., C, k)`` as that of the messages, ``(..., k)``.
    code : Callable
        Codes the server's rows.
    """

    mean: Callable[[Tensor], Tensor]
    code: Encode


class Exchanged(NamedTuple):
    """Messages that have travelled as factors.

    Attributes
    ----------
    decoded : Tensor
        The messages as received, ``(..., C, n)``.
    start : Tensor
        Right factors for the next round: common ones ``(..., k)``, or each sender's ``(..., C, k)``.
    sizes : Tensor
        Bytes of both factors of each sender, ``(..., C)``.
    answers : Tensor or None
        Bytes that the server sends to each client, ``(...)``.
    """

    decoded: Tensor
    start: Tensor
    sizes: Tensor
    answers: Tensor | None


def exchange(
    rows: Tensor, factors: Factors, start: Tensor, code: Encode, server: Server | None = None
) -> Exchanged:
    """Send messages as factors, after one step of subspace iteration.

    Parameters
    ----------
    rows : Tensor
        Messages ``(..., C, n)``.
    factors : Factors
        Their layout.
    start : Tensor
        Right factors of the last round: common ones with a server, else each sender's.
    code : Callable
        Codes the senders' rows.
    server : Server or None
        The server, if the cohort finds its factors together.
    """
    right, asked = factors.right_basis(start), None
    if server is not None:
        right, asked = server.code(right)
        right = right.unsqueeze(-2)
    left, first = code(torch.cat([factors.left(rows, right), factors.rest(rows)], -1))
    left, rest = left.split([factors.left_size, factors.rest_size], -1)
    answers = None
    if server is not None and asked is not None:
        left, answered = server.code(server.mean(left))
        left, answers = left.unsqueeze(-2), asked + answered
    basis = factors.left_basis(left)
    right, second = code(factors.right(rows, basis))
    begin = right if server is None else server.mean(right)
    return Exchanged(factors.join(basis, right, rest), begin, first + second, answers)


def lengths(factors: Factors) -> tuple[int, int]:
    """Return the lengths of the two rows that each sender sends."""
    return factors.left_size + factors.rest_size, factors.right_size


def first(clients: Clients, slot: int, factors: Factors, like: Tensor) -> Tensor:
    """Draw right factors to begin with, ``(..., k)``, from the public seed."""
    drawn = [
        torch.randn(factors.right_size, generator=rng.stream(seed, "low rank", slot))
        for seed in clients.seeds
    ]
    return (torch.stack(drawn) if clients.axes > 1 else drawn[0]).to(like)


def layout(clients: Clients, compression: Compression, parts: Sequence[Shaped]) -> Factors | None:
    """Return the factors of a message, without the entries that a pruned model lacks; None: it has no matrix.

    Parts are recognized by their length: those that are not one of the problem's variables hold no matrix.

    Raises
    ------
    Incompatible
        If the problem has no model, or its clients have models of different sizes.
    """
    if compression.rank is None:
        return None
    pruned = clients.pruned
    if pruned is not None and pruned.which is not None:
        raise Incompatible(
            "compression: rank uses factors of one shape for all clients, so alpha must be equal for all"
        )
    whole, names = checked(clients.problem, compression.rank), _variables(clients.problem)
    left = whole if pruned is None else tensors(pruned.models[0].problem)
    shapes: list[tuple[int, ...]] = []
    for part in parts:
        length = part.shape[-1]
        name = "" if isinstance(part, NoVariable) else names.get(length, "")
        covered = sum(math.prod(shape) for shape in whole.get(name, ()))
        shapes += [*left.get(name, ()), (length - covered,)]
    factors = Factors.of(shapes, compression.rank)
    return factors if factors.matrices else None


def checked(problem: Problem, rank: int) -> dict[str, Shapes]:
    """Return the tensors of a problem, or refuse one for which factors of this rank shorten nothing."""
    if problem.kind == "vertical":
        raise Incompatible(
            "compression.rank: parties send embeddings of a new batch every time, so that no factor of the last "
            "one is a start for the next; use beta"
        )
    variables = tensors(problem)
    if not any(variables.values()):
        raise Incompatible(f"compression.rank: problem {problem.name} has no model with matrices; use beta")
    if not any(Factors.of(shapes, rank).matrices for shapes in variables.values()):
        raise Incompatible(
            f"compression.rank: two factors of rank {rank} are longer than any matrix of the model; use less"
        )
    _variables(problem)
    return variables


def tensors(problem: Problem) -> dict[str, Shapes]:
    """Return the shapes of the tensors that each variable of a problem begins with."""
    shapes = problem.shapes
    if not shapes and problem.module is not None:
        shapes = (tuple(parameter.shape for parameter in problem.module.parameters()),)
    return dict(zip("xy", (tuple(map(tuple, each)) for each in shapes), strict=False))


@lru_cache(maxsize=8)
def _variables(problem: Problem) -> dict[int, str]:
    """Return the name of each variable by its length, or refuse variables of one length."""
    return names_by_length(problem.init(rng.stream(0, "lengths")), "rank")
