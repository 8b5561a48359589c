"""Modules of users: what can be trained in a federation, where the head is, and how parameters start.

Frozen parameters and buffers are public constants, as the constructor leaves them. Of the others the module's own
constructor draws start values, from a generator of the run. The head is the layer ``head`` if
there is one, else the last linear layer with as many outputs as the model, provided that the module's last step
applies it to one vector per sample. What comes before is the extractor. A module without such a head can be
trained whole; methods that divide a model refuse it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from harness.core import rng
from harness.core.errors import UserError
from harness.core.execution.vectorize import ClientExecutor
from harness.core.flat_model import Loops, Ravel, changes_in_forward, freeze, set_start, take_in_loops
from harness.models.adapters import Adapter, adapted, adapters_of
from harness.models.net import Net

REGISTERED = "register_buffer for tensors, nn.ModuleList for layers"
SAMPLES = 3  # in a batch on which a module is tried
MANY = 9  # in another one, on which buffers must stay as well
INSIDE = frozenset(vars(nn.Module()))  # attributes in which a module registers its own
BATCHES = 4  # of which one must show that a parameter has an effect, as ReLU has none for some


def adapt(
    where: str,
    construct: Callable[[], nn.Module],
    shape: tuple[int, ...],
    outputs: int,
    adapter: Adapter | None = None,
) -> nn.Module:
    """Return what a user's function constructs, as a `Net` if it has a head, to start as constructed.

    The module is tried on a batch, with other parameters. A `Net` keeps the start values it asks for. With an
    adapter it is tried with its factors, so what is frozen because of it need not be fit for training.

    Raises
    ------
    UserError
        If the function raises, or the module cannot be trained in a federation; the message begins with ``where``.
    """
    module, batch = _constructed(where, construct), _batch(shape, outputs)
    if adapter is not None:
        fit = partial(adapted, where, adapter=adapter, head=head_name(module, batch, outputs))
        construct = partial(_fitted, construct, fit)
        module = fit(module)
    if why := _obstacle(module):
        raise UserError(f"{where} {why}")
    freeze(module)
    tried = _shake(module)
    _try(where, tried, batch, _batch(shape, outputs, count=MANY), outputs)
    if any(True for _ in module.buffers()):
        _check_effects(where, tried, shape, outputs)
    if (why := _loops(where, tried, batch)) is not None:
        take_in_loops(module, why)
    names = tuple(name for name, _ in module.named_parameters())
    if not isinstance(module, Net):
        name_of_head = _head(tried, batch, outputs)
        if name_of_head is None:
            set_start(module, partial(_constructed_start, construct, names))
            return module
        head_parameters = tuple(name for name in names if name.rpartition(".")[0] == name_of_head)
        names = (*(name for name in names if name not in head_parameters), *head_parameters)
        head, before = _divide(module, name_of_head)
        module = Net(before, head.in_features, outputs, "own")
        module.head = head
    if module.initializer == "own":
        set_start(module, partial(_constructed_start, construct, names))
    return module


def _constructed(where: str, construct: Callable[[], nn.Module]) -> nn.Module:
    """Return what a user's function constructs; refuse whatever is no module."""
    try:
        module = construct()
    except UserError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise UserError(f"{where} {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"{where} the function returned {type(module).__name__}; return an nn.Module")
    return module


def _fitted(construct: Callable[[], nn.Module], fit: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Return what a function constructs, with adapters."""
    return fit(construct())


def _constructed_start(
    construct: Callable[[], nn.Module], names: Sequence[str], generator: torch.Generator
) -> Tensor:
    """Return parameters in the order of their names, as a constructor draws them."""
    with rng.seeded(int(torch.randint(2**32, (), generator=generator))):
        parameters = dict(construct().named_parameters())
    return torch.cat([parameters[name].detach().flatten() for name in names])


def _obstacle(module: nn.Module) -> str | None:
    """Return the reason why the layers of a module cannot be trained in a federation; None if they can."""
    registered = {*module.modules(), *module.parameters(), *module.buffers()}
    for name, layer in module.named_modules():
        what = f"{type(layer).__name__} {name!r}"
        if changes_in_forward(layer):
            return (
                f"{what} mixes the samples of a batch and keeps statistics besides the parameters; use GroupNorm "
                "or LayerNorm, or .eval() for public statistics that stay as they are"
            )
        if loose := _loose(layer, registered):
            return f"{what} keeps {loose}, which is not registered; use {REGISTERED}"
        computed = [key for key, value in vars(layer).items() if getattr(value, "requires_grad", False)]
        if computed:
            return (
                f"{what} keeps {computed[0]!r}, which is computed from parameters outside of forward; use "
                "torch.nn.utils.parametrizations"
            )
        rate = layer.p if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", 0)
        if isinstance(rate, int | float) and rate > 0 and layer.training:
            return f"{what} drops values by chance, and the harness repeats computations; set dropout to 0"
    for name, buffer in module.named_buffers():
        if buffer.layout != torch.strided:
            return f"buffer {name!r} is sparse; keep it dense"
    parameters = dict(module.named_parameters())
    if not parameters:
        return "the module has no parameters"
    if not any(parameter.requires_grad for parameter in parameters.values()):
        return "all parameters are frozen, so there is nothing to train"
    for name, parameter in parameters.items():
        if is_lazy(parameter):
            return f"parameter {name!r} has no shape yet; give lazy layers the size of their inputs"
        if parameter.dtype != torch.float32:
            return (
                f"parameter {name!r} is {parameter.dtype}; make it float32, the run's precision converts it"
            )
    return None


def _loose(layer: nn.Module, registered: Collection[object]) -> str | None:
    """Return which attribute of a layer has a tensor or a layer that no digest covers and nobody trains."""
    for key, value in vars(layer).items():
        if key in INSIDE or getattr(value, "requires_grad", False):
            continue
        for one in _parts(value):
            if isinstance(one, Tensor | nn.Module) and one not in registered:
                return f"{'a tensor' if isinstance(one, Tensor) else type(one).__name__} in attribute {key!r}"
    return None


def _parts(value: object) -> Iterable[object]:
    """Return what lists, tuples and mappings hold; other values as they are."""
    if isinstance(value, Mapping):
        value = list(value.values())
    return chain.from_iterable(map(_parts, value)) if isinstance(value, list | tuple) else [value]


def _shake(module: nn.Module) -> nn.Module:
    """Return a copy with other parameters: zeros at the start would hide what a layer does."""
    copy, generator = deepcopy(module), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return copy


def _batch(shape: tuple[int, ...], outputs: int, seed: int = 0, count: int = SAMPLES) -> Tensor:
    """Return inputs ``(B, *shape)``: numbers, or the numbers of symbols of a text, which are classes, too."""
    generator = torch.Generator().manual_seed(seed)
    if len(shape) == 2:
        return torch.randint(outputs, (count, *shape), generator=generator).float()
    return torch.randn(count, *shape, generator=generator)


def _try(where: str, module: nn.Module, batch: Tensor, larger: Tensor, outputs: int) -> None:
    """Raise UserError unless outputs have the right shape, and each is a function of its sample alone.

    Buffers must stay in a larger batch, too, and where gradients are computed.
    """
    before = {name: (value, value._version) for name, value in module.named_buffers()}
    try:
        with torch.no_grad():
            result, again = module(batch), module(batch)
            alone = [module(batch[place : place + 1]) for place in range(SAMPLES)]
        if before:
            module(larger)
    except Exception as error:  # a user's module may raise anything
        raise UserError(f"{where} on inputs {tuple(batch.shape)}: {type(error).__name__}: {error}") from error
    if not isinstance(result, Tensor) or result.shape != (SAMPLES, outputs):
        description = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise UserError(
            f"{where} inputs {tuple(batch.shape)} must give outputs {(SAMPLES, outputs)}, given {description}"
        )
    for name, value in module.named_buffers():
        was, version = before.get(name, (None, 0))
        if value is not was or value._version != version:
            raise UserError(
                f"{where} buffer {name!r} changes in a forward pass, and clients send parameters only; use layers "
                "without statistics, such as GroupNorm, or compute it in forward"
            )
    if not torch.equal(result, again):
        raise UserError(
            f"{where} forward draws random numbers, as dropout does, or changes the module; the harness repeats "
            "computations, so equal inputs must give equal outputs"
        )
    if not _close(result, torch.cat(alone)):
        raise UserError(
            f"{where} the output for a sample depends on the others of its batch, as under batch normalization, "
            "and privacy could not bound what a sample contributes; use GroupNorm or LayerNorm"
        )


def _check_effects(where: str, module: nn.Module, shape: tuple[int, ...], outputs: int) -> None:
    """Raise UserError unless outputs depend on every trained parameter of a module that is frozen in part.

    Under noise a parameter without effect moves like any other, and a run would spend its budget on nothing.
    """
    silent = dict(module.named_parameters())
    for seed in range(BATCHES):
        value = module(_batch(shape, outputs, seed)).square().sum()
        if value.requires_grad and silent:
            slopes = torch.autograd.grad(value, list(silent.values()), allow_unused=True)
            pairs = zip(list(silent), slopes, strict=True)
            silent = {name: silent[name] for name, slope in pairs if slope is None or not bool(slope.any())}
    for name in silent:
        raise UserError(
            f"{where} parameter {name!r} is trained and has no effect on the outputs; freeze it, or see that "
            "gradients reach it: forward may detach what it computes, or call torch.no_grad"
        )


def _loops(where: str, module: nn.Module, batch: Tensor) -> Loops | None:
    """Return why a module must be taken in loops: torch lacks rules to vectorize what it does, or has wrong ones.

    Raises
    ------
    UserError
        If gradients of single samples cannot be computed at all, or vectorized have other values.
    """
    ravel = Ravel(module)
    x = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    slope = torch.func.grad(lambda x, one: ravel(x, one.unsqueeze(0)).square().sum())
    points = torch.stack([x, x.flip(0)])
    try:
        with warnings.catch_warnings(record=True) as caught_warnings:
            warnings.simplefilter("always")
            vectorized = torch.func.vmap(slope, randomness="error")(points, batch[:2])
    except UserError:
        raise
    except Exception as error:  # of torch, for operations that it cannot vectorize
        raise UserError(
            f"{where} torch.func.vmap cannot vectorize forward, as the harness does over clients and samples: "
            f"{str(error).split('. ')[0]}; avoid branches on values and changes in place"
        ) from error
    plain = torch.stack([slope(point, one) for point, one in zip(points, batch, strict=False)])
    if not (_close(vectorized, plain) and _agrees(ClientExecutor("loop", singly=True), ravel, points, batch)):
        raise UserError(
            f"{where} torch.func.vmap computes other gradients of forward than a loop does; use layers that it "
            "knows, for instance a loop over nn.GRUCell in place of nn.GRU"
        )
    if not _agrees(ClientExecutor("loop"), ravel, points, batch):
        return "samples"
    if not _agrees(ClientExecutor("vmap"), ravel, points, batch):
        return "clients"
    return "faster" if any("batching rule" in str(one.message) for one in caught_warnings) else None


class _Some(NamedTuple):
    """A batch on which a module is tried."""

    x: Tensor
    weight: Tensor


def _agrees(executor: ClientExecutor, ravel: Ravel, points: Tensor, batch: Tensor) -> bool:
    """Return whether gradients of clients, and clipped ones of their samples, are those of single samples.

    As many clients as samples are tried, too: then torch cannot see that it takes the ones for the others.
    """

    def loss(x: Tensor, batch: _Some) -> Tensor:
        return (ravel(x, batch.x).square().sum(-1) * batch.weight).sum()

    for samples in (batch, batch[: len(points)]):
        some = _Some(samples.expand(len(points), *samples.shape), torch.ones(len(points), len(samples)))
        single = [
            [torch.func.grad(loss)(point, _Some(sample[None], torch.ones(1))) for sample in samples]
            for point in points
        ]
        per_sample = torch.stack([torch.stack(client_gradients) for client_gradients in single])
        norms = per_sample.norm(dim=-1, keepdim=True)
        limit = float(norms.median())
        clipped = (per_sample * (limit / norms.clamp(min=1e-30)).clamp(max=1)).sum(1)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*batching rule")  # torch loops where it has none
                (gradients,) = executor.gradient(loss, 1, [points], some)
                (short,) = executor.clipped_sums(loss, 1, [points], some, norm=limit)
        except Exception:  # of torch, for operations that it cannot vectorize
            return False
        if not (_close(gradients, per_sample.sum(1)) and _close(short, clipped)):
            return False
    return True


def _close(values: Tensor, expected: Tensor) -> bool:
    return torch.allclose(values, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def head_name(network: nn.Module, batch: Tensor, outputs: int) -> str | None:
    """Return the name of the head of a network that has not been tried, if it has one."""
    if isinstance(network, Net):
        return "head"
    try:
        return _head(_shake(network), batch, outputs)
    except Exception:  # the network cannot be trained, and the trials of what is trained say why
        return None


def _head(module: nn.Module, batch: Tensor, outputs: int) -> str | None:
    """Return the name of the linear layer that is applied last, once, to one vector per sample, if any.

    It must be trained as a whole, and is no factor of an adapter.
    """
    factors = {part for layer in adapters_of(module) for part in layer.modules()}
    linear = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    layers = {
        name: layer
        for name, layer in linear.items()
        if not any(True for _ in layer.buffers()) and layer not in factors
    }
    named = [name for name, layer in layers.items() if name == "head" or layer.out_features == outputs]
    if not named:
        return None
    name = "head" if "head" in layers else named[-1]
    own = set(layers[name].parameters())
    uses = sum(parameter in own for _, parameter in module.named_parameters(remove_duplicate=False))
    if not name or uses > len(own):  # the module is the layer, or others share its parameters
        return None
    head, before = _divide(deepcopy(module), name)
    try:
        with torch.no_grad():
            features = before(batch)
            plain = features.shape == (SAMPLES, head.in_features)
            return name if plain and torch.equal(head(features), module(batch)) else None
    except Exception:  # the module asks its head for more than its output
        return None


def _divide(module: nn.Module, name: str) -> tuple[nn.Linear, nn.Module]:
    """Take a linear layer out of a module."""
    owner, _, leaf = name.rpartition(".")
    head = module.get_submodule(name)
    assert isinstance(head, nn.Linear)
    setattr(module.get_submodule(owner), leaf, nn.Identity())
    return head, module
