"""A plugin: one algorithm, one metric and one data set of one's own, outside the repository.

::

    python -m harness check local_momentum --plugin docs/examples/plugin.py
    python -m harness run --plugin docs/examples/plugin.py --algorithm local_momentum --data wine --rounds 20
"""

import hashlib
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datasets.catalog import data_set
from datasets.dataset import Dataset
from harness.core import Channel, Clients, Descent, Increment, Meta, register, step_size
from harness.metrics import Predictions, metric


@register
@dataclass(frozen=True, kw_only=True)
class LocalMomentum(Descent):
    """Federated averaging whose clients step along a decaying sum of their gradients.

    The sum begins at zero in every round and stays at home. `Descent` brings the step and its settings.

    Attributes
    ----------
    lr : float
        Local step size.
    momentum : float
        How much of the sum is kept from step to step.
    """

    meta: ClassVar = Meta("local_momentum", "centralized", ("erm",), "an example", chunks=True)

    lr: float = step_size(0.05)
    momentum: float = 0.5

    class State(NamedTuple):
        """The global model, ``(..., P)``."""

        x: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's model."""
        return self.State(start["x"])

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Local SGD with momentum at every client, then the mean increment."""
        x = x_t = channel.down(state.x)
        m = None
        for batch in clients.batches(self):
            x, m = self.step(x, clients.grad(x, batch), batch, m, lr=self.lr)
        return self.State(state.x + channel.mean(Increment(x, of=x_t)))


@metric("max", ".4f", "share", within=(0, 1))
def median_client(p: Predictions) -> float | None:
    """Accuracy of the median client."""
    right, held = np.bincount(p.client, weights=p.hit), np.bincount(p.client)
    return float(np.median(right[held > 0] / held[held > 0]))


@data_set("wine", size="178 x 13, 3 classes", origin="inside scikit-learn")
def read_wine() -> Dataset:
    """Read scikit-learn's wine data: 13 measurements of wines from three growers."""
    from sklearn.datasets import load_wine  # here: slow to import

    bunch = load_wine()
    x, y = bunch.data.astype(np.float32), bunch.target.astype(np.int64)
    return Dataset(
        name="wine",
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        classes=tuple(str(name) for name in bunch.target_names),
        source="wine (scikit-learn)",
        digest=hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest(),  # of what was read; names the runs
        features=tuple(bunch.feature_names),
        continuous=torch.ones(x.shape[1], dtype=torch.bool),  # standardized by the training samples
    )
