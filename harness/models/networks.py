"""Our networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from harness.core.errors import UserError
from harness.core.execution.exact.row_product import Linear
from harness.core.flat_model import Initializer
from harness.models.net import Net
from harness.models.registry import model
from harness.models.values import Shape

Activation = type[nn.Module]
Norm = Literal["none", "group"]


class Residual(nn.Module):
    """Add a shortcut to a stack of layers: ``relu(main(x) + shortcut(x))``."""

    def __init__(self, main: nn.Sequential, shortcut: nn.Sequential) -> None:
        super().__init__()
        self.main = main
        self.shortcut = shortcut
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output; an empty shortcut is the identity."""
        out: Tensor = self.activation(self.main(x) + self.shortcut(x))
        return out


class Attention(nn.Module):
    """Self-attention of several heads (Vaswani et al. 2017, arXiv 1706.03762, section 3.2), without a mask."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.read, self.write = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what each position of ``(B, L, width)`` reads from all positions."""
        query, key, value = self.read(x).unflatten(-1, (3, self.heads, -1)).movedim(1, -2).unbind(-4)
        share = (query @ key.mT / math.sqrt(x.shape[-1] // self.heads)).softmax(-1)
        out: Tensor = self.write((share @ value).movedim(-2, 1).flatten(-2))
        return out


class TransformerBlock(nn.Module):
    """Attention, then a hidden layer at every position; each adds to its normalized input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.between = nn.LayerNorm(width)
        self.hidden = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(B, L, width)`` of the same."""
        x = x + self.attention(self.before(x))
        out: Tensor = x + self.hidden(self.between(x))
        return out


class Symbols(nn.Module):
    """Vectors of symbols and of their positions, added up."""

    def __init__(self, symbols: int, length: int, width: int) -> None:
        super().__init__()
        self.symbol, self.position = nn.Embedding(symbols, width), nn.Embedding(length, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(B, L, width)`` of symbols' numbers ``(B, L, 1)``; NaN, as of redacted samples, stays NaN."""
        places = self.position(torch.arange(x.shape[-2], device=x.device))
        out: Tensor = self.symbol(x.squeeze(-1).nan_to_num().long()) + places + 0 * x
        return out


class Last(nn.Module):
    """The last position."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(B, width)`` of ``(B, L, width)``."""
        return x[:, -1]


def _require_image(name: str, shape: Shape, least: int = 1) -> None:
    """Raise UserError unless inputs are images with at least ``least`` pixels per side."""
    if len(shape) != 3:
        raise UserError(
            f"model {name!r} needs images (channels, height, width), not inputs of shape {shape}; "
            "for flat inputs use 'logistic' or 'mlp'"
        )
    if min(shape[1:]) < least:
        raise UserError(
            f"model {name!r} cannot take inputs of shape {shape}: the least is {(shape[0], least, least)}"
        )


def _dense(
    inputs: int, hidden: Shape, activation: Activation, layer: type[nn.Linear] = nn.Linear
) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for before, after in pairwise((inputs, *hidden)):
        layers += [layer(before, after), activation()]
    return layers


def _lenet(
    name: str, shape: Shape, channels: Shape, kernel: int, padding: int, hidden: Shape, activation: Activation
) -> nn.Sequential:
    """Stack stages of convolution, activation and 2x2 max pooling, then dense hidden layers."""
    trim = kernel - 1 - 2 * padding  # reduction of a side by one convolution
    least = 1
    for _ in channels:
        least = 2 * least + trim
    _require_image(name, shape, least)
    layers: list[nn.Module] = []
    planes, height, width = shape
    for after in channels:
        layers += [nn.Conv2d(planes, after, kernel, padding=padding), activation(), nn.MaxPool2d(2)]
        planes, height, width = after, (height - trim) // 2, (width - trim) // 2
    return nn.Sequential(*layers, nn.Flatten(), *_dense(planes * height * width, hidden, activation))


@model("text")
def transformer(shape: Shape, outputs: int, *, width: int = 32, heads: int = 4, blocks: int = 1) -> Net:
    """Small transformer that reads the last symbols of a text, of the kind that it predicts.

    `blocks` of attention with `heads`, on vectors of `width` entries. With 66 symbols, 20 positions and the
    defaults there are 17,698 parameters.
    """
    if len(shape) != 2:
        raise UserError(f"model 'transformer' reads text, not inputs of shape {shape}; use 'mlp'")
    if width % heads:
        raise UserError(f"model 'transformer': width {width} is not a multiple of {heads} heads")
    layers = [TransformerBlock(width, heads) for _ in range(blocks)]
    extractor = nn.Sequential(Symbols(outputs, shape[0], width), *layers, Last(), nn.LayerNorm(width))
    return Net(extractor, width, outputs)


def _require_numbers(name: str, shape: Shape) -> None:
    """Raise UserError for text, whose symbols' numbers are no quantities."""
    if len(shape) == 2:
        raise UserError(f"model {name!r} cannot read text; use 'transformer'")


@model("tables and images of any shape")
def logistic(shape: Shape, outputs: int) -> Net:
    """Linear model of the flattened input: multinomial logistic regression under cross-entropy."""
    _require_numbers("logistic", shape)
    return Net(nn.Sequential(nn.Flatten()), math.prod(shape), outputs)


@model("tables and images of any shape")
def mlp(
    shape: Shape, outputs: int, *, hidden: Shape = (64,), activation: Literal["relu", "tanh"] = "relu"
) -> Net:
    """Fully connected net of the flattened input; the default is the two-layer net of the fairness tasks."""
    _require_numbers("mlp", shape)
    layers = _dense(math.prod(shape), hidden, {"relu": nn.ReLU, "tanh": nn.Tanh}[activation], Linear)
    return Net(nn.Sequential(nn.Flatten(), *layers), (math.prod(shape), *hidden)[-1], outputs)


@model("images of at least 16 x 16 pixels")
def fedreco_cnn(shape: Shape, outputs: int, *, channels: Shape = (), width: int = 1024) -> Net:
    """Five-layer CNN of FedReCo: 5x5 convolutions without padding, then two dense layers of `width`.

    The default channels are the paper's: (4, 12) for one-channel images, with 1,258,798 parameters on 1 x 28 x 28
    and ten classes; (64, 64) otherwise, with 2,806,602 parameters on 3 x 32 x 32. The paper's softmax layer is part
    of the cross-entropy.
    """
    channels = channels or ((4, 12) if shape[0] == 1 else (64, 64))
    return Net(_lenet("fedreco_cnn", shape, channels, 5, 0, (width, width), nn.ReLU), width, outputs)


@model("images of at least 10 x 10 pixels with one channel, 8 x 8 with more")
def fedsgda_cnn(shape: Shape, outputs: int) -> Net:
    """CNNs of FedSGDA: the tanh net of FashionMNIST for one channel, the ReLU net of CIFAR-10 otherwise.

    With ten outputs 26,620 parameters on 1 x 28 x 28 and 581,866 on 3 x 32 x 32. Like the paper's public code, and
    unlike its tables, there is no activation after the last layer.
    """
    if shape[0] == 1:
        extractor = _lenet("fedsgda_cnn", shape, (5, 10), 3, 0, (100,), nn.Tanh)
        return Net(extractor, 100, outputs, "xavier")
    extractor = _lenet("fedsgda_cnn", shape, (16, 32, 64), 3, 1, (512, 64), nn.ReLU)
    return Net(extractor, 64, outputs, "xavier")


@model("images of at least 4 x 4 pixels")
def fedavg_cnn(shape: Shape, outputs: int, *, hidden: int = 1024) -> Net:
    """CNN of the FedAvg paper, with a wider dense layer: padded 5x5 convolutions of 32 and 64 channels.

    McMahan et al. 2017 have ``hidden=512``: 1,663,370 parameters on 1 x 28 x 28 and ten classes.
    """
    return Net(_lenet("fedavg_cnn", shape, (32, 64), 5, 2, (hidden,), nn.ReLU), hidden, outputs)


def _scaled(channels: int, width: float) -> int:
    return max(1, round(channels * width))


def _normalized(before: int, after: int, kernel: int, stride: int, groups: int) -> list[nn.Module]:
    """Return a convolution that keeps the size (divided by the stride) and its group normalization.

    The number of groups is the largest divisor of the channels up to `groups` that leaves at least two channels per
    group if possible: a single channel on a 1 x 1 map would be normalized to zero. The shift replaces the bias.
    """
    most = min(groups, max(1, after // 2))
    fitting = max(g for g in range(1, most + 1) if after % g == 0)
    convolution = nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [convolution, nn.GroupNorm(fitting, after)]


def _vgg(name: str, shape: Shape, outputs: int, blocks: Sequence[Shape], width: float, norm: Norm) -> Net:
    """Stack blocks of 3x3 convolutions, each with a 2x2 pooling while it fits, and a global average pooling."""
    _require_image(name, shape)
    layers: list[nn.Module] = []
    planes, side = shape[0], min(shape[1:])
    for block in blocks:
        for channels in block:
            after = _scaled(channels, width)
            if norm == "group":
                layers += _normalized(planes, after, kernel=3, stride=1, groups=2)
            else:
                layers.append(nn.Conv2d(planes, after, 3, padding=1))
            layers.append(nn.ReLU())
            planes = after
        if side >= 2:
            layers.append(nn.MaxPool2d(2))
            side //= 2
    # PyTorch's default start shrinks the signal by 0.4 per layer, which only a normalization would restore.
    initializer: Initializer = "kaiming" if norm == "none" else "default"
    return Net(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), planes, outputs, initializer)


@model("images of any size")
def vgg16(shape: Shape, outputs: int, *, width: float = 1.0, norm: Norm = "none") -> Net:
    """Thirteen convolutions of VGG16 (channels times `width`), global average pooling and one linear layer.

    The embedding has ``512 * width`` entries. Poolings that no longer fit are dropped: all five act on
    32 x 32 images, four on the 16 x 16 quadrants of vertical federated learning.
    """
    blocks = [(64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)]
    return _vgg("vgg16", shape, outputs, blocks, width, norm)


@model("images of any size")
def vgg_small(shape: Shape, outputs: int, *, width: float = 1.0, norm: Norm = "none") -> Net:
    """VGG of three convolutions (16, 32, 64 channels times `width`) for runs on a CPU; see `vgg16`."""
    return _vgg("vgg_small", shape, outputs, [(16,), (32,), (64,)], width, norm)


@model("images of any size")
def resnet18(shape: Shape, outputs: int, *, width: float = 1.0, groups: int = 2) -> Net:
    """ResNet-18 with group normalization (channels times `width`); a 3x3 stem up to 64 pixels a side.

    Larger images get the original stem: 7x7 with stride 2 and a max pooling. Batch normalization is replaced
    because its running statistics would be state besides the parameters. Weights are not pre-trained.
    """
    _require_image("resnet18", shape)
    small = max(shape[1:]) <= 64
    before = _scaled(64, width)
    layers = [*_normalized(shape[0], before, 3 if small else 7, 1 if small else 2, groups), nn.ReLU()]
    if not small:
        layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        after = _scaled(channels, width)
        layers += [_residual(before, after, stride, groups), _residual(after, after, 1, groups)]
        before = after
    return Net(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), before, outputs)


def _residual(before: int, after: int, stride: int, groups: int) -> Residual:
    first = _normalized(before, after, 3, stride, groups)
    second = _normalized(after, after, 3, 1, groups)
    same = stride == 1 and before == after
    shortcut = [] if same else _normalized(before, after, 1, stride, groups)
    return Residual(nn.Sequential(*first, nn.ReLU(), *second), nn.Sequential(*shortcut))
