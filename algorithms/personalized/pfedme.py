"""pFedMe: personal models by Moreau envelopes.

Dinh, Tran, Nguyen: "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1.
https://arxiv.org/abs/2006.08848

=======================  =========================================================
paper                    here
=======================  =========================================================
w                        ``state.x``, the global model
theta_i                  ``state.pi``, the personal models, one row per client
lambda                   ``tie``
eta                      ``lr``
R, K                     ``local_steps`` (or ``local_epochs``), ``inner_steps``
beta                     ``server_lr``
=======================  =========================================================

Travels: w down, w up (its increment); 2 P scalars per client and round.

Deviations: the inner problem is solved by K steps of size ``lr_inner`` on one batch, from the last personal model.
"""

from dataclasses import dataclass
from typing import ClassVar

from harness.core import Channel, Clients, Increment, Meta, positive, register, step_size
from harness.core.methods.personal import OwnModels, PersonalModels


@register
@dataclass(frozen=True, kw_only=True)
class PFedMe(PersonalModels):
    """Local steps of the global model toward personal models, which are pulled toward it.

    Attributes
    ----------
    lr, lr_inner : float
        Step sizes of the local copy of the global model (times ``tie``) and of the personal model.
    tie : float
        Weight of the pull.
    inner_steps : int
        Steps of the personal model per batch.
    """

    meta: ClassVar = Meta(
        "pfedme", "personalized", ("erm",), "Dinh et al. 2020", "https://arxiv.org/abs/2006.08848"
    )

    lr: float = step_size(0.005)
    lr_inner: float = step_size(0.01)
    tie: float = positive(15.0)
    inner_steps: int = positive(5)

    def round(self, state: OwnModels, clients: Clients, channel: Channel) -> OwnModels:
        """Step the personal model, then the local one toward it, on every batch; apply the mean increment."""
        x = x_t = channel.down(state.x)
        p, m = clients.take(state.pi), None
        for batch in clients.batches(self):
            for _ in range(self.inner_steps):
                pull = self.tie * (p - x)
                p, m = self.step(p, clients.grad(p, batch), batch, m, lr=self.lr_inner, plus=pull)
            x = x - batch.active * self.lr * self.tie * (x - p)
        dx = channel.mean(Increment(x, of=x_t), weighting="uniform")
        return self.server_step(state, x=dx)._replace(pi=clients.put(state.pi, p))
