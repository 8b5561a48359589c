"""APFL: a mixture of a personal and the global model.

Deng, Kamani, Mahdavi: "Adaptive Personalized Federated Learning", 2020, Algorithm 1.
https://arxiv.org/abs/2003.13461

=======================  =========================================================
paper                    here
=======================  =========================================================
w                        ``state.x``, the global model
v_i                      ``state.pi``, the personal models, one row per client
alpha_i                  ``state.share``, weight of the personal model in the mixture
eta                      ``lr``
=======================  =========================================================

Travels: w down, w up (its increment); 2 P scalars per client and round. Personal models and weights stay local.

Deviations: the weight takes one gradient step per round, on the first batch, as in the public code.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Increment, Meta, probability, register, step_size
from harness.core.methods.personal import Personalized


@register
@dataclass(frozen=True, kw_only=True)
class APFL(Personalized):
    """Local SGD on the global model, and on the personal model at the mixture of both.

    Attributes
    ----------
    lr, lr_share : float
        Step sizes of the models and of the weight; a weight with step size 0 is fixed.
    share : float
        Initial weight of the personal model, between 0 and 1.
    """

    meta: ClassVar = Meta(
        "apfl", "personalized", ("erm",), "Deng et al. 2020", "https://arxiv.org/abs/2003.13461"
    )

    lr: float = step_size(0.01)
    share: float = probability(0.5)
    lr_share: float = step_size(0.01, zero=True)

    class State(NamedTuple):
        """The global model ``(..., P)``; personal models ``(..., total, P)``; weights ``(..., total, 1)``."""

        x: Tensor
        pi: Tensor
        share: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start both models from the problem's model."""
        rows = clients.rows(start["x"])
        state = self.State(start["x"], rows, torch.full_like(rows[..., :1], self.share))
        return self.server_init(state, "x")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take local steps on both models, then apply the mean increment of the global one."""
        x = x_t = channel.down(state.x)
        m_x = m_p = None
        p, share = clients.take(state.pi), clients.take(state.share)
        for step, batch in enumerate(clients.batches(self)):
            mixture = share * p + (1 - share) * x
            at_mixture, m_p = self.direction(mixture, clients.grad(mixture, batch), batch, m_p)
            ahead = ((p - x) * at_mixture).sum(-1, keepdim=True)
            x, m_x = self.step(x, clients.grad(x, batch), batch, m_x, lr=self.lr)
            p = p - self.lr * share * at_mixture
            if step == 0:
                share = (share - self.lr_share * ahead).clamp(0, 1)
        kept = {"pi": clients.put(state.pi, p), "share": clients.put(state.share, share)}
        return self.server_step(state, x=channel.mean(Increment(x, of=x_t)))._replace(**kept)

    def model(self, state: State) -> Tensor:
        """Return the mixtures."""
        return state.share * state.pi + (1 - state.share) * state.x.unsqueeze(-2)
