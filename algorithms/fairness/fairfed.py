"""FairFed: aggregation weights by the distance of each client's equal-opportunity gap from the global gap.

Ezzeldin, Yan, He, Ferrara, Avestimehr: "FairFed: Enabling Group Fairness in Federated Learning", AAAI 2023.
https://arxiv.org/abs/2110.00857

===================  ================================================================
paper                here
===================  ================================================================
theta                ``state.x``
bar omega_k          ``state.weights``, one number per client, stored by the client
beta                 ``budget``
F_k, F_global        from ``decisions``: true positive rates of all groups
Delta_k              ``distance``
===================  ================================================================

Travels: x down, 2 K + 1 shares of samples up and down, the mean of Delta up and down, the weighted increment and
the weight up; 2 P + 4 K + 5 scalars per client and round for K groups, as three protected averages.

Deviations: written from general knowledge of the paper. Averages replace its secure sums. With more than two groups
the distance is the largest over pairs of groups; for two it is the paper's. Weights are at least 0. There is no
additional local debiasing.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Descent, Meta, ServerUpdate, not_negative, register, step_size
from harness.core.methods.fairness import decisions

LEAST = 1e-3  # smallest divisor; only noise or zero weights reach it


@register
@dataclass(frozen=True, kw_only=True)
class FairFed(Descent, ServerUpdate):
    """Federated averaging with weights that fall with the distance of a client's gap from the global one.

    Attributes
    ----------
    lr : float
        Local step size.
    budget : float
        How fast the weights change; 0 is federated averaging.
    """

    meta: ClassVar = Meta(
        "fairfed", "fairness", ("erm",), "Ezzeldin et al. 2023", "https://arxiv.org/abs/2110.00857",
        groups=True, classes=True,
    )  # fmt: skip

    lr: float = step_size(0.1)
    budget: float = not_negative(1.0)

    class State(NamedTuple):
        """The global model ``(..., P)``; the clients' weights ``(..., total, 1)``, with initial sum 1."""

        x: Tensor
        weights: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's model and weights proportional to samples."""
        return self.server_init(self.State(start["x"], clients.sample_shares.to(start["x"])), "x")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Compare local with global decisions, adapt the weights, then run local SGD."""
        x_t = channel.down(state.x)
        local = clients.each(decisions(clients.problem, clients.groups), x_t, clients.data())
        distance = _distance(local, channel.down(channel.mean(local, stateless=True)), clients.groups)
        mean = channel.down(channel.mean(distance, weighting="uniform", stateless=True))
        weights = (clients.take(state.weights) - self.budget * (distance - mean)).clamp(min=0.0)
        x = self.descend(x_t, clients.batches(self), clients.grad, lr=self.lr)
        share = clients.total * weights  # near 1 for any number of clients
        push, mass = channel.mean(share * (x - x_t), share, weighting="uniform", stateless=True)
        new = self.server_step(state, x=push / mass.clamp(min=LEAST))
        return new._replace(weights=clients.put(state.weights, weights))


def _distance(local: Tensor, every: Tensor, groups: int) -> Tensor:
    """Return the range over groups of local minus global true positive rates, ``(..., C, 1)``.

    With fewer than two groups that have positive samples: the distance of the accuracies.
    """
    hits, held, right = local.split([groups, groups, 1], -1)
    all_hits, all_held, all_right = every.split([groups, groups, 1], -1)
    both = (held > 0) & (all_held > 0)
    off = hits / torch.where(both, held, 1.0) - all_hits / torch.where(both, all_held, 1.0)
    high = torch.where(both, off, -torch.inf).amax(-1, keepdim=True)
    low = torch.where(both, off, torch.inf).amin(-1, keepdim=True)
    enough = both.sum(-1, keepdim=True) > 1
    return torch.where(enough, high - low, (right - all_right).abs())
