"""DRFA: distributionally robust federated averaging, which minimizes the loss of the worst mixture of clients.

Deng, Kamani, Mahdavi: "Distributionally Robust Federated Averaging", NeurIPS 2020, Algorithm 1.
https://arxiv.org/abs/2102.12660

===================  =========================================================
paper                here
===================  =========================================================
w                    ``state.x``
lambda               ``state.weights``, one number per client, kept by the server
eta                  ``lr``
tau gamma            ``lr_weights``
t'                   the step of ``snapshot``, drawn anew in every round
===================  =========================================================

Travels, in two exchanges: x down, (x, snapshot) up (their increments); the mean snapshot down, its loss up; 4 P + 1
scalars per client and round.

Deviations: written from general knowledge of the paper. The paper draws clients by lambda for the steps and evenly
for the losses. Here one cohort does both: its increments are mixed by their weights, and it shares out its own
total weight anew, as in `afl`. A client that runs out of batches has its snapshot at one of the steps it takes.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from harness.core import Channel, Clients, Increment, Meta, register
from harness.core.methods.derivatives import project_simplex
from harness.core.methods.mixture import Mixture, ModelAndWeights


@register
@dataclass(frozen=True, kw_only=True)
class DRFA(Mixture):
    """Local SGD on a mixture of the clients' losses; ascent in the mixture by the losses at a random local step."""

    meta: ClassVar = Meta(
        "drfa", "fairness", ("erm",), "Deng et al. 2020", "https://arxiv.org/abs/2102.12660"
    )

    def round(self, state: ModelAndWeights, clients: Clients, channel: Channel) -> ModelAndWeights:
        """Run local SGD, mix the increments, and step the mixture along the losses at the mixed snapshot."""
        x = x_t = snapshot = channel.down(state.x)
        m = None
        for number, batch in enumerate(clients.batches(self), 1):
            x, m = self.step(x, clients.grad(x, batch), batch, m, lr=self.lr)
            # Every step is equally likely to be the last one that is taken.
            here = clients.coin(1 / number, f"snapshot {number}").unsqueeze(-1)
            snapshot = torch.where((here * batch.active).bool(), x, snapshot)
        dx, ds = channel.gather(Increment(x, of=x_t), Increment(snapshot, of=x_t))
        weights = clients.take(state.weights)
        mass = weights.sum(-2, keepdim=True).clamp(min=1e-12)  # the cohort's total, which stays the same
        mixture = weights / mass
        middle = channel.down(state.x + (mixture * ds).sum(-2))
        batch = next(iter(clients.batches(self, steps=1, stream="risk")))
        risk = clients.each(clients.problem.loss, middle, batch).unsqueeze(-1)
        risk = channel.gather(risk, stateless=True)
        raised = mass * project_simplex((mixture + self.lr_weights / mass * risk).squeeze(-1)).unsqueeze(-1)
        new = self.server_step(state, x=(mixture * dx).sum(-2))
        return new._replace(weights=clients.put(state.weights, raised))
