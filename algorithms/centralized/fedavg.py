"""Federated averaging.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1.
https://arxiv.org/abs/1602.05629

===================  =========================================================
paper                here
===================  =========================================================
w                    ``state.x``
eta                  ``lr``
E, B                 ``local_epochs`` (or ``local_steps``), ``batch_size``
n_k / n              the weights of ``channel.mean``
===================  =========================================================

Travels: x down, x up (its increment); 2 P scalars per client and round.

Deviations: the server steps along the mean increment; the default step size gives the average of the models.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from harness.core import Channel, Clients, Increment, Meta, not_negative, register, step_size
from harness.core.methods.averaging import Averaging, Model


@register
@dataclass(frozen=True, kw_only=True)
class FedAvg(Averaging):
    """Average the clients' models after some local SGD.

    Attributes
    ----------
    lr : float
        Local step size.
    finetune_epochs : int
        Passes over a client's data that fine-tune a copy for evaluation (FedAvg-FT); 0: the common model.
    finetune : {"head", "all"}
        Layers to fine-tune; a model without hidden layers is always trained as a whole.
    """

    meta: ClassVar = Meta(
        "fedavg", "centralized", ("erm",), "McMahan et al. 2017", "https://arxiv.org/abs/1602.05629",
        chunks=True,
    )  # fmt: skip

    lr: float = step_size(0.1)
    finetune_epochs: int = not_negative(0)
    finetune: Literal["head", "all"] = "head"

    def round(self, state: Model, clients: Clients, channel: Channel) -> Model:
        """Local SGD at every client, then the mean increment."""
        x_t = channel.down(state.x)
        x = self.descend(x_t, clients.batches(self), clients.grad, lr=self.lr)
        return self.server_step(state, x=channel.mean(Increment(x, of=x_t)))

    def personal(self, state: Model, clients: Clients) -> Tensor:
        """Return the common model, or a copy that each client fine-tuned."""
        if self.finetune_epochs == 0:
            return state.x
        x, cut = clients.rows(state.x), clients.problem.cut if self.finetune == "head" else 0
        trained, m = torch.arange(x.shape[-1], device=x.device) >= (cut or 0), None
        for batch in clients.batches(self, epochs=self.finetune_epochs, stream="finetune"):
            direction, m = self.direction(x, clients.grad(x, batch), batch, m)
            x = x - self.lr * trained * direction
        return x
