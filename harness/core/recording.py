"""Vectorized functions without the cost of vectorizing them anew at every call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

CALLS = 100  # before a function is recorded: recording takes as long as some 200 recorded calls save

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
    """

    def __init__(self, fn: Function) -> None:
        self._fn = fn
        self._calls: Counter[object] = Counter()
        self._recordings: dict[object, Function] = {}

    def __call__(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Return what the function returns."""
        kind = tuple((part.shape, part.stride(), part.dtype, part.device) for part in parts)
        recording = self._recordings.get(kind)
        if recording is None:
            self._calls[kind] += 1
            if self._calls[kind] <= CALLS:
                return self._fn(*parts)
            # Each by itself: two arguments that are one tensor now would be one for ever.
            apart = [part.detach() for part in parts]
            recording = self._recordings[kind] = _once(make_fx(self._fn)(*apart)).forward
        with torch.no_grad():
            return tuple(recording(*parts))


def _once(recording: GraphModule) -> GraphModule:
    """Leave away what a recording computes again: derivatives of one function at one point share its values.

    A Neumann series of ten Hessian products of a linear model repeats a quarter of its operations.
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
        same = node.args[0] if node.target is torch.ops.aten.detach.default else None
        # As text: 1 and 1.0 are equal, and not the same; nodes have names of their own.
        what = (node.target, repr(node.args), repr(node.kwargs))
        same = same or computed.setdefault(what, node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    recording.recompile()
    return recording
