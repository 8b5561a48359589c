"""FedBABU: federated training of the body under a fixed head, then fine-tuning.

Oh, Kim, Yun: "FedBABU: Towards Enhanced Representation for Federated Image Classification", ICLR 2022, Algorithm 1.
https://arxiv.org/abs/2106.06042

=======================  =========================================================
paper                    here
=======================  =========================================================
theta_ext                ``state.u``, the extractor
theta_cls                ``state.v``, one random head for all clients, never trained
alpha                    ``lr``
tau (fine-tuning)        ``finetune_epochs``
=======================  =========================================================

Travels: u down, u up (its increment); 2 |u| scalars per client and round. The head follows from the seed.

Deviations: every evaluation fine-tunes a copy of the model for ``finetune_epochs`` local passes.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

from harness.core import Channel, Clients, Increment, Meta, not_negative, register, step_size
from harness.core.methods.personal import Divided, Personalized
from harness.core.problem import join_model


@register
@dataclass(frozen=True, kw_only=True)
class FedBABU(Personalized, Divided):
    """FedAvg on the extractor under a fixed head.

    Attributes
    ----------
    lr : float
        Step size.
    finetune_epochs : int
        Passes over a client's data before it is evaluated; 0 evaluates the common model.
    finetune : {"all", "head"}
        Layers to fine-tune.
    """

    meta: ClassVar = Meta(
        "fedbabu", "personalized", ("erm",), "Oh et al. 2022", "https://arxiv.org/abs/2106.06042",
        version=2, chunks=True,
    )  # fmt: skip

    lr: float = step_size(0.01)
    finetune_epochs: int = not_negative(5)
    finetune: Literal["all", "head"] = "all"

    class State(NamedTuple):
        """The extractor ``(..., P)`` and the head ``(..., Q)``, which never changes."""

        u: Tensor
        v: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start every client from the same model."""
        return self.server_init(self.State(start["x"], start["y"]), "u")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take local steps on the extractor, then apply its mean increment."""
        u_t, v = channel.down(state.u), clients.rows(state.v)
        u = self.descend(u_t, clients.batches(self), lambda u, batch: clients.grad_x(u, v, batch), lr=self.lr)
        return self.server_step(state, u=channel.mean(Increment(u, of=u_t)))

    def model(self, state: State) -> Tensor:
        """Return the common model."""
        return join_model(state.u, state.v)

    def personal(self, state: State, clients: Clients) -> Tensor:
        """Return a copy that every client fine-tuned."""
        u, v, m = clients.rows(state.u), clients.rows(state.v), None
        if self.finetune_epochs == 0:
            return join_model(u, v)
        for batch in clients.batches(self, epochs=self.finetune_epochs, stream="finetune"):
            if self.finetune == "head":
                v, m = self.step(v, clients.grad_y(u, v, batch), batch, m, lr=self.lr)
            else:
                (u, v), m = self.step((u, v), clients.grads(u, v, batch), batch, m, lr=(self.lr, self.lr))
        return join_model(u, v)
