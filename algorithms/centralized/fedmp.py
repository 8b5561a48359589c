"""FedMP: each client trains a model of the size that a bandit finds best for its speed.

Jiang, Xu, Xu, Wang, Qiao, Zhao: "FedMP: Federated Learning through Adaptive Model Pruning in Heterogeneous Edge
Computing", ICDE 2022.
https://doi.org/10.1109/ICDE53745.2022.00062

=======================  =========================================================
paper                    here
=======================  =========================================================
x                        ``state.x``
alpha_n, pruning ratio   ``ratio``, of a cell of the bandit's grid (E-UCB)
T_n, completion time     share of the parameters in the model over the client's speed
Delta loss               ``drop``, mean decrease of the clients' losses in the round
reward                   ``drop`` over the gap of T_n to the cohort's mean
lambda, theta            ``discount``; ``max_ratio / cells``
R2SP                     `Channel.allot`: what a client lacks counts as unchanged
=======================  =========================================================

Travels: down, each client's smaller model; up, its increments and the decrease of its loss.

Deviations: written from the abstract and general knowledge of the paper. Ratios are multiples of theta. Times are
not measured but public: operations and bytes are taken as proportional to the parameters left. The decrease of the
loss is the cohort's mean, the only one that the server sees. Gaps are relative and at least ``least_gap``; rewards
are divided by the largest one so far, discounted, as confidence bounds are for rewards in [0, 1]. A plan counts
models of the middle ratio.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import (
    Channel,
    Clients,
    Descent,
    Meta,
    ServerUpdate,
    UserError,
    at_most_one,
    below_one,
    positive,
    register,
    step_size,
)
from harness.core.methods.bandit import Agents, choose, learn


@register
@dataclass(frozen=True, kw_only=True)
class FedMP(Descent, ServerUpdate):
    """Local SGD on structurally pruned models, whose ratios are learned for each client.

    Attributes
    ----------
    lr : float
        Local step size.
    speeds : tuple of float
        Speed of clients 0, 1, ..., repeated cyclically.
    max_ratio : float
        Bound on the share of units that a client lacks, in (0, 1).
    cells : int
        Number of ratios below that bound, from 0; 1 is federated averaging.
    discount : float
        Weight of a reward a round later, in (0, 1].
    least_gap : float
        Gap of times, relative to the mean, below which a smaller one is not rewarded.
    """

    meta: ClassVar = Meta(
        "fedmp", "centralized", ("erm",), "Jiang et al. 2022", "https://doi.org/10.1109/ICDE53745.2022.00062",
        stackable=False,
    )  # fmt: skip

    lr: float = step_size(0.1)
    speeds: tuple[float, ...] = positive((1.0,))
    max_ratio: float = below_one(0.8)
    cells: int = positive(8)
    discount: float = at_most_one(0.995)
    least_gap: float = positive(0.1)

    class State(NamedTuple):
        """The global model ``(P,)``; each client's bandit, ``(total, cells)``; the largest reward."""

        x: Tensor
        pulls: Tensor
        gains: Tensor
        edges: Tensor
        best: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.speeds:
            raise UserError(
                "algorithm fedmp: speeds must have a number for the first client at least, given none"
            )

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's model, with bandits that know nothing."""
        zeros = torch.zeros(clients.total, self.cells).to(start["x"])
        edges = (torch.arange(self.cells) == 0).to(zeros).expand_as(zeros)
        return self.server_init(self.State(start["x"], zeros, zeros, edges, zeros[0, :1]), "x")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Choose ratios, train the smaller models, average the recovered ones, and learn from the rewards."""
        agents = Agents(*(clients.take(part) for part in (state.pulls, state.gains, state.edges)))
        draw = torch.special.ndtr(clients.normal("ratio", 0, 1)).squeeze(-1)  # uniform
        arms = choose(agents, draw)
        shares = channel.allot(state.x, arms.double() * (self.max_ratio / self.cells))
        x_t, data = channel.down(state.x), clients.data()
        before = clients.each(clients.problem.loss, x_t, data)
        x = self.descend(x_t, clients.batches(self), clients.grad, lr=self.lr)
        after = clients.each(clients.problem.loss, x, data)
        dx, drop = channel.mean(x - x_t, (before - after).unsqueeze(-1), stateless=True)
        times = shares.to(dx) / torch.tensor(self.speeds).to(dx)[clients.ids % len(self.speeds)]
        gaps = (times / times.mean() - 1).abs().clamp(min=self.least_gap)
        rewards = drop.clamp(min=0) / gaps
        best = torch.maximum(self.discount * state.best, rewards.max())
        agents = learn(agents, arms, rewards / best.clamp(min=1e-30), self.discount)
        kept = {name: clients.put(getattr(state, name), rows) for name, rows in agents._asdict().items()}
        return self.server_step(state, x=dx)._replace(**kept, best=best)
