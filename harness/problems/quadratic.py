"""Quadratic problems with a known solution; a client's data are its coefficients.

Matrices are given in the run file, or drawn by `harness.problems.random_quadratic` and `random_bilevel`. Solutions
follow from the means of the coefficients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from datasets.federation import Batch, Federation
from harness.core.errors import UserError
from harness.core.problem import Problem
from harness.problems.base import Setting, problem_type

Entry = float | list[float] | list[list[float]]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Minimax:
    """Coefficients of ``1/2 x'Px + x'By - 1/2 y'Qy + c'x + d'y``, one entry per client.

    An entry is a scalar, or a matrix (P, B, Q) or vector (c, d) as nested lists.
    """

    P: list[Entry]
    B: list[Entry]
    Q: list[Entry]
    c: list[Entry]
    d: list[Entry]


@dataclass(frozen=True)
class Bilevel:
    """Coefficients of ``g = 1/2 y'Ay - y'(Bx + b)`` and ``f = 1/2 ||y - t||^2 + rho/2 ||x||^2``.

    One entry per client, as in `Minimax`; ``rho`` is common to all.
    """

    A: list[Entry]
    B: list[Entry]
    b: list[Entry]
    t: list[Entry]
    rho: float = 0.0


@problem_type(
    "quadratic_minimax",
    "minimax",
    2,
    "min over x, max over y of a quadratic; matrices in the run file",
    Minimax,
    data="own",
)
def _minimax(setting: Setting) -> tuple[Problem, Federation]:
    s: Minimax = setting.settings
    dx, dy = _length("c", s.c), _length("d", s.d)
    shapes = minimax_shapes(dx, dy)
    read, federation = _federation("quadratic_minimax", shapes, {name: getattr(s, name) for name in shapes})
    _check_definite("quadratic_minimax: Q", read(federation.pool.x)["Q"])
    return minimax("quadratic_minimax", dx, dy), federation


def minimax(name: str, dx: int, dy: int, tether: float = 0.0) -> Problem:
    """Return the minimax problem whose samples are the concatenated coefficients of `minimax_shapes`.

    ``tether`` times ``sum_j x_j^4 / (1 + x_j^2)`` is added to the loss. Evaluations then give no distance, as
    not all stationary points are known.
    """
    read = reader(minimax_shapes(dx, dy))

    def loss(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        k = read(_mean(batch))
        value = 0.5 * x @ k["P"] @ x + x @ k["B"] @ y - 0.5 * y @ k["Q"] @ y + k["c"] @ x + k["d"] @ y
        if tether:
            present = (batch.weight.sum() > 0).to(x.dtype)
            value = value + tether * present * (x**4 / (1 + x**2)).sum()
        return value

    def measure(point: dict[str, Tensor], data: Batch) -> dict[str, float]:
        """Return F(x, y), the gradient norm of Phi(x) = max_y F(x, y), and the distance to the nearest saddle."""
        x, y, k = point["x"], point["y"], read(_mean(data))
        p, q = (k["P"] + k["P"].mT) / 2, (k["Q"] + k["Q"].mT) / 2
        gradient = p @ x + k["B"] @ torch.linalg.solve(q, k["B"].mT @ x + k["d"]) + k["c"]
        if tether:
            gradient = gradient + tether * quartic_slope(x)
            return {"loss": float(loss(x, y, data)), "stationarity": float(gradient.norm())}
        system = torch.cat([torch.cat([p, k["B"]], -1), torch.cat([k["B"].mT, -q], -1)])
        residual = system @ torch.cat([x, y]) + torch.cat([k["c"], k["d"]])
        away = torch.linalg.pinv(system) @ residual
        return {
            "loss": float(loss(x, y, data)),
            "stationarity": float(gradient.norm()),
            "distance": float(away.norm()),
        }

    return Problem(name, "minimax", _zeros(x=dx, y=dy), loss, measure=measure, constants=())


def quartic_slope(x: Tensor) -> Tensor:
    """Return the derivative of ``x^4 / (1 + x^2)``, entry by entry."""
    slope: Tensor = 2 * x - 2 * x / (1 + x * x) ** 2
    return slope


@problem_type(
    "quadratic_bilevel",
    "bilevel",
    1,
    "quadratic bilevel problem; matrices in the run file",
    Bilevel,
    data="own",
)
def _bilevel(setting: Setting) -> tuple[Problem, Federation]:
    s: Bilevel = setting.settings
    dy = _length("b", s.b)
    first = torch.tensor(s.B[0], dtype=torch.float64)
    dx = 1 if first.ndim == 0 else first.shape[-1]
    shapes = bilevel_shapes(dx, dy)
    read, federation = _federation("quadratic_bilevel", shapes, {name: getattr(s, name) for name in shapes})
    _check_definite("quadratic_bilevel: A", read(federation.pool.x)["A"])
    return bilevel("quadratic_bilevel", dx, dy, s.rho), federation


def _check_definite(name: str, matrices: Tensor) -> None:
    """Refuse clients' matrices ``(C, n, n)`` with a symmetric part that is not positive definite."""
    for number, matrix in enumerate(matrices):
        if torch.linalg.eigvalsh((matrix + matrix.mT) / 2).min() <= 0:
            raise UserError(f"problem {name} of client {number} is not positive definite: {matrix.tolist()}")


