"""Base class of methods that minimize the worst mixture of the clients' losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core.clients.clients import Clients
from harness.core.declarations import step_size
from harness.core.methods.descent import Descent
from harness.core.methods.server_update import ServerUpdate
from harness.core.wire.channel import Channel


class ModelAndWeights(NamedTuple):
    """The global model ``(..., P)``, and the clients' weights ``(..., total, 1)``."""

    x: Tensor
    weights: Tensor


@dataclass(frozen=True, kw_only=True)
class Mixture(Descent, ServerUpdate):
    """Local descent on a mixture of the clients' losses, and ascent of the server in its weights.

    Attributes
    ----------
    lr, lr_weights : float
        Step sizes of the model and of the mixture.
    """

    State: ClassVar[Any] = ModelAndWeights

    lr: float = step_size(0.1)
    lr_weights: float = step_size(0.1, zero=True)

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> ModelAndWeights:
        """Start from the problem's model and equal weights."""
        weights = torch.ones_like(clients.rows(start["x"][..., :1])) / clients.total
        return self.server_init(ModelAndWeights(start["x"], weights), "x")
