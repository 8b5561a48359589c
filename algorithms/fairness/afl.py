"""AFL: agnostic federated learning, which minimizes the loss of the worst mixture of clients.

Mohri, Sivek, Suresh: "Agnostic Federated Learning", ICML 2019, the stochastic algorithm.
https://arxiv.org/abs/1902.00146

===================  =========================================================
paper                here
===================  =========================================================
w                    ``state.x``
lambda               ``state.weights``, one number per client, kept by the server
gamma_w              ``lr``
gamma_lambda         ``lr_weights``
===================  =========================================================

Travels: x down; x (its increment) and the loss at the received x up; 2 P + 1 scalars per client and round.

Deviations: written from general knowledge of the paper. Local steps as in federated averaging: with more than one,
each client descends its own loss and the increments are mixed. The loss is that of all training data. A partial
cohort redistributes its total weight among its members and mixes their increments as if that total were 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from harness.core import Channel, Clients, Increment, Meta, register
from harness.core.methods.derivatives import project_simplex
from harness.core.methods.mixture import Mixture, ModelAndWeights


@register
@dataclass(frozen=True, kw_only=True)
class AFL(Mixture):
    """Descent on a mixture of the clients' losses, ascent in the mixture."""

    meta: ClassVar = Meta(
        "afl", "fairness", ("erm",), "Mohri et al. 2019", "https://arxiv.org/abs/1902.00146"
    )

    def round(self, state: ModelAndWeights, clients: Clients, channel: Channel) -> ModelAndWeights:
        """Run local SGD, mix the increments, and step the mixture along the losses."""
        x_t = channel.down(state.x)
        risk = clients.each(clients.problem.loss, x_t, clients.data()).unsqueeze(-1)
        x = self.descend(x_t, clients.batches(self), clients.grad, lr=self.lr)
        dx, risk = channel.gather(Increment(x, of=x_t), risk, stateless=True)
        weights = clients.take(state.weights)
        mass = weights.sum(-2, keepdim=True).clamp(min=1e-12)  # the cohort's total, which stays the same
        raised = (weights + self.lr_weights * risk) / mass
        raised = mass * project_simplex(raised.squeeze(-1)).unsqueeze(-1)
        new = self.server_step(state, x=(weights / mass * dx).sum(-2))
        return new._replace(weights=clients.put(state.weights, raised))
