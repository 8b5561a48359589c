"""Vertical classification: parties hold different columns of the same people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from datasets.federation import Batch, Federation
from harness import models
from harness.core.errors import UserError
from harness.core.execution.exact.row_product import with_plain_layers
from harness.core.flat_model import Ravel
from harness.core.losses import weighted_mean
from harness.core.problem import Problem, identity
from harness.problems.base import Setting, problem_type

Activation = Literal["before", "after"]


@dataclass(frozen=True)
class Settings:
    """Settings of the problem.

    Attributes
    ----------
    embedding : int
        Length d of a party's embedding.
    head : tuple of int
        Widths of the hidden layers of the server's network; empty: linear.
    activation : {"before", "after"}
        Whether the ReLU of embeddings comes before they are sent, at the parties, or after, at the server. Without
        compression and noise both compute the same. Pruning of messages drops the zeros of a ReLU first.
    """

    embedding: int = 16
    head: tuple[int, ...] = ()
    activation: Activation = "before"


def split_classifier(party: nn.Module, head: nn.Module, activation: Activation = "before") -> Problem:
    """Return the problem of a split network: y computes a party's embeddings, x the scores from all embeddings.

    Parameters
    ----------
    party : nn.Module
        Network of one party, ``(B, ...)`` to ``(B, d)``. It may be pruned, except for its outputs.
    head : nn.Module
        Network of the ReLU of all concatenated embeddings, ``(B, K d)`` to ``(B, classes)``.
    activation : {"before", "after"}
        Whether this ReLU is the last layer of ``embed`` or the first of ``predict``.
    """
    lower, upper = Ravel(party), Ravel(head)
    ends, begins = (functional.relu, identity) if activation == "before" else (identity, functional.relu)

    def embed(y: Tensor, batch: Batch) -> Tensor:
        return ends(lower(y, batch.x))

    def predict(x: Tensor, embeddings: Tensor) -> Tensor:
        return upper(x, begins(embeddings).movedim(-3, -2).flatten(-2))

    def loss(x: Tensor, embeddings: Tensor, batch: Batch) -> Tensor:
        errors = functional.cross_entropy(predict(x, embeddings), batch.y, reduction="none")
        return weighted_mean(errors, batch.weight)

    return Problem(
        name="vertical",
        kind="vertical",
        init=lambda generator: {"x": upper.init(generator), "y": lower.init(generator)},
        loss=loss,
        embed=embed,
        predict=predict,
        module=party,
        rebuild=lambda smaller: split_classifier(smaller, head, activation),
        dense=models.dense(party),
        constants=(),
    )


@problem_type(
    "vertical",
    "vertical",
    5,
    "classification, parties hold columns of the same people",
    Settings,
    data="vertical",
)
def _build(setting: Setting) -> tuple[Problem, Federation]:
    assert setting.federation is not None
    federation = setting.federation
    width, hidden = setting.settings.embedding, setting.settings.head
    if width < 1 or any(layer < 1 for layer in hidden):
        raise UserError(
            f"problem vertical: embedding and the widths of head must be at least 1, given {width} and {hidden}"
        )
    inputs, kind = (federation.clients * width,), "mlp" if hidden else "logistic"
    head = setting.built(kind, inputs, len(federation.classes), {"hidden": hidden} if hidden else {})
    party, server = with_plain_layers(setting.net(width)), with_plain_layers(head)
    return split_classifier(party, server, setting.settings.activation), federation
