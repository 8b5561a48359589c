"""Results of operations on hollow tensors, by their shapes.

torch's own rules on its meta device would do, but many of them import its compiler at their first call, which takes
a second. These rules are for operations that most rounds have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
META = torch.device("meta")
REDUCED = frozenset({aten.mean, aten.all, aten.any, aten.linalg_vector_norm})
ALIKE = frozenset({aten.cumsum, aten.tril, aten.triu, aten._log_softmax, aten._log_softmax_backward_data})
JOINED = frozenset({aten.cat, aten.stack})
TRUTHS = frozenset({aten.all, aten.any})


def by_rule(func: Any, args: Any, given: dict[str, Any]) -> Any:
    """Return the hollow result of an operation on hollow tensors; torch's own if there is no rule."""
    packet = func.overloadpacket
    if torch.Tag.pointwise in func.tags:
        return args[0] if func._schema.is_mutable else _pointwise(func, args, given)
    if packet in REDUCED:
        return _reduced(packet, {**dict(zip(_names(func), args, strict=False)), **given})
    if packet in ALIKE and len(given) == 0:
        return torch.empty_like(args[0])
    if packet in JOINED:
        return _joined(packet, *args)
    if packet is aten.addmm:
        return args[1].new_empty(args[1].shape[0], args[2].shape[1])
    return func(*args, **given)


def _names(func: Any) -> list[str]:
    return [argument.name for argument in func._schema.arguments]


def _pointwise(func: Any, args: Any, given: dict[str, Any]) -> Tensor:
    """Return a result of the common shape, of the type that one entry of each argument shows."""
    leaves = [leaf for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor)]
    some, others = tree_map_only(Tensor, lambda t: torch.ones((1,) * t.ndim, dtype=t.dtype), (args, given))
    kind = func(*some, **{name: value for name, value in others.items() if name != "device"}).dtype
    return torch.empty(torch.broadcast_shapes(*(leaf.shape for leaf in leaves)), dtype=kind, device=META)


def _reduced(packet: Any, named: dict[str, Any]) -> Tensor:
    full: Tensor = named["self"]
    given = named.get("dim")
    dims = range(full.ndim) if given is None or given == [] else [given] if isinstance(given, int) else given
    gone = {dim % max(1, full.ndim) for dim in dims}
    sizes = [1 if place in gone else size for place, size in enumerate(full.shape)]
    shape = sizes if named.get("keepdim") else [s for place, s in enumerate(sizes) if place not in gone]
    kind = torch.bool if packet in TRUTHS else named.get("dtype") or full.dtype
    return torch.empty(shape, dtype=kind, device=META)


def _joined(packet: Any, parts: list[Tensor], dim: int = 0) -> Tensor:
    if packet is aten.stack:
        parts = [part.unsqueeze(dim) for part in parts]
    parts = [part for part in parts if part.shape != (0,)] or parts[:1]
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    kind = parts[0].dtype
    for part in parts[1:]:
        kind = torch.promote_types(kind, part.dtype)
    return torch.empty(shape, dtype=kind, device=META)
