"""Evaluation of a run's state on the clients' data."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from datasets.federation import Batch, Federation
from harness.core.clients.batches import Batches, BatchPlan
from harness.core.clients.clients import Clients
from harness.core.clients.row_table import RowTable
from harness.core.errors import Incompatible
from harness.core.execution.vectorize import ClientExecutor
from harness.core.problem import Problem
from harness.metrics import METRICS, PREFIXES, Predictions, consensus_distance, evaluate

CHUNK = 4096  # samples in one forward pass of a single model
WITH_GRADIENTS = 512  # samples in one pass that keeps its activations
Unprotected = Literal["all", "needed", "none"]


def measure(
    problem: Problem,
    federation: Federation,
    executor: ClientExecutor,
    state: Any,
    model: Any,
    *,
    gossip: bool = False,
    final: bool = False,
    unprotected: Unprotected = "all",
) -> tuple[dict[str, float | None], Predictions | None]:
    """Evaluate the state of a single run.

    Parameters
    ----------
    problem, federation, executor : Problem, Federation, ClientExecutor
        The problem, the data, and how one-client functions are run.
    state : NamedTuple of tensors
        State of the algorithm.
    model : Tensor, pair of tensors or None
        The predictor, see `predict`; None for problems without predictions.
    gossip : bool
        Whether the run has no server; adds the consensus distance.
    final : bool
        Also evaluate on training data if there are sensitive groups, and every node's own model in gossip.
    unprotected : {"all", "needed", "none"}
        Which values of other samples than test samples, which no noise protects: all; those on samples that are
        held out to choose settings, and of problems without predictions; or none.

    Returns
    -------
    dict
        Every metric; None where it does not apply.
    Predictions or None
        The test predictions behind the metrics.
    """
    measured: dict[str, float | None] = {}
    everything = unprotected == "all"
    if problem.measure is not None and (everything or (unprotected == "needed" and problem.predict is None)):
        measured |= _measured(problem.measure, federation, state)
    if gossip:
        measured["consensus"] = consensus_distance(state.x)
    if problem.predict is None:
        return measured, None
    if problem.kind == "bilevel" and everything:
        measured["outer_loss"] = outer_loss(problem, federation, executor, state)
    if problem.kind == "vertical" and everything:
        measured["stationarity"] = joint_gradient_norm(problem, federation, model)
    predictions = predict(problem, federation, executor, model)
    if gossip and final and predictions.y_pred is not None:
        measured |= _of_nodes(problem, federation, executor, state.x)
    for split in PREFIXES:
        wanted = everything and final and federation.groups if split == "train" else unprotected != "none"
        if wanted and split in federation.splits:
            values = evaluate(
                predict(problem, federation, executor, model, split), federation.clients, PREFIXES[split]
            )
            measured |= {f"{split}_{name}": values[name] for name in PREFIXES[split] if name in values}
    return {**evaluate(predictions, federation.clients), **measured}, predictions


def _measured(
    function: Callable[..., dict[str, float]], federation: Federation, state: Any
) -> dict[str, float | None]:
    """Return the problem's own values of the mean variables, on all training data."""
    values = function(average(state), federation.pool.at(federation.splits["train"]))
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _of_nodes(
    problem: Problem, federation: Federation, executor: ClientExecutor, x: Tensor
) -> dict[str, float | None]:
    """Return mean and minimum over nodes of the values of a node's model ``(total, P)`` on all test samples."""
    measured: dict[str, float | None] = {}
    each = [predict(problem, federation, executor, model) for model in x]
    for name in PREFIXES["node"]:
        values = [METRICS[name].fn(predictions) for predictions in each]
        defined = [value for value in values if value is not None]
        measured[f"node_{name}"] = sum(defined) / len(defined) if defined else None
        measured[f"worst_node_{name}"] = min(defined, default=None)
    return measured


def outer_loss(
    problem: Problem, federation: Federation, executor: ClientExecutor, state: Any
) -> float | None:
    """Return the mean over clients of the outer objective at their y, on all validation samples."""
    batch = federation.pool.at(federation.splits["validation"])
    y = state.y.dense() if isinstance(state.y, RowTable) else state.y
    points = state.x.expand(federation.clients, -1), y
    with torch.no_grad():
        value = float(executor.map(problem.loss, 1, *points, batch).mean())
    return value if math.isfinite(value) else None


def joint_gradient_norm(
    problem: Problem, federation: Federation, model: tuple[Tensor, Tensor]
) -> float | None:
    """Return the norm of the gradient of the whole training loss by server ``(P,)`` and parties ``(K, Q)``.

    Nothing is pruned or stale in it. Units that a pruned party lacks are zero and have no gradient.
    """
    assert problem.embed is not None
    index = federation.splits["train"]
    x, y = (variable.detach().requires_grad_() for variable in model)
    gradient = torch.cat([torch.zeros_like(variable).flatten() for variable in (x, y)])
    for places in index.split(WITH_GRADIENTS, dim=-1):
        batch = federation.pool.at(places)
        parties = [Batch(*(column[k] for column in batch)) for k in range(len(y))]
        embeddings = torch.stack([problem.embed(y[k], party) for k, party in enumerate(parties)])
        loss = problem.loss(x, embeddings, parties[0]) * parties[0].weight.sum()
        gradient += torch.cat([variable.flatten() for variable in torch.autograd.grad(loss, (x, y))])
    norm = float(gradient.norm() / (index[0] >= 0).sum())
    return norm if math.isfinite(norm) else None


