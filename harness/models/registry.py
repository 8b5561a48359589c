"""Models by name: a function of the shape of one input, the number of outputs and settings makes each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar, get_type_hints

import torch
from torch import nn

from harness.core import rng
from harness.core.errors import UserError, unknown
from harness.core.execution.memory import room
from harness.core.flat_model import Ravel, constants_digest, freeze, share_constants
from harness.core.registry import Registry
from harness.core.units import size
from harness.models.adapters import Adapter, adaptable, adapted, seed_adapters, start_adapters
from harness.models.own import adapt
from harness.models.values import KINDS, Shape, checked, kind_of

#: Of the parameters that any run has at once: placeholders, start, model, a client's model, gradient.
COPIES = 5

Make = Callable[..., nn.Module]
AnyMake = TypeVar("AnyMake", bound=Make)


class Model(NamedTuple):
    """A registered model.

    Attributes
    ----------
    make : Callable
        Returns the network, of ``(shape, outputs, **settings)``.
    inputs : str
        What it reads, for the list of models.
    """

    make: Make
    inputs: str

    @property
    def ours(self) -> bool:
        """Whether it is of the harness, whose tests check it."""
        return self.make.__module__ == f"{__package__}.networks"


MODELS: Registry[Model] = Registry("model")
ADAPTER = "adapter"  # a setting of all models
MOST_BUILT = 4  # models with constants that are kept, so that later runs share these
_built: dict[object, nn.Module] = {}
_digests: dict[object, str] = {}  # of the constants of all models of this process


def model(inputs: str) -> Callable[[AnyMake], AnyMake]:
    """Register the decorated function as a model under its name.

    The function takes the shape of one input, the number of outputs, and settings, which need defaults. It returns
    a module that maps ``(B, *shape)`` to ``(B, outputs)``: any `nn.Module`, which is split and starts as
    `harness.models.own` says, or a `harness.models.Net`. The first line of its docstring describes it in lists.

    Parameters
    ----------
    inputs : str
        What the model reads, for lists: "tables", "images of at least 16 x 16 pixels".

    Raises
    ------
    UserError
        If the name is taken, or a setting has no default or is of another type than numbers, text, truth values
        and tuples of whole numbers.
    """
    if not isinstance(inputs, str):
        raise UserError(f"say what the model reads: @model('tables'), not @model above {inputs.__name__!r}")

    def register(make: AnyMake) -> AnyMake:
        hints, usual = _settings(make)
        if ADAPTER in usual:
            raise UserError(
                f"model {make.__name__!r}: {ADAPTER!r} is a setting of every model; use another name"
            )
        for key, value in usual.items():
            if value is inspect.Parameter.empty:
                raise UserError(f"model {make.__name__!r}: setting {key!r} needs a default")
            if kind_of(hints[key], value) is None:
                raise UserError(f"model {make.__name__!r}: setting {key!r} must be of type {KINDS}")
        MODELS.add(make.__name__, Model(make, inputs), make)
        return make

    return register


def names() -> list[str]:
    """Return the names of all models, sorted."""
    return list(MODELS)


def describe(name: str) -> dict[str, str]:
    """Return summary, inputs and default settings of a model."""
    make, inputs = MODELS[name]
    settings = ", ".join(f"{key}={default!r}" for key, default in _settings(make)[1].items())
    summary = (inspect.getdoc(make) or name).splitlines()[0]
    return {"summary": summary, "inputs": inputs, "settings": settings}


def build(
    name: str, input_shape: Shape, outputs: int, settings: Mapping[str, object] = {}, seed: int = 0
) -> nn.Module:
    """Build a network.

    Parameters
    ----------
    name : str
        One of `names`.
    input_shape : tuple[int, ...]
        Shape of one input: ``(features,)`` for tables, ``(length, 1)`` for text, ``(channels, height, width)`` for
        images.
    outputs : int
        Number of classes, or 1 for a score.
    settings : Mapping[str, object]
        Settings of the model; lists stand for tuples. ``adapter`` is one of every model, see
        `harness.models.adapters.Adapter`.
    seed : int
        Seed of the run, which draws factors that are not trained.

    Returns
    -------
    nn.Module
        In single precision on the CPU; a `Net` if it has an extractor and a head. Its parameters are placeholders:
        `harness.core.flat_model.Ravel` draws start values. Its buffers are constants, which equal models share.

    Raises
    ------
    UserError
        If the name or a setting is unknown, a value has the wrong type, or the input does not fit the model; or if
        a module of a plugin cannot be trained in a federation, or has other constants than before.
    """
    entry = MODELS[name]
    where = f"model {name!r}:"
    shape: Shape = checked(f"{where} input_shape", input_shape, Shape)
    if not shape:
        raise UserError(f"{where} input_shape must have at least one axis")
    checked(f"{where} outputs", outputs, int)
    values = complete(name, settings)
    given = values.pop(ADAPTER, None)
    adapter = None if given is None else Adapter.read(where, given)
    construct = partial(entry.make, shape, outputs, **values)
    with rng.seeded(0):  # layers draw from global generators, whose states must not change
        if entry.ours:
            module = _ours(where, construct, values)
            if adapter is None:
                return module
            _start_by_rule(module)
            freeze(adapted(where, module, adapter, "head"))
        else:
            with torch.enable_grad():  # trials differentiate, also where a model is only applied
                module = adapt(where, construct, shape, outputs, adapter)
    if adapter is not None:
        start_adapters(module)
        seed_adapters(module, seed)
    if any(True for _ in module.buffers()):
        _share_constants(where, (entry.make, shape, outputs, repr(values), adapter), module)
    return module


def adaptable_layers(name: str, input_shape: Shape, outputs: int) -> list[str]:
    """Return the names of the layers that adapters can be on, in a model with default settings."""
    with rng.seeded(0):
        return adaptable(MODELS[name].make(input_shape, outputs, **complete(name, {})))


def _check_size(where: str, construct: Callable[[], nn.Module], settings: Mapping[str, object]) -> None:
    """Refuse a network that no run has the memory for, before it takes any.

    Raises
    ------
    UserError
        If copies of its parameters take more than is left.
    """
    with torch.device("meta"), rng.seeded(0):  # of shapes only
        entries = sum(part.numel() for part in construct().parameters())
    least, there = COPIES * torch.float32.itemsize * entries, room()
    if there is not None and least > there.bytes:
        raise UserError(
            f"{where} cannot be built with {dict(settings)}: a run with {entries:,} parameters takes at least "
            f"{size(least)}, and {size(there.bytes)} are left ({there.limit}); use a smaller model"
        )


def _ours(where: str, construct: Callable[[], nn.Module], settings: Mapping[str, object]) -> nn.Module:
    """Return a network of ours, or say that its sizes are beyond memory."""
    try:
        if "encoder" not in settings:  # whose weights are read
            _check_size(where, construct, settings)
        return construct()
    except (RuntimeError, OverflowError, TypeError) as error:  # what torch raises for sizes beyond memory
        full = "allocate memory" in str(error)
        why = "its parameters alone take more memory than is left" if full else str(error)[:100]
        raise UserError(f"{where} cannot be built with {dict(settings)}: {why}") from None


def _start_by_rule(network: nn.Module) -> None:
    """Give the parameters of a network of ours the values of its rule, the same for all seeds."""
    ravel = Ravel(network)
    network.load_state_dict(ravel.parameters(ravel.init(rng.stream(0, "frozen"))))


def _share_constants(where: str, key: object, module: nn.Module) -> None:
    """Give a module the constants of the equal one that was built before, so that runs share one copy.

    Raises
    ------
    UserError
        If they have other values, as the ids of earlier runs of this process name those.
    """
    if _digests.setdefault(key, digest := constants_digest(module)) != digest:
        raise UserError(
            f"{where} its frozen parameters or buffers are others than when it was first built, and the ids of "
            "runs name those; read them from a file that stays as it is, and load the plugin again after a change"
        )
    earlier = _built.pop(key, module)
    share_constants(module, earlier)
    _built[key] = earlier
    for old in list(_built)[:-MOST_BUILT]:
        _built.pop(old)


def complete(name: str, settings: Mapping[str, object]) -> dict[str, object]:
    """Check the types of a model's settings and add defaults.

    Raises
    ------
    UserError
        If the name or a setting is unknown, or a value has the wrong type.
    """
    hints, usual = _settings(MODELS[name].make)
    values = dict(usual)
    for key, value in settings.items():
        if key == ADAPTER:
            if value is not None:
                values[key] = Adapter.read(f"model {name!r}:", value).recorded()
            continue
        if key not in values:
            raise unknown(f"setting of model {name!r}", key, [*values, ADAPTER])
        values[key] = checked(f"model {name!r}: setting {key!r}", value, hints[key], usual[key])
    return values


@cache
def _settings(make: Make) -> tuple[dict[str, Any], dict[str, object]]:
    """Return the types and the defaults of a model's settings: all parameters but the first two."""
    parameters = list(inspect.signature(make).parameters.values())
    if len(parameters) < 2 or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise UserError(
            f"model {make.__name__!r}: the function takes (shape, outputs) and settings by name, given "
            f"{inspect.signature(make)}"
        )
    usual = {p.name: p.default for p in parameters[2:]}
    return {key: type(value) for key, value in usual.items()} | get_type_hints(make), usual
