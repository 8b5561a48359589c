"""Metric definitions, per-group rates and the consensus distance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.metrics.predictions import Predictions, drop_nan
from harness.metrics.ranking import Floats, Ranking, hit_rates, ranking
from harness.metrics.registry import metric

if TYPE_CHECKING:
    from torch import Tensor


LEAST = 10  # test samples of a client that is compared with others
BINS = 15  # of confidence
SHARE = (0.0, 1.0)


def _positive_rates(p: Predictions, label: int | None = None) -> Floats | None:
    """Return P(y_pred = 1 | group[, y_true = label]), ``(G,)``; None without groups or beyond two classes."""
    if p.group is None or not p.binary:
        return None
    counts = p.outcomes.sum(1) if label is None else p.outcomes[:, label]
    return hit_rates(counts[:, 1], counts.sum(1))


def _group_accuracies(p: Predictions) -> Floats:
    return hit_rates(p.outcomes.trace(axis1=1, axis2=2), p.outcomes.sum((1, 2)))


def _gap(rates: Floats | None) -> float | None:
    """Return the largest minus the smallest rate; None with fewer than two groups to compare."""
    if rates is None or len(present := drop_nan(rates)) < 2:
        return None
    return float(present.max() - present.min())


def _mean(values: Floats) -> float | None:
    """Return the mean of the values that are not NaN; None without any."""
    present = drop_nan(values)
    return float(present.mean()) if len(present) else None


@metric("max", ".4f", "share", within=SHARE)
def accuracy(p: Predictions) -> float | None:
    """Accuracy over the pooled test samples of all clients."""
    return float(p.hit.mean())


@metric("max", ".4f", "share", within=SHARE)
def client_accuracy(p: Predictions) -> float | None:
    """Mean over clients of the accuracy on the client's own test samples."""
    return _mean(p.accuracies)


@metric("max", ".4f", "share", within=SHARE)
def balanced_accuracy(p: Predictions) -> float | None:
    """Mean recall over the classes that occur."""
    return _mean(p.recalls)


@metric("max", ".4f", "share", within=SHARE)
def worst_client(p: Predictions) -> float | None:
    """Lowest accuracy of a client on its own test samples."""
    return float(p.accuracies.min())


@metric("min", ".4f", "share", within=(0.0, 0.5))
def client_std(p: Predictions) -> float | None:
    """Spread over clients: population standard deviation of their accuracies."""
    return float(p.accuracies.std()) if len(p.accuracies) >= 2 else None


@metric("max", ".4f", "share", within=SHARE)
def worst_class(p: Predictions) -> float | None:
    """Lowest recall of a class that occurs."""
    return float(p.recalls.min())


@metric("max", ".4f", "share", within=SHARE)
def worst_group(p: Predictions) -> float | None:
    """Lowest accuracy of a sensitive group."""
    if p.group is None:
        return None
    accuracies = drop_nan(_group_accuracies(p))
    return float(accuracies.min()) if len(accuracies) >= 2 else None


@metric("min", ".4f", "share", within=SHARE)
def eqopp(p: Predictions) -> float | None:
    """Equal-opportunity gap: largest minus smallest true positive rate of the groups that have positives."""
    return _gap(_positive_rates(p, 1))


@metric("min", ".4f", "share", within=SHARE)
def eqodds(p: Predictions) -> float | None:
    """Equalized-odds gap: the larger of the gaps between groups in true and in false positive rate."""
    tpr_gap, fpr_gap = _gap(_positive_rates(p, 1)), _gap(_positive_rates(p, 0))
    return None if tpr_gap is None or fpr_gap is None else max(tpr_gap, fpr_gap)


@metric("min", ".4f", "share", within=SHARE)
def dp_gap(p: Predictions) -> float | None:
    """Demographic-parity gap: largest minus smallest share of a group that is predicted positive."""
    return _gap(_positive_rates(p))


@metric("max", ".4f", "probability", ranks=True, within=SHARE)
def auroc(p: Predictions) -> float | None:
    """Area under the ROC curve, pooled; beyond two classes the mean of each class against the rest.

    The rank statistic P(score of a positive > of a negative) + P(equal) / 2; the mean is over the classes
    that occur. None if a score is NaN, which has no rank.
    """
    rankings = (
        [p.ranking] if p.binary else [ranking(p.score[:, k], p.y_true == k) for k in range(len(p.classes))]
    )
    values = [class_ranking.auroc() for class_ranking in rankings if class_ranking is not None]
    return _mean(np.concatenate(values)) if len(values) == len(rankings) else None


