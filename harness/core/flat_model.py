"""A module as a function of one flat vector of its trained part.

A module has a trained part, its parameters, and a public part, its buffers. The vector holds the first. The second
are constants of the problem: held once, the same for all clients and runs, part of no message. `freeze` makes
buffers of frozen parameters, so ``module.parameters()`` is the trained part for everybody who reads a module.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import _disable_current_modes

from harness.core.errors import UserError
from harness.core.execution.ghost import watched

NORMS = (nn.GroupNorm, nn.LayerNorm)
Start = Callable[[torch.Generator], Tensor]
#: Why a module is taken in loops: they are faster; torch cannot vectorize it over clients, nor over samples.
Loops = Literal["faster", "clients", "samples"]
#: Law of start values; those of a module that starts as it is constructed are set by `set_start`.
Initializer = Literal["default", "xavier", "kaiming", "own"]


@dataclass
class Traits:
    """Properties of a module beside its layers; copies of it have the same.

    Attributes
    ----------
    start : Start or None
        Draws its start values, in place of ``initializer``.
    initializer : {"default", "xavier", "kaiming", "own"}
        Law of the start values of its layers, see `Ravel.init`.
    loops : {"faster", "clients", "samples"} or None
        Why it is taken in loops.
    computes : torch.dtype or None
        The type that it computes in, if that is not the type of its parameters.
    constants : Constants or None
        Copies of the constants of the model that it is a part of.
    """

    start: Start | None = None
    initializer: Initializer = "default"
    loops: Loops | None = None
    computes: torch.dtype | None = None
    constants: Constants | None = None


def traits_of(module: nn.Module) -> Traits:
    """Return the properties of a module: its own object, which may be changed."""
    traits: Traits = vars(module).setdefault("traits_of_module", Traits())
    return traits


def set_start(module: nn.Module, start: Start) -> None:
    """Set the function that draws a module's start values ``(P,)``, in place of a rule for each kind of layer."""
    traits_of(module).start = start


def start_of(module: nn.Module) -> Start | None:
    """Return the function that draws a module's start values, if it was given one."""
    return traits_of(module).start


def take_in_loops(module: nn.Module, why: Loops = "faster") -> None:
    """Mark a module and all its parts as not vectorized over clients, unless a run asks for it."""
    for layer in module.modules():
        traits_of(layer).loops = why


def loops_of(module: nn.Module | None) -> Loops | None:
    """Return why a module is taken in loops, if it has been marked."""
    traits = () if module is None else map(traits_of, module.modules())
    return next((each.loops for each in traits if each.loops is not None), None)


Copies = dict[tuple[Tensor, torch.device, torch.dtype], Tensor]


