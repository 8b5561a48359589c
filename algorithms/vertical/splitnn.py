"""SplitNN: one network cut between parties that hold different features of the same samples.

Vepakomma, Gupta, Swedish, Raskar: "Split learning for health: Distributed deep learning without sharing raw
patient data", 2018, the configuration for vertically partitioned data.
https://arxiv.org/abs/1812.00564

=======================  =========================================================
paper                    here
=======================  =========================================================
client networks          ``state.y``, one row per party
server network           ``state.x``, on the parties' embeddings
cut layer                ``problem.embed`` of a party's columns
=======================  =========================================================

Travels, per step: each party's embeddings up (batch x d scalars), their gradients down (batch x d).

Deviations: all parties step at the same time on the same batch. Labels are at the server.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from harness.core import Channel, Clients, Meta, register
from harness.core.clients.parties import linearized_loss, with_gradients
from harness.core.methods.vertical import Networks, Vertical


@register
@dataclass(frozen=True, kw_only=True)
class SplitNN(Vertical):
    """SGD on the joint network, cut at the embeddings."""

    meta: ClassVar = Meta(
        "splitnn", "vertical", ("vertical",), "Vepakomma et al. 2018", "https://arxiv.org/abs/1812.00564",
        stackable=False,
    )  # fmt: skip

    def round(self, state: Networks, clients: Clients, channel: Channel) -> Networks:
        """Send embeddings to the server and gradients to the parties; step after each exchange."""
        backward = torch.func.grad(clients.problem.loss, argnums=(0, 1))
        x, y = state
        m_x = m_y = None
        for batch in clients.batches(self, aligned=True):
            y = clients.prune(y, batch)
            sent, labels = channel.gather(clients.embed(y, batch), per_sample=batch), clients.labels(batch)
            gx, gh = backward(x, sent, labels)
            received = with_gradients(batch, channel.scatter(gh, per_sample=batch))
            gy = clients.gradient(linearized_loss, y, batch=received)
            x, m_x = self.step(x, gx, labels, m_x, lr=self.lr)
            y, m_y = self.step(y, gy, batch, m_y, lr=self.lr)
        return Networks(x, y)
