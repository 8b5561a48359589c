"""FairFed: clients whose own equal-opportunity gap is far from everybody's count less.

Ezzeldin, Yan, He, Ferrara, Avestimehr: "FairFed: Enabling Group Fairness in Federated Learning", AAAI 2023.
https://arxiv.org/abs/2110.00857

===================  ================================================================
paper                here
===================  ================================================================
theta                ``state.x``
bar omega_k          ``state.weights``, one number a client, which keeps it for itself
beta                 ``budget``
F_k, F_global        from ``decisions``: true positive rates of all groups
Delta_k              ``apart``
===================  ================================================================

Travels: x down, 2 K + 1 shares of samples up and down, the mean of Delta up and down, the weighed increment and the
weight up; 2 P + 4 K + 5 scalars a client and round for K groups, as three protected averages.

Deviations: written from knowledge of the paper, whose algorithm box could not be read here. Averages stand for the
paper's secure sums. With more than two groups the gap's distance is the largest over pairs of groups; for two it is
the paper's. Weights are at least 0. No local debiasing beside it.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Descent, Meta, ServerUpdate, not_negative, positive, register
from harness.core.methods.fairness import decisions

LEAST = 1e-3  # divisor, which only noise and weights of zero can come to


@register
@dataclass(frozen=True, kw_only=True)
class FairFed(Descent, ServerUpdate):
    """Average the clients' models by weights that follow how much their gap differs from the global one.

    Attributes
    ----------
    lr : float
        Local step size.
    budget : float
        How fast weights follow; 0 is federated averaging.
    """

    meta: ClassVar = Meta(
        "fairfed",
        "fairness",
        ("erm",),
        "Ezzeldin et al. 2023",
        "https://arxiv.org/abs/2110.00857",
        groups=True,
    )

    lr: float = 0.1
    budget: float = 1.0

    class State(NamedTuple):
        """The global model ``(..., P)``, the clients' weights ``(..., total, 1)`` with sum 1 at the start."""

        x: Tensor
        weights: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "lr")
        not_negative(self, "budget")

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's model and weights in proportion to samples."""
        return self.server_init(self.State(start["x"], clients.shares.to(start["x"])), "x")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Compare decisions with everybody's, adapt the weight, then local SGD."""
        x = x_t = channel.down(state.x)
        m = None
        own = clients.each(decisions(clients.problem, clients.groups), x_t, clients.data())
        apart = _distance(own, channel.down(channel.mean(own, stateless=True)), clients.groups)
        usual = channel.down(channel.mean(apart, weighting="uniform", stateless=True))
        weights = (clients.take(state.weights) - self.budget * (apart - usual)).clamp(min=0.0)
        for batch in clients.batches(self):
            x, m = self.step(x, clients.grad(x, batch), batch, m, lr=self.lr)
        share = clients.total * weights  # near 1, whatever the number of clients
        push, mass = channel.mean(share * (x - x_t), share, weighting="uniform", stateless=True)
        new = self.server_step(state, x=push / mass.clamp(min=LEAST))
        return new._replace(weights=clients.put(state.weights, weights))


def _distance(own: Tensor, every: Tensor, groups: int) -> Tensor:
    """Return how far true positive rates are from everybody's, but for what all groups share, ``(..., C, 1)``.

    Where fewer than two groups have positive samples: how far the accuracy is.
    """
    (hits, held, right), (all_hits, all_held, all_right) = (
        part.split([groups, groups, 1], -1) for part in (own, every)
    )
    both = (held > 0) & (all_held > 0)
    off = hits / torch.where(both, held, 1.0) - all_hits / torch.where(both, all_held, 1.0)
    high = torch.where(both, off, -torch.inf).amax(-1, keepdim=True)
    low = torch.where(both, off, torch.inf).amin(-1, keepdim=True)
    enough = both.sum(-1, keepdim=True) > 1
    return torch.where(enough, high - low, (right - all_right).abs())
