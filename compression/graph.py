"""Find the filters and neurons of a model that can be removed.

A layer is prunable when its output is read by exactly one other layer, through activations that map zero to
zero, pooling, flattening and group normalization. The output layer is read by none, and a residual stream is
read by several and added up; so both stay whole, and of a residual block only the inner channels are
prunable. The module's own ``forward`` is traced (`torch.fx`); nothing depends on how the module is put
together.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import fx, nn

from compression.errors import CompressionError
from compression.structured import Part, UnitGroup

_LAYERS = (nn.Linear, nn.Conv2d)
# Each channel of their output depends on the same channel of the input alone, and is zero where that is zero.
_TRANSPARENT_MODULES = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish),
    *(nn.Tanh, nn.Softsign, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, nn.Identity, nn.Dropout),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
)
_TRANSPARENT_CALLS: tuple[object, ...] = (
    *(torch.relu, torch.tanh, "relu", "tanh", F.relu, F.leaky_relu, F.elu, F.gelu, F.silu, F.tanh),
    *(F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d),
)
_SHAPE_QUERIES: tuple[object, ...] = ("size", getattr)


class _Tracer(fx.Tracer):
    """A tracer that does not look into layers, derived ones included."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module stays one call."""
        return isinstance(m, _LAYERS) or super().is_leaf_module(m, module_qualified_name)


def units(module: nn.Module) -> list[UnitGroup]:
    """Find the prunable layers of a module, in the order in which they act.

    Parameters
    ----------
    module : nn.Module
        A feed-forward network of linear layers and 2-d convolutions whose ``forward`` takes one batch.

    Returns
    -------
    list of UnitGroup
        Empty for a model without hidden units (a logistic regression). Grouped convolutions and layers that
        act more than once stay whole, and so does what feeds them. Layers with buffers, which are constants, stay
        whole too, with what feeds them and what reads them.

    Raises
    ------
    CompressionError
        If layers share parameters, the forward pass cannot be traced, or something between two layers does not
        map zero to zero channel by channel (a sigmoid, a layer normalization).
    """
    layers = {name: child for name, child in module.named_modules() if isinstance(child, _LAYERS)}
    try:
        nodes = _Tracer().trace(module).nodes
    except (fx.proxy.TraceError, TypeError) as error:
        what = type(module).__name__
        raise CompressionError(
            f"structured pruning cannot trace the forward pass of {what}: {error}"
        ) from error
    calls = Counter(node.target for node in nodes if node.op == "call_module")
    offsets = _offsets(module)
    groups = []
    for node in nodes:
        if node.op != "call_module" or node.target not in layers:
            continue
        reader, between = _follow(node, layers)
        if (
            reader is not None
            and all(calls[n] == 1 and _ungrouped(layers[n]) for n in (node.target, reader))
            and not any(_frozen(module, name) for name in (node.target, reader, *_called(between)))
        ):
            groups.append(_group(module, offsets, str(node.target), reader, between))
    return groups


def _offsets(module: nn.Module) -> dict[str, int]:
    """Return where each parameter begins in the flat vector."""
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    sizes = [parameter.numel() for parameter in module.parameters()]
    if len(names) != len(sizes):
        raise CompressionError("structured pruning cannot cut a model whose layers share parameters")
    return dict(zip(names, accumulate(sizes, initial=0), strict=False))


def _ungrouped(layer: nn.Module) -> bool:
    return not isinstance(layer, nn.Conv2d) or layer.groups == 1


def _frozen(module: nn.Module, name: object) -> bool:
    return any(True for _ in module.get_submodule(str(name)).buffers())


def _called(nodes: Iterable[fx.Node]) -> list[str]:
    """Return the names of the modules among nodes."""
    return [str(node.target) for node in nodes if node.op == "call_module"]


def _follow(start: fx.Node, layers: Collection[str]) -> tuple[str | None, list[fx.Node]]:
    """Follow a layer's output to the only layer that reads it, if there is one, and collect the way."""
    between: list[fx.Node] = []
    node = start
    while True:
        readers = _about_content(node.users)
        if (
            len(readers) != 1
            or readers[0].op == "output"
            or len(_about_content(readers[0].all_input_nodes)) > 1
        ):
            return None, between
        node = readers[0]
        if node.op == "call_module" and node.target in layers:
            return str(node.target), between
        between.append(node)


def _about_content(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """Leave out nodes that only ask for the shape of a tensor, or hold one."""
    return [node for node in nodes if not _is_shape(node)]


def _is_shape(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return all(_is_shape(source) for source in node.all_input_nodes)
    return node.target in _SHAPE_QUERIES


def _group(
    module: nn.Module, offsets: dict[str, int], layer: str, reader: str, between: Sequence[fx.Node]
) -> UnitGroup:
    """Describe the units of one layer after checking the way to its reader."""
    width = len(module.get_parameter(f"{layer}.weight"))
    inputs = module.get_parameter(f"{reader}.weight").shape[1]
    norms = _norms(module, layer, between)
    block = math.lcm(1, *(width // norm.num_groups for norm in norms.values()))
    flattened = any(_is_flatten(module, node) for node in between)
    image = isinstance(module.get_submodule(layer), nn.Conv2d)
    if inputs % width or (inputs != width and not (image and flattened)):
        raise CompressionError(f"structured pruning cannot see how {reader!r} reads the units of {layer!r}")

    def parts(owner: str, leaf: str, dim: int, indices: int) -> list[Part]:
        parameter = getattr(module.get_submodule(owner), leaf)
        if parameter is None:
            return []
        name = f"{owner}.{leaf}"
        return [Part(name, offsets[name], tuple(parameter.shape), dim, indices)]

    affected = parts(layer, "weight", 0, block) + parts(layer, "bias", 0, block)
    for name in norms:
        affected += parts(name, "weight", 0, block) + parts(name, "bias", 0, block)
    affected += parts(reader, "weight", 1, block * inputs // width)
    return UnitGroup(layer, width // block, tuple(affected), tuple(norms))


def _norms(module: nn.Module, layer: str, between: Sequence[fx.Node]) -> dict[str, nn.GroupNorm]:
    """Return the normalizations on the way; refuse whatever would mix units or revive a zero."""
    norms = {}
    for node in between:
        child = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(child, nn.GroupNorm):
            norms[str(node.target)] = child
        elif not (
            isinstance(child, _TRANSPARENT_MODULES)
            or node.target in _TRANSPARENT_CALLS
            or _is_flatten(module, node)
        ):
            what = getattr(node.target, "__name__", node.target) if child is None else type(child).__name__
            raise CompressionError(
                f"structured pruning of {layer!r}: {what} behind it does not map zero to zero channel by "
                "channel (allowed: relu, tanh and their kin, 2-d pooling, flatten, GroupNorm)"
            )
    return norms


def _is_flatten(module: nn.Module, node: fx.Node) -> bool:
    """Return whether a node flattens all axes but the batch axis."""
    if node.op == "call_module":
        child = module.get_submodule(str(node.target))
        return isinstance(child, nn.Flatten) and (child.start_dim, child.end_dim) == (1, -1)
    if node.target in (torch.flatten, "flatten"):
        return (*node.args[1:], *node.kwargs.values()) in [(1,), (1, -1)]
    return node.target in ("view", "reshape") and node.args[2:] == (-1,)
