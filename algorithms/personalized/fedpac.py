"""FedPAC: extractors aligned by class prototypes, heads combined between similar clients.

Xu, Tong, Huang: "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR 2023,
Algorithm 1, and the authors' public code.
https://arxiv.org/abs/2306.11867

=======================  =========================================================
paper                    here
=======================  =========================================================
theta, phi_i             ``state.u``, the extractor; ``state.vi``, the heads, one row per client
c_k                      ``state.c``, K prototypes of length d, concatenated; zero before the first
lambda                   ``alignment``
eta_f, eta_g             ``lr_u``, ``lr_v``
V_i, h_i (equation 8)    ``spread``, ``h`` of the received extractor
alpha_i (equation 9)     ``weights``
=======================  =========================================================

Travels: u and c down; u up (its increment) with the K d sums and K shares of the prototypes; v (its increment), V
and h up, the combined head down. 2 |u| + 2 |v| + 3 K d + K + 1 scalars per client and round.

Deviations: all K rows travel, including classes that a client does not have: which these are is private. A class
that is absent from a cohort keeps its prototype. Weights below 1e-3 are dropped, as in the code.
``head_combination=False`` keeps every client's head, as the public code of FedReCo does.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

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
    register,
    step_size,
)
from harness.core.execution.exact.sums import combined
from harness.core.methods.derivatives import (
    aligned_loss,
    class_statistics,
    feature_entries,
    minimize_on_simplex,
)
from harness.core.methods.personal import Personalized, Split

LEAST = 1e-3  # smallest weight of another client's head
RARE = 1e-6  # share of a class among all samples below which its prototype is kept


@register
@dataclass(frozen=True, kw_only=True)
class FedPAC(Personalized, Split):
    """Local SGD on the head, then on the extractor with a pull of features to prototypes; then combine heads.

    Attributes
    ----------
    lr_u, lr_v : float
        Step sizes of extractor and head.
    head_epochs : int or None
        Passes over the data for the head; None: as many steps as for the extractor.
    alignment : float
        Weight of the pull.
    head_combination : bool
        Whether clients receive a combination of heads or keep their own.
    """

    meta: ClassVar = Meta(
        "fedpac",
        "personalized",
        ("erm",),
        "Xu et al. 2023",
        "https://arxiv.org/abs/2306.11867",
        version=2,
        classes=True,
    )

    lr_u: float = step_size(0.01)
    lr_v: float = step_size(0.01)
    head_epochs: int | None = positive(None)
    alignment: float = not_negative(1.0)
    head_combination: bool = True

    class State(NamedTuple):
        """Extractor ``(..., P)``, heads ``(..., total, Q)``, prototypes ``(..., K d)``."""

        u: Tensor
        vi: Tensor
        c: Annotated[Tensor, Statistic]

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start every client from the same model, without prototypes."""
        u, size = start["x"], feature_entries(clients.problem)
        state = self.State(u, clients.rows(start["y"]), u.new_zeros(*u.shape[:-1], size))
        return self.server_init(state, "u")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Compute statistics, take local steps, average increments and prototypes, combine heads."""
        statistics, data = class_statistics(clients.problem), clients.data()
        u, c = channel.down(state.u, Statistic(state.c))
        u_t, k = u, clients.problem.classes
        v = v_t = clients.take(state.vi)
        share, mean, square = clients.each(statistics, u, data)
        h = _weighted(share, mean)
        scatter = (share * square).sum(-1, keepdim=True) - h.square().sum(-1, keepdim=True)
        spread = scatter / data.weight.sum(-1, keepdim=True).clamp(min=1)
        prototypes = c.unflatten(-1, (k, -1))
        has = (prototypes != 0).any(-1)
        target = torch.where(has.unsqueeze(-1), prototypes, mean.unflatten(-1, (k, -1)))
        pull = self.alignment * has.any(-1, keepdim=True).to(c)  # zero before the first prototypes

        heads, m = clients.batches(self, stream="head", epochs=self.head_epochs), None
        v = self.descend(v, heads, partial(clients.grad_y, u), lr=self.lr_v)
        for batch in clients.batches(self):
            gradient = clients.gradient(aligned_loss, u, v, target, pull, batch=batch)
            u, m = self.step(u, gradient, batch, m, lr=self.lr_u)

        share, mean, _ = clients.each(statistics, u, data)
        sums = Statistic(_weighted(share, mean))
        du, sums, shares = channel.mean(Increment(u, of=u_t), sums, share, stateless=True)
        shares = shares.repeat_interleave(clients.problem.width, -1)
        c_new = torch.where(shares > RARE, sums / shares.clamp(min=RARE), state.c)
        if self.head_combination:
            # The server knows the heads at the start of the round: it sent them, or they are the initial ones.
            steps, spreads, hs = channel.gather(Increment(v, of=v_t), spread, Statistic(h), stateless=True)
            v = channel.scatter(combined(combination(spreads, hs).to(v), v_t + steps))
        return self.server_step(state, u=du)._replace(vi=clients.put(state.vi, v), c=c_new)


def combination(spread: Tensor, h: Tensor) -> Tensor:
    """Return each client's weights of all heads ``(..., C, C)``, from V ``(..., C, 1)`` and h ``(..., C, K d)``."""
    h, spread = h.double(), spread.double().clamp(min=0)
    gram = combined(h, h.mT)
    norms = gram.diagonal(dim1=-2, dim2=-1)
    # <h_i - h_j, h_i - h_l> for every client i and all pairs j, l
    pairs = norms[..., :, None, None] - gram[..., :, :, None] - gram[..., :, None, :] + gram[..., None, :, :]
    weights = minimize_on_simplex(pairs + torch.diag_embed(spread.squeeze(-1)).unsqueeze(-3))
    weights = torch.where(weights < LEAST, 0.0, weights)
    return weights / weights.sum(-1, keepdim=True)


def _weighted(share: Tensor, mean: Tensor) -> Tensor:
    """Return ``p_k mu_k`` of all classes, concatenated."""
    sums: Tensor = (share.unsqueeze(-1) * mean.unflatten(-1, (share.shape[-1], -1))).flatten(-2)
    return sums
