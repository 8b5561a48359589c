"""FedProto: clients share class prototypes only and keep their models.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI
2022, Algorithm 1.
https://arxiv.org/abs/2105.00243

=======================  =========================================================
paper                    here
=======================  =========================================================
phi_i, nu_i              ``state.ui``, ``state.vi``: extractors and heads, one row per client
C_i^(j)                  ``mean``, mean features of a client's classes after its local steps
bar C^(j)                ``state.c``, K prototypes of length d, concatenated; zero before the first
lambda                   ``alignment``
E                        ``local_epochs`` (or ``local_steps``)
=======================  =========================================================

Travels: c down; the means against c, times the classes' shares, and the K shares up. 2 K d + K scalars per client
and round. Models stay local.

Deviations: prototypes weigh clients by their samples of the class, without the paper's factor of one over the
number of clients; those of rare classes move by parts (``least_share``). All K rows travel, including classes that
a client does not have: which these are is private. The distance is a mean over coordinates, as in the authors'
code. All models have the same form and the same start. Clients predict by their heads; the paper also predicts by
the nearest prototype.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from torch import Tensor

from harness.core import (
    Channel,
    Clients,
    Descent,
    Meta,
    Statistic,
    not_negative,
    positive,
    register,
    step_size,
)
from harness.core.methods.derivatives import aligned_loss, class_statistics, feature_entries
from harness.core.methods.personal import Split
from harness.core.problem import join_model


@register
@dataclass(frozen=True, kw_only=True)
class FedProto(Descent, Split):
    """Local SGD on the own model with a pull of features to the prototypes of their classes.

    Attributes
    ----------
    lr : float
        Step size.
    alignment : float
        Weight of the pull.
    least_share : float
        Share of a class among the cohort's samples below which its prototype moves a part of the way only, the
        class's share over this one. It bounds what becomes of the noise of small shares.
    """

    meta: ClassVar = Meta(
        "fedproto",
        "personalized",
        ("erm",),
        "Tan et al. 2022",
        "https://arxiv.org/abs/2105.00243",
        classes=True,
    )

    lr: float = step_size(0.01)
    grad_clip: float | None = 10.0
    alignment: float = not_negative(1.0)
    least_share: float = positive(0.01)

    class State(NamedTuple):
        """Extractors ``(..., total, P)``, heads ``(..., total, Q)``, prototypes ``(..., K d)``."""

        ui: Tensor
        vi: Tensor
        c: Annotated[Tensor, Statistic]

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start every client from the same model, without prototypes."""
        u, size = start["x"], feature_entries(clients.problem)
        return self.State(clients.rows(u), clients.rows(start["y"]), u.new_zeros(*u.shape[:-1], size))

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take local steps toward the prototypes, then average the classes' mean features."""
        c, k = channel.down(Statistic(state.c)), clients.problem.classes
        u, v, m = clients.take(state.ui), clients.take(state.vi), None
        prototypes = c.unflatten(-1, (k, -1))
        pull = self.alignment * (prototypes != 0).any(-1).to(c)  # none toward what is not known yet
        for batch in clients.batches(self):
            both = clients.gradient(aligned_loss, u, v, prototypes, pull, batch=batch, by=(0, 1))
            (u, v), m = self.step((u, v), both, batch, m, lr=(self.lr, self.lr))
        share, mean, _ = clients.each(class_statistics(clients.problem), u, clients.data())
        weight = share.repeat_interleave(clients.problem.width, -1)
        moves, shares = channel.mean(Statistic(weight * (mean - c)), share, stateless=True)
        move = moves / shares.repeat_interleave(clients.problem.width, -1).clamp(min=self.least_share)
        return self.State(clients.put(state.ui, u), clients.put(state.vi, v), state.c + move)

    def model(self, state: State) -> Tensor:
        """Return the clients' models."""
        return join_model(state.ui, state.vi)
