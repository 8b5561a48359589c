"""FedSAM: FedAvg with sharpness-aware local steps; DP-FedSAM under privacy.

Qu, Li, Duan, Liu, Tang, Lu: "Generalized Federated Learning via Sharpness Aware Minimization", ICML 2022,
Algorithm 1, https://arxiv.org/abs/2206.02618. Shi, Liu, Wei, Shen, Wang, Tao: "Make Landscape Flatter in
Differentially Private Federated Learning", CVPR 2023, Algorithm 1, https://arxiv.org/abs/2303.11242.

===================  =========================================================
paper                here
===================  =========================================================
w                    ``state.x``
rho                  ``rho``
eta_l, eta_g         ``lr``, ``server_lr``
K                    ``local_steps`` (or ``local_epochs``)
===================  =========================================================

Travels: x down, x up (its increment); 2 P scalars per client and round.

Deviations: both gradients of a step are taken on the same batch. The momentum variant of FedSAM is left out. The
sparsified variant of DP-FedSAM is a run with ``compression.beta``.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from harness.core import Channel, Clients, Increment, Meta, not_negative, register, step_size
from harness.core.methods.averaging import Averaging, Model

TINY = 1e-12  # length below which a gradient has no direction


@register
@dataclass(frozen=True, kw_only=True)
class FedSAM(Averaging):
    """FedAvg whose local steps follow the gradient at the worst point nearby, to first order.

    Attributes
    ----------
    lr : float
        Local step size.
    rho : float
        Distance of that point, along the gradient; 0 is FedAvg at twice the work.
    """

    meta: ClassVar = Meta(
        "fedsam", "centralized", ("erm",), "Qu et al. 2022", "https://arxiv.org/abs/2206.02618", chunks=True
    )

    lr: float = step_size(0.1)
    rho: float = not_negative(0.05)

    def round(self, state: Model, clients: Clients, channel: Channel) -> Model:
        """Ascend by rho, step along the gradient there; then apply the mean increment."""
        x = x_t = channel.down(state.x)
        m = None
        for batch in clients.batches(self):
            g = clients.grad(x, batch)
            length = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
            ahead = x + self.rho * g / length.clamp(min=TINY)
            x, m = self.step(x, clients.grad(ahead, batch), batch, m, lr=self.lr)
        return self.server_step(state, x=channel.mean(Increment(x, of=x_t)))
