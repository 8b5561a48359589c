"""Random quadratic bilevel problems with adjustable client heterogeneity and noise.

Inner ``g_m = 1/2 y'A y - y'(B_m x + b_m)``, outer ``f_m = 1/2 ||y - t_m||^2 + rho/2 ||x||^2``. A and the inner
solution ``y_m(x) = W_m x + w_m`` are drawn; B_m = A W_m and b_m = A w_m follow. The outer problem is then
``1/2 mean ||W_m x + w_m - t_m||^2 + rho/2 ||x||^2``, so the condition number of A makes the inner problem hard,
not the outer one. Client m holds W + h W_m, w + h w_m, t + h t_m with heterogeneity h; the deviations have mean
zero over clients. With h = 0 all clients are equal. With h = 1 the root mean square over clients is 1/2 for the
spectral norm of W_m and 1 for the lengths of w_m and t_m.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from datasets.federation import Federation
from harness.core import rng
from harness.core.problem import Problem
from harness.problems.base import Setting, problem_type
from harness.problems.quadratic import bilevel, drawn_digest, holding
from harness.problems.random_quadratic import check_settings, deviations, normal, spectrum


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
        Condition number of A, whose eigenvalues are log-spaced up to 1; W has spectral norm 1.
    rho : float
        Weight of ``||x||^2 / 2`` in the outer problem.
    samples : int
        Samples per client.
    noise : float
        Standard deviation of the deviations of a client's samples in every entry of b and t; in the entries of A
        (off its diagonal) and of B it is divided by the root of the number of their columns. The mean over the
        client's samples is exactly zero, so only batches are noisy.
    seed : int or None
        Seed of the coefficients; None: the run's seed, which also draws batches.
    """

    clients: int = 8
    dims: tuple[int, int] = (5, 10)
    heterogeneity: float = 1.0
    condition: float = 4.0
    rho: float = 0.1
    samples: int = 1
    noise: float = 0.0
    seed: int | None = None


@problem_type(
    "random_bilevel",
    "bilevel",
    1,
    "random quadratic bilevel problem with knobs for heterogeneity and noise and a known minimum",
    Settings,
    data="own",
)
def _build(setting: Setting) -> tuple[Problem, Federation]:
    s: Settings = setting.settings
    check_settings("random_bilevel", s, nonnegative=("heterogeneity", "rho", "noise"))
    seed, (dx, dy), h = setting.seed if s.seed is None else s.seed, s.dims, s.heterogeneity
    common, individual = rng.stream(seed, "bilevel", "averages"), rng.stream(seed, "bilevel", "deviations")
    a, slope = spectrum(dy, s.condition, common), normal(common, dy, dx)
    slope = slope / torch.linalg.matrix_norm(slope, 2)
    shift, target = normal(common, dy), normal(common, dy)
    slopes = slope + h * deviations(normal(individual, s.clients, dy, dx), 0.5)
    shifts, targets = (v + h * deviations(normal(individual, s.clients, dy), 1.0) for v in (shift, target))
    parts = (a.expand(s.clients, dy, dy), a @ slopes, shifts @ a, targets)
    rows = torch.cat([part.flatten(1) for part in parts], -1)
    noise = s.noise * _noise(rng.stream(seed, "bilevel", "noise"), s.clients, s.samples, dx, dy)
    coefficients = rows[:, None] + noise - noise.mean(1, keepdim=True)
    digest = drawn_digest("random_bilevel") if s.seed is None else None
    federation = holding(coefficients, "coefficients drawn from a seed", digest)
    return bilevel("random_bilevel", dx, dy, s.rho), federation


def _noise(generator: torch.Generator, clients: int, samples: int, dx: int, dy: int) -> Tensor:
    """Draw the samples' deviations for a noise of 1; that of A is symmetric."""
    a = normal(generator, clients, samples, dy, dy)
    a, b = (a + a.mT) / 2**0.5, normal(generator, clients, samples, dy, dx)
    vectors = normal(generator, clients, samples, 2 * dy)
    return torch.cat([a.flatten(2) / dy**0.5, b.flatten(2) / dx**0.5, vectors], -1)
