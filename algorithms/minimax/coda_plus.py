"""CODA+: local descent ascent in proximal stages.

Yuan, Guo, Xu, Ying, Yang: "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021; CODA: Guo, Liu, Yuan, Shen, Liu, Yang, ICML 2020.
https://arxiv.org/abs/2102.04635

===================  =========================================================
paper                here
===================  =========================================================
v                    ``state.x``
alpha                ``state.y``
v_0 of a stage       ``state.xr``
eta                  ``lr_x``, ``lr_y``, divided by ``decay`` from stage to stage
1 / gamma            ``prox``
T_s                  ``stage_rounds`` rounds of ``local_steps``
I                    ``local_steps``
===================  =========================================================

Travels: (x, y) down, (x, y) up (their increments); 2 (d_x + d_y) scalars per client and round. The reference
point is a past broadcast; a partial cohort receives it again, d_x more.

Deviations: a stage ends with its last average, not with the average of all its iterates. All stages are equally
long. Unlike CODA it does not estimate y again when a stage begins. y is projected after every step.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from harness.core import (
    Channel,
    Clients,
    Descent,
    Increment,
    Meta,
    ServerUpdate,
    not_negative,
    positive,
    register,
    step_size,
)


@register
@dataclass(frozen=True, kw_only=True)
class CODAPlus(Descent, ServerUpdate):
    """Local descent ascent with a proximal term in x and smaller step sizes in every stage.

    Attributes
    ----------
    lr_x, lr_y : float
        Step sizes of the first stage.
    prox : float
        Weight of the pull toward the stage's first point; 0 for none.
    stage_rounds : int
        Rounds of a stage.
    decay : float
        Divisor of the step sizes from stage to stage.
    """

    meta: ClassVar = Meta(
        "coda_plus", "minimax", ("minimax",), "Yuan et al. 2021", "https://arxiv.org/abs/2102.04635",
        epochs=False,
    )  # fmt: skip

    local_steps: int | None = 10
    lr_x: float = step_size(0.01)
    lr_y: float = step_size(0.01)
    prox: float = not_negative(0.002)
    stage_rounds: int = positive(200)
    decay: float = positive(3.0)

    class State(NamedTuple):
        """Server vectors ``(..., P)`` and ``(..., Q)``, and the stage's reference point ``(..., P)``."""

        x: Tensor
        y: Tensor
        xr: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's point."""
        return self.server_init(self.State(start["x"], start["y"], start["x"]), "x", "y")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take proximal local steps, then apply the mean increments."""
        stage, rounds = divmod(clients.round, self.stage_rounds)
        lr_x, lr_y = self.lr_x / self.decay**stage, self.lr_y / self.decay**stage
        began = state.x if rounds == 0 else state.xr
        x, y = x_t, y_t = channel.down(state.x, state.y)
        xr = channel.rebroadcast(began)
        m = None
        for batch in clients.batches(self):
            gx, gy = clients.grads(x, y, batch)
            gx = gx + self.prox * (x - xr)
            (x, y), m = self.step((x, y), (gx, gy), batch, m, lr=(lr_x, -lr_y))
            y = clients.project(y)
        steps = clients.most_steps(self)
        dx, dy = channel.mean(
            Increment(x, of=x_t, scale=steps * lr_x),
            Increment(y, of=y_t, scale=steps * lr_y),
            weighting="uniform",
        )
        new = self.server_step(state, x=dx, y=dy)
        return new._replace(y=clients.project(new.y), xr=began)