class Constants:
    """Copies of a model's constants in other types or on other devices, and which of them a run's seed draws.

    All parts of a model have one object in common. It is the same in deep copies, and so in smaller models. A copy
    is made once.

    Attributes
    ----------
    seeded : tuple of Tensor
        Constants that the run's seed draws.
    """

    def __init__(self) -> None:
        self._copies: Copies = {}
        self._copies_of_seeded: Copies = {}
        self.seeded: tuple[Tensor, ...] = ()

    def __deepcopy__(self, _: object) -> Constants:
        return self

    @classmethod
    def of(cls, module: nn.Module) -> Constants:
        """Return the object of a module, which `freeze` gives it; a new one without."""
        return traits_of(module).constants or cls()

    def belong_to(self, module: nn.Module) -> None:
        """Give a module and all its parts this object as theirs."""
        for layer in module.modules():
            traits_of(layer).constants = self

    def placed(self, constant: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return a constant on a device in a type.

        It is a plain tensor although the module may just be vectorized, differentiated or recorded.
        """
        if constant.device == device and constant.dtype == dtype:
            return constant
        of_run = any(constant is one for one in self.seeded)
        copies, key = self._copies_of_seeded if of_run else self._copies, (constant, device, dtype)
        if key not in copies:
            with torch._C._DisableFuncTorch(), _disable_current_modes(), torch.no_grad():
                copies[key] = constant.to(device, dtype)
        return copies[key]

    def share(self, earlier: Constants) -> None:
        """Use the copies of an equal model, but for those of what the seed draws."""
        self._copies = earlier._copies


def freeze(module: nn.Module) -> None:
    """Make the frozen parameters of a module buffers, in place: public constants of the problem.

    A parameter is frozen if its ``requires_grad`` is False. One that several layers share stays shared.
    """
    Constants.of(module).belong_to(module)
    constants: dict[nn.Parameter, Tensor] = {}
    for layer in list(module.modules()):
        for name, parameter in list(layer.named_parameters(recurse=False)):
            if not parameter.requires_grad:
                if parameter not in constants:
                    value = parameter.detach()
                    constants[parameter] = _channels_last(value) if value.ndim == 4 else value
                delattr(layer, name)
                layer.register_buffer(name, constants[parameter])


def seed_constants(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Replace constants, given by their names, by those that the run's seed draws: they are in no digest."""
    set_constants(module, values)
    Constants.of(module).seeded = tuple(values.values())


def seeded(module: nn.Module | None) -> bool:
    """Return whether some constants of a module are drawn by the run's seed."""
    return module is not None and bool(Constants.of(module).seeded)


def _named_constants(module: nn.Module | None) -> dict[str, Tensor]:
    """Return the constants of a module that are the same for all seeds."""
    if module is None:
        return {}
    drawn = set(Constants.of(module).seeded)
    return {name: value for name, value in module.named_buffers() if value not in drawn}


def constants_digest(module: nn.Module | None) -> str:
    """Return the digest of a module's constants with their names; empty if it has none.

    Those that the run's seed draws follow from it.
    """
    constants = _named_constants(module)
    if not constants:
        return ""
    digest = hashlib.sha256()
    for name, value in constants.items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return f"sha256:{digest.hexdigest()[:16]}"


def constants_of(module: nn.Module) -> list[tuple[Tensor, list[str]]]:
    """Return the constants of a module, each with all of its names."""
    constants: dict[Tensor, list[str]] = {}
    for name, value in module.named_buffers(remove_duplicate=False):
        constants.setdefault(value, []).append(name)
    return list(constants.items())


def share_constants(module: nn.Module, earlier: nn.Module) -> None:
    """Give a module the constants of an equal one, with their copies, but for those that a run's seed draws."""
    set_constants(module, _named_constants(earlier))
    Constants.of(module).share(Constants.of(earlier))


def set_constants(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Replace constants of a module, each given by the first of its names; other modules keep theirs."""
    for _, names in constants_of(module):
        if names[0] in values:
            for layer, name in _slots(module, names):
                setattr(layer, name, values[names[0]])


def changes_in_forward(layer: nn.Module) -> bool:
    """Return whether a layer is batch normalization that uses, or updates, statistics of its batch."""
    return isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)


class Ravel:
    """A module seen as a function of one flat vector of its parameters; its buffers are constants.

    Parameters
    ----------
    module : nn.Module
        Supplies the computation, the shapes and the values of buffers, which are not copied; the values of its
        parameters are not used. None may be frozen, see `freeze`. Its `Traits` select how it starts, and those of
        its layers the type that it computes in; outputs have the dtype of the vector.
        A parameter may have several names, as under weight tying.

    Attributes
    ----------
    size : int
        Number of parameters P.
    names : tuple[str, ...]
        Parameter names, in the order of the vector.

    Raises
    ------
    UserError
        If a parameter is frozen, or batch normalization would change buffers. A call raises it if forward changes
        one.
    """

    def __init__(self, module: nn.Module) -> None:
        if any(map(changes_in_forward, module.modules())):
            raise UserError("batch normalization in training mode changes its buffers; use group norm")
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                raise UserError(f"parameter {name!r} is frozen; call harness.models.freeze(module) before")
        self._constants, self._copies = constants_of(module), Constants.of(module)
        shared = {id(value): value for value, _ in self._constants}
        # Shapes only, as problems outlive their runs in caches.
        self.module = deepcopy(module, shared).to("meta")
        marked = (traits_of(layer).computes for layer in module.modules())
        self._computes: torch.dtype | None = next((dtype for dtype in marked if dtype is not None), None)
        self._mine = threading.local()
        shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        self.names = tuple(shapes)
        aliases: dict[nn.Parameter, list[str]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            aliases.setdefault(parameter, []).append(name)
        self._aliases = tuple(aliases.values())  # every name of each parameter
        self.shapes = tuple(shapes.values())
        self.sizes = [shape.numel() for shape in self.shapes]
        self.size = sum(self.sizes)
        self.tied = len(self.names) < sum(map(len, self._aliases))

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Apply the module with parameters ``x``, shape ``(P,)``, to a batch of inputs ``(B, ...)``."""
        module = self._own_module()
        self._place_constants(x.device, self._computes or x.dtype)
        vector = x.to(self._computes or x.dtype)
        for slots, value in zip(self._mine.slots, self.parameters(vector).values(), strict=True):
            lent = _channels_last(value) if value.ndim == 4 else value
            for layer, name in slots:
                setattr(layer, name, lent)
        with watched(self._layers, self.size, tied=self.tied):
            output: Tensor = module(inputs.to(self._computes or inputs.dtype))
        self._check_constants()
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
            self._mine.slots = [_slots(module, names) for names in self._aliases]
            for layer, name in chain(*self._mine.slots):
                delattr(layer, name)
            self._mine.module, self._mine.placed, self._mine.held = module, None, []
        own: nn.Module = self._mine.module
        return own

    def _place_constants(self, device: torch.device, dtype: torch.dtype) -> None:
        """Give this thread's module the constants on a device, those that are real numbers in a type."""
        if not self._constants or self._mine.placed == (device, dtype):
            return
        held: list[tuple[nn.Module, str, Tensor, int]] = []
        for value, names in self._constants:
            placed = self._copies.placed(value, device, dtype if value.is_floating_point() else value.dtype)
            for layer, name in _slots(self._mine.module, names):
                setattr(layer, name, placed)
                held.append((layer, name, placed, placed._version))
        self._mine.placed, self._mine.held = (device, dtype), held

    def _check_constants(self) -> None:
        """Raise UserError if forward has changed a constant: one client's samples would enter all that follows."""
        for layer, name, placed, version in self._mine.held:
            if getattr(layer, name) is not placed or placed._version != version:
                raise UserError(
                    f"buffer {name!r} of {type(layer).__name__} changes in forward, and constants are shared by "
                    "all clients and runs; use layers without statistics (GroupNorm), or compute it in forward"
                )

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
        rule = traits_of(self.module).initializer
        drawn = {name: torch.zeros(shape) for name, shape in zip(self.names, self.shapes, strict=True)}
        for prefix, layer in self.module.named_modules():
            path = f"{prefix}." if prefix else ""
            trained = {name for name, _ in layer.named_parameters(recurse=False)}
            if not trained:
                continue
            weight, bias = (drawn.get(path + leaf, torch.zeros(0)) for leaf in ("weight", "bias"))
            if isinstance(layer, nn.Linear | nn.Conv2d):
                if rule == "xavier":
                    if "weight" in trained:
                        nn.init.xavier_normal_(weight, generator=generator)
                    bias.fill_(1 / max(1, bias.numel()))
                elif rule == "kaiming":
                    if "weight" in trained:
                        nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
                else:
                    bound = 1 / math.sqrt(layer.weight[0].numel())
                    weight.uniform_(-bound, bound, generator=generator)
                    bias.uniform_(-bound, bound, generator=generator)
            elif isinstance(layer, NORMS):
                weight.fill_(1.0)
            elif isinstance(layer, nn.Embedding):
                weight.normal_(generator=generator)
            else:
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


def _slots(module: nn.Module, names: Sequence[str]) -> list[tuple[nn.Module, str]]:
    """Return the layers, and the attributes there, that hold a tensor of these names; a layer may have several."""
    paths = (name.rpartition(".") for name in names)
    return list(dict.fromkeys((module.get_submodule(path), name) for path, _, name in paths))


def _channels_last(weight: Tensor) -> Tensor:
    """Store filters ``(out, in, height, width)`` channels-last, which makes CPU convolutions a fifth faster.

    Activations follow the layout of the weights; results differ by rounding only. Written with permutations because
    vmap does not support memory formats. Filters of one pixel have one layout, and strides that say otherwise make
    torch compute wrong gradients of single samples under vmap.
    """
    if weight.shape[-2:] == (1, 1):
        return weight
    return weight.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)
