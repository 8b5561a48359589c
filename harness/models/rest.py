"""Last layers of a pretrained encoder, which a run trains on the outputs of the earlier ones."""

from __future__ import annotations

import torch

from datasets.encoders import ENCODERS
from datasets.errors import DataError
from harness.core.errors import UserError, unknown
from harness.models.net import Net
from harness.models.registry import model
from harness.models.values import Shape


@model("activations of an encoder that data.until stops")
def encoder_rest(
    shape: Shape, outputs: int, *, encoder: str = "efficientnet-lite0", after: str = "block15"
) -> Net:
    """Layers of an encoder after one of them, as they were pretrained, and a new head.

    With ``data: {encoder: E, until: LAYER}`` it is the network of E on the data's own images. Without an
    adapter all of its layers are trained.
    """
    if encoder not in ENCODERS:
        raise unknown("encoder", encoder, ENCODERS)
    entry = ENCODERS[encoder]
    try:
        layers = entry.parts(after)[1].requires_grad_(True)
        with torch.no_grad():
            width = layers(torch.zeros(1, *shape)).shape
    except DataError as error:
        raise UserError(str(error)) from None
    except (RuntimeError, ValueError) as error:  # of torch, for inputs that do not fit
        raise UserError(
            f"model 'encoder_rest' cannot take inputs of shape {shape}, which are no outputs of {after!r} of "
            f"encoder {encoder}: give data.encoder and data.until the values of model.encoder and model.after"
        ) from error
    if len(width) != 2:
        raise UserError(
            f"model 'encoder_rest': encoder {encoder} makes {tuple(width[1:])} of an image, not one vector"
        )
    net = Net(layers, width[1], outputs, "own")
    # A run's id has the digest of constants: this one names the weights from which the trained layers start.
    digest = bytes.fromhex(entry.digest())
    net.register_buffer("pretrained", torch.tensor(list(digest), dtype=torch.uint8))
    return net
