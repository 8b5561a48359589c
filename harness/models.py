"""The networks of the benchmark: a feature extractor and a linear head.

Each model is one function below, made from the shape of one input, the number of outputs and its settings.
The annotations of the settings are what `build` checks a user's settings against; the first line of the
docstring is what the command line prints.

What the rest of the harness relies on: parameter names begin with ``extractor.`` or ``head.``; layers are
those of `torch.nn` in `torch.nn.Sequential`, apart from `Residual`, so that structured pruning can walk them;
there is neither dropout nor batch normalization, hence no buffer, no training mode, no draw in ``forward``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from harness.core.registry import Registry, UserError, unknown

Shape = tuple[int, ...]
Activation = type[nn.Module]
Initializer = Literal["default", "xavier", "kaiming"]
Norm = Literal["none", "group"]


class Net(nn.Module):
    """Map inputs to features by the extractor ``u`` and those to outputs by the head ``v``.

    Parameters
    ----------
    extractor : nn.Module
        Everything but the last linear layer: ``(B, *input_shape)`` to ``(B, embedding_size)``.
    embedding_size : int
        Length of a feature vector.
    outputs : int
        Number of classes, or 1 for a score.
    initializer : {"default", "xavier", "kaiming"}
        How the start is to be drawn: PyTorch's usual uniform laws, or Xavier-normal weights and biases of
        ``1 / numel``. Only recorded here; whoever flattens the model draws it from a keyed generator.
    """

    def __init__(
        self, extractor: nn.Module, embedding_size: int, outputs: int, initializer: Initializer = "default"
    ) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = nn.Linear(embedding_size, outputs)
        self.initializer: Initializer = initializer

    @property
    def embedding_size(self) -> int:
        """Length of a feature vector."""
        return self.head.in_features

    def features(self, x: Tensor) -> Tensor:
        """Return the feature vectors, ``(B, embedding_size)``, of inputs ``(B, *input_shape)``."""
        out: Tensor = self.extractor(x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, ``(B, outputs)``, of inputs ``(B, *input_shape)``."""
        out: Tensor = self.head(self.features(x))
        return out


class Encoder(Net):
    """A net whose features are the means and the spreads of a Gaussian; its head reads a draw or the mean."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the means."""
        out: Tensor = self.head(self.features(x)[..., : self.embedding_size])
        return out


def encoder(net: Net, latent: int) -> Encoder:
    """Put a linear layer behind a net's extractor that gives ``latent`` means and as many spreads.

    Returns
    -------
    Encoder
        With a head of `latent` inputs. As with `build`, its parameters are placeholders.
    """
    if latent < 1:
        raise UserError(f"latent must be at least 1, given {latent}")
    with torch.random.fork_rng(devices=[]):
        layer = nn.Linear(net.embedding_size, 2 * latent)
        found = Encoder(nn.Sequential(net.extractor, layer), latent, net.head.out_features, net.initializer)
    compute_in(getattr(net.head, "computes", None), found)
    return found


def compute_in(dtype: torch.dtype | None, net: nn.Module) -> None:
    """Have a net, and each of its parts apart, compute in this type, whatever its parameters' is (`Ravel`)."""
    for part in net.modules():
        vars(part)["computes"] = dtype


def computes_in(dtype: torch.dtype, net: nn.Module | None) -> bool:
    """Whether a net has been told to compute in this type."""
    return net is not None and any(vars(part).get("computes") == dtype for part in net.modules())


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


class _Model(NamedTuple):
    make: Callable[..., Net]
    inputs: str


_MODELS: Registry[_Model] = Registry("model")


def _model(inputs: str) -> Callable[[Callable[..., Net]], Callable[..., Net]]:
    """Register the decorated function under its own name, with the inputs it takes."""

    def register(make: Callable[..., Net]) -> Callable[..., Net]:
        _MODELS.add(make.__name__, _Model(make, inputs))
        return make

    return register


def names() -> list[str]:
    """Return the names `build` knows, sorted."""
    return list(_MODELS)


def describe() -> list[dict[str, str]]:
    """Return for every model its name, a summary, its inputs and its settings with their defaults."""
    rows = []
    for name in names():
        make, inputs = _MODELS[name]
        settings = ", ".join(f"{key}={default!r}" for key, default in _defaults(make).items())
        summary = (inspect.getdoc(make) or "").splitlines()[0]
        rows.append({"name": name, "summary": summary, "inputs": inputs, "settings": settings})
    return rows


