"""Per-FedAvg: meta-learning of an initial model that one local step adapts.

Fallah, Mokhtari, Ozdaglar: "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020, Algorithm 1 with the first-order approximation.
https://arxiv.org/abs/2002.07948

=======================  =========================================================
paper                    here
=======================  =========================================================
w                        ``state.x``
alpha                    ``lr_inner``
beta                     ``lr``
tau                      ``local_steps`` (or ``local_epochs``)
D, D'                    the batches of the streams "inner" and "main"
=======================  =========================================================

Travels: w down, w up (its increment); 2 P scalars per client and round.

Deviations: first order only. Every evaluation adapts a copy of w by ``finetune_steps`` local steps of size alpha.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from harness.core import Channel, Clients, Increment, Meta, not_negative, register, step_size
from harness.core.methods.averaging import Averaging, Model


@register
@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Averaging):
    """Local steps along the gradient at the point one step ahead.

    Attributes
    ----------
    lr, lr_inner : float
        Step sizes of the model and of the step ahead.
    finetune_steps : int
        Steps of a client before it is evaluated; 0 evaluates the common model.
    """

    meta: ClassVar = Meta(
        "per_fedavg", "personalized", ("erm",), "Fallah et al. 2020", "https://arxiv.org/abs/2002.07948",
        chunks=True,
    )  # fmt: skip

    lr: float = step_size(0.01)
    lr_inner: float = step_size(0.01)
    grad_clip: float | None = 10.0
    finetune_steps: int = not_negative(1)

    def round(self, state: Model, clients: Clients, channel: Channel) -> Model:
        """Take local steps with two gradients each, then apply the mean increment."""
        x = x_t = channel.down(state.x)
        m = None
        for inner, batch in zip(clients.batches(self, stream="inner"), clients.batches(self), strict=True):
            ahead = x - self.lr_inner * self.clip(clients.grad(x, inner))
            x, m = self.step(x, clients.grad(ahead, batch), batch, m, lr=self.lr)
        return self.server_step(state, x=channel.mean(Increment(x, of=x_t)))

    def personal(self, state: Model, clients: Clients) -> Tensor:
        """Return a copy that every client adapted."""
        x = clients.rows(state.x)
        if self.finetune_steps == 0:
            return x
        for batch in clients.batches(self, steps=self.finetune_steps, stream="finetune"):
            x = x - self.lr_inner * self.clip(clients.grad(x, batch))
        return x
