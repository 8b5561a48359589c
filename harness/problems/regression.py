"""Regression: numbers are predicted with half the squared error."""

from __future__ import annotations

from torch import Tensor, nn

from datasets.federation import Federation
from harness.core.problem import Problem
from harness.problems.base import Setting, problem_type
from harness.problems.classify import Settings, fitting


def squared_error(outputs: Tensor, numbers: Tensor) -> Tensor:
    """Return half of every sample's squared error ``(B,)``, of outputs ``(B, 1)``."""
    return (outputs.squeeze(-1) - numbers).square() / 2


def regressor(module: nn.Module) -> Problem:
    """Return the problem of fitting a module's output ``(B, 1)`` to numbers."""
    return fitting("regression", squared_error, module)


@problem_type("regression", "erm", 1, "numbers are predicted, squared error", Settings, labels="numbers")
def _build(setting: Setting) -> tuple[Problem, Federation]:
    assert setting.federation is not None
    return regressor(setting.net(1)), setting.federation
