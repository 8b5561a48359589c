"""Problem types and their registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Literal

import torch
from torch import nn

from datasets.federation import Federation
from harness.core.flat_model import seeded
from harness.core.problem import Kind, Problem
from harness.core.registry import Registry
from harness.models import Shape, build, compute_in


@dataclass(frozen=True)
class Setting:
    """Inputs for building a problem.

    Attributes
    ----------
    settings : Any
        Settings of the problem, an instance of its `ProblemType.settings`.
    federation : Federation or None
        The clients' data; None for problems with their own data. Other runs share it, so a problem that changes the
        data must return a new federation.
    model : tuple[str, Mapping[str, object]] or None
        Name and settings of the model.
    seed : int
        Seed of the run, for random choices of the problem.
    computes : torch.dtype or None
        Type that networks compute in, if it differs from the type of their parameters.
    """

    settings: Any
    federation: Federation | None
    model: tuple[str, Mapping[str, object]] | None
    seed: int = 0
    computes: torch.dtype | None = None

    def net(self, outputs: int) -> nn.Module:
        """Return the model that the run names, for the clients' inputs."""
        assert self.federation is not None and self.model is not None
        name, settings = self.model
        return self.built(name, tuple(self.federation.pool.x.shape[1:]), outputs, settings)

    def built(self, name: str, shape: Shape, outputs: int, settings: Mapping[str, object] = {}) -> nn.Module:
        """Return any network, see `harness.models.build`."""
        net = build(name, shape, outputs, settings, self.seed)
        compute_in(self.computes, net)
        return net


Build = Callable[[Setting], tuple[Problem, Federation]]


@dataclass(frozen=True)
class ProblemType:
    """A type of problem.

    Attributes
    ----------
    name : str
        Registry name.
    kind : {"erm", "minimax", "bilevel", "vertical"}
        Structure that algorithms must solve.
    version : int
        Raised when results change; part of a run's identity.
    about : str
        Description of one line.
    settings : type
        Frozen dataclass of the settings in a run file.
    data : {"horizontal", "vertical", "own"}
        Whether clients hold rows or columns of a data set, or the problem has its own data.
    labels : {"classes", "numbers"}
        What is predicted of a data set.
    build : Callable
        Maps a `Setting` to the problem and its federation.
    """

    name: str
    kind: Kind
    version: int
    about: str
    settings: type
    data: Literal["horizontal", "vertical", "own"]
    labels: Literal["classes", "numbers"]
    build: Build

    @property
    def float64(self) -> bool:
        """Whether runs compute in double precision unless the spec says otherwise: with data of their own."""
        return self.data == "own"


PROBLEMS: Registry[ProblemType] = Registry("problem")


def problem_type(
    name: str,
    kind: Kind,
    version: int,
    about: str,
    settings: type,
    data: Literal["horizontal", "vertical", "own"] = "horizontal",
    labels: Literal["classes", "numbers"] = "classes",
) -> Callable[[Build], Build]:
    """Register the decorated function, which builds the problems of a type; arguments as of `ProblemType`."""

    def register(build: Build) -> Build:
        @wraps(build)
        def build_with_settings(setting: Setting) -> tuple[Problem, Federation]:
            problem, federation = build(setting)
            constants = problem.constants
            if constants is not None and seeded(problem.module):
                constants = (*constants, float(setting.seed))
            return replace(problem, settings=repr(setting.settings), constants=constants), federation

        PROBLEMS.add(
            name, ProblemType(name, kind, version, about, settings, data, labels, build_with_settings)
        )
        return build

    return register
