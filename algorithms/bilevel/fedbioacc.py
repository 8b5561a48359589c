"""FedBiOAcc: FedBiO with momentum-based variance reduction.

Li, Huang, Huang: "Local Stochastic Bilevel Optimization with Momentum-Based Variance Reduction", Algorithm 2.
https://arxiv.org/abs/2205.01608

=======================  =========================================================
paper                    here
=======================  =========================================================
x_t, x_{t-1}             ``state.x``, ``state.xp``, the outer variable
nu                       ``state.nu``, the estimate of the hypergradient
y_m                      ``state.y``, ``state.yp``, the inner variables, one row per client
omega_m                  ``state.omega``, the estimates of their gradients, one row per client
alpha_t                  ``delta / (u + sigma^2 t)^(1/3)``, t counted from 1
eta, gamma               ``lr_x``, ``lr_y``
c_nu, c_omega            ``c_x``, ``c_y``
I                        ``local_steps``
Q, eta in eq. 4          ``neumann_terms``, ``neumann_step``
=======================  =========================================================

Travels: (x_{t-1}, nu, x_t) down and up (their increments); 6 d_x scalars per client and round. ``dedupe`` omits
x_t, which follows from the other two: 4 d_x. Second stage: as FedBiO.
Under privacy, ``release: value`` protects what is private in these messages, not what follows from earlier ones
(docs/releases.md).

Deviations: as FedBiO. The factor 1 - c alpha^2 is at least 0. t also advances for absent clients, which resume from
their own y and omega. With ``dedupe`` and a feasible set the server projects the mean step.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from harness.core import (
    Channel,
    Clients,
    Increment,
    Meta,
    Public,
    Release,
    not_negative,
    positive,
    register,
    step_size,
)
from harness.core.methods.bilevel import Bilevel
from harness.core.methods.derivatives import inner_gradient


@register
@dataclass(frozen=True, kw_only=True)
class FedBiOAcc(Bilevel, Release):
    """Local steps along estimates that are corrected with the same batch at the previous point.

    Attributes
    ----------
    lr_x, lr_y : float
        Step sizes of the outer and the inner variable, times alpha_t.
    delta, u, sigma : float
        Parameters of alpha_t.
    c_x, c_y : float
        How fast the estimates forget.
    dedupe : bool
        Send x_{t-1} and nu only; the receiver computes x_t.
    release : {"value", "change"}
        As in `Release`; by default "change", because nu forgets slowly (1 - c_x alpha_t^2 a step) and x, which
        follows it, would add up its noise (results of suite ``release-form``).
    """

    meta: ClassVar = Meta(
        "fedbioacc", "bilevel", ("bilevel",), "Li et al. 2022", "https://arxiv.org/abs/2205.01608",
        version=3, epochs=False, apart=("u", "sigma", "neumann_step")
    )  # fmt: skip

    lr_x: float = step_size(1.0)
    lr_y: float = step_size(1.0)
    delta: float = positive(0.1)
    u: float = positive(1.0)
    sigma: float = not_negative(1.0)
    c_x: float = not_negative(1.0)
    c_y: float = not_negative(1.0)
    dedupe: bool = False
    release: Literal["value", "change"] = "change"

    class State(NamedTuple):
        """Server vectors ``(..., P)``, client rows ``(..., total, Q)``; ``begun`` and ``trained`` are 0 or 1."""

        x: Tensor
        xp: Tensor
        nu: Tensor
        y: Tensor
        yp: Tensor
        omega: Tensor
        begun: Tensor
        theta: Tensor
        trained: Tensor

    def alpha(self, t: int) -> float:
        """Return the common factor of the step sizes in step t."""
        return self.delta / math.cbrt(self.u + self.sigma**2 * t)

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's point; the first batch gives the estimates."""
        x, theta, zero = start["x"], start["y"], torch.zeros_like
        y, omega, trained = clients.rows(theta), clients.rows(zero(theta)), zero(theta[..., :1])
        return self.State(x, x, zero(x), y, y, omega, clients.rows(trained), theta, trained)

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take I steps along the corrected estimates, then apply the mean increments of x_{t-1}, nu and x_t."""
        if self.stage(clients.round):
            return self.train(state, clients, channel)
        phi = self.hypergradient(clients.problem)
        gradient = inner_gradient(clients.problem)
        num_steps = self.local_steps or 1
        t = clients.round * num_steps
        if self.dedupe:
            xp, nu_t = channel.down(state.xp, state.nu)
            last = self.lr_x / self.change(clients.round)  # the server used the previous round's step size
            x_t = clients.project_x(xp - last * self.alpha(t) * nu_t)
        else:
            xp, nu_t, x_t = channel.down(state.xp, state.nu, state.x)
        x, nu = x_t, nu_t
        y, yp, omega = (clients.take(rows) for rows in (state.y, state.yp, state.omega))
        begun = clients.take(state.begun, mean=torch.ones_like(state.nu[..., :1]))
        for lower, outer in self.draws(clients):
            keep_x = begun * max(0.0, 1 - self.c_x * self.alpha(t) ** 2)
            keep_y = begun * max(0.0, 1 - self.c_y * self.alpha(t) ** 2)
            nu = clients.each(phi, x, y, *outer) + keep_x * (nu - clients.each(phi, xp, yp, *outer))
            old = clients.each(gradient, xp, yp, lower)
            omega = clients.each(gradient, x, y, lower) + keep_y * (omega - old)
            xp, yp, begun, t = x, y, torch.ones_like(begun), t + 1
            x = clients.project_x(x - self.lr_x * self.alpha(t) * nu)
            y = y - self.lr_y * self.alpha(t) * omega
        reach = Public(num_steps * self.lr_x * self.alpha(t))
        parts = [Increment(xp, of=x_t, scale=reach), Increment(nu, of=nu_t)]
        if not self.dedupe:
            parts.append(Increment(x, of=x_t, scale=reach))
        dxp, dnu, *dx = channel.mean(*parts, weighting="uniform")
        xp_new, nu_new = state.x + dxp, state.nu + dnu
        x_new = xp_new - self.lr_x * self.alpha(t) * nu_new if self.dedupe else state.x + dx[0]
        return state._replace(
            x=clients.project_x(x_new),
            xp=xp_new,
            nu=nu_new,
            y=clients.put(state.y, y),
            yp=clients.put(state.yp, yp),
            omega=clients.put(state.omega, omega),
            begun=clients.put(state.begun, begun),
        )
