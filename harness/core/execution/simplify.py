"""Fewer and cheaper operations for a recording, with the same bits."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

aten = torch.ops.aten
VIEWS = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.expand.default,
    aten.permute.default,
    aten.detach.default,
    aten.alias.default,
)
LAYOUTS = (
    *VIEWS,
    aten.transpose.int,
    aten.t.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.select.int,
    aten.slice.Tensor,
    aten.narrow.default,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unbind.int,
)  # whose results are views of their first argument
PRODUCTS = (aten.mm.default, aten.bmm.default)
ELEMENTWISE: dict[Any, Callable[..., Tensor]] = {
    aten.add.Tensor: torch.add,
    aten.sub.Tensor: torch.sub,
    aten.mul.Tensor: torch.mul,
}
FRESH = (*ELEMENTWISE, aten.div.Tensor, *PRODUCTS)  # whose results share no memory with arguments
KEPT_BYTES = 1 << 20  # of a constant, and of a padded factor
LARGEST_VIEWED = 1 << 28  # bytes; views of larger tensors are made one by one, which costs them little
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
        if node.target is aten.ones_like.default:
            _constant(node)
        same = _unchanged(node)
        # As text, because 1 and 1.0 are equal but not the same; node names are unique.
        what = (node.target, repr(node.args), repr(node.kwargs))
        same = same or computed.setdefault(what, node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    sure: set[Node] = set()  # whose values nobody outside the recording can see and change
    for node in reversed(graph.nodes):
        if node.op != "output" and all(user in sure or user.target in FRESH for user in node.users):
            sure.add(node)
    for node in graph.nodes:
        if node in sure:
            _fold(recording, node)
    for node in graph.nodes:
        if (change := CHEAPER.get(node.target)) is not None:
            change(node)
    for node in reversed(graph.nodes):
        _view_at_once(node)
    for node in graph.nodes:
        node.target = _binding(node.target)
    graph.eliminate_dead_code()
    recording.recompile()
    return recording


def _constant(node: Node) -> None:
    """Make ones of the shape of a tensor without the tensor: a loss whose gradient is wanted is not computed."""
    shape, stride, dtype, device = node.meta["value"]
    if stride != torch.empty(shape, device="meta").stride():
        return
    node.target, node.args, node.kwargs = (
        aten.ones.default,
        (list(shape),),
        {"dtype": dtype, "device": device},
    )


def _fold(recording: GraphModule, node: Any) -> None:
    """Compute now what depends on no argument, and on no tensor that the function holds, which may change."""
    made = all("folded" in given.meta for given in node.all_input_nodes)
    if node.op != "call_function" or not made or "value" not in node.meta:
        return
    shape, _, dtype, _ = node.meta["value"]
    if shape.numel() * dtype.itemsize > KEPT_BYTES:
        return
    args, kwargs = map_arg((node.args, node.kwargs), lambda given: recording.get_buffer(str(given.target)))
    name = f"folded_{node.name}"
    recording.register_buffer(name, node.target(*args, **kwargs))
    with recording.graph.inserting_before(node):
        folded = recording.graph.get_attr(name)
    folded.meta = {**node.meta, "folded": True}
    node.replace_all_uses_with(folded)
    recording.graph.erase_node(node)


def _keep_padding(node: Any) -> None:
    """Keep the zeros around a small factor of a product in memory, as filling it takes longer than the rest."""
    part, widths, *value = node.args
    shape, stride, dtype, device = node.meta["value"]
    small = shape.numel() * dtype.itemsize <= KEPT_BYTES and device.type == "cpu"
    if (
        any(value)
        or min(widths, default=-1) < 0
        or not small
        or any(user.target not in PRODUCTS for user in node.users)
    ):
        return
    mine = threading.local()  # threads may call a recording at once

    def padded(part: Tensor) -> Tensor:
        if not hasattr(mine, "whole"):
            mine.whole = mine.inner = torch.empty_strided(shape, stride, dtype=dtype).zero_()
            for axis, (before, after) in enumerate(zip(widths[::2], widths[1::2], strict=True), 1):
                length = shape[-axis] - before - after
                mine.inner = mine.inner.narrow(-axis, before, length)
        mine.inner.copy_(part)
        whole: Tensor = mine.whole
        return whole

    node.target, node.args = padded, (part,)


def _copy_less(node: Any) -> None:
    """Leave out a copy, or let an operation write where its result would be copied to."""
    (given,) = node.args
    if _needless(node, given):
        node.replace_all_uses_with(given)
        return
    operation = ELEMENTWISE.get(given.target)  # whose results do not depend on where they are written
    if operation is None or len(given.users) > 1 or node.kwargs != {"memory_format": torch.contiguous_format}:
        return
    shape, _, dtype, device = node.meta["value"]
    if dtype not in (torch.float32, torch.float64):  # others round by where they are written
        return

    def written(*args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = operation(*args, **kwargs, out=torch.empty(shape, dtype=dtype, device=device))
        return result

    node.target, node.args, node.kwargs = written, given.args, given.kwargs


def _needless(node: Any, given: Any) -> bool:
    """Whether a copy is only taken apart for operations that give the same without it, in the same layout."""
    columns = [column for part in node.users for column in part.users]
    uses = {use for column in columns for use in column.users}
    if any(part.target is not aten.unbind.int for part in node.users) or any(
        use.target not in ELEMENTWISE or use.kwargs for use in uses
    ):
        return False
    if node.meta["value"][2] not in (torch.float32, torch.float64):  # others round by where they are
        return False
    apart = {part: _alike(given).unbind(*part.args[1:]) for part in node.users}
    found = {column: apart[column.args[0]][column.args[1]] for column in columns}

    def operand(one: Any) -> Tensor:
        return found[one] if one in found else _alike(one)

    if any(use.target(*map_arg(use.args, operand)).stride() != use.meta["value"][1] for use in uses):
        return False
    for column, value in found.items():
        column.meta["value"] = value.shape, value.stride(), value.dtype, value.device
    return True


def _alike(node: Any) -> Tensor:
    """Return a tensor of a node's layout. One on the meta device would import sympy, which takes a second."""
    shape, stride, dtype, device = node.meta["value"]
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _narrow(node: Any) -> None:
    """Call a slice by the name for which there is a binding, if it is a range within the axis."""
    if len(node.args) != 4 or not isinstance(node.args[2], int):
        return
    part, axis, first, _ = node.args
    if 0 <= first <= part.meta["value"][0][axis]:
        node.target = aten.narrow.default
        node.args = (part, axis, first, node.meta["value"][0][axis])


