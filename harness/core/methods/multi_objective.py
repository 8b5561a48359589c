"""Common descent directions of several objectives: combinations of their gradients.

Runs may be stacked, ``(..., n)``; linear programs are solved run by run.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.core.execution.exact.sums import combined


def smooth_maximum(values: Tensor, gradients: Tensor, width: Tensor) -> Tensor:
    """Return the gradient of a smooth maximum over clients, ``(..., P)``.

    Parameters
    ----------
    values, gradients : Tensor
        Of every client, ``(..., C)`` and ``(..., C, P)``.
    width : Tensor
        Smoothing ``(..., 1)``: clients have weights proportional to ``exp(value / width)``.
    """
    share = (values / width).softmax(-1)
    return combined(share.unsqueeze(-2), gradients).squeeze(-2)


def best_of_two(first: Tensor, second: Tensor, towards: Tensor, keep: Tensor | None = None) -> Tensor:
    """Return the convex combination of two vectors ``(..., P)`` with the largest inner product with ``towards``.

    Its inner product with ``keep``, if given, is constrained to be at least 0; one of the two vectors must satisfy
    this. The optimum of the linear program is an end point or the point where the constraint is tight.
    """
    ends = torch.stack([first, second], -2)
    gain = combined(ends, towards.unsqueeze(-1)).squeeze(-1)
    if keep is None:
        return torch.where(gain[..., 1:] > gain[..., :1], second, first)
    slack = combined(ends, keep.unsqueeze(-1)).squeeze(-1)
    drop = slack[..., :1] - slack[..., 1:]
    inside = torch.where(drop != 0, slack[..., :1] / torch.where(drop != 0, drop, 1.0), 0.0).clamp(0, 1)
    share = torch.cat([torch.zeros_like(inside), inside, torch.ones_like(inside)], -1)
    allowed = (1 - share) * slack[..., :1] + share * slack[..., 1:] >= -1e-12 * slack.abs().amax(
        -1, keepdim=True
    )
    value = torch.where(allowed, (1 - share) * gain[..., :1] + share * gain[..., 1:], -torch.inf)
    best = share.gather(-1, value.argmax(-1, keepdim=True))
    return (1 - best) * first + best * second


def common_descent(gradients: Tensor, towards: Tensor) -> Tensor:
    """Return the convex combination of gradients ``(..., J, P)`` with the largest inner product with ``towards``.

    It maximizes the inner product with ``towards``, subject to inner products of at least 0 with all gradients, so
    that a small step against it increases no objective. If the maximum is 0, it is the shortest combination.
    """
    runs = gradients.detach().flatten(0, -3) if gradients.ndim > 2 else gradients.detach().unsqueeze(0)
    aims = towards.detach().reshape(len(runs), -1)
    pairs = zip(runs.double().cpu().numpy(), aims.double().cpu().numpy(), strict=True)
    weights = torch.from_numpy(np.stack([_weights(run, aim) for run, aim in pairs])).to(gradients)
    return combined(weights.view(*gradients.shape[:-1]).unsqueeze(-2), gradients).squeeze(-2)


def _weights(gradients: NDArray[np.float64], towards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve the program of one run, ``(J,)``."""
    from scipy.optimize import linprog, nnls  # here: slow to import

    count = len(gradients)
    if not (np.isfinite(gradients).all() and np.isfinite(towards).all()):
        return np.full(count, np.nan)  # ends the run
    products = gradients @ gradients.T
    size = max(float(np.abs(products).max()), 1e-300)  # scaled, as the solver's tolerance is absolute
    solution = linprog(
        -(gradients @ towards) / size,
        A_ub=-products / size,
        b_ub=np.zeros(count),
        A_eq=np.ones((1, count)),
        b_eq=[1],
    )
    if solution.status == 0 and -solution.fun > 1e-12:
        return np.asarray(solution.x, dtype=np.float64)
    # The point of a convex hull nearest to 0: minimize |D'a|^2 + (1'a - 1)^2 over a >= 0, then scale to sum 1.
    system = np.concatenate([gradients.T / np.sqrt(size), np.ones((1, count))])
    nearest, _ = nnls(system, np.r_[np.zeros(len(system) - 1), 1.0])
    return np.asarray(nearest / nearest.sum(), dtype=np.float64)
