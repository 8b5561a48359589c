"""Fewer operations for a recording, with the same bits."""

from __future__ import annotations

from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

aten = torch.ops.aten
VIEWS = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.expand.default,
    aten.permute.default,
    aten.detach.default,
    aten.alias.default,
)
BINDINGS = (BuiltinFunctionType, MethodDescriptorType)


def simplified(recording: GraphModule) -> GraphModule:
    """Remove repeated operations and operations without effect, and call torch's bindings of the others.

    Derivatives of a function at one point share operations: a quarter of them in a Neumann series of ten Hessian
    products of a linear model.
    """
    graph: Any = recording.graph
    for node in graph.nodes:
        if node.target is aten.squeeze_.dims and len(node.all_input_nodes[0].users) == 1:
            node.target = aten.squeeze.dims  # of matrix products; nothing else sees the argument
        schema, tags = getattr(node.target, "_schema", None), getattr(node.target, "tags", ())
        if (schema is not None and schema.is_mutable) or torch.Tag.nondeterministic_seeded in tags:
            return recording  # results of in-place and random operations must not be reused
    computed: dict[object, Node] = {}
    for node in graph.nodes:
        if node.op not in ("call_function", "get_attr"):
            continue
        same = _unchanged(node)
        # As text, because 1 and 1.0 are equal but not the same; node names are unique.
        what = (node.target, repr(node.args), repr(node.kwargs))
        same = same or computed.setdefault(what, node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    for node in graph.nodes:
        node.target = _binding(node.target)
    graph.eliminate_dead_code()
    recording.recompile()
    return recording


def _unchanged(node: Node) -> Node | None:
    """Return the node with the same value as an operation; vmap adds many such operations to a product."""
    argument = node.args[0] if node.args else None
    if not isinstance(argument, Node):
        return None
    if node.target in VIEWS:
        return argument if argument.meta["value"][:2] == node.meta["value"][:2] else None
    back = node.target is argument.target is aten.transpose.int and _dims(node) == _dims(argument)
    return argument.all_input_nodes[0] if back else None


def _dims(node: Node) -> set[int]:
    """Return the dimensions that a transposition swaps."""
    return {int(dim) % len(node.meta["value"][0]) for dim in node.args[1:]}  # type: ignore[arg-type]


def _binding(target: Any) -> Any:
    """Return torch's direct binding of an operation, if any: it halves the overhead of a call to 1 microsecond."""
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return target
    name = target.overloadpacket.__name__
    bindings = (getattr(place, name, None) for place in (torch, torch.Tensor))
    return next((binding for binding in bindings if isinstance(binding, BINDINGS)), target)
