"""Networks: ours, and those that users register with `model`.

The harness relies on these properties: a `Net` has an extractor, whose parameters come first, and a linear head;
parameters are trained, all of them; there is no dropout and no batch normalization, hence no buffer, no training
mode and no random draw in ``forward``. Structured pruning finds units in layers of `torch.nn` only.
"""

from harness.models import networks as networks  # registers our models
from harness.models.net import Encoder, Net, compute_in, computes_in, dense, encoder
from harness.models.registry import MODELS, Shape, build, complete, describe, model, names

__all__ = [
    "MODELS",
    "Encoder",
    "Net",
    "Shape",
    "build",
    "complete",
    "compute_in",
    "computes_in",
    "dense",
    "describe",
    "encoder",
    "model",
    "names",
]
