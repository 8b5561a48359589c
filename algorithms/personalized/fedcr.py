"""FedCR: a stochastic encoder whose classes share a prior across clients.

Zhang, Guo, Wang, Zhang, Yang: "FedCR: Personalized Federated Learning Based on Across-Client Common Representation
with Conditional Mutual Information Regularization", ICML 2023, Algorithm 1, and the authors' public code.
https://proceedings.mlr.press/v202/zhang23w.html

=======================  =========================================================
paper                    here
=======================  =========================================================
encoder                  ``state.u``: the extractor and a linear layer that gives ``latent`` means and spreads
w_i, the predictor       ``state.vi``, heads on a draw of the latent vector, one row a client
r(z | y)                 ``state.m``, ``state.s``: means and standard deviations of the K class priors
beta, beta_2             ``beta``, ``prior_rate``
L                        ``draws`` in training, ``test_draws`` in prediction
=======================  =========================================================

Travels: u, m, s down; u up (its increment); precisions and weighed means of the K classes' posteriors up.
2 |u| + 4 K latent scalars a client and round. Heads stay at home.

Deviations: the divergence is KL(prior || encoder), as in the public code; ``kl="forward"`` is what the bound
asks. Priors that are products over all samples of a class are so narrow that KL(encoder || prior) grows with
the samples and stops the learning (tests/hand/test_personalized.py), the other way round with their
logarithm. The prior takes part with all that was learned in a round (``prior_rate`` 1), as in its published
command. Posteriors are made of all data after the last step, not along the last pass. All K rows travel, also
of classes that a client does not have. Encoders are averaged by samples. In prediction the draws are the same
for every input.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from harness.core import (
    Channel,
    Clients,
    Descent,
    Meta,
    Problem,
    ServerUpdate,
    UserError,
    join_model,
    positive,
    register,
    split_model,
)
from harness.core.methods.gaussian_encoder import class_posteriors, mean_scores, variational_loss


@register
@dataclass(frozen=True, kw_only=True)
class FedCR(Descent, ServerUpdate):
    """Train encoder and head on draws of the latent vector, near the prior of each sample's class.

    Attributes
    ----------
    lr : float
        Step size.
    latent : int
        Length of the latent vector.
    beta : float
        Weight of the divergence.
    draws, test_draws : int
        Latent vectors drawn for a sample.
    prior_rate : float
        How far the priors move to what a round's posteriors make of them; 0 keeps standard normal ones.
    kl : {"forward", "reverse"}
        KL(encoder || prior) or KL(prior || encoder).
    """

    meta: ClassVar = Meta(
        "fedcr",
        "personalized",
        ("erm",),
        "Zhang et al. 2023",
        "https://proceedings.mlr.press/v202/zhang23w.html",
        version=2,
    )

    lr: float = 0.01
    grad_clip: float | None = 10.0
    latent: int = 256
    beta: float = 0.001
    draws: int = 15
    test_draws: int = 30
    prior_rate: float = 1.0
    kl: Literal["forward", "reverse"] = "reverse"

    class State(NamedTuple):
        """Encoder ``(..., P)``, heads ``(..., total, Q)``, priors ``(..., K latent)``."""

        u: Tensor
        vi: Tensor
        m: Tensor
        s: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "lr", "latent", "draws", "test_draws")
        if not (0 <= self.prior_rate <= 1 and self.beta >= 0):
            raise UserError(
                f"algorithm fedcr: prior_rate must be from 0 to 1 and beta at least 0, given {self.prior_rate} "
                f"and {self.beta}"
            )

    def view(self, problem: Problem) -> Problem:
        """See encoder and head apart, and predict with the mean of scores over draws."""
        parts = split_model(problem, self.latent)
        return replace(parts, predict=mean_scores(parts, self.test_draws))

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start everybody from the same model and from standard normal priors."""
        m = start["x"].new_zeros(*start["x"].shape[:-1], clients.problem.classes * self.latent)
        state = self.State(start["x"], clients.rows(start["y"]), m, torch.ones_like(m))
        return self.server_init(state, "u")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Local steps on encoder and head; mean increment; priors from the product of all posteriors."""
        loss = partial(variational_loss, draws=self.draws, beta=self.beta, forward=self.kl == "forward")
        u, m, s = channel.down(state.u, state.m, state.s)
        u_t, v, buffers = u, clients.take(state.vi), None
        for step, batch in enumerate(clients.batches(self)):
            shape = (self.draws, batch.y.shape[-1], self.latent)
            noise = clients.normal("latent", step, *shape)
            both = clients.gradient(loss, u, v, m, s, noise, batch=batch, by=(0, 1))
            (u, v), buffers = self.step((u, v), both, batch, buffers, lr=(self.lr, self.lr))
        precision, weighed = clients.each(class_posteriors(clients.problem), u, clients.data())
        du = channel.mean(u, base=u_t)
        precision, weighed = (
            clients.n * part for part in channel.mean(precision, weighed, weighting="uniform", stateless=True)
        )
        precision = precision.clamp(min=0)
        seen = precision > 0
        rate = self.prior_rate * seen
        m_new, s_new = weighed / (1 + precision), (1 + precision).rsqrt()
        m, s = (1 - rate) * state.m + rate * m_new, (1 - rate) * state.s + rate * s_new
        return self.server_step(state, u=du)._replace(vi=clients.put(state.vi, v), m=m, s=s)

    def model(self, state: State) -> Tensor:
        """Return the common encoder under every client's head."""
        return join_model(state.u, state.vi)
