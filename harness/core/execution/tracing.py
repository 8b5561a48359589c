"""Record vectorized functions, so that they are vectorized once and not at every call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

CALLS = 100  # before a function is recorded: recording takes as long as 90 to 160 recorded calls save
KINDS = 16  # recordings of one function; a sweep over batch sizes would fill memory with them

aten = torch.ops.aten
VIEWS = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.expand.default,
    aten.permute.default,
    aten.detach.default,
)
BINDINGS = (BuiltinFunctionType, MethodDescriptorType)
Function = Callable[..., tuple[Tensor, ...]]


class Recorded:
    """A pure function of tensors that is recorded once it has been called often with tensors of one kind.

    `torch.func.vmap` and autograd find out at every call which operations to run; for a small model that
    takes longer than the operations themselves. The recording is the list of those operations, the backward
    pass included and each of them once: the same operations on the same numbers, hence the same result to the last
    bit, whether and whenever a function was recorded.

    What it returns must not be changed in place: two results may share their memory, or an argument's.

    Parameters
    ----------
    fn : Callable
        Of tensors, returns a tuple of tensors. Which operations it runs may depend on its arguments' kind
        (shapes, strides, dtypes, devices), not on their values; vmap asks for that anyway.
    ahead : Callable
        How many calls are to come for each that has been made, as far as is known; 0 if it is not.
    """

    def __init__(self, fn: Function, ahead: Callable[[], float] = lambda: 0.0) -> None:
        self._fn, self._ahead = fn, ahead
        self._calls: Counter[object] = Counter()
        self._recordings: dict[object, Function] = {}

    def __call__(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Return what the function returns."""
        kind = tuple((part.shape, part.stride(), part.dtype, part.device) for part in parts)
        recording = self._recordings.get(kind)
        if recording is None:
            self._calls[kind] += 1
            calls = self._calls[kind]
            if calls <= CALLS and calls * self._ahead() <= CALLS:
                return self._fn(*parts)
            from torch.fx.experimental.proxy_tensor import make_fx  # here: slow to import

            if len(self._recordings) >= KINDS:
                self._recordings.clear()
                self._calls.clear()
            # Each by itself: two arguments that are one tensor now would be one for ever.
            detached = [part.detach() for part in parts]
            recording = self._recordings[kind] = _simplified(make_fx(self._fn)(*detached)).forward
        with torch.no_grad():
            return tuple(recording(*parts))


def _simplified(recording: GraphModule) -> GraphModule:
    """Leave away what is computed again or changes nothing, and call torch's own bindings of what is left.

    Derivatives of one function at one point share its values: a Neumann series of ten Hessian products of a linear
    model repeats a quarter of its operations.
    """
    graph = recording.graph
    for node in graph.nodes:
        schema, tags = getattr(node.target, "_schema", None), getattr(node.target, "tags", ())
        if (schema is not None and schema.is_mutable) or torch.Tag.nondeterministic_seeded in tags:
            return recording  # what is changed in place, or drawn, is not the same again
    computed: dict[object, Node] = {}
    for node in graph.nodes:
        if node.op not in ("call_function", "get_attr"):
            continue
        same = node.args[0] if _unchanged(node) else None
        # As text: 1 and 1.0 are equal, and not the same; nodes have names of their own.
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


def _unchanged(node: Node) -> bool:
    """Whether an operation returns its argument as it is, as most of those do that vmap puts around a product."""
    given = node.args[0] if node.target in VIEWS else None
    if not isinstance(given, Node):
        return False
    before, after = given.meta.get("tensor_meta"), node.meta["tensor_meta"]  # constants have none
    return before is not None and (before.shape, before.stride) == (after.shape, after.stride)


def _binding(target: Any) -> Any:
    """Return torch's own binding of an operation where it has one: a product then takes 1 microsecond, not 2."""
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return target
    name = target.overloadpacket.__name__
    found = (getattr(place, name, None) for place in (torch, torch.Tensor))
    return next((binding for binding in found if isinstance(binding, BINDINGS)), target)
