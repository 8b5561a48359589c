"""Fed-Norm-SGDA: local descent ascent with normalized directions for unequal numbers of local steps.

Sharma, Panda, Joshi: "Federated Minimax Optimization with Client Heterogeneity", TMLR 2023.
https://arxiv.org/abs/2302.04249

===================  =========================================================
paper                here
===================  =========================================================
x, y                 ``state.x``, ``state.y``
eta_x, eta_y         ``lr_x``, ``lr_y``
tau_i                ``own_steps``, by client number; else ``local_steps``
a_i                  1 for every step; with momentum, the weights of a constant gradient (`reach`)
tau_eff              mean of all clients' numbers of steps
gamma_x, gamma_y     ``lr_x``, ``lr_y``
x hat (variant +)    ``state.xs``, renewed every ``snapshot_rounds``
===================  =========================================================

Travels: (x, y) down, the two mean directions up; 2 (d_x + d_y) scalars per client and round. In the variant + the
snapshot is a past broadcast; a partial cohort receives it again, d_x more.

Deviations: written from the abstract and general knowledge. tau_eff is the unweighted mean of the numbers of steps.
y is projected after every step, and its direction is the sum of gradients, not the increment.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from harness.core import Channel, Clients, Meta, positive, register
from harness.core.methods.descent_ascent import Snapshot, SnapshotDescentAscent
from harness.core.steps import reach


@register
@dataclass(frozen=True, kw_only=True)
class FedNormSGDA(SnapshotDescentAscent):
    """Local descent ascent with each client's direction divided by its number of steps.

    Attributes
    ----------
    own_steps : tuple of int
        Steps of clients 0, 1, ..., repeated cyclically; empty: ``local_steps`` for all.
    normalize : bool
        Divide by the number of steps. Otherwise this is Local SGDA, which converges to the saddle point of another
        problem when the numbers differ.
    snapshot_rounds : int or None
        Variant +: rounds between snapshots of x, at which ascent gradients are taken.
    """

    meta: ClassVar = Meta(
        "fed_norm_sgda", "minimax", ("minimax",), "Sharma et al. 2023", "https://arxiv.org/abs/2302.04249",
        epochs=False, apart=("momentum",)
    )  # fmt: skip

    own_steps: tuple[int, ...] = positive(())
    normalize: bool = True
    snapshot_rounds: int | None = positive(None)

    def round(self, state: Snapshot, clients: Clients, channel: Channel) -> Snapshot:
        """Take each client's number of local steps, then step along the mean normalized direction."""
        pattern = torch.tensor(self.own_steps or (self.local_steps,))
        steps = pattern[torch.arange(clients.total) % len(pattern)]
        batches = clients.batches(self, steps=steps[clients.ids.cpu()])
        fresh = self.snapshot_rounds is not None and clients.round % self.snapshot_rounds == 0
        snapshot = state.x if fresh else state.xs
        x, y = channel.down(state.x, state.y)
        xs = channel.rebroadcast(snapshot) if self.snapshot_rounds is not None else None
        total_x, total_y = 0 * x, 0 * y
        m = None
        for batch in batches:
            if xs is None:
                gx, gy = clients.grads(x, y, batch)
            else:
                gx, gy = clients.grad_x(x, y, batch), clients.grad_y(xs, y, batch)
            (gx, gy), m = self.direction((x, y), (gx, gy), batch, m, ascend=(False, True))
            total_x, total_y = total_x + gx, total_y + gy
            x, y = x - self.lr_x * gx, clients.project(y + self.lr_y * gy)
        taken = self.reach(batches) if self.normalize else 1.0
        dx, dy = channel.mean(total_x / taken, total_y / taken)
        tau = float(torch.as_tensor(reach(steps.double(), self.momentum)).mean()) if self.normalize else 1.0
        state = state._replace(xs=snapshot)
        return self.server_point(state, clients, x=-tau * self.lr_x * dx, y=tau * self.lr_y * dy)
