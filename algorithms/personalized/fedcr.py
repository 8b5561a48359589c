"""FedCR: a stochastic encoder whose classes share a prior across clients.

Zhang, Li, Dai, Zou, Xiong: "FedCR: Personalized Federated Learning Based on Across-Client Common Representation
with Conditional Mutual Information Regularization", ICML 2023, Algorithm 1, and the authors' public code.
https://proceedings.mlr.press/v202/zhang23w.html

=======================  =========================================================
paper                    here
=======================  =========================================================
encoder                  ``state.u``: the extractor and a linear layer with ``latent`` means and deviations
w_i, the predictor       ``state.vi``, heads on a draw of the latent vector, one row per client
r(z | y)                 ``state.m``, ``state.s``: means and standard deviations of the K class priors
beta, beta_2             ``beta``, ``prior_rate``
L                        ``draws`` in training, ``test_draws`` in prediction
=======================  =========================================================

Travels: u, m, s down; u up (its increment); precisions and weighted means of the K classes' posteriors up.
2 |u| + 4 K latent scalars per client and round. Heads stay local.

Deviations: the divergence is KL(prior || encoder), as in the public code; the paper's bound has ``kl="forward"``.
A prior is a product over all samples of a class and so narrow that KL(encoder || prior) grows with the number of
samples and stops learning (see the tests); KL(prior || encoder) grows with its logarithm. ``prior_rate`` is 1, as
in the published command. Posteriors use all data after the last step, not the last pass. All K rows travel,
including classes that a client does not have. Encoders are averaged by samples. Prediction uses the same draws for
every input.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from harness.core import (
    Channel,
    Clients,
    Increment,
    Meta,
    Statistic,
    not_negative,
    positive,
    probability,
    register,
    step_size,
)
from harness.core.methods.gaussian_encoder import class_posteriors, mean_scores, variational_loss
from harness.core.methods.personal import Personalized, Split
from harness.core.problem import Problem, split_model


@register
@dataclass(frozen=True, kw_only=True)
class FedCR(Personalized, Split):
    """Local SGD on encoder and head with draws of the latent vector, near the prior of each sample's class.

    Attributes
    ----------
    lr : float
        Step size.
    latent : int
        Length of the latent vector.
    beta : float
        Weight of the divergence.
    draws, test_draws : int
        Latent vectors per sample in training and in prediction.
    prior_rate : float
        Weight of a round's posteriors in the new priors; 0 keeps standard normal priors.
    kl : {"forward", "reverse"}
        KL(encoder || prior) or KL(prior || encoder).
    """

    meta: ClassVar = Meta(
        "fedcr", "personalized", ("erm",), "Zhang et al. 2023", "https://proceedings.mlr.press/v202/zhang23w.html",
        version=2, classes=True, apart=("beta",),
    )  # fmt: skip

    lr: float = step_size(0.01)
    latent: int = positive(256)
    beta: float = not_negative(0.001)
    draws: int = positive(15)
    test_draws: int = positive(30)
    prior_rate: float = probability(1.0)
    kl: Literal["forward", "reverse"] = "reverse"

    class State(NamedTuple):
        """Encoder ``(..., P)``, heads ``(..., total, Q)``, priors ``(..., K latent)``."""

        u: Tensor
        vi: Tensor
        m: Annotated[Tensor, Statistic]
        s: Annotated[Tensor, Statistic]

    def view(self, problem: Problem) -> Problem:
        """Split the model into encoder and head; predict with mean scores over draws."""
        parts = split_model(problem, self.latent)
        return replace(parts, predict=mean_scores(parts, self.test_draws))

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start every client from the same model and from standard normal priors."""
        m = start["x"].new_zeros(*start["x"].shape[:-1], clients.problem.classes * self.latent)
        state = self.State(start["x"], clients.rows(start["y"]), m, torch.ones_like(m))
        return self.server_init(state, "u")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take local steps, apply the mean increment, and update priors by the product of all posteriors."""
        loss = partial(variational_loss, draws=self.draws, beta=self.beta, forward=self.kl == "forward")
        u, m, s = channel.down(state.u, Statistic(state.m), Statistic(state.s))
        priors = tuple(part.unflatten(-1, (clients.problem.classes, -1)) for part in (m, s))
        u_t, v, buffers = u, clients.take(state.vi), None
        for step, batch in enumerate(clients.batches(self)):
            noise = clients.normal("latent", step, self.draws, batch.y.shape[-1], self.latent)
            both = clients.gradient(loss, u, v, *priors, noise, batch=batch, by=(0, 1))
            (u, v), buffers = self.step((u, v), both, batch, buffers, lr=(self.lr, self.lr))
        posteriors = clients.each(class_posteriors(clients.problem), u, clients.data())
        du = channel.mean(Increment(u, of=u_t))
        means = channel.mean(*map(Statistic, posteriors), weighting="uniform", stateless=True)
        precision, weighted = (clients.n * part for part in means)
        precision = precision.clamp(min=0)
        rate = self.prior_rate * (precision > 0)
        m_new, s_new = weighted / (1 + precision), (1 + precision).rsqrt()
        m, s = (1 - rate) * state.m + rate * m_new, (1 - rate) * state.s + rate * s_new
        return self.server_step(state, u=du)._replace(vi=clients.put(state.vi, v), m=m, s=s)