@metric("max", ".4f", "probability", ranks=True, within=SHARE)
def auroc_clients(p: Predictions) -> float | None:
    """Mean AUROC over the clients whose test samples have both classes (two-class tasks)."""
    return _mean(p.client_aurocs) if p.binary and p.client_aurocs is not None else None


@metric("max", ".0f", "clients", ranks=True)
def auroc_clients_n(p: Predictions) -> float | None:
    """Count the clients that have both classes and so enter auroc_clients; 0 if none has."""
    if not p.binary:
        return None
    return float(((p.positives > 0) & (p.positives < p.sizes)).sum())


@metric("max", ".4f", "share", within=SHARE)
def worst_client_10(p: Predictions) -> float | None:
    """Lowest accuracy of a client with at least 10 test samples of its own."""
    large = p.sizes[p.sizes > 0] >= LEAST
    return float(p.accuracies[large].min()) if large.any() else None


@metric("max", ".4f", "probability", ranks=True, within=SHARE)
def worst_auroc(p: Predictions) -> float | None:
    """Lowest AUROC of a client with at least 5 test samples of both classes (two-class tasks)."""
    if not p.binary or p.client_aurocs is None:
        return None
    eligible = p.client_aurocs[np.minimum(p.positives, p.sizes - p.positives) >= LEAST // 2]
    return float(eligible.min()) if len(eligible) else None


@metric("max", ".4f", "share", ranks=True, within=SHARE)
def sensitivity_95(p: Predictions) -> float | None:
    """Share of positives above the lowest threshold with a specificity of at least 0.95 (two-class tasks).

    The threshold is chosen on the test samples. Samples at the threshold count as negative.
    """
    return _sensitivity(p.ranking) if p.binary and p.ranking is not None else None


def _sensitivity(ranked: Ranking) -> float | None:
    """Return what `sensitivity_95` is of ranked samples; None without both classes."""
    score, positive = ranked.score, ranked.positive
    negatives = np.flatnonzero(~positive)
    positives = len(positive) - len(negatives)
    if not (len(negatives) and positives):
        return None
    above = len(negatives) - -(-19 * len(negatives) // 20)  # negatives that may be above
    over = np.searchsorted(score, score[negatives[-1 - above]], "right")
    return float(np.count_nonzero(positive[over:]) / positives)


@metric("min", ".4f", "share", within=SHARE)
def ece(p: Predictions) -> float | None:
    """Calibration error: mean distance of confidence and accuracy in 15 bins of equal width.

    The confidence is the score of the predicted class; None if scores are no probabilities (Guo et al. 2017,
    arXiv 1706.04599, equation 3).
    """
    score = p.positive_score if p.binary else p.score
    if not (score.min() >= 0 and score.max() <= 1 and (p.binary or np.allclose(score.sum(1), 1, atol=1e-3))):
        return None
    # Of two classes the distance from the other one: the same number as a choice by class, without a branch.
    every = np.arange(len(score))
    confidence = np.abs(score - (1 - p.decided)) if p.binary else score[every, p.decided]
    place = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(place, weights=confidence - p.hit, minlength=BINS)
    return float(np.abs(gaps).sum() / len(confidence))


@metric("min", ".4f", "nats for cross-entropy, else the unit of the problem's loss", ranks=True, of="both")
def loss(p: Predictions) -> float | None:
    """Mean loss per test sample, pooled."""
    return None if p.loss is None else float(p.loss.mean())


@metric("min", ".4g", "unit of the label", of="numbers")
def mae(p: Predictions) -> float | None:
    """Mean absolute error of predicted numbers, pooled."""
    return float(p.distance.mean())


@metric("min", ".4g", "unit of the label", of="numbers")
def rmse(p: Predictions) -> float | None:
    """Root mean squared error of predicted numbers, pooled."""
    return float(np.sqrt(np.square(p.distance).mean()))


@metric("max", ".4f", "share", of="numbers", within=(-math.inf, 1.0))
def r2(p: Predictions) -> float | None:
    """Coefficient of determination: 1 - squared error / squared deviation from the test samples' mean."""
    spread = np.square(p.y_true - p.y_true.mean()).sum()
    return float(1 - np.square(p.distance).sum() / spread) if spread > 0 else None


@metric("min", ".4g", "unit of the label", of="numbers")
def worst_mae(p: Predictions) -> float | None:
    """Largest mean absolute error of a client with at least 10 test samples of its own."""
    large = p.sizes >= LEAST
    errors = np.bincount(p.client, weights=p.distance)[large] / p.sizes[large]
    return float(errors.max()) if len(errors) else None


@metric("min", ".4g", "unit of the label", of="numbers")
def mae_gap(p: Predictions) -> float | None:
    """Largest minus smallest mean absolute error of the sensitive groups."""
    if p.group is None:
        return None
    sizes = np.bincount(p.group, minlength=len(p.groups))
    return _gap(hit_rates(np.bincount(p.group, weights=p.distance, minlength=len(p.groups)), sizes))


def by_group(predictions: Predictions) -> list[dict[str, str | int | float | None]]:
    """Return size and rates of every sensitive group, as gaps of tiny groups are noise.

    Parameters
    ----------
    predictions : Predictions
        Predictions for the test samples of all clients.

    Returns
    -------
    list[dict]
        One row per group in the order of ``predictions.groups``, including groups without samples; empty without
        a sensitive attribute or without predicted labels. Keys ``group, n, positives, accuracy, tpr, fpr,
        positive_rate``. A rate without samples is None. With more than two classes, `positives` and the last
        three rates are None.
    """
    p = predictions
    if p.group is None or p.y_pred is None:
        return []
    size = len(p.groups)
    rates = {
        "accuracy": _group_accuracies(p),
        "tpr": _positive_rates(p, 1),
        "fpr": _positive_rates(p, 0),
        "positive_rate": _positive_rates(p),
    }
    positives = p.outcomes[:, 1].sum(1).tolist() if p.binary else [None] * size
    rows: list[dict[str, str | int | float | None]] = []
    for g, (name, n) in enumerate(zip(p.groups, p.outcomes.sum((1, 2)).tolist(), strict=True)):
        row: dict[str, str | int | float | None] = {"group": name, "n": n, "positives": positives[g]}
        for rate, values in rates.items():
            row[rate] = None if values is None or np.isnan(values[g]) else float(values[g])
        rows.append(row)
    return rows


def by_client(predictions: Predictions, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the metrics of every client on its own test samples.

    Parameters
    ----------
    predictions : Predictions
        Predictions for the test samples of all clients.
    names : sequence of str
        Names of all clients, in their order.

    Returns
    -------
    dict[str, list]
        Columns with an entry per client that has test samples: ``client``; ``n`` and for two classes ``positives``;
        ``accuracy``; for two classes ``auroc`` and ``sensitivity_95``, with the client's own threshold, None
        without both; for numbers ``mae``; ``loss``. Columns that do not apply are absent.
    """
    p, size = predictions, len(names)
    n = np.bincount(p.client, minlength=size)
    columns: dict[str, NDArray[Any]] = {"n": n}
    if p.binary:
        columns["positives"] = np.bincount(p.client[p.y_true == 1], minlength=size)
    if p.y_pred is not None:
        columns["accuracy"] = hit_rates(np.bincount(p.client[p.hit], minlength=size), n)
    if p.binary and p.client_aurocs is not None:
        columns["auroc"] = np.full(size, np.nan)
        columns["auroc"][: len(p.client_aurocs)] = p.client_aurocs
        columns["sensitivity_95"] = np.array([_sensitivity_of(p, client) for client in range(size)])
    if not p.classes:
        columns["mae"] = hit_rates(np.bincount(p.client, weights=p.distance, minlength=size), n)
    if p.loss is not None:
        columns["loss"] = hit_rates(np.bincount(p.client, weights=p.loss, minlength=size), n)
    present = np.flatnonzero(n)
    rows = {name: values[present].tolist() for name, values in columns.items()}
    finite = {
        name: [value if math.isfinite(value) else None for value in values] for name, values in rows.items()
    }
    return {"client": [names[number] for number in present.tolist()], **finite}


def _sensitivity_of(p: Predictions, client: int) -> float:
    """Return the sensitivity of a client's own samples; NaN without both classes."""
    own = p.client == client
    ranked = ranking(p.positive_score[own], p.y_true[own] == 1)
    found = None if ranked is None else _sensitivity(ranked)
    return math.nan if found is None else found


def consensus_distance(rows: Tensor) -> float:
    """Return the mean over clients of ``||x_i - xbar||^2``, where ``xbar`` is the mean of their models.

    Parameters
    ----------
    rows : Tensor
        One model per client, ``(C, P)``; the distance is computed in float64.

    Returns
    -------
    float
        In squared units of the parameters; zero exactly at consensus.

    Raises
    ------
    ValueError
        If `rows` is not ``(C, P)`` with at least one row.
    """
    if rows.ndim != 2 or not len(rows):
        raise ValueError(f"consensus distance needs rows (C, P) with C >= 1, got {tuple(rows.shape)}")
    x = rows.detach().double()
    return float((x - x.mean(0)).square().sum(-1).mean())
