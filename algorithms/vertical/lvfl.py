"""LVFL: several local iterations per exchange of embeddings, with pruned models and messages.

"Computation and Communication Efficient Lightweighting Vertical Federated Learning", its algorithm box.

=====================================  ==================================================================
paper                                  here
=====================================  ==================================================================
theta_0, theta_k                       ``state.x``; ``state.y``, one row per party
h_k, hhat_k                            ``h``; its row of ``sent``
PhiHat = {theta_0, hhat_1 .. hhat_K}   ``theta`` and ``received``
E local iterations                     ``iterations``
alpha_k, beta_k                        ``compression.alpha`` and ``compression.beta`` of the run
=====================================  ==================================================================

The paper's variants are settings: NL has neither ratio, PL alpha, ML beta, L both. NL is FedBCD (Liu et al. 2019),
ML is Compressed-VFL (Castiglia et al. 2022; its quantizer is ``compression.codec``), and one iteration with the
labels at the server is SplitNN.

Travels, per exchange: each party's embeddings up (batch x d scalars, fewer with beta). Down, to each party, theta_0
and all embeddings as sent; or, with the labels at the server, the gradient of its embeddings (batch x d).

Deviations: a round has one exchange per local step, each on a new batch. Ratios change between rounds, and a party
prunes after its first exchange of a round. Labels at the server are our option.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from harness.core import Channel, Clients, Meta, positive, register
from harness.core.clients.parties import linearized_loss, party_loss, with_embeddings, with_gradients
from harness.core.methods.vertical import Networks, Vertical


@register
@dataclass(frozen=True, kw_only=True)
class LVFL(Vertical):
    """Local iterations on stale embeddings.

    Attributes
    ----------
    iterations : int
        Local iterations per exchange, E.
    labels : {"everywhere", "server"}
        Who has the labels. With labels at the server, parties receive the gradient of the loss in their embeddings
        and follow it in all local iterations.
    resend : bool
        Whether the server also returns a party's own embeddings to it, as in the box.
    """

    meta: ClassVar = Meta(
        "lvfl", "vertical", ("vertical",), "Wang et al. 2024", "https://arxiv.org/abs/2404.00466",
        stackable=False,
    )  # fmt: skip

    iterations: int = positive(5)
    labels: Literal["everywhere", "server"] = "everywhere"
    resend: bool = True

    def round(self, state: Networks, clients: Clients, channel: Channel) -> Networks:
        """Exchange embeddings, prune, and iterate locally; once per batch."""
        backward = torch.func.grad(clients.problem.loss, argnums=(0, 1))
        everywhere = self.labels == "everywhere"
        x, y = state
        m_x = m_y = None
        for batch in clients.batches(self, aligned=True):
            h, labels = clients.embed(y, batch), clients.labels(batch)
            if everywhere:
                theta = channel.down(x)
                sent = channel.gather(h, per_sample=batch, pass_on="all" if self.resend else "others")
                received = with_embeddings(batch, sent)
            else:
                sent = channel.gather(h, per_sample=batch)
                gh = channel.scatter(backward(x, sent, labels)[1], per_sample=batch)
                received = with_gradients(batch, gh)
            y = clients.prune(y, batch)
            for _ in range(self.iterations):
                if everywhere:
                    gy = clients.gradient(party_loss, theta, y, batch=received, by=1)
                else:
                    gy = clients.gradient(linearized_loss, y, batch=received)
                gx, _ = backward(x, sent, labels)
                x, m_x = self.step(x, gx, labels, m_x, lr=self.lr)
                y, m_y = self.step(y, gy, batch, m_y, lr=self.lr)
        return Networks(x, y)
