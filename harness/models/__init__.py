"""Networks: ours, and those that users register with `model`.

The harness relies on these properties: a `Net` has an extractor, whose parameters come first, and a linear head;
parameters are trained, all of them, and buffers are constants, which `freeze` makes of frozen parameters; no
dropout and no batch normalization is at work, hence no random draw and no change in ``forward``. Structured pruning
finds units in layers of `torch.nn` only.
"""

from harness.core.flat_model import freeze
from harness.models import networks as networks  # registers our models, as does the next
from harness.models import rest as rest
from harness.models.adapters import Adapted, adapters_of, factors_to_share
from harness.models.net import Encoder, Net, compute_in, computes_in, dense, encoder
from harness.models.registry import MODELS, adaptable_layers, build, complete, describe, model, names
from harness.models.values import Shape

__all__ = [
    "MODELS",
    "Adapted",
    "Encoder",
    "Net",
    "Shape",
    "adaptable_layers",
    "adapters_of",
    "build",
    "complete",
    "compute_in",
    "computes_in",
    "dense",
    "describe",
    "encoder",
    "factors_to_share",
    "freeze",
    "model",
    "names",
]
