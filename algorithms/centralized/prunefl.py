"""PruneFL: federated averaging of a model whose single parameters are removed and taken back as it goes.

Jiang, Wang, Valls, Ko, Lee, Leung, Tassiulas: "Model Pruning Enables Efficient Federated Learning on Edge Devices",
IEEE Transactions on Neural Networks and Learning Systems 2023.
https://arxiv.org/abs/1909.12326

=======================  =========================================================
paper                    here
=======================  =========================================================
w                        ``state.x``
the pruned model         ``state.kept``, 1 for the parameters that the model has
g_j^2                    squared mean increment, ``dx ** 2``
c                        ``fixed_time``
t_j                      1 over the number of weights, or ``layer_times`` of j's layer
rounds between changes   ``reconfigure_rounds``
=======================  =========================================================

Travels: the kept parameters down and up (their increments), 2 K scalars per client and round. In a round before a
change the increments of all P parameters up, of which those that are not kept stay without effect; in the one after
it the positions of the kept ones down (in each round to partial cohorts). Gradients and messages of other rounds
have no other parameters. A plan counts the first model in every round.

Deviations: the paper prunes first at one client, from its data alone, which would release them; here the common
start is pruned by magnitude to ``density``. Importance is the squared gradient of the average over one round, as in
the paper's analysis; the authors' code adds up the clients' squares of all rounds. Biases and norm layers are not
pruned. Operations are counted as of the dense model: zeros save bytes and, in the paper, time.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from compression.importance import Layer, largest_weights, reconfigured
from harness.core import (
    Channel,
    Clients,
    Descent,
    Increment,
    Meta,
    ServerUpdate,
    UserError,
    at_most_one,
    below_one,
    positive,
    register,
    step_size,
)
from harness.core.clients.pruning import weight_places


@register
@dataclass(frozen=True, kw_only=True)
class PruneFL(Descent, ServerUpdate):
    """Local SGD on the kept parameters, which are chosen anew by importance over time.

    Attributes
    ----------
    lr : float
        Local step size.
    density : float
        Share of each layer's weights to begin with, in (0, 1].
    max_density : float
        Largest share of all weights, in (0, 1].
    reconfigure_rounds : int
        Rounds between two changes of the model.
    removable : float
        Share of a layer's weights that may go in a change, those of smallest magnitude, in [0, 1).
    fixed_time : float
        Time of a round that no pruning saves, over what all weights take. A shorter one leads to a smaller model.
    layer_times : tuple of float
        Time of a weight of each layer, relative to their mean, for layers of unequal work; empty: all alike.
    """

    meta: ClassVar = Meta(
        "prunefl", "centralized", ("erm",), "Jiang et al. 2023", "https://arxiv.org/abs/1909.12326",
        stackable=False, chunks=True,
    )  # fmt: skip

    lr: float = step_size(0.1)
    density: float = at_most_one(0.5)
    max_density: float = at_most_one(1.0)
    reconfigure_rounds: int = positive(5)
    removable: float = below_one(0.3)
    fixed_time: float = positive(0.1)
    layer_times: tuple[float, ...] = positive(())

    class State(NamedTuple):
        """The global model, and 1 where it has a parameter, ``(P,)`` each."""

        x: Tensor
        kept: Tensor

    def stage(self, round: int) -> int:
        """Return 1 for a round in which all gradients are sent and 2 for one after a change."""
        before, after = (round + 1) % self.reconfigure_rounds == 0, round % self.reconfigure_rounds == 0
        return before + 2 * after

    def layers(self, clients: Clients) -> list[Layer]:
        """Return the weights of all layers, with the time that each takes."""
        places = weight_places(clients.problem)
        times = self.layer_times or (1.0,) * len(places)
        if len(times) != len(places):
            raise UserError(
                f"algorithm prunefl: layer_times needs a number for each of the model's {len(places)} layers of "
                f"weights, given {len(times)}"
            )
        whole = sum(time * (stop - start) for time, (start, stop) in zip(times, places, strict=True))
        return [Layer(*place, time / whole) for time, place in zip(times, places, strict=True)]

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's model without its small weights."""
        kept = largest_weights(start["x"], self.layers(clients), self.density).to(start["x"])
        return self.server_init(self.State(start["x"] * kept, kept), "x")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Run local SGD on the kept parameters; before a change, note the gradients of the others as well."""
        sends_all, changed = self.stage(clients.round) % 2, self.stage(clients.round) > 1
        channel.announce(state.kept.bool(), changed=changed)
        x = x_t = channel.down(state.x)
        if sends_all:
            clients.restrict(None)
        m = None
        for batch in clients.batches(self):
            x, m = self.step(x, clients.grad(x * state.kept, batch), batch, m, lr=self.lr)
        dx = channel.mean(Increment(x, of=x_t), stateless=True)
        new, kept = self.server_step(state, x=dx * state.kept), state.kept
        if sends_all:
            kept = reconfigured(
                new.x, kept.bool(), dx.square(), self.layers(clients),
                constant=self.fixed_time, removable=self.removable, most=self.max_density,
            ).to(kept)  # fmt: skip
        return new._replace(x=new.x * kept, kept=kept)
