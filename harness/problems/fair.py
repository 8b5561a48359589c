"""Fair classification: minimization of the worst mixture of class losses.

Problem of Wu et al. 2023 (FedSGDA): ``min_x max_y sum_c y_c L_c(x)`` over the probability simplex, where
``L_c`` is the mean cross-entropy of a client's samples of class c, 0 where it has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from datasets.federation import Batch, Federation
from harness import models
from harness.core.errors import UserError
from harness.core.flat_model import Ravel
from harness.core.losses import cross_entropy
from harness.core.methods.derivatives import project_simplex
from harness.core.methods.moreau import envelope_gradient
from harness.core.problem import Problem
from harness.problems.base import Setting, problem_type


@dataclass(frozen=True)
class Settings:
    """Settings of the problem.

    Attributes
    ----------
    simplex_rule : {"euclidean", "renorm"}
        Map of y to the simplex: the Euclidean projection or, as in the public code of FedSGDA+, clipping negative
        weights and dividing by the sum (which converges to a different point).
    envelope : float or None
        Report as ``stationarity`` the norm of the gradient of the Moreau envelope of ``Phi(x) = max_y F(x, y)``,
        ``envelope |x - prox(x)|`` where prox minimizes ``Phi(z) + envelope / 2 |z - x|^2`` on all training samples,
        to one percent. Needs the model `logistic`, whose losses are convex, and takes hundreds of passes over the
        data at every evaluation.
    """

    simplex_rule: Literal["euclidean", "renorm"] = "euclidean"
    envelope: float | None = None


def renorm(y: Tensor) -> Tensor:
    """Clip negative weights and divide by the sum, along the last axis."""
    positive = y.clamp(min=0)
    return positive / positive.sum(-1, keepdim=True).clamp(min=1e-12)


def fair_classifier(
    module: nn.Module,
    classes: int,
    rule: Literal["euclidean", "renorm"] = "euclidean",
    envelope: float | None = None,
) -> Problem:
    """Return the problem for a module's class scores ``(B, K)``; y starts uniform, the rest as in `Settings`."""
    ravel = Ravel(module)

    def members(batch: Batch, dtype: torch.dtype) -> Tensor:
        of_class = batch.y.unsqueeze(-1) == torch.arange(classes, device=batch.y.device)
        return of_class.to(dtype) * batch.weight.unsqueeze(-1)

    def loss(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        errors = cross_entropy(ravel(x, batch.x), batch.y)
        member = members(batch, errors.dtype)
        return y @ ((errors @ member) / member.sum(0).clamp(min=1.0))

    def measure(point: dict[str, Tensor], data: Batch) -> dict[str, float]:
        """Return the gradient norm of the envelope; clients have equal weights, as in the algorithms."""
        assert envelope is not None
        member = members(data, torch.float64)
        shares = (member / member.sum(1, keepdim=True).clamp(min=1.0) / len(member)).flatten(0, 1)
        inputs, labels = data.x.flatten(0, 1).double(), data.y.flatten()

        def losses(z: Tensor) -> Tensor:
            return cross_entropy(ravel(z, inputs), labels) @ shares

        return {"stationarity": envelope_gradient(losses, point["x"], envelope)}

    return Problem(
        name="fair_classification",
        kind="minimax",
        init=lambda generator: {"x": ravel.init(generator), "y": torch.full((classes,), 1 / classes)},
        loss=loss,
        project=project_simplex if rule == "euclidean" else renorm,
        predict=ravel,
        measure=None if envelope is None else measure,
        module=module,
        rebuild=lambda smaller: fair_classifier(smaller, classes, rule, envelope),
        dense=models.dense(module),
        per_sample=False,  # a class mean divides by the number of others in the batch
        constants=(),
    )


@problem_type("fair_classification", "minimax", 4, "the worst mixture of class losses is minimized", Settings)
def _build(setting: Setting) -> tuple[Problem, Federation]:
    assert setting.federation is not None
    s: Settings = setting.settings
    if s.envelope is not None:
        if not s.envelope > 0:
            raise UserError(f"problem fair_classification: envelope must be positive, given {s.envelope}")
        if setting.model is None or setting.model[0] != "logistic":
            model = "none" if setting.model is None else setting.model[0]
            raise UserError(
                "problem fair_classification: envelope needs losses that are convex, those of the model logistic; "
                f"given {model}"
            )
    classes = len(setting.federation.classes)
    return fair_classifier(setting.net(classes), classes, s.simplex_rule, s.envelope), setting.federation
