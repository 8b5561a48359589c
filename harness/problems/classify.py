"""Classification with cross-entropy, and what fitting models to labels has in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import Generator, Tensor, nn

from datasets.federation import Batch, Federation
from harness import models
from harness.core.errors import Incompatible
from harness.core.flat_model import Ravel
from harness.core.losses import cross_entropy, weighted_mean
from harness.core.problem import Problem, share_parameters
from harness.problems.base import Setting, problem_type


@dataclass(frozen=True)
class Settings:
    """Classification and regression have no settings of their own."""


Errors = Callable[[Tensor, Tensor], Tensor]  # outputs (B, K) and labels (B,) -> each sample's error (B,)


def classifier(module: nn.Module) -> Problem:
    """Return the problem of fitting a module's class scores ``(B, K)`` to labels."""
    return fitting("classify", cross_entropy, module)


def fitting(name: str, errors: Errors, module: nn.Module) -> Problem:
    """Return the problem of minimizing the mean error of a module's outputs."""
    ravel = Ravel(module)

    def loss(x: Tensor, batch: Batch) -> Tensor:
        return weighted_mean(errors(ravel(x, batch.x), batch.y), batch.weight)

    problem = Problem(
        name=name,
        kind="erm",
        init=lambda generator: {"x": ravel.init(generator)},
        loss=loss,
        predict=ravel,
        module=module,
        rebuild=partial(fitting, name, errors),
        dense=models.dense(module),
        constants=(),
    )
    if shared := models.factors_to_share(module):
        return replace(problem, halves=partial(_by_factors, problem, shared))
    if not isinstance(module, models.Net) or not isinstance(module.head, nn.Linear):
        return problem
    if not (_trained(module.extractor) and _trained(module.head)):
        return problem
    cut = len(ravel.segment("extractor.*"))
    return replace(problem, cut=cut, halves=lambda latent=None: _halves(name, errors, module, latent))


def _by_factors(problem: Problem, shared: tuple[str, ...], latent: int | None = None) -> Problem:
    """Return the problem in which x are the factors that clients share, without features between x and y."""
    if latent is not None:
        raise Incompatible("the algorithm needs a Gaussian encoder, which an adapter has not; use kind lora")
    return share_parameters(problem, shared)


def _trained(module: nn.Module) -> bool:
    """Return whether a module has parameters that are trained."""
    return any(True for _ in module.parameters())


def _halves(name: str, errors: Errors, net: models.Net, latent: int | None) -> Problem:
    """Return the problem with extractor x and head y; start values are those of the joint net."""
    net = net if latent is None else models.encoder(net, latent)
    joint = Ravel(net)
    cut = len(joint.segment("extractor.*"))

    def init(generator: Generator) -> dict[str, Tensor]:
        x = joint.init(generator)
        return {"x": x[:cut], "y": x[cut:]}

    return _split(name, errors, net.extractor, net.head, init, joint)


def _split(
    name: str,
    errors: Errors,
    extractor: nn.Module,
    linear: nn.Linear,
    init: Callable[[Generator], dict[str, Tensor]],
    joint: Ravel,
) -> Problem:
    """Return the problem of an extractor and a head.

    The extractor may be pruned, except for its outputs, so that features stay comparable.
    """
    features, score = Ravel(extractor), Ravel(linear)

    def head(v: Tensor, batch: Batch) -> Tensor:
        return weighted_mean(errors(score(v, batch.x), batch.y), batch.weight)

    return Problem(
        name=name,
        kind="erm",
        init=init,
        loss=lambda u, v, batch: head(v, batch._replace(x=features(u, batch.x))),
        predict=joint,
        module=extractor,
        rebuild=lambda smaller: _split(name, errors, smaller, linear, init, joint),
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


@problem_type("classify", "erm", 4, "classification with cross-entropy", Settings)
def _build(setting: Setting) -> tuple[Problem, Federation]:
    assert setting.federation is not None
    return classifier(setting.net(len(setting.federation.classes))), setting.federation
