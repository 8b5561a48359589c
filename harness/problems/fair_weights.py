"""Group weights for a fair model, as a bilevel problem.

Fairness instance of Li et al. (FedBiO, arXiv 2205.01608, eq. 48). x holds one weight per sensitive group, y the
model. The inner problem of a client weighs its training samples by group. The outer problem is the plain mean over
validation data with equally many samples of all groups that the client has:

    inner g(x, y) = mean of om_a l(y; i) over training samples i of groups a, + reg / 2 ||y||^2
    outer f(x, y) = mean of l(y; i) over the balanced validation samples

with om = x, or K softmax(x). l is cross-entropy. Both are means over single samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from datasets.federation import Batch, Federation
from datasets.validation import balanced
from harness import models
from harness.core import rng
from harness.core.errors import UserError
from harness.core.flat_model import Ravel
from harness.core.losses import cross_entropy, weighted_mean
from harness.core.methods.derivatives import project_simplex
from harness.core.problem import Problem, identity
from harness.problems.base import Setting, problem_type

Domain = Literal["simplex", "clip", "softmax", "none"]
LEAST = 0.01  # weight of a group under the domain "clip"


@dataclass(frozen=True)
class Settings:
    """Settings of the problem.

    Attributes
    ----------
    domain : {"simplex", "clip", "softmax", "none"}
        Domain of the weights of K groups: nonnegative with sum K; each at least 0.01; K softmax(x); unrestricted.
        All weights start at 1, which is plain training.
    reg : float
        Weight of ``||y||^2 / 2`` in the inner problem.
    validation : float
        Share of its smallest group's training samples that a client uses for validation, equally many of every
        group.
    keep_in_train : bool
        Whether these samples remain in the training data, so that a client without enough of a group loses none.
    """

    domain: Domain = "simplex"
    reg: float = 1e-3
    validation: float = 0.2
    keep_in_train: bool = False


def onto_simplex(x: Tensor) -> Tensor:
    """Project K weights onto the simplex of sum K, along the last axis."""
    size = x.shape[-1]
    return size * project_simplex(x / size)


PROJECTIONS: dict[Domain, Callable[[Tensor], Tensor]] = {
    "simplex": onto_simplex,
    "clip": partial(torch.clamp, min=LEAST),
    "softmax": identity,
    "none": identity,
}


def fair_weights(module: nn.Module, groups: int, domain: Domain = "simplex", reg: float = 1e-3) -> Problem:
    """Return the problem of weighing groups for a module's class scores ``(B, K)``."""
    ravel = Ravel(module)

    def losses(y: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(ravel(y, batch.x), batch.y)

    def outer(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        return weighted_mean(losses(y, batch), batch.weight)

    def inner(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        weights = groups * x.softmax(-1) if domain == "softmax" else x
        member = batch.group.unsqueeze(-1) == torch.arange(groups, device=batch.group.device)
        of_sample = member.to(weights.dtype) @ weights
        return weighted_mean(of_sample * losses(y, batch) + reg / 2 * y @ y, batch.weight)

    first = torch.zeros(groups) if domain == "softmax" else torch.ones(groups)
    return Problem(
        name="fair_weights",
        kind="bilevel",
        init=lambda generator: {"x": first.clone(), "y": ravel.init(generator)},
        loss=outer,
        inner=inner,
        project_x=PROJECTIONS[domain],
        predict=ravel,
        constants=(),
        dense=models.dense(module),
    )


@problem_type("fair_weights", "bilevel", 4, "weights of sensitive groups for a fair model", Settings)
def _build(setting: Setting) -> tuple[Problem, Federation]:
    assert setting.federation is not None
    federation, s = setting.federation, setting.settings
    if len(federation.groups) < 2:
        raise UserError(
            f"problem fair_weights: weighs sensitive groups, the data have {len(federation.groups)}; "
            "name an attribute: data.sensitive"
        )
    if not (math.isfinite(s.reg) and s.reg >= 0):
        raise UserError(f"problem fair_weights: reg must be at least 0, given {s.reg}")
    generator = rng.numpy_stream(setting.seed, "validation")
    module = setting.net(len(federation.classes))
    problem = fair_weights(module, len(federation.groups), s.domain, s.reg)
    return problem, balanced(federation, s.validation, generator, keep=s.keep_in_train)
