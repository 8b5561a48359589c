"""AUROC maximization: a minimax form of the pairwise squared surrogate, for models with one output.

Problem of Liu et al. 2020 (Stochastic AUC maximization with deep neural networks), as Wu et al. 2023 (FedSGDA)
use it. With the score h = sigmoid(model(m, a)) of an input a, p the share of positives and x = (m, a, b), y = w:

    f = (1 - p) (h - a)^2 [+] + p (h - b)^2 [-] + 2 (1 + w) (p h [-] - (1 - p) h [+]) - p (1 - p) w^2,

averaged over samples. At the saddle of a and b (mean scores of the two classes) and w (their difference) it is
``p (1 - p) (mean over pairs of (1 - h(pos) + h(neg))^2 - 1)``. f is strongly concave in w, and the maximizer is
known in closed form, so the gradient of ``Phi(x) = max_w F(x, w)`` is measured exactly.

The reduction to pairs needs p to be the share of positives in the average. Algorithms weigh clients equally, so p
is the mean of the clients' shares; for clients of one size that is the share among all samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from datasets.federation import Batch, Federation
from harness import models
from harness.core.errors import UserError
from harness.core.execution.exact.functions import sigmoid
from harness.core.flat_model import Ravel
from harness.core.losses import weighted_mean
from harness.core.problem import Problem
from harness.problems.base import Setting, problem_type

CHUNK = 2048  # samples in one pass of `measure`
PUBLIC = "the clients' mean share of positives among their training samples"


@dataclass(frozen=True)
class Settings:
    """Settings of the problem.

    Attributes
    ----------
    own_p : bool
        Every client uses the share of positives among its own samples instead of one public number. The objective
        is then a mean of surrogates within clients. Samples carry their client's number in place of their sensitive
        group, so there are no group metrics. One sample changes the loss of all samples of its client, so privacy
        with unit "record" is refused.
    """

    own_p: bool = False


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The squared surrogate of AUROC in x = (model, a, b) and y = (w,).

    Attributes
    ----------
    ravel : Ravel
        The model; the score is the sigmoid of its output.
    p : Tensor
        Share of positives: one number, or one per client, ``(C,)``, with the client in `Batch.group`.
    """

    ravel: Ravel
    p: Tensor

    def output(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Return the model's output, ``(B,)``."""
        return self.ravel(x[: self.ravel.size], inputs).squeeze(-1)

    def shares(self, batch: Batch) -> Tensor:
        """Return the share of positives that holds for each sample, ``()`` or ``(B,)``."""
        share = self.p.to(batch.x.device, batch.x.dtype)
        return share if self.p.ndim == 0 else share[batch.group]

    def slope(self, h: Tensor, batch: Batch) -> Tensor:
        """Return half of each sample's contribution to the factor of w, given the scores h, ``(B,)``."""
        return torch.where(batch.y == 1, -(1 - self.shares(batch)) * h, self.shares(batch) * h)

    def errors(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Return the terms of the samples, ``(B,)``."""
        h, q = sigmoid(self.output(x, batch.x)), self.shares(batch)
        (a, b), w = x[self.ravel.size :], y[0]
        spread = torch.where(batch.y == 1, (1 - q) * (h - a) ** 2, q * (h - b) ** 2)
        return spread + 2 * (1 + w) * self.slope(h, batch) - q * (1 - q) * w**2

    def loss(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Return the weighted mean of the samples' terms."""
        return weighted_mean(self.errors(x, y, batch), batch.weight)

    def measure(self, point: dict[str, Tensor], data: Batch) -> dict[str, float]:
        """Return ``Phi`` and the norm of its gradient; clients have equal weights, as in the algorithms."""
        x = point["x"].detach().requires_grad_()
        weight = data.weight / data.weight.sum(-1, keepdim=True).clamp(min=1) / len(data.weight)
        flat = Batch(*(part.flatten(0, 1) for part in (*data[:3], weight)))
        chunks = [Batch(*parts) for parts in zip(*(part.split(CHUNK) for part in flat), strict=True)]
        tilt = curvature = value = torch.zeros((), dtype=x.dtype, device=x.device)
        with torch.no_grad():
            for chunk in chunks:
                q, h = self.shares(chunk), sigmoid(self.output(x, chunk.x))
                tilt = tilt + (chunk.weight * self.slope(h, chunk)).sum()
                curvature = curvature + (chunk.weight * q * (1 - q)).sum()
            best = (tilt / curvature.clamp(min=1e-12)).reshape(1)
        gradient = torch.zeros_like(x)
        for chunk in chunks:  # in chunks to bound the memory of activations
            part = (chunk.weight * self.errors(x, best, chunk)).sum()
            value, gradient = value + part.detach(), gradient + torch.autograd.grad(part, x)[0]
        return {"loss": float(value), "stationarity": float(gradient.norm())}


def auroc(module: nn.Module, p: Tensor) -> Problem:
    """Return the problem of ranking positives above negatives by a module's outputs ``(B, 1)``.

    Parameters
    ----------
    module : nn.Module
        The model; the score is the sigmoid of its output.
    p : Tensor
        Share of positives: one number, or one per client, ``(C,)``, with the client in `Batch.group`.
    """
    ravel = Ravel(module)
    surrogate = Surrogate(ravel, p)
    return Problem(
        name="auroc",
        kind="minimax",
        init=lambda generator: {"x": torch.cat([ravel.init(generator), torch.zeros(2)]), "y": torch.zeros(1)},
        loss=surrogate.loss,
        # The output itself, because its sigmoid rounds to ties far from zero.
        predict=surrogate.output,
        measure=surrogate.measure,
        module=module,
        rebuild=lambda smaller: auroc(smaller, p),
        dense=models.dense(module),
        per_sample=p.ndim == 0,
        constants=tuple(p.flatten().tolist()),
    )


@problem_type("auroc", "minimax", 4, "the area under the ROC curve is maximized, two classes", Settings)
def _build(setting: Setting) -> tuple[Problem, Federation]:
    assert setting.federation is not None
    federation = setting.federation
    if len(federation.classes) != 2:
        raise UserError(
            f"problem auroc: needs two classes, the data have {len(federation.classes)}; "
            "write binary: halves in the section data to make two of them"
        )
    module = setting.net(1)
    train = federation.splits["train"]
    positive = federation.pool.y[train.clamp(min=0)] * (train >= 0)
    shares = positive.sum(-1).double() / federation.counts()
    if not setting.settings.own_p:
        return auroc(module, shares.mean()), replace(federation, public=(*federation.public, PUBLIC))
    owner = torch.zeros_like(federation.pool.group)
    for number, index in enumerate(train):
        owner[index[index >= 0]] = number
    return auroc(module, shares), replace(federation, pool=federation.pool._replace(group=owner), groups=())
