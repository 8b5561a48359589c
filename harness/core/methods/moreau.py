"""Stationarity of a maximum of convex functions: the gradient of its Moreau envelope.

``Phi(x) = max_y <y, L(x)>`` over the probability simplex has no gradient where two losses are equal. Its envelope
``min_z Phi(z) + w/2 |z - x|^2`` has one everywhere, ``w (x - prox(x))``, which is zero where Phi is least.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.core.methods.derivatives import project_simplex

MOST_STEPS = 20_000
TOLERANCE = 0.01  # largest error, as a share of the result; of 0.01 if the result is smaller
SHRINK, GROW = 0.6, 1.1  # of the step size, after a step that is refused and one that is taken
SAFE = 0.9  # a step is taken if it is at most this over the Lipschitz constant between its two points


def envelope_gradient(losses: Callable[[Tensor], Tensor], x: Tensor, weight: float) -> float:
    """Return the norm of the gradient of the Moreau envelope at a point.

    The proximal point is the z of the saddle of ``<y, L(z)> + w/2 |z - x|^2``, approached by extragradient steps
    (Korpelevich 1976) with step sizes of Khobotov 1987. As this is strongly convex in z,

        w/2 |z - prox|^2 <= gap(z, y) = max_c L_c(z) - <y, L(z)> + |gradient by z|^2 / (2 w)

    for every z and y, so the result is wrong by at most ``sqrt(2 w gap)``. Steps end where this is small enough.

    Parameters
    ----------
    losses : Callable
        Convex losses ``(K,)`` of a point ``(P,)``.
    x : Tensor
        The point, ``(P,)``.
    weight : float
        w, the weight of the squared distance.

    Returns
    -------
    float
        ``w |x - prox(x)|``; NaN if `TOLERANCE` is not reached, as where losses are not finite.
    """

    def field(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients by z and by y."""
        at = z.requires_grad_()
        values = losses(at)
        (slope,) = torch.autograd.grad(values @ y, at)
        return slope + weight * (z.detach() - x), values.detach()

    x = x.detach().double()
    z, y, step = x.clone(), torch.full_like(losses(x).detach(), 1.0), 1.0 / weight
    y = y / len(y)
    for _ in range(MOST_STEPS):
        down, up = field(z, y)
        gap = up.max() - up @ y + down.square().sum() / (2 * weight)
        norm = weight * float((z.detach() - x).norm())
        error = float((2 * weight * gap.clamp(min=0)).sqrt())
        if error <= TOLERANCE * max(norm, 0.01):
            return norm
        if error != error:
            break
        while True:
            near, at = z.detach() - step * down, project_simplex(y + step * up)
            slope, rise = field(near, at)
            changed = torch.cat([slope - down, rise - up]).norm()
            moved = torch.cat([near.detach() - z.detach(), at - y]).norm()
            if not step * changed > SAFE * moved:
                break
            step *= SHRINK
        z, y, step = z.detach() - step * slope, project_simplex(y + step * rise), step * GROW
    return float("nan")