def build(name: str, input_shape: Shape, outputs: int, settings: Mapping[str, object] = {}) -> Net:
    """Build a network.

    Parameters
    ----------
    name : str
        One of `names`.
    input_shape : tuple[int, ...]
        Shape of one input: ``(features,)`` for tables, ``(channels, height, width)`` for images.
    outputs : int
        Number of classes, or 1 for a score.
    settings : Mapping[str, object]
        The model's own settings (lists stand for tuples); what is left out takes its default.

    Returns
    -------
    Net
        In single precision on the CPU. Its parameters are placeholders: see `Net.initializer`.

    Raises
    ------
    UserError
        If the name or a setting is unknown, a value has the wrong type, or the input does not fit the model.
    """
    make = _MODELS[name].make
    where = f"model {name!r}:"
    shape = _checked(f"{where} input_shape", input_shape, Shape)
    if not shape:
        raise UserError(f"{where} input_shape must have at least one axis")
    _checked(f"{where} outputs", outputs, int)
    values = complete(name, settings)
    # Layers are born with draws from PyTorch's global stream; put it back, for these values mean nothing.
    with torch.random.fork_rng(devices=[]):
        return make(shape, outputs, **values)


def complete(name: str, settings: Mapping[str, object]) -> dict[str, object]:
    """Check a model's settings, in their own types, and add the defaults of those left out.

    Raises
    ------
    UserError
        If the name or a setting is unknown, or a value has the wrong type.
    """
    make = _MODELS[name].make
    hints, values = get_type_hints(make), _defaults(make)
    for key, value in settings.items():
        if key not in values:
            raise unknown(f"setting of model {name!r}", key, values or ["none"])
        values[key] = _checked(f"model {name!r}: setting {key!r}", value, hints[key])
    return values


def _defaults(make: Callable[..., Net]) -> dict[str, object]:
    parameters = inspect.signature(make).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _checked(what: str, value: object, hint: object) -> object:
    """Return `value` if it is what the annotation says, else raise; all numbers must be positive."""
    if get_origin(hint) is Literal:
        fits, wanted = value in get_args(hint), "one of " + ", ".join(map(repr, get_args(hint)))
    elif hint is int:
        fits, wanted = _is_count(value), "a positive integer"
    elif hint is float:
        fits = _is_count(value) or (isinstance(value, float) and 0 < value < math.inf)
        wanted = "a positive number"
    else:
        fits = isinstance(value, list | tuple) and all(map(_is_count, value))
        wanted = "a list of positive integers"
    if not fits:
        raise UserError(f"{what} must be {wanted}, not {value!r}")
    if hint is float:
        return float(value)  # type: ignore[arg-type] # it fits: a number
    return tuple(value) if isinstance(value, list) else value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _require_image(name: str, shape: Shape, least: int = 1) -> None:
    """Refuse anything but images of at least `least` pixels a side."""
    if len(shape) != 3:
        raise UserError(
            f"model {name!r} needs images (channels, height, width), not inputs of shape {shape}; "
            "for flat inputs use 'logistic' or 'mlp'"
        )
    if min(shape[1:]) < least:
        raise UserError(
            f"model {name!r} cannot take inputs of shape {shape}: the least is {(shape[0], least, least)}"
        )


def _dense(inputs: int, hidden: Shape, activation: Activation) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for before, after in pairwise((inputs, *hidden)):
        layers += [nn.Linear(before, after), activation()]
    return layers


def _lenet(
    name: str, shape: Shape, channels: Shape, kernel: int, padding: int, hidden: Shape, activation: Activation
) -> nn.Sequential:
    """Stack stages of convolution, activation and 2x2 max pooling, then dense hidden layers."""
    trim = kernel - 1 - 2 * padding  # what a convolution takes off a side
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


@_model("tables and images of any shape")
def logistic(shape: Shape, outputs: int) -> Net:
    """Linear model of the flattened input: multinomial logistic regression under cross-entropy."""
    return Net(nn.Sequential(nn.Flatten()), math.prod(shape), outputs)


@_model("tables and images of any shape")
def mlp(
    shape: Shape, outputs: int, *, hidden: Shape = (64,), activation: Literal["relu", "tanh"] = "relu"
) -> Net:
    """Fully connected net of the flattened input; the default is the two-layer net of the fairness tasks."""
    layers = _dense(math.prod(shape), hidden, {"relu": nn.ReLU, "tanh": nn.Tanh}[activation])
    return Net(nn.Sequential(nn.Flatten(), *layers), (math.prod(shape), *hidden)[-1], outputs)


