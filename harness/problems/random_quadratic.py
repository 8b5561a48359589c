"""Random quadratic minimax problems with adjustable client heterogeneity.

``1/2 x'Px + x'By - 1/2 y'Qy + c'x + d'y``. The problem's seed determines the averages P, B, Q, c, d and hence the
saddle. Client i holds P + h P_i, B + h B_i, Q, c + h c_i, d + h d_i with heterogeneity h; the deviations have mean
zero over clients. With h = 0 all clients are equal. With h = 1 the root mean square over clients is 1/2 for the
spectral norms of P_i and B_i and 1 for the lengths of c_i and d_i. All clients share Q, so that each of them is
strongly concave in y for every h. The matrices deviate because local steps have no bias if all clients share an
affine map.

h moves the smoothness of single clients too. With ``linear_heterogeneity`` g the matrices keep to h, and c_i and
d_i are such that the gradients of the clients at the saddle have mean zero and root mean square length g. With
g = 0 all clients share the saddle, and no smoothness depends on g.

With ``nonconvex`` m > 0 the average P is indefinite: it keeps its form on the range of B, and is -m on the
directions that B' maps to zero, at least dx - dy of them. Then ``m sum_j x_j^4 / (1 + x_j^2)`` is added to every
client's function. Its curvature is 0 at the origin, at most 2.5 m, and 2 m far away. So f and Phi(x) = max_y f(x,
y) have curvature -m in these directions at the origin, both are nonconvex in x, and Phi is bounded below. c makes
the drawn point stationary, which is not the only stationary point then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from datasets.federation import Federation
from harness.core import rng
from harness.core.errors import UserError
from harness.core.problem import Problem
from harness.problems.base import Setting, problem_type
from harness.problems.quadratic import drawn_digest, holding, minimax, quartic_slope


@dataclass(frozen=True)
class Settings:
    """Settings of the problem.

    Attributes
    ----------
    clients : int
        Number of clients.
    dims : (int, int)
        Lengths of x and y.
    heterogeneity : float
        Heterogeneity h, at least 0.
    condition : float
        Condition number of the averages P and Q, whose eigenvalues are log-spaced up to 1; B has spectral norm 1.
    samples : int
        Samples per client.
    noise : float
        Standard deviation of the deviations of a client's samples in every entry of c and d; their mean over the
        client's samples is exactly zero, so only batches are noisy.
    seed : int or None
        Seed of the coefficients; the run's seed draws batches. None: the run's seed draws the coefficients too, so
        that the seeds of a suite are instances.
    matrix_noise : float
        The same as ``noise``, in every entry of P and B; that of P is symmetric. Unlike the noise in c and d it
        does not cancel in the difference of a batch's gradients at two points.
    nonconvex : float
        Curvature m of Phi at the origin, with the opposite sign, in the directions that B' maps to zero; 0: Phi is
        strongly convex.
    linear_heterogeneity : float or None
        Root mean square over clients of the lengths of their gradients by x and by y at the drawn saddle. It moves
        c and d only. None: c and d deviate by ``heterogeneity``.
    """

    clients: int = 8
    dims: tuple[int, int] = (10, 5)
    heterogeneity: float = 1.0
    condition: float = 10.0
    samples: int = 1
    noise: float = 0.0
    seed: int | None = 0
    matrix_noise: float = 0.0
    nonconvex: float = 0.0
    linear_heterogeneity: float | None = None


@problem_type(
    "random_quadratic",
    "minimax",
    1,
    "random quadratic minimax problem with a heterogeneity knob and a known saddle",
    Settings,
    data="own",
)
def _build(setting: Setting) -> tuple[Problem, Federation]:
    s: Settings = setting.settings
    linear = () if s.linear_heterogeneity is None else ("linear_heterogeneity",)
    nonnegative = ("heterogeneity", "noise", "matrix_noise", "nonconvex", *linear)
    check_settings("random_quadratic", s, nonnegative)
    (dx, dy), seed = s.dims, setting.seed if s.seed is None else s.seed
    if s.nonconvex > 0 and dx <= dy:
        raise UserError(
            f"problem random_quadratic: nonconvex needs an x longer than y, given dims {dx} and {dy}: Phi is "
            "curved downwards where B' is zero"
        )
    common = rng.stream(seed, "quadratic", "averages")
    p, q = (spectrum(size, s.condition, common) for size in (dx, dy))
    b = normal(common, dx, dy)
    b = b / torch.linalg.matrix_norm(b, 2)
    if s.nonconvex > 0:
        projection = b @ torch.linalg.pinv(b)  # the projection onto the range of B
        p = projection @ p @ projection - s.nonconvex * (torch.eye(dx, dtype=torch.float64) - projection)
    x, y = normal(common, dx), normal(common, dy)  # the saddle; c and d follow
    c, d = -(p @ x + b @ y + s.nonconvex * quartic_slope(x)), q @ y - b.mT @ x

    stream = rng.stream(seed, "quadratic", "deviations")
    dp = normal(stream, s.clients, dx, dx)
    dp, db = deviations(dp + dp.mT, 0.5), deviations(normal(stream, s.clients, dx, dy), 0.5)
    dc, dd = (deviations(normal(stream, s.clients, size), 1.0) for size in (dx, dy))
    h, g = s.heterogeneity, s.linear_heterogeneity
    if g is None:
        dc, dd = h * dc, h * dd
    else:  # what the matrices add to the gradients at the saddle is taken off again
        dc, dd = g * dc - h * (dp @ x + db @ y), g * dd - h * (db.mT @ x)
    parts = (p + h * dp, b + h * db, q.expand(s.clients, dy, dy), c + dc, d + dd)
    rows = torch.cat([part.flatten(1) for part in parts], -1)

    noise = s.noise * normal(rng.stream(seed, "quadratic", "noise"), s.clients, s.samples, dx + dy)
    entries = rng.stream(seed, "quadratic", "noise in matrices")
    matrices = torch.zeros(s.clients, s.samples, dx * (dx + dy) + dy * dy, dtype=torch.float64)
    if s.matrix_noise > 0:
        raw = s.matrix_noise * normal(entries, s.clients, s.samples, dx, dx)
        lower = raw.tril()
        matrices[..., : dx * dx] = (lower + raw.tril(-1).mT).flatten(-2)
        matrices[..., dx * dx : dx * (dx + dy)] = s.matrix_noise * normal(
            entries, s.clients, s.samples, dx * dy
        )
    centered = [values - values.mean(1, keepdim=True) for values in (matrices, noise)]
    coefficients = rows[:, None] + torch.cat(centered, -1)
    digest = drawn_digest("random_quadratic") if s.seed is None else None
    federation = holding(coefficients, "coefficients drawn from a seed", digest)
    return minimax("random_quadratic", dx, dy, s.nonconvex), federation


def check_settings(problem: str, settings: Any, nonnegative: Sequence[str]) -> None:
    """Refuse numbers that are too small: sizes and the condition number below 1, others below 0."""
    least = {"clients": 1, "dims": 1, "condition": 1, "samples": 1, **dict.fromkeys(nonnegative, 0)}
    for name, bound in least.items():
        value = getattr(settings, name)
        if not min(value if name == "dims" else (value,)) >= bound:
            raise UserError(f"problem {problem}: {name} must be at least {bound}, given {value}")
    noise = sum(getattr(settings, name) for name in nonnegative if name.endswith("noise"))
    if noise > 0 and settings.samples < 2:
        raise UserError(f"problem {problem}: noise distinguishes samples; give samples of at least 2")


def spectrum(size: int, condition: float, generator: torch.Generator) -> Tensor:
    """Return a random symmetric matrix with eigenvalues from 1 / condition to 1."""
    basis, _ = torch.linalg.qr(normal(generator, size, size))
    values = torch.logspace(0, -1, size, base=condition, dtype=torch.float64)
    matrix: Tensor = (basis * values) @ basis.mT
    return matrix


def deviations(rows: Tensor, size: float) -> Tensor:
    """Center rows and scale them to a root mean square norm of ``size``; those of a single client are zero."""
    centered = rows - rows.mean(0)
    norms = torch.linalg.norm(centered, 2, dim=tuple(range(1, rows.ndim)))
    scaled: Tensor = size * centered / norms.square().mean().sqrt().clamp(min=1e-12)
    return scaled


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw standard normal numbers in double precision."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)
