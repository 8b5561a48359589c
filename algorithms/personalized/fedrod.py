"""FedRoD: a generic head trained by a balanced loss, and personal heads on top of it.

Chen, Chao: "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022,
Algorithm 1, with linear personal heads.
https://arxiv.org/abs/2107.00778

=======================  =========================================================
paper                    here
=======================  =========================================================
theta, psi               ``state.u``, ``state.v``: extractor and generic head
phi_m                    ``state.vi``, personal heads, one row per client
N_{m,c}^gamma            ``prior``, its logarithm up to a constant; gamma is ``balance``
eta                      ``lr``
E                        ``local_epochs`` (or ``local_steps``)
=======================  =========================================================

Travels: extractor and generic head down and up (their increments); 2 (|u| + |v|) scalars per client and round.
Personal heads stay local.

Deviations: personal heads start at zero. A class that a client lacks has the share 1e-6 in its loss, which is 0 in
the paper. The personal models are evaluated, not the generic one.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Increment, Meta, not_negative, register, step_size
from harness.core.methods.derivatives import balanced_loss, class_shares
from harness.core.methods.personal import Personalized, Split
from harness.core.problem import join_model

RARE = 1e-6  # share of a class that a client does not have


@register
@dataclass(frozen=True, kw_only=True)
class FedRoD(Personalized, Split):
    """FedAvg on a balanced loss; personal heads learn what the generic head's scores lack at home.

    Attributes
    ----------
    lr : float
        Step size.
    balance : float
        Power of the class counts in the generic loss: 1 is the balanced softmax, 0 the plain cross-entropy, which
        is the only one under record-level privacy, as counts concern more than one record.
    """

    meta: ClassVar = Meta(
        "fedrod",
        "personalized",
        ("erm",),
        "Chen, Chao 2022",
        "https://arxiv.org/abs/2107.00778",
        classes=True,
    )

    lr: float = step_size(0.01)
    balance: float = not_negative(1.0)

    class State(NamedTuple):
        """Extractor ``(..., P)``, generic head ``(..., Q)``, personal heads ``(..., total, Q)``."""

        u: Tensor
        v: Tensor
        vi: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's model, and from personal heads of zero."""
        u, v = start["x"], start["y"]
        return self.server_init(self.State(u, v, clients.rows(torch.zeros_like(v))), "u", "v")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take local steps on all three parts, then apply the mean increment of the generic ones."""
        u_t, v_t = channel.down(state.u, state.v)
        u, v, w, m, m_w = u_t, v_t, clients.take(state.vi), None, None
        prior = v.new_zeros(*v.shape[:-1], clients.problem.classes)
        if self.balance:
            shares = clients.each(class_shares(clients.problem), clients.data())
            prior = self.balance * shares.clamp(min=RARE).log()
        for batch in clients.batches(self):
            own = clients.grad_y(
                u, v + w, batch
            )  # heads are linear: the sum of their scores is that of v + w
            both = clients.gradient(balanced_loss, u, v, prior, batch=batch, by=(0, 1))
            w, m_w = self.step(w, own, batch, m_w, lr=self.lr)
            (u, v), m = self.step((u, v), both, batch, m, lr=(self.lr, self.lr))
        du, dv = channel.mean(Increment(u, of=u_t), Increment(v, of=v_t))
        return self.server_step(state, u=du, v=dv)._replace(vi=clients.put(state.vi, w))

    def model(self, state: State) -> Tensor:
        """Return the common extractor with the sum of the generic and each personal head."""
        return join_model(state.u, state.v.unsqueeze(-2) + state.vi)
