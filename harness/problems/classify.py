"""Classification with cross-entropy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Generator, Tensor, nn

from datasets.federation import Batch, Federation
from harness import models
from harness.core.flat_model import Ravel
from harness.core.losses import cross_entropy, weighted_mean
from harness.core.problem import Problem
from harness.problems.base import PROBLEMS, ProblemType, Setting


@dataclass(frozen=True)
class Settings:
    """Classification has no settings of its own."""


def classifier(module: nn.Module) -> Problem:
    """Return the problem of fitting a module's class scores ``(B, K)`` to labels."""
    ravel = Ravel(module)

    def loss(x: Tensor, batch: Batch) -> Tensor:
        errors = cross_entropy(ravel(x, batch.x), batch.y)
        return weighted_mean(errors, batch.weight)

    problem = Problem(
        name="classify",
        kind="erm",
        init=lambda generator: {"x": ravel.init(generator)},
        loss=loss,
        predict=ravel,
        module=module,
        rebuild=classifier,
        dense=models.dense(module),
        constants=(),
    )
    if not isinstance(module, models.Net) or not any(True for _ in module.extractor.parameters()):
        return problem
    cut = len(ravel.segment("extractor.*"))
    return replace(problem, cut=cut, halves=lambda latent=None: _halves(module, latent))


def _halves(net: models.Net, latent: int | None) -> Problem:
    """Return the problem with extractor x and head y; start values are those of the joint net."""
    net = net if latent is None else models.encoder(net, latent)
    joint = Ravel(net)
    cut = len(joint.segment("extractor.*"))

    def init(generator: Generator) -> dict[str, Tensor]:
        x = joint.init(generator)
        return {"x": x[:cut], "y": x[cut:]}

    return _split(net.extractor, net.head, init, joint)


def _split(
    extractor: nn.Module, linear: nn.Linear, init: Callable[[Generator], dict[str, Tensor]], joint: Ravel
) -> Problem:
    """Return the problem of an extractor and a head.

    The extractor may be pruned, except for its outputs, so that features stay comparable.
    """
    features, score = Ravel(extractor), Ravel(linear)

    def head(v: Tensor, batch: Batch) -> Tensor:
        return weighted_mean(cross_entropy(score(v, batch.x), batch.y), batch.weight)

    return Problem(
        name="classify",
        kind="erm",
        init=init,
        loss=lambda u, v, batch: head(v, batch._replace(x=features(u, batch.x))),
        predict=joint,
        module=extractor,
        rebuild=lambda smaller: _split(smaller, linear, init, joint),
        shapes=(features.shapes, score.shapes),
        dense=models.dense(extractor),
        cut=features.size,
        classes=linear.out_features,
        width=linear.in_features,
        features=features,
        scores=score,
        head=head,
        constants=(),
    )


def _build(setting: Setting) -> tuple[Problem, Federation]:
    assert setting.federation is not None
    return classifier(setting.net(len(setting.federation.classes))), setting.federation


PROBLEMS.add(
    "classify",
    ProblemType("classify", "erm", 4, "classification with cross-entropy", Settings, _build),
)