@_model("images of at least 16 x 16 pixels")
def fedreco_cnn(shape: Shape, outputs: int, *, channels: Shape = (), width: int = 1024) -> Net:
    """Five-layer CNN of FedReCo: 5x5 convolutions without padding, then two dense layers of `width`.

    No `channels` stands for the paper's: (4, 12) for one-channel images, 1,258,798 parameters on 1 x 28 x 28
    and ten classes; (64, 64) otherwise, 2,806,602 parameters on 3 x 32 x 32. The paper's softmax layer is the
    one inside the cross-entropy.
    """
    channels = channels or ((4, 12) if shape[0] == 1 else (64, 64))
    return Net(_lenet("fedreco_cnn", shape, channels, 5, 0, (width, width), nn.ReLU), width, outputs)


@_model("images of at least 10 x 10 pixels with one channel, 8 x 8 with more")
def fedsgda_cnn(shape: Shape, outputs: int) -> Net:
    """CNNs of FedSGDA: the tanh net of FashionMNIST for one channel, the ReLU net of CIFAR-10 otherwise.

    With ten outputs 26,620 parameters on 1 x 28 x 28 and 581,866 on 3 x 32 x 32. The paper's tables put an
    activation behind the last layer too; as in its public code there is none.
    """
    if shape[0] == 1:
        extractor = _lenet("fedsgda_cnn", shape, (5, 10), 3, 0, (100,), nn.Tanh)
        return Net(extractor, 100, outputs, "xavier")
    extractor = _lenet("fedsgda_cnn", shape, (16, 32, 64), 3, 1, (512, 64), nn.ReLU)
    return Net(extractor, 64, outputs, "xavier")


@_model("images of at least 4 x 4 pixels")
def fedavg_cnn(shape: Shape, outputs: int, *, hidden: int = 1024) -> Net:
    """CNN of the FedAvg paper, with a wider dense layer: padded 5x5 convolutions of 32 and 64 channels.

    McMahan et al. 2017 have ``hidden=512``: 1,663,370 parameters on 1 x 28 x 28 and ten classes.
    """
    return Net(_lenet("fedavg_cnn", shape, (32, 64), 5, 2, (hidden,), nn.ReLU), hidden, outputs)


def _scaled(channels: int, width: float) -> int:
    return max(1, round(channels * width))


def _normalized(before: int, after: int, kernel: int, stride: int, groups: int) -> list[nn.Module]:
    """Return a convolution that keeps the size (divided by the stride) and its group normalization.

    There are as many groups, up to `groups`, as divide the channels, but never one channel to a group where
    there are two: on a 1 x 1 map it would be normalized to zero. The normalization's shift replaces the bias.
    """
    most = min(groups, max(1, after // 2))
    fitting = max(g for g in range(1, most + 1) if after % g == 0)
    convolution = nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [convolution, nn.GroupNorm(fitting, after)]


def _vgg(name: str, shape: Shape, outputs: int, blocks: Sequence[Shape], width: float, norm: Norm) -> Net:
    """Stack blocks of 3x3 convolutions, a 2x2 pooling behind each while it fits, and average what is left."""
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
    # PyTorch's own start shrinks the signal by 0.4 a layer, which nothing restores where there are no norms.
    initializer: Initializer = "kaiming" if norm == "none" else "default"
    return Net(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), planes, outputs, initializer)


@_model("images of any size")
def vgg16(shape: Shape, outputs: int, *, width: float = 1.0, norm: Norm = "none") -> Net:
    """Thirteen convolutions of VGG16 (channels times `width`), global average pooling and one linear layer.

    The embedding has ``512 * width`` entries. Poolings that no longer fit are dropped: all five act on
    32 x 32 images, four on the 16 x 16 quadrants of vertical federated learning.
    """
    blocks = [(64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)]
    return _vgg("vgg16", shape, outputs, blocks, width, norm)


@_model("images of any size")
def vgg_small(shape: Shape, outputs: int, *, width: float = 1.0, norm: Norm = "none") -> Net:
    """VGG of three convolutions (16, 32, 64 channels times `width`) for runs on a CPU; see `vgg16`."""
    return _vgg("vgg_small", shape, outputs, [(16,), (32,), (64,)], width, norm)


@_model("images of any size")
def resnet18(shape: Shape, outputs: int, *, width: float = 1.0, groups: int = 2) -> Net:
    """ResNet-18 with group normalization (channels times `width`); a 3x3 stem up to 64 pixels a side.

    Larger images get the original stem: 7x7 with stride 2 and a max pooling. Group instead of batch
    normalization, since running statistics would be state beside the parameters. Weights are not pre-trained.
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
