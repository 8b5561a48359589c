"""What a kind of problem is, and the registry of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from datasets.federation import Federation
from harness.core.problem import Kind, Problem
from harness.core.registry import Registry
from harness.models import Net, Shape, build, compute_in


@dataclass(frozen=True)
class Setting:
    """What a problem is built from.

    Attributes
    ----------
    settings : Any
        The problem's own settings, an instance of its `ProblemType.settings`.
    federation : Federation or None
        The clients' data; None for problems that bring their own. Other runs have it too: what is solved on other
        data is solved on a new one.
    model : tuple[str, Mapping[str, object]] or None
        Name and settings of the model.
    seed : int
        The run's, for what the problem draws of the data.
    computes : torch.dtype or None
        What networks compute in, where it is not the type of their parameters.
    """

    settings: Any
    federation: Federation | None
    model: tuple[str, Mapping[str, object]] | None
    seed: int = 0
    computes: torch.dtype | None = None

    def net(self, outputs: int) -> Net:
        """Return the model that the run names, for inputs as clients have them."""
        assert self.federation is not None and self.model is not None
        name, settings = self.model
        return self.built(name, tuple(self.federation.pool.x.shape[1:]), outputs, settings)

    def built(self, name: str, shape: Shape, outputs: int, settings: Mapping[str, object] = {}) -> Net:
        """Return any network, see `harness.models.build`."""
        net = build(name, shape, outputs, settings)
        compute_in(self.computes, net)
        return net


@dataclass(frozen=True)
class ProblemType:
    """A kind of problem.

    Attributes
    ----------
    name : str
        Registry name.
    kind : {"erm", "minimax", "bilevel", "vertical"}
        What algorithms must solve.
    version : int
        Raised by hand when it computes something else than before; part of a run's identity.
    about : str
        One line for listings.
    settings : type
        Frozen dataclass of what may be set in a run file.
    build : Callable
        Of a `Setting`; gives the problem and the federation it is solved on.
    data : {"horizontal", "vertical", "own"}
        Clients hold rows, or columns, of a data set; or the problem brings its own data.
    float64 : bool
        Whether runs compute in double precision unless the spec says otherwise.
    """

    name: str
    kind: Kind
    version: int
    about: str
    settings: type
    build: Callable[[Setting], tuple[Problem, Federation]]
    data: Literal["horizontal", "vertical", "own"] = "horizontal"
    float64: bool = False


PROBLEMS: Registry[ProblemType] = Registry("problem")
