"""FedSGDA+: Local SGDA+ with a server step size.

Wu, Sun, Hu, Zhang, Huang: "Solving a Class of Non-Convex Minimax Optimization in Federated Learning",
NeurIPS 2023, Algorithm 1.

===================  =========================================================
paper                here
===================  =========================================================
x, y                 ``state.x``, ``state.y``
x tilde              ``state.xs``, the snapshot
chat, c              ``lr_x``, ``lr_y``
eta_x, eta_y         ``server_lr``, ``server_lr_y``; the public code has one value for both
Q                    ``local_steps``
S                    ``snapshot_rounds``, a number of rounds
===================  =========================================================

Travels: (x, y) down, (x, y) up (their increments); 2 (d_x + d_y) scalars per client and round. The snapshot is a
past broadcast; a partial cohort receives it again, d_x more.

Deviations: y is projected (Euclidean) after every local step and after the server's, which may leave the simplex if
its step size is above 1; the public code clips and renormalizes instead.
"""

from dataclasses import dataclass
from typing import ClassVar

from algorithms.minimax.local_sgda_plus import LocalSGDAPlus
from harness.core import Meta, positive, register


@register
@dataclass(frozen=True, kw_only=True)
class FedSGDAPlus(LocalSGDAPlus):
    """Local SGDA+ whose server steps along the mean increments with step sizes of its own.

    Attributes
    ----------
    server_lr_y : float or None
        Step size of the server for y; None: `server_lr`.
    """

    meta: ClassVar = Meta(
        "fedsgda_plus", "minimax", ("minimax",), "Wu et al. 2023",
        "https://github.com/xidongwu/Federated-Minimax-and-Conditional-Stochastic-Optimization",
        epochs=False,
    )  # fmt: skip

    server_lr: float = 1.5
    server_lr_y: float | None = positive(None)

    def server_rate(self, name: str) -> float:
        """Return the server's step size for x or y."""
        return self.server_lr_y if name == "y" and self.server_lr_y is not None else self.server_lr
