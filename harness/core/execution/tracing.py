"""Recordings of vectorized functions, to save the overhead of vectorizing them at every call."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from harness.core.execution.simplify import simplified

CALLS = 20  # calls before a function is recorded: recording costs what 6 to 60 recorded calls save
KINDS = 16  # recordings kept per function, to bound memory in a sweep over batch sizes

aten = torch.ops.aten
Function = Callable[..., tuple[Tensor, ...]]


class Unrecordable(RuntimeError):
    """A function with operations that differ between arguments of one kind."""


class Recorded:
    """A pure function of tensors that is recorded after many calls with tensors of one kind.

    `torch.func.vmap` and autograd determine the operations at every call, which takes longer than the operations of
    a small model. A recording is the list of these operations, including the backward pass. It computes the same
    bits as the function.

    Results must not be changed in place: they may share memory with each other or with arguments.

    Parameters
    ----------
    fn : Callable
        Function of tensors that returns a tuple of tensors. Its operations may depend on the kind of its arguments
        (shapes, strides, dtypes, devices), not on their values, as vmap requires.
    """

    def __init__(self, fn: Function) -> None:
        self._fn = fn
        self._calls: Counter[object] = Counter()
        self._recordings: dict[object, Function] = {}

    def __call__(self, *tensors: Tensor, ahead: float = 0.0) -> tuple[Tensor, ...]:
        """Return the function's result; ``ahead`` calls are expected for each past one, 0 if unknown."""
        kind = tuple([(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in tensors])
        recording = self._recordings.get(kind)
        if recording is None:
            self._calls[kind] += 1
            calls = self._calls[kind]
            if calls <= CALLS and calls * ahead <= CALLS:
                return self._fn(*tensors)
            if len(self._recordings) >= KINDS:
                self._recordings.clear()
                self._calls.clear()
            try:
                recording = simplified(record(self._fn, tensors)).forward
            except Unrecordable:
                recording = self._fn
            self._recordings[kind] = recording
        if recording is self._fn:
            return recording(*tensors)
        with torch.no_grad():
            return tuple(recording(*tensors))


def record(fn: Function, tensors: Sequence[Tensor]) -> GraphModule:
    """Call a function of tensors and return its operations.

    Below vmap and autograd every operation is one on plain tensors. torch's `make_fx` also records, but imports the
    compiler, which takes two seconds, and takes four times as long. `torch.func.grad` imports the compiler too;
    `torch.autograd.grad` does not.

    Raises
    ------
    Unrecordable
        If operations depend on values, or draw from a generator.
    """
    graph, constants = Graph(), nn.Module()
    # Distinct tensors, so that the recording does not identify arguments that happen to be the same tensor.
    inputs = [tensor.detach() for tensor in tensors]
    operations = _OperationWriter(graph, constants)
    for number, tensor in enumerate(inputs):
        operations.know(tensor, graph.placeholder(f"tensor_{number}"))
    with operations:
        results = fn(*inputs)
    graph.output(tuple(operations.node(result) for result in results))
    return GraphModule(constants, graph)


class _OperationWriter(TorchDispatchMode):
    """Writer of operations into a graph."""

    def __init__(self, graph: Graph, constants: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph, self._constants = graph, constants
        self._nodes = WeakTensorKeyDictionary()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = tree_map_only(Tensor, self.node, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func is aten.is_same_size.default or (result is None and not func._schema.is_mutable):
            return result  # a check, which arguments of this kind have passed
        if not (result is None or isinstance(result, Tensor | list | tuple)):
            raise Unrecordable(f"{func} returns no tensor, so that operations depend on values")
        if any(isinstance(leaf, torch.Generator) for leaf in tree_leaves((args, kwargs))):
            raise Unrecordable(f"{func} draws from a generator")
        call = self._graph.call_function(func, *arguments)
        if isinstance(result, Tensor):
            self.know(result, call)
        for number, tensor in enumerate(result if isinstance(result, list | tuple) else ()):
            if isinstance(tensor, Tensor):  # gradients that are not asked for are None
                self.know(tensor, self._graph.call_function(operator.getitem, (call, number)))
        return result

    def know(self, value: Tensor, node: Node) -> None:
        """Note the node that stands for a tensor."""
        node.meta["value"] = value.shape, value.stride(), value.dtype, value.device
        self._nodes[value] = node

    def node(self, value: Tensor) -> Node:
        """Return the node of a tensor; one that no operation made is a constant."""
        if value not in self._nodes:
            name = f"constant_{len(list(self._constants.buffers()))}"
            self._constants.register_buffer(name, value)
            self.know(value, self._graph.get_attr(name))
        node: Node = self._nodes[value]
        return node