def _view_at_once(node: Any) -> None:
    """Make a view of a view of a tensor from the tensor itself, in one call in place of several."""
    if node.target not in LAYOUTS or "value" not in node.meta:
        return
    chain, source = [node], node.args[0]
    while source.target in LAYOUTS or (
        source.target is operator.getitem and source.args[0].target in LAYOUTS
    ):
        chain.append(source)
        source = source.args[0]
    shape, stride, dtype, _ = source.meta["value"]
    few = sum(one.target in LAYOUTS for one in chain) == 1
    if few or not dtype.is_floating_point or shape.numel() * dtype.itemsize > LARGEST_VIEWED:
        return
    calls = [(one.target, one.args[1:], one.kwargs) for one in reversed(chain)]

    def one_by_one(part: Any) -> Any:
        for call, args, kwargs in calls:
            part = call(part, *args, **kwargs)
        return part

    view = one_by_one(_alike(source))
    size, steps, offset = view.shape, view.stride(), view.storage_offset()

    def strided(part: Tensor) -> Tensor:
        # Layouts may depend on values, and on settings and tensors that are not arguments.
        if part.shape != shape or part.stride() != stride or part.is_neg():
            viewed: Tensor = one_by_one(part)
            return viewed
        return torch.as_strided(part, size, steps, part.storage_offset() + offset)

    node.target, node.args, node.kwargs = strided, (source,), {}


def _unchanged(node: Node) -> Node | None:
    """Return the node whose value an operation makes again, as most of those do that vmap adds to a product."""
    given = node.args[0] if node.args else None
    if not isinstance(given, Node):
        return None
    if node.target in VIEWS:
        return given if given.meta["value"][:2] == node.meta["value"][:2] else None
    back = node.target is given.target is aten.transpose.int and _dims(node) == _dims(given)
    return given.all_input_nodes[0] if back else None


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


CHEAPER = {
    aten.clone.default: _copy_less,
    aten.constant_pad_nd.default: _keep_padding,
    aten.slice.Tensor: _narrow,
}