def bilevel(name: str, dx: int, dy: int, rho: float) -> Problem:
    """Return the bilevel problem whose samples are the concatenated coefficients of `bilevel_shapes`."""
    read = reader(bilevel_shapes(dx, dy))

    def outer(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        value = 0.5 * ((y - read(_mean(batch))["t"]) ** 2).sum() + 0.5 * rho * (x**2).sum()
        return batch.weight.sum().clamp(max=1) * value

    def inner(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        k = read(_mean(batch))
        return 0.5 * y @ k["A"] @ y - y @ (k["B"] @ x + k["b"])

    def measure(point: dict[str, Tensor], data: Batch) -> dict[str, float]:
        """Return loss and gradient norm of the mean of ``f_m(x, y_m(x))``, and the distance of x to its minimum."""
        weight = data.weight.unsqueeze(-1)
        x, k = point["x"], read((data.x * weight).sum(1) / weight.sum(1))
        slope, shift = torch.linalg.solve(k["A"], k["B"]), torch.linalg.solve(k["A"], k["b"])  # of y_m(x)
        away = (slope @ x) + shift - k["t"]
        value = 0.5 * (away**2).sum(-1).mean() + 0.5 * rho * (x**2).sum()
        gradient = rho * x + (slope.mT @ away[..., None]).squeeze(-1).mean(0)
        hessian = rho * torch.eye(dx, dtype=x.dtype) + (slope.mT @ slope).mean(0)
        return {
            "loss": float(value),
            "stationarity": float(gradient.norm()),
            "distance": float((torch.linalg.pinv(hessian) @ gradient).norm()),
        }

    return Problem(name, "bilevel", _zeros(x=dx, y=dy), outer, inner=inner, measure=measure, constants=())


def bilevel_shapes(dx: int, dy: int) -> Shapes:
    """Return the shapes of the coefficients of a bilevel problem, in their order in a sample."""
    return {"A": (dy, dy), "B": (dy, dx), "b": (dy,), "t": (dy,)}


def _federation(
    name: str, shapes: Shapes, entries: dict[str, Sequence[Entry]]
) -> tuple[Callable[[Tensor], dict[str, Tensor]], Federation]:
    """Concatenate each client's coefficients into one sample; return their reader and the federation."""
    clients = {key: len(values) for key, values in entries.items()}
    if len(set(clients.values())) != 1 or 0 in clients.values():
        raise UserError(f"problem {name}: every coefficient needs one entry per client, given {clients}")
    columns = []
    for key, shape in shapes.items():
        for number, entry in enumerate(entries[key]):
            try:
                value = torch.tensor(entry, dtype=torch.float64)
            except (TypeError, ValueError) as error:
                raise UserError(f"problem {name}: {key} of client {number} is ragged: {entry}") from error
            if value.ndim == 0 and all(side == 1 for side in shape):
                value = value.reshape(shape)
            if value.shape != shape or not torch.isfinite(value).all():
                raise UserError(
                    f"problem {name}: {key} of client {number} must be finite and of shape {shape}, given {entry}"
                )
            columns.append((number, value.flatten()))
    count = next(iter(clients.values()))
    x = torch.stack([torch.cat([value for owner, value in columns if owner == n]) for n in range(count)])
    return reader(shapes), holding(x[:, None], "coefficients in the run file")


def holding(coefficients: Tensor, source: str, digest: str | None = None) -> Federation:
    """Return the federation whose clients hold these samples, ``(C, S, D)``, to train and to test on.

    ``digest`` names what is held; default: the digest of the numbers.
    """
    clients, samples = coefficients.shape[:2]
    x = coefficients.flatten(0, 1)
    zeros, index = torch.zeros(len(x), dtype=torch.int64), torch.arange(len(x)).view(clients, samples)
    pool = Batch(x, zeros, zeros, torch.ones(len(x), dtype=torch.float64))
    digest = digest or hashlib.sha256(x.numpy().tobytes()).hexdigest()
    splits = {"train": index, "validation": index, "test": index}
    return Federation(pool, splits, (), (), source, digest)


def drawn_digest(problem: str) -> str:
    """Return the digest of coefficients that the seed of a run draws.

    What is drawn follows from settings and seed, so that the runs of a cell share a digest, as with a data set.
    """
    return hashlib.sha256(f"{problem} drawn from the seed of the run".encode()).hexdigest()


def minimax_shapes(dx: int, dy: int) -> Shapes:
    """Return the shapes of the coefficients of a minimax problem, in their order in a sample."""
    return {"P": (dx, dx), "B": (dx, dy), "Q": (dy, dy), "c": (dx,), "d": (dy,)}


def reader(shapes: Shapes) -> Callable[[Tensor], dict[str, Tensor]]:
    """Return a function that splits samples ``(..., D)`` into coefficients of these shapes."""
    ends = list(accumulate(torch.Size(shape).numel() for shape in shapes.values()))

    def read(row: Tensor) -> dict[str, Tensor]:
        pieces = row.tensor_split(ends[:-1], dim=-1)
        return {
            k: piece.unflatten(-1, shape) for (k, shape), piece in zip(shapes.items(), pieces, strict=True)
        }

    return read


def _mean(batch: Batch) -> Tensor:
    """Average the coefficients over clients and samples, ``(D,)``."""
    weight = batch.weight.unsqueeze(-1)
    return (batch.x * weight).flatten(0, -2).sum(0) / weight.sum().clamp(min=1)


def _length(name: str, entries: Sequence[Entry]) -> int:
    first = entries[0] if entries else 0.0
    return len(first) if isinstance(first, list) else 1


def _zeros(**sizes: int) -> Callable[[torch.Generator], dict[str, Tensor]]:
    return lambda generator: {name: torch.zeros(size, dtype=torch.float64) for name, size in sizes.items()}