class EvaluatedClients(Clients):
    """Clients that may train their models further before an evaluation."""

    def _drawn(self, plan: BatchPlan) -> Batches:
        """Draw batches; refused under record-level privacy."""
        if self._records is not None:
            raise Incompatible("record-level privacy: the algorithm trains for an evaluation without noise")
        return super()._drawn(plan)


def average(state: Any) -> dict[str, Tensor]:
    """Return the state's x and y, averaged over clients where each has its own."""
    variables = {name: getattr(state, name) for name in ("x", "y") if hasattr(state, name)}
    return {name: value if value.ndim == 1 else value.mean(0) for name, value in variables.items()}


def solution(state: Any, *, personal: bool) -> dict[str, list[Any]] | None:
    """Return the final x and y if they have at most 100 variables; one row per client only if clients differ.

    Per-client values, which have not passed the channel, are included only if ``personal``.
    """
    variables = {name: getattr(state, name).detach().cpu() for name in ("x", "y") if hasattr(state, name)}
    variables = {k: v for k, v in variables.items() if (personal or v.ndim == 1) and v.shape[-1] <= 100}
    if not variables:
        return None
    agree = {name: v.ndim > 1 and bool((v - v[:1]).abs().max() <= 1e-12) for name, v in variables.items()}
    return {name: (value[0] if agree[name] else value).tolist() for name, value in variables.items()}


class Applied(NamedTuple):
    """Outputs of a model on samples, and the client of each."""

    outputs: Tensor
    owner: Tensor
    batch: Batch


def predict(
    problem: Problem, federation: Federation, executor: ClientExecutor, model: Any, split: str = "test"
) -> Predictions:
    """Return the predictions for all samples of a split; arguments as of `applied`."""
    return predicted(federation, applied(problem, federation, executor, model, split))


@torch.no_grad()
def applied(
    problem: Problem, federation: Federation, executor: ClientExecutor, model: Any, split: str
) -> Applied:
    """Apply one model, one model per client, or a vertical pair (server, parties) to all samples of a split."""
    index = federation.splits[split]
    if problem.kind == "vertical":
        owner, place, batch = _samples(federation.pool, index[:1])
    else:
        owner, place, batch = (test_samples if split == "test" else _samples)(federation.pool, index)
    version = batch.x._version
    if problem.kind == "vertical":
        logits = _vertical(problem, executor, model, federation.pool.at(index[:, place]))
    elif model.ndim == 1:
        assert problem.predict is not None
        logits = torch.cat([problem.predict(model, x) for x in batch.x.split(CHUNK)])
    else:
        padded = federation.pool.at(index)
        assert problem.predict is not None
        logits = executor.map(problem.predict, 1, model, padded.x)[owner, place]
    if batch.x._version != version:  # a network changed its input in place
        test_samples.cache_clear()
    return Applied(logits, owner, batch)


def predicted(federation: Federation, result: Applied) -> Predictions:
    """Return the predictions of a model with these outputs.

    Predicted numbers are in the unit of the label; their losses are of standardized numbers.
    """
    outputs, batch = result.outputs.double(), result.batch
    loss, decisions = None, None
    if not federation.classes:
        outputs, label = outputs.squeeze(-1), batch.y.double()
        score, truth = outputs * federation.std + federation.mean, label * federation.std + federation.mean
        loss = _array((outputs - label).square() / 2)
    elif outputs.ndim == 1:  # they only rank
        score, truth = outputs, batch.y
    else:
        score, truth = outputs.softmax(-1), batch.y
        decisions = score.cpu().numpy().argmax(-1)
        loss = _array(functional.cross_entropy(outputs, batch.y, reduction="none"))
    return Predictions(
        client=_array(result.owner),
        y_true=_array(truth),
        score=_array(score),
        y_pred=decisions,
        classes=federation.classes,
        groups=federation.groups,
        group=_array(batch.group) if federation.groups else None,
        loss=loss,
    )


def _samples(pool: Batch, index: Tensor) -> tuple[Tensor, Tensor, Batch]:
    """Return the client and the position in the index of every sample, and the samples, ``(n, ...)``."""
    owner, place = torch.nonzero(index >= 0, as_tuple=True)
    return owner, place, pool.at(index[owner, place])


#: Those of the last split; evaluations of a run share them, and so do runs of one seed. The executor clears them.
test_samples = lru_cache(maxsize=1)(_samples)


def _array(values: Tensor) -> NDArray[Any]:
    """Return a read-only array, as evaluations share it."""
    array = values.cpu().numpy()
    array.flags.writeable = False
    return array


def _vertical(
    problem: Problem, executor: ClientExecutor, model: tuple[Tensor, Tensor], batch: Batch
) -> Tensor:
    assert problem.embed is not None and problem.predict is not None
    x, y = model
    scores: Tensor = problem.predict(x, executor.map(problem.embed, 1, y, batch))
    return scores
