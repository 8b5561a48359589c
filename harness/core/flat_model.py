"""A module as a function of one flat vector."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from copy import deepcopy
from fnmatch import fnmatchcase
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn

from harness.core.execution.ghost import watched
from harness.core.registry import UserError

NORMS = (nn.GroupNorm, nn.LayerNorm)
Start = Callable[[torch.Generator], Tensor]
#: Why a module is taken in loops: they are faster; torch cannot vectorize it over clients, nor over samples.
Loops = Literal["faster", "clients", "samples"]


def set_start(module: nn.Module, start: Start) -> None:
    """Set the function that draws a module's start values ``(P,)``, in place of a rule for each kind of layer."""
    vars(module)["start_values"] = start


def start_of(module: nn.Module) -> Start | None:
    """Return the function that draws a module's start values, if it was given one."""
    start: Start | None = vars(module).get("start_values")
    return start


def take_in_loops(module: nn.Module, why: Loops = "faster") -> None:
    """Mark a module and all its parts as not vectorized over clients, unless a run asks for it."""
    for part in module.modules():
        vars(part)["in_loops"] = why


def loops_of(module: nn.Module | None) -> Loops | None:
    """Return why a module is taken in loops, if it has been marked."""
    parts = () if module is None else module.modules()
    marked = (vars(part).get("in_loops") for part in parts)
    return next((why for why in marked if why is not None), None)


class Ravel:
    """A module seen as a function of one flat vector of all its parameters.

    Parameters
    ----------
    module : nn.Module
        Supplies the computation and the shapes; its parameter values are not used. Its attribute
        ``initializer`` ("default", "xavier" or "kaiming") selects the rule of `init`, unless `set_start` gave it
        start values. An attribute ``computes`` of one of its layers is the dtype of the computation; outputs have
        the dtype of the vector. A parameter may have several names, as under weight tying.

    Attributes
    ----------
    size : int
        Number of parameters P.
    names : tuple[str, ...]
        Parameter names, in the order of the vector.

    Raises
    ------
    UserError
        If the module has buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        if any(True for _ in module.buffers()):
            raise UserError("models with buffers (batch norm) are not supported; use group norm")
        self.module = deepcopy(module).to("meta")  # shapes only: problems outlive their runs in caches
        marked = (vars(part).get("computes") for part in module.modules())
        self._computes: torch.dtype | None = next((dtype for dtype in marked if dtype is not None), None)
        self._mine = threading.local()
        shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        self.names = tuple(shapes)
        aliases: dict[int, list[str]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            aliases.setdefault(id(parameter), []).append(name)
        self._aliases = tuple(aliases.values())  # every name of each parameter
        self.shapes = tuple(shapes.values())
        self.sizes = [shape.numel() for shape in self.shapes]
        self.size = sum(self.sizes)
        self.tied = len(self.names) < sum(map(len, self._aliases))

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Apply the module with parameters ``x``, shape ``(P,)``, to a batch of inputs ``(B, ...)``."""
        module = self._own_module()
        vector = x.to(self._computes or x.dtype)
        for slots, value in zip(self._mine.slots, self.parameters(vector).values(), strict=True):
            lent = _channels_last(value) if value.ndim == 4 else value
            for layer, name in slots:
                setattr(layer, name, lent)
        with watched(self._layers, self.size, tied=self.tied):
            output: Tensor = module(inputs.to(self._computes or inputs.dtype))
        for layer, name in chain(*self._mine.slots):
            setattr(layer, name, None)  # otherwise the last model of every problem stays in memory
        # Linear layers hand on transposed products. Whoever sums outputs finds one layout, alone and side by side.
        return output.to(x.dtype).contiguous()

    def _own_module(self) -> nn.Module:
        """Return this thread's copy of the module, with plain attributes instead of parameters.

        This does once what `torch.func.functional_call` does at every call.
        """
        if not hasattr(self._mine, "module"):
            module = deepcopy(self.module)
            paths = [[name.rpartition(".") for name in names] for names in self._aliases]
            # A layer may have several names, too.
            self._mine.slots = [
                list(dict.fromkeys((module.get_submodule(path), name) for path, _, name in every))
                for every in paths
            ]
            for layer, name in chain(*self._mine.slots):
                delattr(layer, name)
            self._mine.module = module
        own: nn.Module = self._mine.module
        return own

    def _layers(self) -> list[nn.Module]:
        """Return this thread's layers with parameters."""
        return list(dict.fromkeys(layer for layer, _ in chain(*self._mine.slots)))

    def parameters(self, x: Tensor) -> dict[str, Tensor]:
        """Return named views of ``x``, from one split, so that the backward pass is one concatenation."""
        pieces = x.split(self.sizes)
        return {
            name: piece.view(shape)
            for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)
        }

    def init(self, generator: torch.Generator) -> Tensor:
        """Draw initial parameters ``(P,)`` in float32.

        ``default``: uniform in +-1/sqrt(fan in) for weights and biases, as in torch; ``xavier``: Xavier-normal
        weights, biases 1/size; ``kaiming``: normal weights of variance 2/(fan in), biases zero (He et al. 2015),
        for deep networks without norm layers. Norm layers start as the identity, embeddings as standard normals.

        Raises
        ------
        UserError
            If a layer with parameters is of no kind that has a rule.
        """
        if (start := start_of(self.module)) is not None:
            return start(generator)
        rule = getattr(self.module, "initializer", "default")
        drawn = {name: torch.zeros(shape) for name, shape in zip(self.names, self.shapes, strict=True)}
        for prefix, layer in self.module.named_modules():
            path = f"{prefix}." if prefix else ""
            if isinstance(layer, nn.Linear | nn.Conv2d):
                weight = drawn[path + "weight"]
                bias = drawn[path + "bias"] if layer.bias is not None else torch.zeros(0)
                if rule == "xavier":
                    nn.init.xavier_normal_(weight, generator=generator)
                    bias.fill_(1 / max(1, bias.numel()))
                elif rule == "kaiming":
                    nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
                else:
                    bound = 1 / math.sqrt(weight[0].numel())
                    weight.uniform_(-bound, bound, generator=generator)
                    bias.uniform_(-bound, bound, generator=generator)
            elif isinstance(layer, NORMS):
                drawn[path + "weight"].fill_(1.0)
            elif isinstance(layer, nn.Embedding):
                drawn[path + "weight"].normal_(generator=generator)
            elif any(True for _ in layer.parameters(recurse=False)):
                raise UserError(
                    f"no initialization rule for {type(layer).__name__}; there are rules for Linear, Conv2d, "
                    "Embedding, GroupNorm and LayerNorm; a Net with initializer 'own' starts as constructed"
                )
        return torch.cat([value.flatten() for value in drawn.values()])

    def segment(self, pattern: str) -> Tensor:
        """Return the positions of all parameters whose name matches, for instance ``"head.*"``."""
        ends = torch.tensor(self.sizes).cumsum(0).tolist()
        positions = [
            torch.arange(end - size, end)
            for name, size, end in zip(self.names, self.sizes, ends, strict=True)
            if fnmatchcase(name, pattern)
        ]
        if not positions:
            raise ValueError(f"no parameter matches {pattern!r}; the model has {', '.join(self.names)}")
        return torch.cat(positions)


def _channels_last(weight: Tensor) -> Tensor:
    """Store filters ``(out, in, height, width)`` channels-last, which makes CPU convolutions a fifth faster.

    Activations follow the layout of the weights; results differ by rounding only. Written with permutations because
    vmap does not support memory formats.
    """
    return weight.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)
