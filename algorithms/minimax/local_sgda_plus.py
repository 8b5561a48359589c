"""Local SGDA+: local descent ascent with ascent gradients at a snapshot of x.

Deng, Mahdavi: "Local Stochastic Gradient Descent Ascent: Convergence Analysis and Communication Efficiency",
AISTATS 2021, Algorithm 2; Sharma, Panda, Joshi, Varshney: "Federated Minimax Optimization: Improved Convergence
Analyses and Algorithms", ICML 2022.
https://arxiv.org/abs/2102.13152, https://arxiv.org/abs/2203.04850

===================  =========================================================
paper                here
===================  =========================================================
x, y                 ``state.x``, ``state.y``
x tilde              ``state.xs``, the snapshot
eta_x, eta_y         ``lr_x``, ``lr_y``
tau                  ``local_steps``
S                    ``snapshot_rounds * local_steps``; S = tau is ``snapshot_rounds: 1``
===================  =========================================================

Travels: (x, y) down, (x, y) up (their increments); 2 (d_x + d_y) scalars per client and round. The snapshot is a
past broadcast; a partial cohort receives it again, d_x more.

Deviations: snapshots are averages, so S is a multiple of tau. y is projected after every step and after the
average.
"""

from dataclasses import dataclass
from typing import ClassVar

from harness.core import Channel, Clients, Meta, positive, register
from harness.core.methods.descent_ascent import Snapshot, SnapshotDescentAscent


@register
@dataclass(frozen=True, kw_only=True)
class LocalSGDAPlus(SnapshotDescentAscent):
    """Local descent in x at the client's point and ascent in y at the snapshot, averaged after some steps.

    Attributes
    ----------
    snapshot_rounds : int
        Rounds between snapshots of the server's x.
    """

    meta: ClassVar = Meta(
        "local_sgda_plus", "minimax", ("minimax",), "Deng, Mahdavi 2021", "https://arxiv.org/abs/2102.13152",
        epochs=False,
    )  # fmt: skip

    snapshot_rounds: int = positive(5)

    def round(self, state: Snapshot, clients: Clients, channel: Channel) -> Snapshot:
        """Take local steps with ascent gradients at the snapshot, then apply the mean increments."""
        snapshot = state.x if clients.round % self.snapshot_rounds == 0 else state.xs
        x, y = x_t, y_t = channel.down(state.x, state.y)
        xs = channel.rebroadcast(snapshot)
        m = None
        for batch in clients.batches(self):
            gx, gy = clients.grad_x(x, y, batch), clients.grad_y(xs, y, batch)
            (x, y), m = self.step((x, y), (gx, gy), batch, m, lr=(self.lr_x, -self.lr_y))
            y = clients.project(y)
        dx, dy = channel.mean(*self.increments(clients, (x, y), (x_t, y_t)), weighting="uniform")
        return self.server_point(state._replace(xs=snapshot), clients, x=dx, y=dy)
