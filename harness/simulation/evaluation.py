"""Apply what has been learned to the clients' test data."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from datasets.federation import Batch
from harness.core.clients import Clients
from harness.core.execution.batches import Batches
from harness.core.execution.vectorize import Rows
from harness.core.problem import Problem
from harness.core.registry import Incompatible
from harness.core.wire.cost import Cost
from harness.metrics import ELSEWHERE, Predictions, consensus_distance, evaluate
from harness.simulation.build import Setup

CHUNK = 4096  # samples in one forward pass of a single model


def measure(setup: Setup, state: Any, round: int) -> tuple[dict[str, float | None], Predictions | None]:
    """Evaluate a state, of which ``round`` rounds are done; after the last, on training data with groups too.

    Returns
    -------
    dict
        Every metric; None where it does not apply.
    Predictions or None
        What they were computed from; None for problems that predict nothing.
    """
    figures: dict[str, float | None] = {}
    if setup.problem.measure is not None:
        data = setup.federation.pool.at(setup.federation.splits["train"])
        found = setup.problem.measure(average(state), data)
        figures |= {name: value if math.isfinite(value) else None for name, value in found.items()}
    if setup.algorithm.meta.gossip:
        figures["consensus"] = consensus_distance(state.x)
    if setup.problem.predict is None:
        return figures, None
    model, clients = _personal(setup, state, round), setup.federation.clients
    if setup.problem.kind == "bilevel":
        figures["outer_loss"] = _outer_loss(setup, state)
    predictions = predict(setup, model)
    last = round == setup.spec.rounds and bool(setup.federation.groups)
    for split, names in ELSEWHERE.items():
        if split in setup.federation.splits and (split != "train" or last):
            found = evaluate(predict(setup, model, split), clients)
            figures |= {f"{split}_{name}": found[name] for name in names}
    return {**evaluate(predictions, clients), **figures}, predictions


def _outer_loss(setup: Setup, state: Any) -> float | None:
    """Return the mean over clients of the outer objective at their own y, on all their validation samples."""
    batch = setup.federation.pool.at(setup.federation.splits["validation"])
    rows = state.x.expand(setup.federation.clients, -1), state.y
    with torch.no_grad():
        value = float(setup.rows.map(setup.problem.loss, 1, *rows, batch).mean())
    return value if math.isfinite(value) else None


class Home(Clients):
    """The clients after a round, who may go on training for themselves before they are evaluated."""

    def batches(self, *arguments: Any, **options: Any) -> Batches:
        """Draw batches, which records that are protected are not in."""
        if self._records is not None:
            raise Incompatible(
                "record-level privacy: the algorithm goes on training for an evaluation, on data without noise"
            )
        return super().batches(*arguments, **options)


def _personal(setup: Setup, state: Any, round: int) -> Any:
    """Return what the clients use, after what they still do at home with their own training data."""
    home = Home(
        setup.training,
        setup.problem,
        setup.rows,
        seeds=(setup.spec.seed,),
        round=round,
        ids=torch.arange(setup.training.clients),
        cost=Cost(),
        privacy=setup.privacy,
    )
    return setup.algorithm.at(round).personal(state, home)


def average(state: Any) -> dict[str, Tensor]:
    """Return the state's x and y, averaged over clients where each has its own."""
    found = {name: getattr(state, name) for name in ("x", "y") if hasattr(state, name)}
    return {name: value if value.ndim == 1 else value.mean(0) for name, value in found.items()}


def solution(state: Any, *, personal: bool) -> dict[str, list[Any]] | None:
    """Return the final x and y, each if it is small (at most 100 variables); rows only where clients differ.

    What clients keep for themselves only if ``personal``: it has not gone through the channel.
    """
    found = {name: getattr(state, name).detach().cpu() for name in ("x", "y") if hasattr(state, name)}
    found = {k: v for k, v in found.items() if (personal or v.ndim == 1) and v.shape[-1] <= 100}
    if not found:
        return None
    agree = {name: v.ndim > 1 and bool((v - v[:1]).abs().max() <= 1e-12) for name, v in found.items()}
    return {name: (value[0] if agree[name] else value).tolist() for name, value in found.items()}


@torch.no_grad()
def predict(setup: Setup, model: Any, split: str = "test") -> Predictions:
    """Apply one model, one model per client, or a vertical pair (server, parties) to all data of a split."""
    federation, problem = setup.federation, setup.problem
    index = federation.splits[split]
    if problem.kind == "vertical":
        owner, place, batch = _samples(federation.pool, index[:1])
    else:
        owner, place, batch = (test_samples if split == "test" else _samples)(federation.pool, index)
    version = batch.x._version
    if problem.kind == "vertical":
        logits = _vertical(problem, setup.rows, model, federation.pool.at(index[:, place]))
    elif model.ndim == 1:
        assert problem.predict is not None
        logits = torch.cat([problem.predict(model, x) for x in batch.x.split(CHUNK)])
    else:
        padded = federation.pool.at(index)
        assert problem.predict is not None
        logits = setup.rows.map(problem.predict, 1, model, padded.x)[owner, place]
    logits = logits.double()
    if batch.x._version != version:  # by a network that works on its input in place
        test_samples.cache_clear()
    ranks = logits.ndim == 1
    score = _array(logits if ranks else logits.softmax(-1))
    return Predictions(
        client=_array(owner),
        y_true=_array(batch.y),
        score=score,
        y_pred=None if ranks else np.argmax(score, axis=-1),
        classes=federation.classes,
        groups=federation.groups,
        group=_array(batch.group) if federation.groups else None,
        loss=None if ranks else _array(functional.cross_entropy(logits, batch.y, reduction="none")),
    )


def _samples(pool: Batch, index: Tensor) -> tuple[Tensor, Tensor, Batch]:
    """Return whose the samples are, where they stand in the index, and themselves, ``(n, ...)``."""
    owner, place = torch.nonzero(index >= 0, as_tuple=True)
    return owner, place, pool.at(index[owner, place])


# Every evaluation asks for them, and runs of a seed one after the other. Whoever runs them forgets them at the end.
test_samples = lru_cache(maxsize=1)(_samples)


def _array(values: Tensor) -> NDArray[Any]:
    """Return numbers as metrics get them: not to be changed, as other evaluations get the same."""
    array = values.cpu().numpy()
    array.flags.writeable = False
    return array


def _vertical(problem: Problem, rows: Rows, model: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
    assert problem.embed is not None and problem.predict is not None
    x, y = model
    scores: Tensor = problem.predict(x, rows.map(problem.embed, 1, y, batch))
    return scores
